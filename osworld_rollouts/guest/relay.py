"""Unix sockets in the bound folder that lead to TCP ports inside the guest.

The guest may have no network at all; the host reaches Chrome's debugging port and VLC's web interface through `9222.sock` and
`8080.sock`. One thread with a selector carries every connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CHUNK = 65536


def start_relays(folder: Path, ports: dict[str, int]) -> threading.Thread:
    """Listen on `folder/<name>` for every name in `ports` and carry bytes to `127.0.0.1:<port>`; returns the thread."""
    listening = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(folder, ports, listening)), name="relay", daemon=True)
    thread.start()
    listening.wait(10)
    return thread


async def _serve(folder: Path, ports: dict[str, int], listening: threading.Event) -> None:
    servers = []
    for name, port in ports.items():
        path = folder / name
        path.unlink(missing_ok=True)
        servers.append(await asyncio.start_unix_server(_connection(port), path, limit=CHUNK))
    listening.set()
    await asyncio.gather(*(server.serve_forever() for server in servers))


def _connection(port: int):  # noqa: ANN202 - asyncio's callback type
    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port, limit=CHUNK)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        for end in (writer, far_writer):
            end.close()

    return carry


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()
