"""The lease's gateway: the only way from `desktop-env` to a guest, and the one seam between the package and our rules.

A loopback HTTP server on a random port of the worker, one for each job, handed to the package as the machine's address. Towards the
guest it adds the lease token and, for every effect, operation id, sequence number and fence; it sends again what the guest's ledger
makes safe to send again; it puts a timeout on every call, of which the package has few; and it records every exchange and what it
means (`verdicts`). Two plain TCP forwarders carry Chrome's DevTools protocol and VLC's web interface: Chrome builds its WebSocket
addresses from the Host header, so bytes need no rewriting.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

import aiohttp
import structlog
from aiohttp import web
from yarl import URL

from osworld_rollouts.desktops.guest_client import Operation
from osworld_rollouts.failpoints import reach
from osworld_rollouts.osworld import verdicts
from osworld_rollouts.osworld.exchanges import Exchange, request_text
from osworld_rollouts.osworld.forwarder import Forwarder
from osworld_rollouts.osworld.operations import NamedOperation, OperationNames, request_digest
from osworld_rollouts.osworld.stock_effects import StockEffects
from osworld_rollouts.osworld.verdicts import Phase, Step, Verdict

if TYPE_CHECKING:
    from osworld_rollouts.osworld.job import GuestEndpoint

log = structlog.get_logger()

LOOPBACK = "127.0.0.1"
_HOP_BY_HOP = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade",
    "host", "content-length", "accept-encoding", "authorization", "x-operation-id", "x-operation-seq", "x-lease-fence",
    "x-operation-timeout",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Seconds. A call is given up after its limit; the guest's own limit for a command is `command_s`."""

    connect_s: float = 10
    reconnect_s: float = 20
    """How long a guest that refuses or drops connections is tried again: its server may be restarting."""
    read_s: float = 60
    accessibility_s: float = 180
    """An accessibility tree took 50 s on a machine that had run for an hour."""
    command_s: float = 120
    """OSWorld's own limit of a command in the guest."""
    launch_s: float = 60
    open_s: float = 300
    upload_s: float = 600
    file_s: float = 300
    window_s: float = 30
    """How long setup waits for a window it wants to activate; LibreOffice starts slower on emulated machines."""
    post_window_s: float = 3
    """The same for post-steps, where the window exists unless the agent closed it."""
    grace_s: float = 30
    """What a call may take beyond the guest's own limit for it."""

    def guest_s(self, phase: Phase, path: str) -> float:
        """The limit the guest is told for an effect."""
        if path in verdicts.WINDOWS:
            return self.window_s if phase is Phase.SETUP else self.post_window_s
        return {"/setup/launch": self.launch_s, "/setup/open_file": self.open_s, "/setup/upload": self.upload_s}.get(
            path, self.command_s
        )

    def call_s(self, phase: Phase, method: str, path: str) -> float:
        """The limit of the whole call."""
        if verdicts.is_effect(method, path):
            return self.guest_s(phase, path) + self.grace_s
        return {"/file": self.file_s, "/accessibility": self.accessibility_s, "/terminal": self.accessibility_s}.get(
            path, self.read_s
        )


class Gateway:
    """One job's way to its guest. `failure` is done as soon as the job cannot give a result any more.

    Use as an async context manager; then `server_port`, `chromium_port` and `vlc_port` are on 127.0.0.1.
    """

    def __init__(
        self,
        guest: GuestEndpoint,
        phase: Phase,
        names: OperationNames,
        *,
        fence: int,
        limits: GatewayLimits | None = None,
    ) -> None:
        self._guest = guest
        self._phase = phase
        self._fence = fence
        self._limits = limits or GatewayLimits()
        self.names = names
        self.exchanges: list[Exchange] = []
        self.failure: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._step = Step()
        self._step_start = 0
        self._waiting: Exchange | None = None
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self._stock = StockEffects(guest, guest.stock) if guest.stock is not None else None
        self._chromium = Forwarder(guest.chromium_socket, guest.host, guest.chromium_port)
        self._vlc = Forwarder(guest.vlc_socket, guest.host, guest.vlc_port)
        self.server_port = 0

    async def __aenter__(self) -> Self:
        if self._guest.server_socket is not None:
            connector: aiohttp.BaseConnector = aiohttp.UnixConnector(str(self._guest.server_socket), force_close=True)
        else:
            connector = aiohttp.TCPConnector(force_close=True)
        # A kept-alive connection that the guest closes meanwhile looks like a lost reply, so none is kept.
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        if self._stock is not None:
            await self._stock.__aenter__()
        app = web.Application(client_max_size=4 * 2**30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, LOOPBACK, 0)
        await site.start()
        self.server_port = int(self._runner.addresses[0][1])
        await self._chromium.start()
        await self._vlc.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._chromium.close()
        await self._vlc.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()
        if self._stock is not None:
            await self._stock.__aexit__(None, None, None)
        self.failure.cancel()

    @property
    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the gateway is used outside its 'async with' block")
        return self._session

    @property
    def chromium_port(self) -> int:
        """Loopback port of Chrome's DevTools."""
        return self._chromium.port

    @property
    def vlc_port(self) -> int:
        """Loopback port of VLC's web interface."""
        return self._vlc.port

    @property
    def forwards_refused(self) -> int:
        """How often Chrome's or VLC's port could not even be reached at the desktop's edge."""
        return self._chromium.refused + self._vlc.refused

    @property
    def step(self) -> Step:
        """The step that runs, number 0 outside any."""
        return self._step

    @property
    def activity(self) -> str:
        """What is being waited for, for heartbeats: `step 2 launch: POST /setup/launch, 3 s`."""
        where = f"step {self._step.number} {self._step.type}: " if self._step.number else ""
        if self._waiting is not None:
            return f"{where}{self._waiting.method} {self._waiting.path}, {time.time() - self._waiting.at:.0f} s"
        return f"{where}{len(self.exchanges)} exchanges"

    def begin_step(self, step: Step) -> None:
        """What follows belongs to this step."""
        self._step = step
        self._step_start = len(self.exchanges)

    def end_step(self) -> list[Verdict]:
        """The verdicts on the step that ended; notes are already written to its exchanges."""
        found = verdicts.of_step(self._phase, self._step, self.exchanges[self._step_start :])
        for verdict in found:
            verdict.exchange.note = verdict.message
        self.begin_step(Step())
        return found

    async def ask(self, path: str, *, timeout_s: float = 10) -> dict[str, object]:
        """GET a JSON object from the guest for ourselves, unrecorded.

        Raises:
            aiohttp.ClientError, TimeoutError, ValueError: when there is no such answer.
        """
        if path == "/health" and self._stock is not None:
            return await self._stock.health(timeout_s)
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with self._client.get(self._url(path), headers=self._credentials(), timeout=timeout) as reply:
            reply.raise_for_status()
            value = await reply.json(content_type=None)
        if not isinstance(value, dict):
            raise ValueError(f"GET {path} answered no JSON object")  # noqa: TRY004 - the guest's value, not ours
        return value

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        content_type = request.headers.get("Content-Type", "")
        digest = request_digest(request.method, request.raw_path, content_type, body)
        effect = verdicts.is_effect(request.method, request.path)
        operation, repeated = self.names.name(self._step.number, digest) if effect else (None, False)
        if repeated and operation is not None and operation.reply is not None:
            return await self._deliver(request, self._remembered(operation), operation, operation.reply)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        give_up = time.monotonic() + self._limits.guest_s(self._phase, request.path)
        while True:
            exchange = self._open(request, digest, body, content_type, operation)
            reply = await self._send(exchange, request.raw_path, headers, body)
            self._close(exchange)
            if operation is not None and exchange.status is not None:
                operation.reply = reply
            again = self._phase is Phase.SETUP and verdicts.waits_for_window(self._phase, exchange)
            if not (again and operation is not None and time.monotonic() < give_up):
                return await self._deliver(request, exchange, operation, reply)
            exchange.superseded = True
            operation = self.names.fresh(self._step.number, digest)
            await asyncio.sleep(0.5)

    def _remembered(self, operation: NamedOperation) -> Exchange:
        """The record of a repetition that the guest is not asked about again."""
        first = next(exchange for exchange in self.exchanges if exchange.operation_id == operation.operation_id)
        exchange = replace(first, at=time.time(), attempts=0, replayed=True, delivered=False, ms=0)
        self.exchanges.append(exchange)
        return exchange

    def _open(
        self, request: web.Request, digest: str, body: bytes, content_type: str, operation: NamedOperation | None
    ) -> Exchange:
        exchange = Exchange(
            phase=self._phase,
            step=self._step.number,
            method=request.method,
            path=request.path,
            request=request_text(content_type, body),
            request_sha256=digest,
            request_bytes=len(body),
            at=time.time(),
            operation_id=operation.operation_id if operation else None,
            seq=operation.seq if operation else None,
        )
        self.exchanges.append(exchange)
        self._waiting = exchange
        return exchange

    def _close(self, exchange: Exchange) -> None:
        exchange.ms = round((time.time() - exchange.at) * 1000)
        self._waiting = None
        verdict = verdicts.at_once(self._phase, exchange)
        if verdict is not None:
            exchange.note = verdict.message
            if not self.failure.done():
                self.failure.set_result(verdict)

    async def _deliver(
        self, request: web.Request, exchange: Exchange, operation: NamedOperation | None, reply: _Reply
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=reply.status, headers={"Content-Type": reply.content_type})
        response.content_length = len(reply.body)
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            if request.method != "HEAD":
                await response.write(reply.body)
            await response.write_eof()
            exchange.delivered = request.transport is not None and not request.transport.is_closing()
        if operation is not None and exchange.delivered and exchange.status == 200:
            operation.delivered = True
        return response

    async def _send(self, exchange: Exchange, raw_path: str, headers: dict[str, str], body: bytes) -> _Reply:
        """The guest's reply, or ours with status 502 or 504 when there is none; `exchange` says which."""
        limit = self._limits.call_s(self._phase, exchange.method, exchange.path)
        content_type = headers.get("Content-Type", "")
        repeatable = exchange.operation_id is None or (
            self._guest.ledger if self._stock is None else self._stock.repeatable(exchange.path, content_type)
        )
        reconnect_until = time.monotonic() + min(limit, self._limits.reconnect_s)
        said: int | None = None
        pause = 0.2
        while True:
            exchange.attempts += 1
            try:
                reply = await self._once(exchange, raw_path, headers, body, limit)
                if said is None and reply.status >= 500 and exchange.operation_id is not None and repeatable:
                    # Anybody between us can say 500. The guest repeats from its ledger what it said itself.
                    said = reply.status
                    continue
                exchange.replayed = exchange.replayed and reply.status != said
                return reply
            except aiohttp.ClientConnectorError as error:
                lost = f"the guest refuses connections: {error}"
            except TimeoutError:
                exchange.error_type = "timeout"
                exchange.error = f"the guest did not answer within {limit:g} s"
                return _Reply.problem(504, exchange.error)
            except (aiohttp.ClientError, OSError) as error:
                lost = f"the reply was lost: {error or type(error).__name__}"
                if not repeatable:
                    exchange.error_type = "indeterminate"
                    exchange.error = f"{lost}; this guest keeps no ledger to ask, so it is not sent again"
                    return _Reply.problem(502, exchange.error)
            log.info("guest call failed", path=exchange.path, attempt=exchange.attempts, problem=lost)
            if time.monotonic() + pause > reconnect_until:
                exchange.error_type = "unreachable"
                exchange.error = f"{lost} (tried {exchange.attempts} times)"
                return _Reply.problem(502, exchange.error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 3)

    async def _once(
        self, exchange: Exchange, raw_path: str, headers: dict[str, str], body: bytes, limit: float
    ) -> _Reply:
        sent = {**headers, **self._credentials()}
        if exchange.operation_id is not None:
            sent |= {
                "X-Operation-Id": exchange.operation_id,
                "X-Operation-Seq": str(exchange.seq),
                "X-Lease-Fence": str(self._fence),
                "X-Operation-Timeout": f"{self._limits.guest_s(self._phase, exchange.path):g}",
            }
            reach(f"{self._phase}-before-dispatch", exchange.operation_id)
            content_type = headers.get("Content-Type", "")
            if self._stock is not None:
                if self._stock.takes(exchange.path, content_type):
                    return await self._on_stock(self._stock, exchange, content_type, body, limit)
                sent = headers
        timeout = aiohttp.ClientTimeout(total=limit, sock_connect=self._limits.connect_s)
        async with self._client.request(
            exchange.method,
            self._url(raw_path),
            headers=sent,
            data=body or None,
            timeout=timeout,
            allow_redirects=False,
            skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
        ) as reply:
            data = await reply.read()
            if exchange.operation_id is not None:
                reach(f"{self._phase}-after-landing", exchange.operation_id)
            content_type = reply.headers.get("Content-Type", "application/octet-stream")
            exchange.replayed = reply.headers.get("X-Operation-Replayed") == "1"
            exchange.answer(reply.status, content_type, data)
            return _Reply(reply.status, content_type, data)

    async def _on_stock(
        self, stock: StockEffects, exchange: Exchange, content_type: str, body: bytes, limit: float
    ) -> _Reply:
        name, seq = exchange.operation_id or "", exchange.seq or 0
        operation = Operation(name, seq, self._fence, self._limits.guest_s(self._phase, exchange.path))
        async with asyncio.timeout(limit):
            reply = await stock.perform(exchange.path, content_type, body, operation)
        reach(f"{self._phase}-after-landing", name)
        exchange.replayed = reply.replayed
        exchange.answer(reply.status, reply.headers["content-type"], reply.body)
        return _Reply(reply.status, reply.headers["content-type"], reply.body)

    def _url(self, raw_path: str) -> URL:
        return URL(f"{self._guest.base_url}{raw_path}", encoded=True)

    def _credentials(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._guest.token}"} if self._guest.token else {}


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    content_type: str
    body: bytes

    @classmethod
    def problem(cls, status: int, message: str) -> _Reply:
        return cls(status, "text/plain; charset=utf-8", f"gateway: {quote(message, safe=' :,.()/')}".encode())
