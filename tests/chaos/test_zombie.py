"""Case 10: two workers of one host; one is stopped, its operation recovered by the other, and then it wakes up."""

from __future__ import annotations

import pytest

from osworld_rollouts.contracts.evidence import OperationsRecord
from osworld_rollouts.desktops.guest_client import GuestClient, GuestRefused, Operation
from osworld_rollouts.evidence import chain
from tests.chaos.counting import HOME, counting_task
from tests.stack import wait_until

pytestmark = [pytest.mark.temporal, pytest.mark.desktop, pytest.mark.chaos]

PATIENCE_S = 180
"""A stopped worker's polls stay open for up to a minute, and each takes one task along until its heartbeat is missed."""
EXECUTIONS = 10
"""More than it has polls: a setup that one of them takes along fails, typed, and the next execution tries."""


async def test_late_click_is_refused(system, table):
    system.arm("act-before-dispatch", "/t1/o0", signal_name="STOP")
    submitted = await system.submit(counting_task(turns=12), max_turns=20)
    record = await system.desktop(f"{submitted.rollout_id}/x1")
    await system.until_fired()
    await wait_until(
        lambda: len(system.counts_now(record).gui) >= 6, PATIENCE_S
    )  # the other worker clicked for it and went on
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
    assert fences[0] == 1 < fences[1]  # by one for each question that the stopped worker's own polls swallowed
    await system.exactly_once(played, turns=12)
    table.add(10, "zombie's late click", system, played, turns=12)


async def test_setup_of_a_zombie_reaches_nobody(system, table):
    """Its execution ended and its desktop is gone when it wakes."""
    system.arm("setup-before-dispatch", "/x1/setup/o1", signal_name="STOP")
    submitted = await system.submit(counting_task(turns=12), max_turns=20, executions=EXECUTIONS)
    first = await system.desktop(f"{submitted.rollout_id}/x1")
    await system.until_fired()
    await wait_until(lambda: any(len(system.counts_now(record).gui) >= 2 for record in system.records()), PATIENCE_S)
    assert not first.state_dir.exists()
    before = system.stack.logs().count("given up by Temporal")
    system.fleet.wake()
    await wait_until(lambda: system.stack.logs().count("given up by Temporal") > before)  # and it says so
    played = await system.ended(submitted)
    assert played.kinds[-1] == "agent_done"
    assert set(played.kinds[:-1]) == {"prepare_failed"}
    assert not first.state_dir.exists()
    await system.exactly_once(played, turns=12)
    table.add(10, "zombie in the middle of setup", system, played, turns=12)


async def test_provisioning_of_a_zombie_leaves_the_desktop_to_who_works_on_it(system, table):
    """It wakes, finds the desktop that the other worker made, is told that it is no longer wanted, and must not take it along.

    Its open polls may take the setup along, which then fails typed; a desktop must not be lost in any case.
    """
    system.arm("provision-started", "/x1", signal_name="STOP")
    submitted = await system.submit(counting_task(turns=12), max_turns=20, executions=EXECUTIONS)
    await system.until_fired()
    await wait_until(lambda: any(len(system.counts_now(record).gui) >= 2 for record in system.records()), PATIENCE_S)
    system.fleet.wake()
    played = await system.ended(submitted)
    assert played.kinds[-1] == "agent_done"
    assert set(played.kinds[:-1]) <= {"prepare_failed"}
    await system.exactly_once(played, turns=12)
    table.add(10, "zombie in the middle of provisioning", system, played, turns=12)
