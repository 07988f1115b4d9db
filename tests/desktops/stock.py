"""An attached machine for tests: a real desktop in which an OSWorld server as one finds it runs, reached over TCP.

Between the TCP port and the server stands a proxy that can drop the reply of chosen requests after their effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from osworld_rollouts.desktops.guest_client import GuestClient
from osworld_rollouts.osworld.forwarder import Forwarder

SERVER = Path(__file__).with_name("stock_server.py")
INNER_PORT = 5000
_numbers = itertools.count()


@dataclass
class Machine:
    """A machine somebody runs. `drop` picks requests whose reply is lost, `dropped` counts them."""

    server_port: int
    chromium_port: int
    vlc_port: int
    log: Path
    home: Path
    inner_port: int = INNER_PORT
    drop: Callable[[bytes], bool] = lambda _request: False
    dropped: int = 0
    requests: list[bytes] = field(default_factory=list)

    @property
    def address(self) -> str:
        """As `ROLLOUTS_ATTACHED` wants it."""
        return f"127.0.0.1:{self.server_port}:{self.chromium_port}:8006:{self.vlc_port}"

    def effects(self, path: str) -> int:
        """How often the guest's own server was asked for this effect."""
        return self.log.read_text().splitlines().count(path) if self.log.exists() else 0


@contextlib.asynccontextmanager
async def machine(record, *, timeout: float = 120.0, port: int | None = None):
    """Turn the desktop of `record` into a machine with OSWorld's own server; `timeout` is that server's, in seconds.

    It listens on `port` inside; without one on a port of its own, since several share the session's desktop.
    """
    sockets = record.endpoints.server.parent
    inside = Path("/run/guest/sock") if record.tier == "bubblewrap" else sockets
    home = record.state_dir / "home"
    home_inside = Path("/home/user")
    name = f"stock{next(_numbers)}"
    settings = {
        "upstream": str(inside / "server.sock"),
        "token": record.token.get_secret_value(),
        "socket": str(inside / f"{name}.sock"),
        "port": port or INNER_PORT + 1 + next(_numbers),
        "timeout": timeout,
        "log": str(home_inside / f"{name}.log"),
    }
    async with GuestClient.of(record) as client:
        await client.write_file(str(home_inside / "stock_server.py"), SERVER.read_bytes())
        words = ["python3", str(home_inside / "stock_server.py"), json.dumps(settings)]
        await client.setup("launch", {"command": words})
        for _ in range(200):
            if (sockets / f"{name}.sock").exists():
                break
            await asyncio.sleep(0.05)
        else:
            raise TimeoutError("the stock server did not start")
        chromium = Forwarder(record.endpoints.chromium, None, 0)
        vlc = Forwarder(record.endpoints.vlc, None, 0)
        await chromium.start()
        await vlc.start()
        found = Machine(0, chromium.port, vlc.port, home / f"{name}.log", home, settings["port"])
        server = await asyncio.start_server(_proxy(found, sockets / f"{name}.sock"), "127.0.0.1", 0, limit=2**26)
        found.server_port = server.sockets[0].getsockname()[1]
        try:
            yield found
        finally:
            server.close()
            await chromium.close()
            await vlc.close()
            await client.execute(["pkill", "-f", f"{name}.sock"])


def _proxy(found: Machine, socket: Path):
    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                request = await _message(reader)
                found.requests.append(request)
                far_reader, far_writer = await asyncio.open_unix_connection(socket, limit=2**26)
                far_writer.write(request)
                reply = await _message(far_reader)
                far_writer.close()
                if found.drop(request):
                    found.dropped += 1
                    writer.transport.abort()
                    return
                writer.write(reply)
                await writer.drain()
        writer.close()

    return carry


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    if b"transfer-encoding: chunked" in lines:
        body = b""
        while True:
            size = await reader.readuntil(b"\r\n")
            chunk = await reader.readexactly(int(size, 16) + 2)
            body += size + chunk
            if int(size, 16) == 0:
                return head + body
    length = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")), 0)
    return head + await reader.readexactly(length)
