"""The provider "attached": OSWorld machines that somebody already runs, unmodified, leased one rollout at a time.

`create` takes a free machine of the list and waits until its screenshot decodes and has the right size; `destroy` gives it back as *dirty*. A
dirty machine is not handed out again before the reset command (a snapshot revert, say) has succeeded, or a person has cleared it.
Nothing but the ledger's folder is ever written on a machine by this provider, and nothing on one it did not lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shlex
import signal
import socket
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from osworld_rollouts.desktops._provider import (
    DesktopError,
    DesktopLost,
    DesktopNotReady,
    DesktopRecord,
    DesktopUnavailable,
    Endpoints,
    Problem,
)
from osworld_rollouts.desktops.attached_machines import Machine, MachineBook, parse_machines
from osworld_rollouts.desktops.guest_client import GuestError, GuestRefused
from osworld_rollouts.desktops.lease_registry import LeaseRegistry
from osworld_rollouts.desktops.png_check import png_fault
from osworld_rollouts.desktops.stock_guest import INNER_PORT, StockGuestClient

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from osworld_rollouts.contracts.desktop import DesktopSpec, LeaseOwner

log = structlog.get_logger()

READY_TIMEOUT_S = 60.0
"""How long a machine may take to show a usable screenshot; after a reset it boots."""
RESET_TIMEOUT_S = 150.0
"""How long the reset command may run. `timeouts.provision_s` must hold both."""
LEASE_TTL = timedelta(hours=12)
_NAME_THEM = "set ROLLOUTS_ATTACHED=name=host:server:chromium:vnc:vlc,... on the worker of this host"


class AttachedDesktopProvider:
    """Leases the machines named in `machines` (see `parse_machines`); `reset` is a command line that puts one back.

    The command gets ROLLOUTS_MACHINE (its name), ROLLOUTS_MACHINE_HOST and ROLLOUTS_MACHINE_PORT (of OSWorld's server) in its environment,
    and says by exit code 0 that the machine is as new. `inner_port` is where OSWorld's server listens inside.
    """

    name = "attached"
    chooses_image = True

    def __init__(
        self,
        state_dir: Path | str,
        *,
        machines: str = "",
        reset: str = "",
        host_id: str | None = None,
        lease_ttl: timedelta = LEASE_TTL,
        ready_timeout: float = READY_TIMEOUT_S,
        inner_port: int = INNER_PORT,
    ) -> None:
        root = Path(state_dir).absolute() / "attached"
        self._registry = LeaseRegistry(root / "leases", sockets=False)
        self.book = MachineBook.of(Path(state_dir).absolute())
        self.machines = parse_machines(machines)
        self._reset_command = shlex.split(reset)
        self._host_id = host_id or socket.gethostname()
        self._lease_ttl = lease_ttl
        self._ready_timeout = ready_timeout
        self._inner_port = inner_port

    async def preflight(self) -> list[Problem]:
        """No machines, machines that do not answer, and dirty ones nobody can put back."""
        if not self.machines:
            return [Problem("machines", "no machines are named", _NAME_THEM)]
        found: list[Problem] = []
        for machine in self.machines.values():
            try:
                async with asyncio.timeout(5):
                    _, writer = await asyncio.open_connection(machine.host, machine.server)
                writer.close()
            except (OSError, TimeoutError) as error:
                where = f"{machine.host}:{machine.server}"
                message = f"machine {machine.name} does not answer at {where}: {error or type(error).__name__}"
                found.append(
                    Problem(machine.name, message, f"start OSWorld's server on it, or correct {where}", fatal=False)
                )
            entry = await asyncio.to_thread(self.book.entry, machine.name)
            if entry.state == "dirty" and not self._reset_command:
                found.append(
                    Problem(machine.name, f"machine {machine.name} is {entry}", _remedy(machine.name), fatal=False)
                )
        return found

    async def image_identity(self) -> str:
        """Sha256 (hex) of the list of machines. What a single machine is, its record says."""
        return hashlib.sha256(repr(sorted(self.machines.items())).encode()).hexdigest()

    async def create(self, spec: DesktopSpec, lease_id: str, owner: LeaseOwner) -> DesktopRecord:
        """A machine of this lease; `spec.image` may name which one. See `DesktopProvider.create`.

        Raises:
            DesktopUnavailable: none is named, free, and clean or put back by the reset command; says why for each.
            DesktopNotReady: those that were free did not come up.
            DesktopLost: the machine of this lease was reset meanwhile.
        """
        wanted = self._wanted(spec, lease_id)
        async with self._locked(lease_id) as folder:
            known = await asyncio.to_thread(self._registry.read, lease_id)
            if known is not None and known.state == "ready":
                return await self._still_there(known)
            record = known or self._making(spec, lease_id, owner, folder)
            folder.mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread(self._registry.write, record)
            faults: dict[str, DesktopError] = {}
            try:
                for machine in wanted:
                    try:
                        return await self._lease(machine, record)
                    except DesktopError as error:
                        faults[machine.name] = error
                        await asyncio.to_thread(self.book.release, lease_id)
            except BaseException:
                await asyncio.to_thread(self.book.release, lease_id)
                raise
            await asyncio.to_thread(self._registry.remove, folder)
        text = "; ".join(f"{name}: {error}" for name, error in faults.items())
        tried = any(isinstance(error, DesktopNotReady) for error in faults.values())
        raise (DesktopNotReady if tried else DesktopUnavailable)(f"no machine for lease {lease_id}: {text}")

    async def adopt(self, lease_id: str) -> DesktopRecord | None:
        """The machine of this lease, or None. Whether it answers is found out by using it."""
        record = await asyncio.to_thread(self._registry.read, lease_id)
        return record if record is not None and record.state == "ready" else None

    async def renew(self, lease_id: str, expires_at: datetime) -> None:
        """Move the lease's expiry; does nothing when there is no machine."""
        async with self._locked(lease_id):
            record = await asyncio.to_thread(self._registry.read, lease_id)
            if record is not None:
                await asyncio.to_thread(self._registry.write, record.model_copy(update={"expires_at": expires_at}))

    async def destroy(self, lease_id: str) -> None:
        """End the lease: whatever comes late is refused by the machine, and the machine is dirty. Does nothing when there is none."""
        async with self._locked(lease_id) as folder:
            record = await asyncio.to_thread(self._registry.read, lease_id)
            if record is not None and record.state == "ready":
                # The next lease's ledger replaces this one too, should the machine not answer now.
                with contextlib.suppress(GuestError):
                    async with StockGuestClient.of(record) as client:
                        await client.close_ledger()
            for name in await asyncio.to_thread(self.book.release, lease_id):
                log.info("machine released", machine=name, lease_id=lease_id, state=str(self.book.entry(name)))
            await asyncio.to_thread(self._registry.remove, folder)

    async def list(self) -> list[DesktopRecord]:
        """Every lease of a machine, also those half made."""
        await asyncio.to_thread(self._registry.tidy)
        return await asyncio.to_thread(self._registry.all)

    def _wanted(self, spec: DesktopSpec, lease_id: str) -> list[Machine]:
        if not self.machines:
            raise DesktopUnavailable(f"no machines are attached to this host; {_NAME_THEM}")
        if spec.image is None:
            return sorted(self.machines.values(), key=lambda machine: self._rank(machine, lease_id))
        if spec.image not in self.machines:
            known = ", ".join(sorted(self.machines))
            raise DesktopUnavailable(f"this host has no machine {spec.image!r}; it has {known}; {_NAME_THEM}")
        return [self.machines[spec.image]]

    def _rank(self, machine: Machine, lease_id: str) -> int:
        """What an earlier attempt of this lease took, then what is clean, then what must be reset."""
        entry = self.book.entry(machine.name)
        return 0 if entry.lease_id == lease_id else 2 if entry.state == "dirty" else 1

    def _making(self, spec: DesktopSpec, lease_id: str, owner: LeaseOwner, folder: Path) -> DesktopRecord:
        now = datetime.now(UTC)
        return DesktopRecord(
            lease_id=lease_id,
            provider=self.name,
            owner=owner,
            host_id=self._host_id,
            state="making",
            state_dir=folder,
            endpoints=Endpoints(ledger="stock", inner_port=self._inner_port),
            spec=spec,
            width=spec.width,
            height=spec.height,
            image_identity="",
            tier="attached",
            marker="",
            created_at=now,
            expires_at=now + self._lease_ttl,
        )

    async def _lease(self, machine: Machine, record: DesktopRecord) -> DesktopRecord:
        entry = await asyncio.to_thread(self.book.take, machine.name, record.lease_id)
        if entry is None:
            raise DesktopUnavailable(f"it is {await asyncio.to_thread(self.book.entry, machine.name)}")
        if entry.before == "dirty":
            await self._reset(machine, record.lease_id)
        ends = record.endpoints.model_copy(
            update={
                "host": machine.host,
                "server_port": machine.server,
                "chromium_port": machine.chromium,
                "vlc_port": machine.vlc,
            }
        )
        record = record.model_copy(update={"endpoints": ends, "marker": machine.name})
        async with StockGuestClient.of(record) as client:
            await self._until_shown(client, record)
            try:
                facts = await client.open(replaces=entry.last_lease)
            except GuestRefused as error:
                raise DesktopUnavailable(f"{error}; {_remedy(machine.name)}") from error
            except GuestError as error:
                raise DesktopNotReady(f"it cannot run python3 for the operation ledger: {error}") from error
        if not facts["serves"]:
            raise DesktopNotReady(f"OSWorld's server does not listen on port {self._inner_port} inside the machine")
        await asyncio.to_thread(self.book.begin_work, machine.name, record.lease_id)
        ready = {"state": "ready", "ready_at": datetime.now(UTC), "image_identity": _identity(machine, facts)}
        record = record.model_copy(update=ready)
        await asyncio.to_thread(self._registry.write, record)
        log.info("machine leased", machine=machine.name, lease_id=record.lease_id, system=facts["system"])
        return record

    async def _until_shown(self, client: StockGuestClient, record: DesktopRecord) -> None:
        deadline = time.monotonic() + self._ready_timeout
        while True:
            try:
                fault = png_fault(await client.screenshot(), record.width, record.height)
            except GuestError as error:
                fault = str(error)
            if not fault:
                return
            if time.monotonic() > deadline:
                raise DesktopNotReady(f"no usable screenshot within {self._ready_timeout:g} s: {fault}")
            await asyncio.sleep(1)

    async def _reset(self, machine: Machine, lease_id: str) -> None:
        if not self._reset_command:
            raise DesktopUnavailable(
                f"it is dirty: a rollout worked on it and nobody has put it back since; {_remedy(machine.name)}"
            )
        where = {"": machine.name, "_HOST": machine.host, "_PORT": str(machine.server)}
        environment = {**os.environ, **{f"ROLLOUTS_MACHINE{name}": value for name, value in where.items()}}
        log.info("resetting machine", machine=machine.name)
        try:
            process = await asyncio.create_subprocess_exec(
                *self._reset_command,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise DesktopUnavailable(f"the reset command cannot be started: {error}") from error
        try:
            async with asyncio.timeout(RESET_TIMEOUT_S):
                output, _ = await process.communicate()
        except TimeoutError as error:
            raise DesktopUnavailable(f"the reset command was not done within {RESET_TIMEOUT_S:g} s") from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode:
            said = output.decode("utf-8", "replace").strip()[-500:]
            raise DesktopUnavailable(f"the reset command ended with {process.returncode}: {said}")
        await asyncio.to_thread(self.book.was_reset, machine.name, lease_id)

    async def _still_there(self, record: DesktopRecord) -> DesktopRecord:
        try:
            async with StockGuestClient.of(record) as client:
                await client.health()
        except GuestRefused as error:
            raise DesktopLost(f"machine {record.marker} is not the one lease {record.lease_id} got: {error}") from error
        except GuestError as error:
            log.warning("machine does not answer", machine=record.marker, error=str(error))
        return record

    @asynccontextmanager
    async def _locked(self, lease_id: str) -> AsyncGenerator[Path]:
        lock = self._registry.lock(lease_id)
        entering = asyncio.ensure_future(asyncio.to_thread(lock.__enter__))
        try:
            folder = await asyncio.shield(entering)
        except asyncio.CancelledError:
            entering.add_done_callback(lambda done: lock.__exit__(None, None, None) if not done.exception() else None)
            raise
        try:
            yield folder
        finally:
            lock.__exit__(None, None, None)


def _identity(machine: Machine, facts: dict[str, Any]) -> str:
    """Sha256 (hex) of what the machine says of itself: system, release, installed packages."""
    known = [machine.name, facts["system"], facts["release"], facts["packages"]]
    return hashlib.sha256("\0".join(known).encode()).hexdigest()


def _remedy(name: str) -> str:
    return (
        "set ROLLOUTS_ATTACHED_RESET to a command that puts a machine back (such as a script that reverts its snapshot), or "
        f"put it back yourself and then run `rollouts machines --clear {name}`"
    )
