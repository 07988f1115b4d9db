"""The machines somebody else runs: where they are, who holds them, and which of them are dirty. On disk, under one lock.

A machine is *free*, *leased*, or *dirty*: a rollout worked on it, and nobody has put it back since. Every worker of this host that
shares the state directory shares the book; two hosts must not be given the same machine (if they are, the ledger inside
the machine refuses the second).
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, Self

from pydantic import BaseModel, ConfigDict

from osworld_rollouts.desktops._provider import DesktopError, DesktopUnavailable

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_EXAMPLE = "ROLLOUTS_ATTACHED=vm1=10.0.0.5:5000:9222:8006:8080,vm2=10.0.0.6"


@dataclass(frozen=True)
class Machine:
    """An OSWorld machine: host and the ports of its server, Chrome's debugging, VNC and VLC, as `desktop-env` writes them."""

    name: str
    host: str
    server: int = 5000
    chromium: int = 9222
    vnc: int = 8006
    vlc: int = 8080


def parse_machines(text: str) -> dict[str, Machine]:
    """`name=host[:server[:chromium[:vnc[:vlc]]]],...` by name. A host is a name or an IPv4 address.

    Raises:
        DesktopUnavailable: it is not of this form.
    """
    found: dict[str, Machine] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, address = entry.partition("=")
        host, *ports = address.split(":")
        usable = all(port.isascii() and port.isdigit() and 0 < int(port) < 65536 for port in ports)
        if not _NAME.fullmatch(name) or name in found or not host or len(ports) > 4 or not usable:
            raise DesktopUnavailable(f"{entry!r} names no machine, or one twice; write for example {_EXAMPLE}")
        found[name] = Machine(name, host, *map(int, ports))
    return found


class Entry(BaseModel):
    """What the book knows of one machine. `before` is the state it goes back to when a lease ends before any work was done."""

    model_config = ConfigDict(extra="ignore")

    state: Literal["free", "leased", "dirty"] = "free"
    lease_id: str = ""
    before: Literal["free", "dirty"] = "free"
    last_lease: str = ""
    since: datetime | None = None

    def __str__(self) -> str:
        since = f" since {self.since:%Y-%m-%d %H:%M:%S} UTC" if self.since else ""
        who = {"leased": f" by {self.lease_id}", "dirty": f" from {self.last_lease}"}.get(self.state, "")
        return f"{self.state}{who}{since}"


class MachineBook:
    """The folder `root` with one file for each machine ever leased."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @classmethod
    def of(cls, state_dir: Path) -> Self:
        """The book of a state directory."""
        return cls(state_dir / "attached" / "machines")

    def entry(self, name: str) -> Entry:
        """What is known of a machine; one never heard of is free."""
        try:
            return Entry.model_validate_json((self._root / f"{name}.json").read_text())
        except FileNotFoundError:
            return Entry()

    def take(self, name: str, lease_id: str) -> Entry | None:
        """Lease a machine that is free or dirty, and give its entry; None when another lease has it."""
        with self._locked():
            entry = self.entry(name)
            if entry.state == "leased":
                return entry if entry.lease_id == lease_id else None
            taken = Entry(
                state="leased",
                lease_id=lease_id,
                before=entry.state,
                last_lease=entry.last_lease,
                since=datetime.now(UTC),
            )
            self._write(name, taken)
            return taken

    def was_reset(self, name: str, lease_id: str) -> None:
        """The machine of this lease is as new."""
        self._change(name, lease_id, before="free")

    def begin_work(self, name: str, lease_id: str) -> None:
        """From now on the machine is dirty when its lease ends, however it ends."""
        self._change(name, lease_id, before="dirty", last_lease=lease_id)

    def release(self, lease_id: str) -> list[str]:
        """End a lease; its machine is dirty if work had begun. The names of the machines it had."""
        with self._locked():
            names = [name for name in self.names() if self.entry(name).lease_id == lease_id]
            for name in names:
                entry = self.entry(name)
                self._write(name, Entry(state=entry.before, last_lease=entry.last_lease, since=datetime.now(UTC)))
            return names

    def clear(self, name: str) -> None:
        """A person says that a dirty machine is as new.

        Raises:
            DesktopError: it is leased.
        """
        with self._locked():
            entry = self.entry(name)
            if entry.state == "leased":
                raise DesktopError(f"machine {name} is {entry}; cancel that rollout first")
            self._write(name, Entry(last_lease=entry.last_lease, since=datetime.now(UTC)))

    def names(self) -> list[str]:
        """Machines that were ever leased, sorted."""
        return sorted(path.stem for path in self._root.glob("*.json"))

    def _change(self, name: str, lease_id: str, **fields: str) -> None:
        with self._locked():
            entry = self.entry(name)
            if entry.lease_id != lease_id:
                raise DesktopError(f"machine {name} is {entry}, no longer leased by {lease_id}")
            self._write(name, entry.model_copy(update=fields))

    @contextmanager
    def _locked(self) -> Generator[None]:
        self._root.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._root / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _write(self, name: str, entry: Entry) -> None:
        part = self._root / f".{name}.new"
        with part.open("w") as file:
            file.write(entry.model_dump_json(indent=1))
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._root / f"{name}.json")
