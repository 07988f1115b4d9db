"""A host polls for new desktops only while it has room for one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from temporalio.worker import CustomSlotSupplier, FixedSizeSlotSupplier, SlotPermit, WorkerTuner

if TYPE_CHECKING:
    from temporalio.worker import SlotMarkUsedContext, SlotReleaseContext, SlotReserveContext

    from osworld_rollouts.desktops.host import DesktopHost

_POLL_S = 0.25


class RoomSlots(CustomSlotSupplier):
    """A permit to poll is a free place: capacity less the desktops that exist and the permits that are out."""

    def __init__(self, host: DesktopHost) -> None:
        self._host = host
        self._out = 0

    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:
        """Wait until there is room."""
        del ctx
        while True:
            if self._out + await self._host.in_use() < self._host.capacity:
                self._out += 1
                return SlotPermit()
            await asyncio.sleep(_POLL_S)

    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        """Never eagerly: room must be looked at."""
        del ctx
        return None

    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:
        """Nothing to do: the desktop that is being made is not counted twice (`DesktopHost.in_use`)."""

    def release_slot(self, ctx: SlotReleaseContext) -> None:
        """The desktop exists now and counts by itself, or was not made."""
        del ctx
        self._out -= 1


def room_on(host: DesktopHost) -> WorkerTuner:
    """A tuner for the pool queue's worker."""
    return WorkerTuner.create_composite(
        workflow_supplier=FixedSizeSlotSupplier(2),
        activity_supplier=RoomSlots(host),
        local_activity_supplier=FixedSizeSlotSupplier(1),
        nexus_supplier=FixedSizeSlotSupplier(1),
    )
