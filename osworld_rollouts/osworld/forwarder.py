"""A plain TCP forwarder from a loopback port to a desktop's unix socket or port."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_CHUNK = 65536


class Forwarder:
    """Listens on 127.0.0.1 and carries each connection, byte for byte, to `socket` or to `host:port`.

    `refused` counts connections that could not be carried because nothing listens at the other end.
    """

    def __init__(self, socket: Path | None, host: str | None, port: int) -> None:
        self._socket = socket
        self._host = host
        self._far_port = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.refused = 0
        self.port = 0

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_CHUNK)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and drop what is being carried."""
        if self._server is None:
            return
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        carrying = asyncio.ensure_future(self._carry(reader, writer))
        self._tasks.add(carrying)
        try:
            await asyncio.wait([carrying])
        finally:
            carrying.cancel()
            self._tasks.discard(carrying)
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await self._connect()
        except OSError:
            self.refused += 1
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, far_writer))
                both.create_task(_pump(far_reader, writer))
        finally:
            far_writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._socket is not None:
            return await asyncio.open_unix_connection(self._socket, limit=_CHUNK)
        if self._host is not None:
            return await asyncio.open_connection(self._host, self._far_port, limit=_CHUNK)
        raise ConnectionRefusedError("the desktop does not offer this port")


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()
