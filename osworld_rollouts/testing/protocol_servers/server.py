"""One HTTP server for all three APIs: chat completions, Responses, Messages.

    async with ProtocolServer("qwen3_vl", [[Click(…)], [Done()]]) as server:
        ...  # Model(name="scripted", base_url=server.base_url)

Turn n (from the header `X-Turn`, else the number of requests so far) gets the n-th list of actions, in the words of the
adapter's protocol. Every request is kept in `requests`, with its headers.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Self

from aiohttp import web

from osworld_rollouts.adapters import ModelAdapter, load_adapter
from osworld_rollouts.testing.protocol_servers.messages import blocks_for, reply
from osworld_rollouts.testing.protocol_servers.responses import items_for, response
from osworld_rollouts.testing.protocol_servers.texts import SPEAKERS, chat_completion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from osworld_rollouts.contracts.action import Action

_MAX_BODY = 64 * 2**20
_PNG = b"\x89PNG\r\n\x1a\n"


class ProtocolServer:
    """Says the given actions in the protocol of the named adapter. An async context manager."""

    def __init__(
        self, adapter: str, turns: Sequence[Sequence[Action]], *, options: Mapping[str, Any] | None = None,
        screen: tuple[int, int] = (1920, 1080),
    ) -> None:  # fmt: skip
        self.adapter: ModelAdapter = load_adapter(adapter, options)
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        self._turns = turns
        self._geometry = self.adapter.geometry(*screen)
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def base_url(self) -> str:
        """What a client takes as its base URL, ending in /v1."""
        return f"http://127.0.0.1:{self._port}/v1"

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=_MAX_BODY)
        for path in ("chat/completions", "responses", "messages"):
            app.router.add_post(f"/v1/{path}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._port = int(self._runner.addresses[0][1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        wanted = {"chat_completions": "completions", "responses": "responses", "messages": "messages"}[self.adapter.api]
        if not request.path.endswith(wanted):
            return _refuse(404, f"{self.adapter.name} speaks {self.adapter.api}, not {request.path}")
        if (problem := _problem(body)) is not None:
            return _refuse(400, problem)
        turn = int(request.headers.get("X-Turn", len(self.requests)))
        self.requests.append((dict(request.headers), body))
        actions = self._turns[min(turn, len(self._turns) - 1)]
        model = str(body["model"])
        match self.adapter.api:
            case "responses":
                return web.json_response(response(model, *items_for(actions, turn), number=turn))
            case "messages":
                toolset = "toolset" in str(body["tools"][0]["type"])
                return web.json_response(reply(model, *blocks_for(actions, turn, self._geometry, toolset=toolset)))
            case _:
                text = SPEAKERS[self.adapter.name](actions, self._geometry)
                return web.json_response(chat_completion(model, text))


def _problem(body: dict[str, Any]) -> str | None:
    """What is wrong with a request: every image must be a PNG, there must be one, a call must have its result."""
    images = list(_images(body))
    for data in images:
        try:
            if not base64.b64decode(data, validate=True).startswith(_PNG):
                return "an image is not a PNG"
        except binascii.Error as error:
            return f"an image is not base64: {error}"
    if not images:
        return "the request shows no image"
    given = body.get("input", [])
    pending = {check["id"] for item in given for check in item.get("pending_safety_checks") or ()}
    acknowledged = {check["id"] for item in given for check in item.get("acknowledged_safety_checks") or ()}
    if pending - acknowledged:
        return f"Safety check {min(pending - acknowledged)} was not acknowledged."
    asked = {item["call_id"] for item in given if item.get("type") == "computer_call"}
    answered = {item["call_id"] for item in given if item.get("type") == "computer_call_output"}
    if asked - answered:
        return f"No tool output found for computer call {min(asked - answered)}."
    return None


def _images(value: Any) -> Any:
    match value:
        case {"type": "base64", "data": str(data)}:
            yield data
        case {"url": str(url)} | {"image_url": str(url)}:
            yield url.removeprefix("data:image/png;base64,")
        case dict():
            for item in value.values():
                yield from _images(item)
        case list():
            for item in value:
                yield from _images(item)
        case _:
            return


def _refuse(status: int, message: str) -> web.Response:
    return web.json_response(
        {"error": {"message": message, "type": "invalid_request_error", "code": None, "param": None}}, status=status
    )
