"""Provisioning that is cut short: who wanted the desktop gone, and who merely lost sight of it."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.testing import ActivityEnvironment

from activities.desktop import DesktopActivities
from osworld_rollouts.contracts.desktop import DesktopSpec, LeaseOwner
from osworld_rollouts.contracts.steps import ProvisionDesktop


class SlowHost:
    """A host whose desktops never come up. It imitates no more of one."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.destroyed: list[str] = []

    async def provision(self, *_):
        self.asked.set()
        await asyncio.Event().wait()

    async def destroy(self, lease_id):
        self.destroyed.append(lease_id)


@pytest.mark.parametrize(
    ("why", "destroyed"),
    [
        (ActivityCancellationDetails(cancel_requested=True), ["lease"]),
        (ActivityCancellationDetails(timed_out=True), []),
        (ActivityCancellationDetails(not_found=True), []),
        (ActivityCancellationDetails(worker_shutdown=True), []),
    ],
)
async def test_only_a_person_takes_the_desktop_along(why, destroyed):
    """An attempt that Temporal gave up leaves the desktop to the next one, which may work on it already."""
    host = SlowHost()
    environment = ActivityEnvironment()
    step = ProvisionDesktop(
        spec=DesktopSpec(),
        lease_id="lease",
        owner=LeaseOwner(workflow_id="w", run_id="r", execution_id="x"),
        expires_after_s=60,
    )
    running = asyncio.ensure_future(environment.run(DesktopActivities(host, store=None).provision_desktop, step))
    await host.asked.wait()
    environment.cancel(cancellation_details=why)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert host.destroyed == destroyed
