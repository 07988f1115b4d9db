"""What a probe asks about tokens: how images stand in a prompt, how vision ids are spelt, how replies end."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

from osworld_rollouts.evidence.checks import image_runs
from osworld_rollouts.evidence.profile import ImageTokens, ServerProfile
from osworld_rollouts.serving.client import post
from osworld_rollouts.serving.errors import ModelCallError
from osworld_rollouts.serving.probe_server import WORDS, ProbedServer, picture, prompt_with

if TYPE_CHECKING:
    from collections.abc import Sequence

    from osworld_rollouts.contracts.model import Reply


async def ask_images(
    server: ProbedServer, profile: ServerProfile, first: Reply, shots: list[bytes], sizes: Sequence[tuple[int, int]]
) -> ServerProfile:
    """Which ids stand for an image, between which, how many for each size, and whether several images stay apart."""
    remedy = "serve a vision model whose prompt ids come with images expanded"
    one = _run(first.prompt_token_ids or ())
    if one is None:
        server.find(
            "image_expands", False, "no run of equal ids stands for the image in the prompt ids", remedy, needed=True
        )
        return profile
    token, before, after, tokens, runs = one
    server.find(
        "image_expands",
        True,
        f"{sizes[0][0]}x{sizes[0][1]}: {tokens} ids {token}, between {before} and {after}",
        needed=True,
    )
    found = [ImageTokens(width=sizes[0][0], height=sizes[0][1], tokens=tokens, runs=runs)]
    for size in sizes[1:]:
        reply = await server.chat(prompt_with("Click the button.", picture(*size, 0)))
        parts = image_runs(reply.prompt_token_ids or (), token)
        found.append(
            ImageTokens(width=size[0], height=size[1], tokens=sum(length for _, length in parts), runs=len(parts))
        )
    if len(shots) > 1:
        try:
            many = await server.chat(prompt_with("Click the button.", *shots))
            parts = image_runs(many.prompt_token_ids or (), token)
            ok = [length for _, length in parts] == [
                length for _, length in image_runs(first.prompt_token_ids or (), token)
            ] * len(shots)
            server.find("several_images", ok, f"{len(shots)} images became runs {list(parts)}", remedy, needed=True)
        except ModelCallError as error:
            server.find(
                "several_images",
                False,
                error.message,
                "raise the server's image limit (vLLM: --limit-mm-per-prompt)",
                needed=True,
            )
    texts = await _spellings(server, [item for item in (token, before, after) if item is not None])
    server.find("vision_spellings", bool(texts) or None, ", ".join(texts) or "unknown; common spellings are looked for")
    wrapped = {"image_token": token, "image_before": before, "image_after": after}
    return profile.model_copy(update={**wrapped, "images": tuple(found), "special_texts": texts})


async def _spellings(server: ProbedServer, ids: Sequence[int]) -> tuple[str, ...]:
    """How ids are spelt, where the server detokenises: such a text in a prompt would take an image's place, or end a message."""
    texts: list[str] = []
    root = server.base_url.removesuffix("/v1")
    for item in ids:
        try:
            body = json.dumps({"model": server.model, "tokens": [item], "skip_special_tokens": False}).encode()
            raw = await post(
                f"{root}/detokenize",
                body,
                base_url=server.base_url,
                api_key=server.api_key,
                timeout_s=server.timeout_s,
                request_id=uuid.uuid4().hex,
            )
        except ModelCallError:
            break
        data = json.loads(raw.body)
        text = data.get("prompt", data.get("text"))
        if isinstance(text, str) and len(text) > 2:
            texts.append(text)
    return tuple(dict.fromkeys(texts))


async def ask_end_tokens(server: ProbedServer, profile: ServerProfile) -> ServerProfile:
    """With which ids replies end that nothing cut."""
    ends: list[int] = []
    prompts = ("Say OK.", "Answer with one word: what is shown on a desktop?", "Hello.", "Stop now.")
    for at, text in enumerate(prompts):
        reply = await server.chat([{"role": "user", "content": text}], max_tokens=2 * WORDS, seed=at)
        if reply.finish_reason == "stop" and not isinstance(reply.stop_reason, str) and reply.generated_token_ids:
            ends.append(reply.generated_token_ids[-1])
            if len(ends) > 1:
                break
    ids = tuple(dict.fromkeys(ends))
    server.find(
        "end_tokens", bool(ids), f"replies end with {list(ids)}" if ids else f"no reply ended within {2 * WORDS} tokens",
        "use a model that ends its replies, or check that the server keeps the end token in the ids", needed=True,
    )  # fmt: skip
    return profile.model_copy(update={"end_tokens": ids, "end_texts": await _spellings(server, ids)})


def _run(ids: Sequence[int]) -> tuple[int, int | None, int | None, int, int] | None:
    """(image token, id before, id after, tokens, runs): the id that repeats most in a row, if it repeats like an image."""
    best, at = (0, 0), 0
    while at < len(ids):
        end = at
        while end < len(ids) and ids[end] == ids[at]:
            end += 1
        if end - at > best[1]:
            best = (at, end - at)
        at = end
    start, length = best
    if length < 4:
        return None
    token = ids[start]
    parts = image_runs(ids, token)
    before = ids[start - 1] if start and len(parts) == 1 else None
    after = ids[start + length] if start + length < len(ids) and len(parts) == 1 else None
    return token, before, after, sum(size for _, size in parts), len(parts)
