"""A server under a capability probe: what was asked of it, what it said, what was found."""

from __future__ import annotations

import base64
import io
import json
import uuid
from dataclasses import dataclass, field
from typing import Any, Final, cast

from osworld_rollouts.contracts.model import ModelRequest, Reply
from osworld_rollouts.serving.client import endpoint, get_json, post
from osworld_rollouts.serving.exact import ask_for_evidence
from osworld_rollouts.serving.probe_report import Finding
from osworld_rollouts.serving.reply import read_reply

WORDS: Final = 200
"""Tokens a probe's longer replies may have."""


@dataclass
class ProbedServer:
    """The server being asked, and everything found so far."""

    base_url: str
    model: str
    api_key: str | None
    timeout_s: float
    requests: int = 0
    findings: list[Finding] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    raw: list[dict[str, Any]] = field(default_factory=list)
    extras_refused: str = ""

    def find(self, name: str, ok: bool | None, detail: str, remedy: str = "", *, needed: bool = False) -> None:
        """Note a finding."""
        self.findings.append(Finding(name=name, ok=ok, detail=detail, remedy="" if ok else remedy, needed=needed))

    async def chat(self, messages: list[Any], *, max_tokens: int = 1, exact: bool = True, **fields: Any) -> Reply:
        """Send messages, asking for everything that the server did not refuse before."""
        body: dict[str, Any] = {"model": self.model, "messages": messages, "max_tokens": max_tokens, **fields}
        request = ModelRequest(api="chat_completions", body=body)
        if exact and not self.extras_refused:
            request = ask_for_evidence(request)
        return await self.send("chat_completions", dict(request.body))

    async def send(self, api: Any, body: dict[str, Any]) -> Reply:
        """Send a body. Raises ModelCallError and ReplyUnreadable."""
        self.requests += 1
        raw = await post(
            endpoint(self.base_url, api), json.dumps(body).encode(), base_url=self.base_url, api_key=self.api_key,
            timeout_s=self.timeout_s, request_id=uuid.uuid4().hex,
        )  # fmt: skip
        limit = body.get("max_tokens") or cast("dict[str, Any]", body.get("sampling_params") or {}).get("max_tokens")
        reply = read_reply(api, raw.body, max_tokens=limit)
        self.replies.append(reply)
        self.raw.append(json.loads(raw.body))
        return reply

    async def get(self, path: str) -> Any:
        """JSON behind a path at the server's root, None where there is none."""
        root = self.base_url.rstrip("/").removesuffix("/v1")
        return await get_json(f"{root}{path}", base_url=self.base_url, api_key=self.api_key)


def picture(width: int, height: int, mark: int) -> bytes:
    """A PNG of this size with stripes, different for each mark."""
    from PIL import Image, ImageDraw  # noqa: PLC0415 - worker extra

    image = Image.new("RGB", (width, height), (40 + 30 * mark % 200, 70, 110))
    draw = ImageDraw.Draw(image)
    for at in range(0, width, 40):
        draw.rectangle(
            (at, (at * 7 + mark * 90) % height, at + 20, height), fill=(at % 256, (at * 3 + mark * 50) % 256, 160)
        )
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def prompt_with(text: str, *shots: bytes) -> list[Any]:
    """One user message: the images, then the text."""
    images = [{"type": "image_url", "image_url": {"url": data_url(shot)}} for shot in shots]
    return [{"role": "user", "content": [*images, {"type": "text", "text": text}]}]


def data_url(png: bytes) -> str:
    """A PNG as a data URL."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
