"""Case 10: two workers of one host; one is stopped, its operation recovered by the other, and then it wakes up."""

from __future__ import annotations

import pytest

from osworld_rollouts.contracts.evidence import OperationsRecord
from osworld_rollouts.desktops.guest_client import GuestClient, GuestRefused, Operation
from osworld_rollouts.evidence import chain
from tests.chaos.counting import HOME, counting_task
from tests.stack import wait_until

pytestmark = [pytest.mark.temporal, pytest.mark.desktop, pytest.mark.chaos]


async def test_late_click_is_refused(system, table):
    system.arm("act-before-dispatch", "/t1/o0", signal_name="STOP")
    submitted = await system.submit(counting_task(turns=12), max_turns=20)
    record = await system.desktop(f"{submitted.rollout_id}/x1")
    await system.until_fired()
    await wait_until(lambda: len(system.counts_now(record).gui) >= 6)  # the other worker clicked for it and went on
    async with GuestClient.of(record) as late:
        # What the zombie is about to send, in case Temporal's word that it is no longer wanted reaches it first.
        click = Operation(f"{submitted.rollout_id}/x1/t1/o0", seq=10_000, fence=1)
        with pytest.raises(GuestRefused) as refused:
            await late.execute(["sh", "-c", f"echo late >> {HOME}/counts.log"], operation=click)
        assert refused.value.kind == "stale_fence"
    system.fleet.wake()
    played = await system.ended(submitted)
    assert played.kinds == ["agent_done"]
    acts = [
        item
        for item in chain.walk(system.store, played.result.executions[0].evidence_head)
        if isinstance(item, OperationsRecord)
    ]
    fences = [item.operations[0]["fence"] for item in acts]
    assert fences == sorted(fences)
    assert fences[:2] == [1, 2]
    await system.exactly_once(played, turns=12)
    table.add(10, "zombie's late click", system, played, turns=12)


async def test_setup_of_a_zombie_reaches_nobody(system, table):
    """Its execution ended and its desktop is gone when it wakes."""
    system.arm("setup-before-dispatch", "/x1/setup/o1", signal_name="STOP")
    submitted = await system.submit(counting_task())
    first = await system.desktop(f"{submitted.rollout_id}/x1")
    await system.until_fired()
    second = await system.desktop(f"{submitted.rollout_id}/x2")
    await wait_until(lambda: len(system.counts_now(second).gui) >= 2)
    assert not first.state_dir.exists()
    system.fleet.wake()
    played = await system.ended(submitted)
    assert played.kinds == ["prepare_failed", "agent_done"]
    assert not first.state_dir.exists()
    await system.exactly_once(played)
    table.add(10, "zombie in the middle of setup", system, played)
