"""This machine as a host of desktops: room, leases, renewal, diagnosis, and removal of what its owner left behind."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import structlog
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from osworld_rollouts.contracts.desktop import Lease
from osworld_rollouts.contracts.outcome import OutcomeKind
from osworld_rollouts.desktops._provider import DesktopError, DesktopLost, DesktopUnavailable
from osworld_rollouts.desktops.claims import Claims
from osworld_rollouts.desktops.clients import guest_client
from osworld_rollouts.desktops.guest_client import GuestError, GuestRefused, GuestUnreachable
from osworld_rollouts.desktops.registry import create_provider

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from temporalio.client import Client

    from osworld_rollouts.contracts.desktop import DesktopSpec, LeaseOwner
    from osworld_rollouts.desktops._provider import DesktopProvider, DesktopRecord

log = structlog.get_logger()

_HEALTH_S = 5.0
_HALF_MADE = timedelta(minutes=10)  # a desktop that takes longer to come up is not coming up


class DesktopHost:
    """Desktops on this machine, by lease. Nothing is kept here that the next worker cannot read from disk."""

    def __init__(
        self,
        state_dir: Path,
        *,
        host_id: str,
        task_queue: str,
        capacity: int,
        lease_ttl_s: float,
        cleanup: Callable[[str], None] | None = None,
        provider_settings: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._state_dir = state_dir
        self._host_id = host_id
        self._task_queue = task_queue
        self.capacity = capacity
        self._lease_ttl = timedelta(seconds=lease_ttl_s)
        self._cleanup = cleanup
        self._provider_settings = provider_settings or {}
        self._providers: dict[str, DesktopProvider] = {}
        self._provisioning: set[str] = set()
        self._claims = Claims(state_dir / "claims")

    def provider(self, name: str) -> DesktopProvider:
        """The provider of that name.

        Raises:
            DesktopUnavailable: there is none.
        """
        if name not in self._providers:
            self._providers[name] = create_provider(
                name,
                state_dir=self._state_dir,
                host_id=self._host_id,
                lease_ttl=self._lease_ttl,
                **self._provider_settings.get(name, {}),
            )
        return self._providers[name]

    async def most(self, provider: str) -> int | None:
        """How many desktops of this provider fit on this machine for a reason that is not its size; None: no such reason."""
        most = getattr(self.provider(provider), "most", None)
        return None if most is None else await asyncio.to_thread(most)

    async def provision(self, spec: DesktopSpec, lease_id: str, owner: LeaseOwner, ttl_s: float) -> Lease:
        """Make or adopt the desktop of a lease. Raises as `DesktopProvider.create`."""
        del ttl_s  # the host's own setting decides how long an unattended desktop lives
        provider = self.provider(spec.provider)
        self._provisioning.add(lease_id)
        self._claims.take(lease_id)
        try:
            chooses = getattr(provider, "chooses_image", False)  # it has several, and refuses by itself what it has not
            if spec.image is not None and not chooses and spec.image != await provider.image_identity():
                raise DesktopUnavailable(
                    f"this host's {spec.provider} desktops have image {await provider.image_identity()}, the request names {spec.image}"
                )
            record = await provider.create(spec, lease_id, owner)
        finally:
            self._provisioning.discard(lease_id)
        await self._renew(provider, record)
        return Lease(
            lease_id=lease_id,
            provider=spec.provider,
            host_id=self._host_id,
            task_queue=self._task_queue,
            fence=record.fence,
            width=record.width,
            height=record.height,
            image_identity=record.image_identity,
            tier=record.tier,
            created_at=record.created_at,
            expires_at=record.expires_at,
        )

    async def find(self, lease_id: str) -> DesktopRecord:
        """The living desktop of a lease.

        Raises:
            DesktopLost: it is not on this host, or its processes are gone.
        """
        for provider in self._known():
            record = await provider.adopt(lease_id)
            if record is not None:
                self._claims.begin(lease_id)
                return record
        raise DesktopLost(
            f"the desktop of lease {lease_id} is gone from host {self._host_id}: its processes ended or were removed"
        )

    async def renew(self, lease_id: str) -> None:
        """Move the lease's expiry away from now, when a third of its time has passed. Raises as `find`."""
        for provider in self._known():
            record = await provider.adopt(lease_id)
            if record is not None:
                await self._renew(provider, record)
                return
        raise DesktopLost(f"the desktop of lease {lease_id} is gone from host {self._host_id}")

    async def _renew(self, provider: DesktopProvider, record: DesktopRecord) -> None:
        now = datetime.now(UTC)
        if record.expires_at - now < self._lease_ttl * 2 / 3 or record.expires_at - now > self._lease_ttl * 2:
            await provider.renew(record.lease_id, now + self._lease_ttl)

    async def destroy(self, lease_id: str) -> None:
        """Remove a desktop; removing what is gone is a success.

        Raises:
            DesktopError: something of it could not be removed.
        """
        for provider in self._known():
            await provider.destroy(lease_id)
        self._claims.forget(lease_id)
        if self._cleanup is not None:
            await asyncio.to_thread(self._cleanup, lease_id)

    async def diagnose(
        self, lease_id: str, *, healthy: OutcomeKind = OutcomeKind.DESKTOP_UNRESPONSIVE
    ) -> tuple[OutcomeKind, str]:
        """Why a desktop did not do its part: gone, its server gone, not answering; or `healthy` when it answers now."""
        try:
            record = await self.find(lease_id)
        except DesktopLost as error:
            return OutcomeKind.DESKTOP_LOST, str(error)
        try:
            async with guest_client(record) as client:
                await client.health(timeout=_HEALTH_S)
        except GuestUnreachable as error:
            return (
                OutcomeKind.DESKTOP_LOST,
                f"the guest server of lease {lease_id} is gone while its desktop lives ({error})",
            )
        except GuestRefused as error:
            if error.detail.get("ledger_gone"):
                return OutcomeKind.DESKTOP_LOST, f"the machine of lease {lease_id} is not its own any more ({error})"
            return (
                OutcomeKind.DESKTOP_UNRESPONSIVE,
                f"the desktop of lease {lease_id} refuses to tell how it is ({error})",
            )
        except GuestError as error:
            return (
                OutcomeKind.DESKTOP_UNRESPONSIVE,
                f"the desktop of lease {lease_id} does not answer within {_HEALTH_S:g} s ({error})",
            )
        return healthy, f"the desktop of lease {lease_id} answers, but not as it should"

    async def in_use(self) -> int:
        """Desktops here that take up room, without those this worker is making at this moment.

        One that was made, or half made, by a worker that died before anybody worked on it takes none: the execution it is for comes
        again and adopts it, and may be waiting for room.
        """
        records = [record for provider in self._known() for record in await provider.list()]
        leases = {record.lease_id for record in records}
        for lease_id in set(self._claims.ours) - self._provisioning:
            if lease_id not in leases or self._claims.begun(lease_id):
                self._claims.drop(lease_id)
        others = leases - self._provisioning
        return sum(self._claims.begun(lease_id) or self._claims.held(lease_id) for lease_id in others)

    async def reap(self, client: Client) -> list[str]:
        """Remove desktops whose owning workflow is closed or unknown, whose lease expired, or that were never finished.

        Touches nothing else: only what the providers list as made by themselves. Returns the removed lease ids.
        """
        removed: list[str] = []
        for provider in self._known():
            for record in await provider.list():
                if record.lease_id in self._provisioning:
                    continue
                reason = await self._leftover(client, record)
                if reason is None:
                    continue
                try:
                    await self.destroy(record.lease_id)
                except DesktopError as error:
                    log.warning(
                        "leftover desktop cannot be removed", lease_id=record.lease_id, reason=reason, error=str(error)
                    )
                    continue
                log.info("leftover desktop removed", lease_id=record.lease_id, reason=reason)
                removed.append(record.lease_id)
        return removed

    async def _leftover(self, client: Client, record: DesktopRecord) -> str | None:
        now = datetime.now(UTC)
        if record.expires_at < now:
            return "lease expired"
        if record.state == "making" and now - record.created_at > _HALF_MADE:
            return "never finished"
        try:
            described = await client.get_workflow_handle(record.owner.workflow_id).describe()
        except RPCError as error:
            return "owner unknown" if error.status == RPCStatusCode.NOT_FOUND else None
        if described.status in {WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW}:
            return None
        return f"owner is {described.status.name.lower() if described.status else 'closed'}"

    def _known(self) -> list[DesktopProvider]:
        # Also those of an earlier worker: its desktops are found again only if their provider is asked.
        for name in ("local", *self._provider_settings):
            self.provider(name)
        return list(self._providers.values())
