"""Asynchronous client of the guest server, ours or a stock one: unix socket or TCP, lease token, operation headers.

What matters about a failure is whether the request may have taken effect: `GuestUnreachable` says it was never sent, `ReplyLost` says
nobody knows, `GuestRefused` is an answer.
"""

from __future__ import annotations

import asyncio
import json
import urllib.parse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import aiohttp

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import SecretStr

    from osworld_rollouts.desktops._provider import DesktopRecord

CONNECT_TIMEOUT_S = 10.0
REPLY_MARGIN_S = 15.0
"""How much longer than the guest itself we wait for its answer."""


class GuestError(Exception):
    """A request to the guest failed."""


class GuestUnreachable(GuestError):
    """No connection could be made; the request was not sent and had no effect."""


class ReplyLost(GuestError):
    """The request was sent and no whole answer came back; whether it took effect is unknown. Ask the ledger."""


class GuestRefused(GuestError):
    """The guest answered with an error: HTTP `status`, stable `kind`, and the JSON `detail` it sent."""

    def __init__(self, status: int, kind: str, message: str, detail: dict[str, Any]) -> None:
        super().__init__(f"{kind} ({status}): {message}")
        self.status = status
        self.kind = kind
        self.detail = detail


@dataclass(frozen=True)
class Operation:
    """Identity of one effect. `timeout` is how long the guest lets it run, in seconds."""

    operation_id: str
    seq: int
    fence: int
    timeout: float = 120.0

    def headers(self) -> dict[str, str]:
        """The headers that make a request an operation."""
        return {
            "X-Operation-Id": self.operation_id,
            "X-Operation-Seq": str(self.seq),
            "X-Lease-Fence": str(self.fence),
            "X-Operation-Timeout": f"{self.timeout:g}",
        }


@dataclass(frozen=True)
class GuestReply:
    """A raw answer. `replayed` says that the effect happened earlier and this is its recorded result."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def replayed(self) -> bool:
        """Whether the answer comes from the ledger."""
        return self.headers.get("x-operation-replayed") == "1"


@dataclass(frozen=True)
class CommandResult:
    """What a command printed and returned."""

    output: str
    error: str
    returncode: int
    replayed: bool


@dataclass(frozen=True)
class OperationStatus:
    """A ledger entry. Times are Unix seconds; `status`, `body` and `returncode` are set once finished."""

    operation_id: str
    seq: int
    fence: int
    state: Literal["running", "finished", "interrupted"]
    started_at: float
    finished_at: float | None
    status: int | None
    body: str | None
    returncode: int | None


class GuestClient:
    """Talks to one guest. Use as `async with`; every request has its own connection, so none is lost on a stale one."""

    def __init__(
        self, *, socket: Path | None = None, base_url: str = "http://guest", token: SecretStr | str | None = None
    ) -> None:
        self._socket = socket
        self._base_url = base_url.rstrip("/")
        secret = token if isinstance(token, str) or token is None else token.get_secret_value()
        self._headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def of(cls, record: DesktopRecord) -> Self:
        """A client of the desktop in `record`; `clients.guest_client` chooses the class that fits it."""
        return cls(socket=record.endpoints.server, base_url=record.endpoints.base_url, token=record.token)

    async def __aenter__(self) -> Self:
        connector = (
            aiohttp.TCPConnector(force_close=True, limit=0)
            if self._socket is None
            else aiohttp.UnixConnector(str(self._socket), force_close=True, limit=0)
        )
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, auto_decompress=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        data: Any = None,
        headers: dict[str, str] | None = None,
        operation: Operation | None = None,
        timeout: float = 60.0,
    ) -> GuestReply:
        """Send one request and return whatever the guest answers, errors too. `timeout` is for the whole exchange, in seconds.

        Raises:
            GuestUnreachable: not sent.
            ReplyLost: sent, and no whole answer within the time.
        """
        if self._session is None:
            raise RuntimeError("GuestClient is used outside its 'async with' block")
        total = timeout if operation is None else max(timeout, operation.timeout + REPLY_MARGIN_S)
        sent = {**(headers or {}), **(operation.headers() if operation is not None else {})}
        try:
            async with self._session.request(
                method,
                self._base_url + path,
                data=data,
                headers=sent,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=total, connect=CONNECT_TIMEOUT_S),
            ) as reply:
                body = await reply.read()
                return GuestReply(reply.status, {name.lower(): value for name, value in reply.headers.items()}, body)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise GuestUnreachable(f"{method} {path} was not sent: {error}") from error
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise ReplyLost(
                f"{method} {path} was sent and its reply was lost: {type(error).__name__}: {error}"
            ) from error

    async def ask(self, method: str, path: str, **how: Any) -> GuestReply:
        """Like `request`, for callers that expect success.

        Raises:
            GuestRefused: the guest answered with an error.
        """
        reply = await self.request(method, path, **how)
        if reply.status >= 400:
            raise refusal(reply)
        return reply

    async def health(self, timeout: float = 10.0) -> dict[str, Any]:
        """`GET /health`: `ok`, `ready`, `detail`, `screen`, `version`, `fence`, `last_seq`."""
        return json.loads((await self.ask("GET", "/health", timeout=timeout)).body)

    async def screenshot(self, timeout: float = 20.0) -> bytes:
        """PNG of the screen as the guest sent it; decoding it is the caller's check."""
        return (await self.ask("GET", "/screenshot", timeout=timeout)).body

    async def accessibility_tree(self, timeout: float = 75.0) -> str:
        """The AT-SPI tree as XML."""
        return json.loads((await self.ask("GET", "/accessibility", timeout=timeout)).body)["AT"]

    async def execute(
        self,
        command: list[str] | str,
        *,
        shell: bool = False,
        operation: Operation | None = None,
        timeout: float = 135.0,
    ) -> CommandResult:
        """Run a command in the guest; a return code other than 0 is a result, not an error."""
        body = json.dumps({"command": command, "shell": shell}).encode()
        reply = await self.ask(
            "POST",
            "/execute",
            data=body,
            headers={"Content-Type": "application/json"},
            operation=operation,
            timeout=timeout,
        )
        value = json.loads(reply.body)
        return CommandResult(value["output"], value["error"], value["returncode"], reply.replayed)

    async def setup(
        self, step: str, parameters: dict[str, Any], *, operation: Operation | None = None, timeout: float = 135.0
    ) -> GuestReply:
        """`POST /setup/<step>` with JSON parameters, such as `launch`, `open_file` or `activate_window`."""
        return await self.ask(
            "POST",
            f"/setup/{step}",
            data=json.dumps(parameters).encode(),
            headers={"Content-Type": "application/json"},
            operation=operation,
            timeout=timeout,
        )

    async def read_file(self, path: str, timeout: float = 300.0) -> bytes:
        """The bytes of a file in the guest."""
        form = aiohttp.FormData({"file_path": path})
        return (await self.ask("POST", "/file", data=form, timeout=timeout)).body

    async def write_file(
        self, path: str, data: bytes, *, operation: Operation | None = None, timeout: float = 300.0
    ) -> None:
        """Write a file in the guest: readers see the old one or the whole new one."""
        form = aiohttp.FormData()
        form.add_field("file_path", path)
        form.add_field("file_data", data, filename=path.rsplit("/", 1)[-1])
        await self.ask("POST", "/setup/upload", data=form, operation=operation, timeout=timeout)

    async def operation(self, operation_id: str, timeout: float = 20.0) -> OperationStatus | None:
        """What the ledger knows of an operation; None when it never arrived.

        Raises:
            GuestError: the ledger could not be asked, so nothing is known.
        """
        reply = await self.request("GET", "/operations/" + urllib.parse.quote(operation_id, safe=""), timeout=timeout)
        if reply.status == 404 and refusal(reply).kind == "operation_absent":
            return None
        if reply.status >= 400:
            raise refusal(reply)
        value: dict[str, Any] = json.loads(reply.body)
        fields: dict[str, Any] = {name: value.get(name) for name in OperationStatus.__dataclass_fields__}
        return OperationStatus(**fields)

    async def wait_ready(self, timeout: float) -> dict[str, Any]:
        """Ask for health until the desktop is ready; returns the last answer, ready or not."""
        deadline = asyncio.get_running_loop().time() + timeout
        health: dict[str, Any] = {"ready": False, "detail": "the guest server does not answer"}
        while asyncio.get_running_loop().time() < deadline:
            try:
                health = await self.health(timeout=5)
            except GuestError as error:
                health = {"ready": False, "detail": str(error)}
            if health["ready"]:
                break
            await asyncio.sleep(0.03)
        return health


def refusal(reply: GuestReply) -> GuestRefused:
    """The error an answer carries; a body that is not our structured JSON becomes kind `http_error`."""
    try:
        detail = json.loads(reply.body)
    except ValueError:
        detail = None
    if not isinstance(detail, dict):
        return GuestRefused(reply.status, "http_error", reply.body[:300].decode("utf-8", "replace"), {})
    error = detail.get("error")
    if isinstance(error, dict):
        return GuestRefused(reply.status, str(error.get("type")), str(error.get("message")), detail)
    return GuestRefused(reply.status, "http_error", str(detail.get("message") or error), detail)
