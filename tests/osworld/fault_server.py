"""A guest that speaks OSWorld's HTTP over real sockets, keeps an operation ledger, and fails exactly as it is told to.

It imitates the contract only: no desktop is behind it. `effects` lists what really happened, in order, so that a test can count.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

Answer = tuple[int, str, bytes]
ANY = "*"


@dataclass
class Request:
    """One request as received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)

    @property
    def operation_id(self) -> str | None:
        return self.headers.get("x-operation-id")


@dataclass
class Fault:
    """What to do with a request on `path` (times `times`): `action` is one of the names in `FaultServer.fail`."""

    path: str
    action: str
    times: int = 10**9
    value: Any = None


@dataclass
class FaultServer:
    """The guest. Use as `async with`; tell it with `fail`, `answer` and `print`."""

    token: str = "a-lease-token"
    ledger: bool = True
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)
    fence: int = 0
    last_seq: int = -1
    _faults: list[Fault] = field(default_factory=list)
    _answers: dict[str, Callable[[Request], Answer]] = field(default_factory=dict)
    _recorded: dict[str, Answer] = field(default_factory=dict)
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Refuse connections from now on."""
        if self._server is not None:
            self._server.close()
            for writer in self._writers:
                writer.close()
            self._server = None

    async def restart(self) -> None:
        """Listen again on the same port, with the same ledger."""
        await self.__aenter__()

    def fail(self, path: str, action: str, *, times: int = 10**9, value: Any = None) -> None:
        """From now on requests on `path`:

        `status`: answer HTTP `value` without doing anything; `drop_before`: close the connection and do nothing; `drop_after`:
        do it, then close the connection without a reply; `hang`: never answer; `hang_after`: do it, then never answer;
        `cut`: send half of the reply's bytes; `error_after`: do it, then answer HTTP 500.
        """
        self._faults.append(Fault(path, action, times, value))

    def answer(self, path: str, reply: Callable[[Request], Answer]) -> None:
        """Answer requests on `path` like this."""
        self._answers[path] = reply

    def says(self, output: str = "", returncode: int = 0, error: str = "") -> None:
        """Every command prints this and returns that."""
        for path in ("/execute", "/setup/execute"):
            self.answer(path, lambda _request: command_result(output, returncode, error))

    def paths(self) -> list[str]:
        """Paths requested, in order."""
        return [request.path for request in self.requests]

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                request = await _read(reader)
                self.requests.append(request)
                await self._serve(request, writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _serve(self, request: Request, writer: asyncio.StreamWriter) -> None:
        fault = self._fault(request.path)
        action = fault.action if fault else ""
        if action == "status":
            assert fault is not None
            return await _write(
                writer,
                fault.value,
                "application/json",
                json.dumps({"status": "error", "message": "told to fail"}).encode(),
            )
        if action == "drop_before":
            return None
        if action == "hang":
            await asyncio.sleep(3600)
        status, content_type, body, replayed = self._handle(request)
        if action == "drop_after":
            return None
        if action == "hang_after":
            await asyncio.sleep(3600)
        if action == "error_after":
            status = 500
        if action == "cut":
            return await _write(writer, status, content_type, body, cut=True)
        return await _write(writer, status, content_type, body, replayed=replayed)

    def _handle(self, request: Request) -> tuple[int, str, bytes, bool]:
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return (*_error(401, "unauthorized"), False)
        if request.path == "/health":
            if not self.ledger:
                return (*_error(404, "unknown_endpoint"), False)
            return (*_json({"ok": True, "ready": True, "last_seq": self.last_seq, "fence": self.fence}), False)
        operation = request.operation_id
        if not (self.ledger and operation):
            return (*self._do(request), False)
        if operation in self._recorded:
            return (*self._recorded[operation], True)
        seq, fence = int(request.headers["x-operation-seq"]), int(request.headers["x-lease-fence"])
        if fence < self.fence:
            return (*_error(409, "stale_fence"), False)
        if seq <= self.last_seq:
            return (*_error(409, "stale_sequence"), False)
        self.fence, self.last_seq = fence, seq
        self._recorded[operation] = self._do(request)
        return (*self._recorded[operation], False)

    def _do(self, request: Request) -> Answer:
        if request.operation_id:
            self.effects.append(f"{request.path} {_what(request)}".strip())
        if request.path in self._answers:
            return self._answers[request.path](request)
        if request.path in {"/execute", "/setup/execute"}:
            return command_result("Linux\n")
        if request.path == "/terminal":
            return _json({"output": None, "status": "success"})
        if request.path == "/file":
            return _error(404, "file_not_found")
        return 200, "text/html; charset=utf-8", b"done"

    def _fault(self, path: str) -> Fault | None:
        for fault in self._faults:
            if fault.path in {path, ANY} and fault.times > 0:
                fault.times -= 1
                return fault
        return None


def command_result(output: str = "", returncode: int = 0, error: str = "") -> Answer:
    """What `/execute` answers."""
    return _json({"status": "success", "output": output, "error": error, "returncode": returncode})


def _what(request: Request) -> str:
    try:
        value = request.json
    except ValueError:
        return ""
    command = value.get("command", value.get("window_name", value.get("path", "")))
    return " ".join(command) if isinstance(command, list) else str(command)


def _json(value: Any, status: int = 200) -> Answer:
    return status, "application/json", json.dumps(value).encode()


def _error(status: int, kind: str) -> Answer:
    return _json({"status": "error", "message": kind, "error": {"type": kind, "message": kind}}, status)


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body)


async def _write(
    writer: asyncio.StreamWriter,
    status: int,
    content_type: str,
    body: bytes,
    *,
    cut: bool = False,
    replayed: bool = False,
) -> None:
    head = (
        f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    )
    if replayed:
        head += "X-Operation-Replayed: 1\r\n"
    writer.write(head.encode() + b"\r\n" + (body[: len(body) // 2] if cut else body))
    await writer.drain()
