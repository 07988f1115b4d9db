"""The local provider: makes, adopts, lists and removes desktops on this machine."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import socket
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from osworld_rollouts.desktops._provider import (
    DesktopLost,
    DesktopNotReady,
    DesktopRecord,
    DesktopUnavailable,
    Endpoints,
    Problem,
)
from osworld_rollouts.desktops.guest_client import GuestClient, GuestError
from osworld_rollouts.desktops.lease_registry import LeaseRegistry
from osworld_rollouts.desktops.local import assets, home, home_link, packages, processes
from osworld_rollouts.desktops.local.confinement import Confinement, choose
from osworld_rollouts.desktops.local.sandbox import Layout, command, environment, session_settings
from osworld_rollouts.desktops.png_check import png_fault

if TYPE_CHECKING:
    from osworld_rollouts.contracts.desktop import DesktopSpec, LeaseOwner

READY_TIMEOUT_S = 60.0
LEASE_TTL = timedelta(hours=12)
ALIVE_CHECK_S = 1.0
LOG_TAIL = 600
SANDBOX_REMEDY = (
    "install bubblewrap and allow user namespaces (in a container: --security-opt seccomp=unconfined --security-opt "
    "systempaths=unconfined; on Ubuntu 24.04: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0)"
)


class LocalDesktopProvider:
    """Desktops as sandboxes (or plain processes) of this machine, kept below `state_dir`.

    For trying out and for tests, not for untrusted models: see the package's docstring. `tier` "auto" takes bubblewrap when the
    machine allows user namespaces, else plain processes. `ready_timeout` is in seconds.
    """

    name = "local"

    def __init__(
        self,
        state_dir: Path | str,
        *,
        tier: str = "auto",
        host_id: str | None = None,
        ready_timeout: float = READY_TIMEOUT_S,
        lease_ttl: timedelta = LEASE_TTL,
    ) -> None:
        self._root = Path(state_dir).absolute()
        self._tier_wanted = tier
        self._host_id = host_id or socket.gethostname()
        self._ready_timeout = ready_timeout
        self._lease_ttl = lease_ttl
        self._registry = LeaseRegistry(self._root / "desktops")
        self._identity: str | None = None

    def most(self) -> int | None:
        """How many desktops this machine can hold at once, if something other than its size decides: one of plain processes."""
        return 1 if choose(self._tier_wanted, self._root, 0).tier == "process" else None

    async def preflight(self) -> list[Problem]:
        """What is missing on this machine, each with the command that puts it right."""
        return await asyncio.to_thread(self._problems)

    async def image_identity(self) -> str:
        """Sha256 (hex) over package versions, guest requirements, guest server and home template."""
        if self._identity is None:
            self._identity = await asyncio.to_thread(_identity)
        return self._identity

    async def create(self, spec: DesktopSpec, lease_id: str, owner: LeaseOwner) -> DesktopRecord:
        """The desktop of this lease, ready to be worked on; see `DesktopProvider.create`."""
        identity = await self.image_identity()
        record = await asyncio.to_thread(self._start, spec, lease_id, owner, identity)
        if record.state == "ready":
            return record
        try:
            await self._until_ready(record)
        except DesktopNotReady:
            await self.destroy(lease_id)
            raise
        return await asyncio.to_thread(self._ready, lease_id)

    async def adopt(self, lease_id: str) -> DesktopRecord | None:
        """The living, ready desktop of this lease, or None."""
        record = await asyncio.to_thread(self._registry.read, lease_id)
        if record is None or record.state != "ready" or not await asyncio.to_thread(processes.alive, record.marker):
            return None
        return record

    async def renew(self, lease_id: str, expires_at: datetime) -> None:
        """Move the lease's expiry; does nothing when there is no desktop."""
        await asyncio.to_thread(self._renew, lease_id, expires_at)

    async def destroy(self, lease_id: str) -> None:
        """Remove the desktop with its processes and files; does nothing when there is none."""
        await asyncio.to_thread(self._destroy, lease_id)

    async def list(self) -> list[DesktopRecord]:
        """Every desktop below `state_dir`, also those half made or dead."""
        await asyncio.to_thread(self._registry.tidy)
        return await asyncio.to_thread(self._registry.all)

    def _problems(self) -> list[Problem]:
        found = packages.problems()
        confinement = choose(self._tier_wanted, self._root, 0)
        if confinement.fault:
            found.append(
                Problem(
                    subject="sandbox",
                    message=f"{confinement.fault}; desktops run as plain processes of this machine, one at a time: no isolation (a task's "
                    "`pkill chrome` also ends your own browser)",
                    remedy=f"{SANDBOX_REMEDY}, or keep this for a first try only",
                    fatal=self._tier_wanted == "bubblewrap",
                )
            )
        if confinement.tier == "process" and (fault := home_link.fault()):
            found.append(
                Problem(
                    subject="home",
                    message=f"{confinement.fault or 'desktops run as plain processes'}; {fault}, and tasks name files below it",
                    remedy=f"{SANDBOX_REMEDY}, or run as root in a container of its own",
                )
            )
        return found

    def _start(self, spec: DesktopSpec, lease_id: str, owner: LeaseOwner, identity: str) -> DesktopRecord:
        """Under the lease's lock: the record of a desktop that is ready, or on its way."""
        try:
            with self._registry.lock(lease_id) as folder:
                known = self._registry.read(lease_id)
                if known is not None and processes.alive(known.marker):
                    return known
                if known is not None and any((known.state_dir / "ledger" / "ops").glob("*")):
                    raise DesktopLost(
                        f"the desktop of lease {lease_id} was worked on and its processes are gone; "
                        "destroy the lease and start a new execution"
                    )
                if known is not None:
                    processes.end(known.marker, sandboxed=known.tier == "bubblewrap")
                    home_link.release(folder / "home")
                self._registry.remove(folder)
                return self._make(spec, lease_id, owner, identity, folder)
        except OSError as error:
            raise DesktopUnavailable(
                f"the desktop of lease {lease_id} cannot be made in {self._root}: {error}; "
                "choose a state directory on a disk with room that this user may write"
            ) from error

    def _make(self, spec: DesktopSpec, lease_id: str, owner: LeaseOwner, identity: str, folder: Path) -> DesktopRecord:
        fatal = [problem for problem in packages.problems() if problem.fatal]
        if fatal:
            raise DesktopUnavailable("; ".join(f"{problem.message}. Run: {problem.remedy}" for problem in fatal))
        confinement = choose(self._tier_wanted, self._root, int(folder.name, 16))
        if self._tier_wanted == "bubblewrap" and confinement.tier != "bubblewrap":
            raise DesktopUnavailable(f"{confinement.fault}; allow user namespaces or choose the tier 'process'")
        layout = Layout(
            desktop=folder,
            guest=assets.guest_server(self._root),
            guest_python=assets.guest_python(self._root),
            programs=assets.programs(self._root),
            chrome=assets.chrome(self._root, confinement.tier),
        )
        now = datetime.now(UTC)
        for parent in (self._root, folder.parent):
            # Others may pass through, not look around: a desktop has a user id of its own.
            parent.chmod(0o711)
        folder.mkdir(mode=0o711)
        record = DesktopRecord(
            lease_id=lease_id,
            provider=self.name,
            owner=owner,
            host_id=self._host_id,
            state="making",
            state_dir=folder,
            endpoints=Endpoints(
                server=folder / "sock/server.sock",
                chromium=folder / "sock/9222.sock",
                vlc=folder / "sock/8080.sock",
            ),
            token=SecretStr(secrets.token_urlsafe(32)),
            spec=spec,
            width=spec.width,
            height=spec.height,
            image_identity=identity,
            tier=confinement.tier,
            marker=secrets.token_hex(16),
            created_at=now,
            expires_at=now + self._lease_ttl,
        )
        # The record comes before the process: whatever runs can be found again.
        self._registry.write(record)
        if confinement.tier == "process":
            self._hold_home(folder)
        home.fill_home(folder / "home")
        home.fill_etc(folder / "etc", record.marker)
        for name in ("sock", "ledger", "log", "run", "tmp"):
            (folder / name).mkdir(mode=0o700)
        for name in ("home", "etc", "sock", "ledger", "log", "run", "tmp"):
            confinement.own(folder / name)
        self._spawn(record, layout, confinement)
        return record

    def _hold_home(self, folder: Path) -> None:
        try:
            home_link.hold(folder / "home")
        except DesktopUnavailable:
            self._registry.remove(folder)
            raise

    def _spawn(self, record: DesktopRecord, layout: Layout, confinement: Confinement) -> None:
        network = record.spec.network
        seen = layout.moved(lambda path: confinement.seen(path, self._root))
        settings = session_settings(
            confinement.tier, seen, width=record.width, height=record.height, network=network, marker=record.marker
        )
        words = confinement.around(command(confinement.tier, seen, settings, network=network), self._root)
        reader, writer = os.pipe()
        try:
            os.write(writer, record.token.get_secret_value().encode())
            os.close(writer)
            with (record.state_dir / "log" / "session.log").open("ab") as log:
                # `setsid --fork` leaves the desktop to process 1: it is nobody's child and outlives the worker. The token goes
                # through standard input, so that it is in no argument, environment or file the desktop can see.
                subprocess.run(
                    ["setsid", "--fork", *words],
                    env=environment(confinement.tier, seen),
                    cwd="/",
                    stdin=reader,
                    stdout=log,
                    stderr=log,
                    check=True,
                )
        except (OSError, subprocess.CalledProcessError) as error:
            raise DesktopUnavailable(f"the desktop's first process cannot be started: {error}") from error
        finally:
            os.close(reader)

    async def _until_ready(self, record: DesktopRecord) -> None:
        """The readiness gate.

        Raises:
            DesktopNotReady: with what was missing and the last words of the logs.
        """
        deadline = time.monotonic() + self._ready_timeout
        async with GuestClient.of(record) as guest:
            health = await guest.wait_ready(min(ALIVE_CHECK_S, self._ready_timeout))
            seen_dead = 0
            while not health["ready"] and time.monotonic() < deadline:
                # A process has no command line for an instant while it becomes another program: look twice before saying dead.
                seen_dead = 0 if await asyncio.to_thread(processes.alive, record.marker) else seen_dead + 1
                if seen_dead == 2:
                    health["detail"] = "its processes ended"
                    break
                health = await guest.wait_ready(min(ALIVE_CHECK_S, deadline - time.monotonic()))
            if not health["ready"]:
                took = time.monotonic() - deadline + self._ready_timeout
                raise DesktopNotReady(
                    f"the desktop of lease {record.lease_id} did not come up within {took:.2g} s: "
                    f"{health['detail']}.{_last_words(record.state_dir / 'log')}"
                )
            try:
                fault = png_fault(await guest.screenshot(), record.width, record.height)
            except GuestError as error:
                fault = str(error)
        if fault:
            raise DesktopNotReady(
                f"the first screenshot of lease {record.lease_id} is unusable: {fault}.{_last_words(record.state_dir / 'log')}"
            )

    def _ready(self, lease_id: str) -> DesktopRecord:
        with self._registry.lock(lease_id):
            record = self._registry.read(lease_id)
            if record is None:
                raise DesktopLost(f"the desktop of lease {lease_id} was removed while it came up")
            if record.state == "making":
                record = record.model_copy(update={"state": "ready", "ready_at": datetime.now(UTC)})
                self._registry.write(record)
            return record

    def _renew(self, lease_id: str, expires_at: datetime) -> None:
        with self._registry.lock(lease_id):
            record = self._registry.read(lease_id)
            if record is not None:
                self._registry.write(record.model_copy(update={"expires_at": expires_at}))

    def _destroy(self, lease_id: str) -> None:
        with self._registry.lock(lease_id) as folder:
            record = self._registry.read(lease_id)
            if record is not None:
                processes.end(record.marker, sandboxed=record.tier == "bubblewrap")
                home_link.release(folder / "home")
            self._registry.remove(folder)


def _last_words(logs: Path) -> str:
    words = []
    for path in sorted(logs.glob("*.log")):
        text = path.read_bytes()[-LOG_TAIL:].decode("utf-8", "replace").strip()
        if text:
            words.append(f"\n--- {path.name}\n{text}")
    return "".join(words)


def _identity() -> str:
    digest = hashlib.sha256()
    for name, version in sorted(packages.installed().versions.items()):
        digest.update(f"{name}={version}\n".encode())
    digest.update(assets.REQUIREMENTS.read_bytes())
    for folder in (assets.GUEST, assets.HOME_TEMPLATE, assets.PROGRAMS):
        digest.update(assets.tree_digest(folder).encode())
    return digest.hexdigest()
