"""A TCP proxy in front of a real HTTP server that spoils replies, and a small server to stand behind it.

The proxy understands HTTP/1.1 only as far as it must (one request and one reply with Content-Length on each connection). The
small server answers like a chat endpoint and counts what it generated; it imitates no model.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field


@dataclass
class Faults:
    """`plan` names what happens to each connection in turn; the last one repeats. Kinds:

    pass, refuse_after_generation (the server generates, the client gets 503), drop (after generation, nothing is sent),
    half (half of the reply, then the connection closes), slow (headers, then a byte every `delay_s`), stall (nothing at all).
    """

    plan: list[str] = field(default_factory=lambda: ["pass"])
    delay_s: float = 0.2
    seen: list[str] = field(default_factory=list)


class FaultProxy:
    def __init__(self, host: str, port: int, faults: Faults):
        self.host, self.port, self.faults = host, port, faults

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def _serve(self, reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            kind = self.faults.plan.pop(0) if len(self.faults.plan) > 1 else self.faults.plan[0]
            request = await read_message(reader)
            self.faults.seen.append(kind)
            up_reader, up_writer = await asyncio.open_connection(self.host, self.port)
            up_writer.write(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
            reply = await up_reader.read()
            up_writer.close()
            if kind == "pass":
                writer.write(reply)
            elif kind == "refuse_after_generation":
                body = b'{"error":{"message":"upstream connect error"}}'
                writer.write(
                    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nContent-Length: %d\r\n\r\n%s"
                    % (len(body), body)
                )
            elif kind == "half":
                writer.write(reply[: len(reply) - len(reply.partition(b"\r\n\r\n")[2]) // 2])
            elif kind == "slow":
                head, _, body = reply.partition(b"\r\n\r\n")
                writer.write(head + b"\r\n\r\n")
                for at in range(len(body)):
                    await asyncio.sleep(self.faults.delay_s)
                    writer.write(body[at : at + 1])
                    await writer.drain()
            elif kind == "stall":
                await asyncio.sleep(60)
            await writer.drain()
        writer.close()


async def read_message(reader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
    )
    return head + await reader.readexactly(length)


class SmallServer:
    """Answers every POST with `status` and `body`, and remembers requests."""

    def __init__(self, body: bytes, status: int = 200, headers: bytes = b""):
        self.body, self.status, self.headers = body, status, headers
        self.requests: list[tuple[bytes, dict[str, str], bytes]] = []

    @property
    def sent_bodies(self):
        return [json.loads(body) for _, _, body in self.requests]

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        self.base_url = f"http://127.0.0.1:{self.port}/v1"
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def _serve(self, reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            message = await read_message(reader)
            head, _, body = message.partition(b"\r\n\r\n")
            line, *fields = head.split(b"\r\n")
            headers = {
                name.decode().lower(): value.decode().strip()
                for name, _, value in (item.partition(b":") for item in fields)
            }
            self.requests.append((line, headers, body))
            writer.write(
                b"HTTP/1.1 %d X\r\n%sContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
                % (self.status, self.headers, len(self.body), self.body)
            )
            await writer.drain()
        writer.close()
