"""Effects of `desktop-env` on an unmodified OSWorld server, at most once each; see `desktops/stock_guest.py` for how.

What that means for each endpoint the package uses:

| endpoint | how | reply lost |
|---|---|---|
| `/execute`, `/setup/execute` | run by the wrapper, recorded in the guest | found in the ledger |
| `/setup/launch`, `open_file`, `activate_window`, `close_window`, `change_wallpaper`, `download_file`, `/run_python`, `/run_bash_script` | the wrapper asks the guest's own server from inside, and records its answer | found in the ledger |
| `/setup/upload` | sent as it is: the same bytes to the same place twice are the same file | sent again |
| any other form | sent once, as it is | indeterminate |

An inner request whose connection breaks before its answer leaves its operation interrupted, hence indeterminate: the server may or may not
have done it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self

from osworld_rollouts.desktops.guest_client import GuestRefused, GuestReply, GuestUnreachable, Operation, ReplyLost
from osworld_rollouts.desktops.stock_guest import UPLOAD, StockGuestClient, wrapped

if TYPE_CHECKING:
    from osworld_rollouts.osworld.job import GuestEndpoint, StockLedger


class StockEffects:
    """The way of effects to one stock guest. Use as an async context manager."""

    def __init__(self, guest: GuestEndpoint, ledger: StockLedger) -> None:
        self._client = StockGuestClient(
            lease_id=ledger.lease_id, socket=guest.server_socket, base_url=guest.base_url, inner_port=ledger.inner_port
        )

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.__aexit__(*error)

    @staticmethod
    def takes(path: str, content_type: str) -> bool:
        """Whether this effect goes through the ledger."""
        return wrapped(path, content_type)

    @staticmethod
    def repeatable(path: str, content_type: str) -> bool:
        """Whether this effect may be sent again when its reply is lost."""
        return path == UPLOAD or wrapped(path, content_type)

    async def perform(self, path: str, content_type: str, body: bytes, operation: Operation) -> GuestReply:
        """The server's answer, or the ledger's refusal in the form our own guest server gives it.

        Raises:
            ConnectionError: no answer; asking again is safe.
        """
        try:
            return await self._client.perform(path, body, operation, content_type)
        except GuestRefused as error:
            value = {"status": "error", "error": {"type": error.kind, "message": str(error)}, "message": str(error)}
            return GuestReply(error.status, {"content-type": "application/json"}, json.dumps(value).encode())
        except (GuestUnreachable, ReplyLost) as error:
            raise ConnectionError(str(error)) from error

    async def health(self, timeout_s: float) -> dict[str, Any]:
        """What `GET /health` of our own server tells: among others `last_seq`.

        Raises:
            ConnectionError: no answer, or this lease's ledger is not in force.
        """
        try:
            return await self._client.health(timeout=timeout_s)
        except (GuestRefused, GuestUnreachable, ReplyLost) as error:
            raise ConnectionError(str(error)) from error
