"""A proxy between worker and guest that misbehaves on the wire, as real networks and overloaded servers do.

It takes the place of the desktop's socket and forwards whole requests to the real one. It does not imitate half-open connections or
reordering; each fault is decided after, or instead of, forwarding a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Call:
    """One request, as far as a fault is chosen by it."""

    method: str
    path: str
    operation: str


@dataclass
class Fault:
    """What to do with requests that `when` picks, the first `times` of them; `fired` counts.

    Kinds: `drop` the reply after the effect, `late` (hold the reply for `seconds`), `http500` instead of the true reply after the
    effect, `cut` the reply in its middle, `spoil` (a whole reply with half of its body), `lose` (drop the request before the guest
    sees it).
    """

    kind: str
    when: Callable[[Call], bool]
    times: int = 1
    seconds: float = 0.0
    fired: int = 0


def operation(ending: str) -> Callable[[Call], bool]:
    """Requests of the operation whose id has this ending."""
    return lambda call: call.operation.endswith(ending)


def screenshot_after(proxy: FaultProxy, ending: str) -> Callable[[Call], bool]:
    """Screenshots asked for once the operation of this ending went through."""
    return lambda call: call.path == "/screenshot" and any(seen.operation.endswith(ending) for seen in proxy.seen)


@dataclass
class FaultProxy:
    """Stands at `socket` until closed; the real one waits beside it as `real.sock`."""

    socket: Path
    faults: list[Fault] = field(default_factory=list)
    seen: list[Call] = field(default_factory=list)
    _server: asyncio.Server | None = None

    @property
    def real(self) -> Path:
        """Where the guest's own socket was moved to."""
        return self.socket.with_name("real.sock")

    async def start(self) -> None:
        """Take the socket's place."""
        self.socket.rename(self.real)
        await self.listen()

    async def listen(self) -> None:
        """Accept connections (again)."""
        self._server = await asyncio.start_unix_server(self._connection, self.socket, limit=2**26)

    async def refuse(self) -> None:
        """Refuse connections until `listen`: a socket is there and nobody listens."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.socket.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError), socket.socket(socket.AF_UNIX) as deaf:
            deaf.bind(str(self.socket))

    async def close(self) -> None:
        """Give the socket back, if the desktop is still there."""
        await self.refuse()
        with contextlib.suppress(FileNotFoundError):
            self.real.rename(self.socket)

    def add(self, kind: str, when: Callable[[Call], bool], **how: float) -> Fault:
        """Misbehave from now on."""
        fault = Fault(kind, when, **how)
        self.faults.append(fault)
        return fault

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._exchange(reader, writer)
        writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        call, length = _read_head(head)
        body = await reader.readexactly(length)
        fault = next((fault for fault in self.faults if fault.fired < fault.times and fault.when(call)), None)
        if fault is not None:
            fault.fired += 1
        kind = fault.kind if fault is not None else ""
        if kind == "lose":
            writer.transport.abort()
            return
        reply = await self._forward(head + body)
        self.seen.append(call)
        if kind == "late" and fault is not None:
            await asyncio.sleep(fault.seconds)
        if kind == "drop":
            writer.transport.abort()
            return
        if kind == "http500":
            reply = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\nConnection: close\r\n\r\noops"
        if kind in {"cut", "spoil"}:
            start, _, content = reply.partition(b"\r\n\r\n")
            half = content[: len(content) // 2]
            if kind == "spoil":
                start = start.replace(str(len(content)).encode(), str(len(half)).encode())
            reply = start + b"\r\n\r\n" + half
        writer.write(reply)
        await writer.drain()

    async def _forward(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(self.real, limit=2**26)
        try:
            writer.write(request)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            _, length = _read_head(head)
            return head + await reader.readexactly(length)
        finally:
            writer.close()


def _read_head(head: bytes) -> tuple[Call, int]:
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
    }
    method, path, _ = first.split(" ", 2)
    return Call(method, path, headers.get("x-operation-id", "")), int(headers.get("content-length", "0"))
