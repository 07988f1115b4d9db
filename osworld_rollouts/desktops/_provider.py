"""What every desktop provider is: the interface, the record of a desktop, and the ways it can fail."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from osworld_rollouts.contracts.desktop import DesktopSpec, LeaseOwner


class DesktopError(Exception):
    """A desktop could not be made, reached or removed. The message says which, why, and what to do."""


class DesktopUnavailable(DesktopError):
    """The host lacks something a desktop needs; the message carries the exact remedy."""


class DesktopNotReady(DesktopError):
    """The desktop was started and did not come up in time; the message carries a diagnosis."""


class DesktopLost(DesktopError):
    """The desktop of this lease existed, may have been worked on, and is gone. A retry is a new execution."""


@dataclass(frozen=True)
class Problem:
    """Something a host lacks. `fatal` means that no desktop can be made; otherwise it works with less."""

    subject: str
    message: str
    remedy: str
    fatal: bool = True


class Endpoints(BaseModel):
    """What leads into the desktop: OSWorld's server, Chrome's debugging port, VLC's web interface.

    Unix sockets on this host, or `host` with ports. `ledger` says who keeps the operation ledger: the guest's own server, or the
    client from outside, because the server is OSWorld's own (`stock_guest.py`); that one listens on `inner_port` inside.
    """

    model_config = ConfigDict(frozen=True)

    server: Path | None = None
    chromium: Path | None = None
    vlc: Path | None = None
    host: str | None = None
    server_port: int = 5000
    chromium_port: int = 9222
    vlc_port: int = 8080
    ledger: Literal["guest", "stock"] = "guest"
    inner_port: int = 5000

    @property
    def base_url(self) -> str:
        """Where OSWorld's server is asked; over a unix socket the name of the host says nothing."""
        return "http://guest" if self.host is None else f"http://{self.host}:{self.server_port}"


class DesktopRecord(BaseModel):
    """One desktop of this host: who may use it, how to reach it, how to find its processes again.

    Kept as `record.json` in `state_dir`. The token is a file of its own (0600) and never part of a dump or a log.
    """

    model_config = ConfigDict(extra="forbid")

    lease_id: str
    provider: str
    owner: LeaseOwner
    host_id: str
    state: Literal["making", "ready"]
    state_dir: Path
    endpoints: Endpoints
    token: SecretStr = Field(default=SecretStr(""), exclude=True)
    fence: int = 1
    spec: DesktopSpec
    width: int
    height: int
    image_identity: str
    tier: str
    marker: str
    created_at: datetime
    ready_at: datetime | None = None
    expires_at: datetime


@runtime_checkable
class DesktopProvider(Protocol):
    """Makes and removes desktops on this host.

    Everything a provider makes carries its own label; `list` finds it again after any death, and `destroy` touches nothing else.
    """

    name: str

    async def preflight(self) -> list[Problem]:
        """What is missing on this host, each with the command that puts it right. Empty when desktops can be made."""
        ...

    async def image_identity(self) -> str:
        """Digest of everything that decides what a desktop is: package versions, home template, guest server."""
        ...

    async def create(self, spec: DesktopSpec, lease_id: str, owner: LeaseOwner) -> DesktopRecord:
        """The desktop of this lease, ready to be worked on. A second call adopts what the first one made.

        Raises:
            DesktopUnavailable: the host lacks something.
            DesktopNotReady: it did not come up in time; what was started is removed.
            DesktopLost: it was there before, may have been worked on, and is gone.
        """
        ...

    async def adopt(self, lease_id: str) -> DesktopRecord | None:
        """The living desktop of this lease, or None."""
        ...

    async def renew(self, lease_id: str, expires_at: datetime) -> None:
        """Move the lease's expiry; does nothing when there is no desktop."""
        ...

    async def destroy(self, lease_id: str) -> None:
        """Remove the desktop with its processes, mounts, files and display. Does nothing when there is none.

        Raises:
            DesktopError: something of it could not be removed.
        """
        ...

    async def list(self) -> list[DesktopRecord]:
        """Every desktop this provider made here, also those half made or dead."""
        ...
