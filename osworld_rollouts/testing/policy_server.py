"""A policy that is no model: it plays the known solutions of the shipped tasks over the OpenAI chat completions protocol.

For demonstrations without a model and for tests of everything around one. It says *scripted* wherever it names itself: model
name, `owned_by`, response id, `system_fingerprint`. It does not imitate sampling (parameters are accepted and ignored),
streaming, tools, or a model's speed.

    python -m osworld_rollouts.testing.policy_server --port 0

    async with PolicyServer() as server:
        ...  # Model(name="scripted-solver", base_url=server.base_url)

A model name may carry faults after a colon, `scripted-solver:http=429x2` (see `faults.py`). `GET /stats` tells how often each
(execution, turn) was asked and how often a reply was generated for it, by the headers `X-Execution-Id` and `X-Turn`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from aiohttp import web

from osworld_rollouts.testing import chat
from osworld_rollouts.testing.faults import KINDS, Fault, parse_faults
from osworld_rollouts.testing.player import Answer, Player, reply
from osworld_rollouts.testing.scripts import Click, Script, ScriptError, load_script, shipped_scripts

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

MODEL = "scripted-solver"
EXECUTION_HEADER = "X-Execution-Id"
TURN_HEADER = "X-Turn"

_MAX_BODY = 256 * 1024 * 1024
_GARBAGE = (
    "As a scripted policy told to talk nonsense, I note that the weather is fine and the screen is very blue today."
)
_MIDDLE = (960, 540)


@dataclass
class CallCount:
    """How often one (execution, turn) was asked for, and what was done about it."""

    execution_id: str | None
    turn: int
    requests: int = 0
    generations: int = 0
    dropped: int = 0
    statuses: list[int] = field(default_factory=list)
    faulted: dict[Fault, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """What `GET /stats` shows of it."""
        names = ("execution_id", "turn", "requests", "generations", "dropped", "statuses")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class _Call:
    """One request, understood: what was asked, in which conversation, and how to misbehave."""

    asked: chat.ChatRequest
    script: Script
    key: str
    turn: int
    count: CallCount
    faults: dict[str, Fault]


class PolicyServer:
    """The server, on loopback unless told otherwise. Use as an async context manager, or `start` and `stop`."""

    def __init__(
        self, *, scripts: Iterable[Script] | None = None, faults: str = "", api_key: str | None = None, host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:  # fmt: skip
        self._player = Player(shipped_scripts().values() if scripts is None else scripts)
        self._faults = parse_faults(faults)
        self._api_key = api_key
        self._host, self._port = host, port
        self._runner: web.AppRunner | None = None
        self._calls: dict[tuple[str, int], CallCount] = {}

    @property
    def base_url(self) -> str:
        """What a client takes as its base URL, ending in /v1."""
        return f"http://{self._host}:{self._port}/v1"

    def stats(self) -> dict[str, Any]:
        """Requests and generations, in total and for each (execution, turn), in the order they first came."""
        calls = list(self._calls.values())
        return {
            "policy": "scripted",
            "requests": sum(call.requests for call in calls),
            "generations": sum(call.generations for call in calls),
            "calls": [call.as_json() for call in calls],
        }

    async def start(self) -> None:
        """Listen. With port 0 the system chooses one; `base_url` tells it."""
        app = web.Application(client_max_size=_MAX_BODY, middlewares=[self._guard])
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/stats", self._stats)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        self._runner = runner
        try:
            await web.TCPSite(runner, self._host, self._port).start()
        except OSError:
            await self.stop()
            raise
        self._port = int(runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening and drop open connections."""
        if self._runner:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if (
            self._api_key
            and request.path.startswith("/v1")
            and request.headers.get("Authorization") != f"Bearer {self._api_key}"
        ):
            return web.json_response({"error": "Unauthorized"}, status=401)
        try:
            return await handler(request)
        except chat.RefusedError as refusal:
            return web.json_response(refusal.body(), status=refusal.status)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        try:
            asked = chat.read_request(await request.json())
        except json.JSONDecodeError as error:
            raise chat.RefusedError(400, f"the body is not JSON: {error}") from error
        faults = (*self._faults, *_faults_of(asked.model))
        script = self._player.recognise(asked.texts)
        if script is None:
            raise chat.RefusedError(400, self._unknown_task())
        call = self._call(request, asked, script, faults)
        try:
            return await self._generate(request, call)
        except chat.RefusedError as refusal:
            call.count.statuses.append(refusal.status)
            raise

    async def _generate(self, request: web.Request, call: _Call) -> web.StreamResponse:
        if slow := call.faults.get("slow"):
            await asyncio.sleep(5 if slow.value is None else slow.value)
        if http := call.faults.get("http"):
            call.count.statuses.append(int(http.value or 500))
            return _refusal(int(http.value or 500))
        if overflow := call.faults.get("overflow"):
            _check_length(call.asked, int(overflow.value or 0))
        screenshot = call.asked.images[-1] if call.asked.images else None
        answer = await asyncio.to_thread(self._player.play, call.script, call.key, call.turn, screenshot)
        replacement = _replacement(call.faults)
        body = chat.write_reply(
            call.asked,
            answer.text if replacement is None else replacement,
            request.headers.get("X-Request-Id"),
            cut=len(answer.text.encode()) // 2 if "truncated" in call.faults else None,
        )
        call.count.generations += 1
        spoilt = replacement is not None or body["choices"][0]["finish_reason"] == "length"
        self._player.remember(call.key, call.turn, None if spoilt else answer)
        if "drop" in call.faults and request.transport:
            call.count.dropped += 1
            request.transport.abort()
        else:
            call.count.statuses.append(200)
        return web.json_response(body, headers=_seen_header(answer))

    def _call(self, request: web.Request, asked: chat.ChatRequest, script: Script, faults: Iterable[Fault]) -> _Call:
        execution, turn_text = request.headers.get(EXECUTION_HEADER), request.headers.get(TURN_HEADER)
        if execution and turn_text is not None:
            if not turn_text.isdecimal():
                raise chat.RefusedError(400, f"header {TURN_HEADER} must be a turn's number from 0, got {turn_text!r}")
            key, turn = execution, int(turn_text)
        else:
            key = f"{asked.model} {hashlib.sha256(script.instruction.encode()).hexdigest()}"
            turn = self._player.turn_without_headers(key, len(asked.images))
        count = self._calls.setdefault((key, turn), CallCount(execution, turn))
        active = {fault.kind: fault for fault in faults if _applies(fault, turn, count)}
        count.requests += 1
        for fault in active.values():
            count.faulted[fault] = count.faulted.get(fault, 0) + 1
        return _Call(asked, script, key, turn, count, active)

    def _unknown_task(self) -> str:
        known = "; ".join(repr(text[:60]) for text in self._player.instructions)
        return f"the scripted policy knows no solution for this prompt. It plays only these tasks, by their instruction: {known}"

    async def _models(self, request: web.Request) -> web.Response:  # noqa: ARG002  # aiohttp's signature
        card = {
            "id": MODEL, "object": "model", "created": 0, "owned_by": "osworld-rollouts (scripted policy, not a model)",
            "root": "scripted", "parent": None, "max_model_len": chat.MAX_MODEL_LEN, "permission": [],
        }  # fmt: skip
        return web.json_response({"object": "list", "data": [card]})

    async def _health(self, request: web.Request) -> web.Response:  # noqa: ARG002  # aiohttp's signature
        return web.json_response({"status": "ok", "policy": "scripted"})

    async def _version(self, request: web.Request) -> web.Response:  # noqa: ARG002  # aiohttp's signature
        return web.json_response({"version": chat.FINGERPRINT})

    async def _stats(self, request: web.Request) -> web.Response:  # noqa: ARG002  # aiohttp's signature
        return web.json_response(self.stats())


def _faults_of(model: str) -> tuple[Fault, ...]:
    name, _, suffix = model.partition(":")
    if name != MODEL:
        raise chat.RefusedError(
            404, f"The model `{model}` does not exist. Valid aliases: {MODEL}.", "NotFoundError", "model"
        )
    try:
        return parse_faults(suffix)
    except ValueError as error:
        raise chat.RefusedError(
            404, f"The model `{model}` does not exist: {error}", "NotFoundError", "model"
        ) from error


def _applies(fault: Fault, turn: int, count: CallCount) -> bool:
    return fault.turn in {None, turn} and (fault.times is None or count.faulted.get(fault, 0) < fault.times)


def _refusal(status: int) -> web.Response:
    kinds = {429: "RateLimitError", 401: "AuthenticationError", 503: "ServiceUnavailableError"}
    message = f"the scripted policy was told to answer with {status}"
    refusal = chat.RefusedError(
        status, message, kinds.get(status, "InternalServerError" if status >= 500 else "BadRequestError")
    )
    return web.json_response(
        refusal.body(), status=status, headers={"Retry-After": "1"} if status in {429, 503} else None
    )


def _check_length(request: chat.ChatRequest, allowed: int) -> None:
    if allowed == 0 or len(request.images) > allowed:
        length = sum(
            part.tokens if not isinstance(part, str) else len(part.encode())
            for _, parts in request.messages
            for part in parts
        )
        raise chat.too_long(len(request.images), allowed, length)


def _replacement(active: dict[str, Fault]) -> str | None:
    texts = {
        "garbage": _GARBAGE,
        "empty": "",
        "done": reply("I was told to say so at once.", "DONE"),
        "fail": reply("I was told to say so at once.", "FAIL"),
        "loop": reply("I click and click.", (Click(click=_MIDDLE),)),
    }
    return next((text for kind, text in texts.items() if kind in active), None)


def _seen_header(answer: Answer) -> dict[str, str]:
    places = {name: [*match.centre, match.likeness] if match else None for name, match in answer.seen.items()}
    return {"X-Scripted-Seen": json.dumps(places)} if places else {}


async def _serve(options: argparse.Namespace) -> None:
    scripts = [*shipped_scripts().values(), *(load_script(path) for path in options.script)]
    server = PolicyServer(
        scripts=scripts, faults=options.faults, api_key=options.api_key, host=options.host, port=options.port
    )
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with server:
        sys.stdout.write(f"{server.base_url}\n")
        sys.stdout.flush()
        sys.stderr.write(f"scripted policy, not a model: serving {MODEL}\n")
        await stop.wait()


def main(arguments: list[str] | None = None) -> int:
    """Run the server until it is interrupted; prints its base URL as the only line on stdout."""
    parser = argparse.ArgumentParser(
        prog="python -m osworld_rollouts.testing.policy_server",
        description="Scripted policy (not a model): plays the solutions of the shipped tasks over OpenAI chat completions.",
        epilog="faults: " + "; ".join(f"{kind}: {meaning}" for kind, meaning in KINDS.items()),
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 lets the system choose")
    parser.add_argument(
        "--faults", default="", help="misbehaviour for every request: kind[=value][xN][@turn], joined by colons"
    )
    parser.add_argument("--api-key", default=None, help="demand this key; without it none is asked for")
    parser.add_argument(
        "--script", type=Path, action="append", default=[], help="a further script file, with its own instruction"
    )
    try:
        asyncio.run(_serve(parser.parse_args(arguments)))
    except (ScriptError, ValueError) as error:
        parser.exit(2, f"error: {error}\n")
    except OSError as error:
        parser.exit(2, f"error: cannot listen: {error.strerror or error}; choose another --port\n")
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
