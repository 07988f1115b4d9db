"""Case 8: however a rollout is ended from outside, nothing of its desktop stays."""

from __future__ import annotations

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from osworld_rollouts.contracts.identity import execution_workflow_id
from tests.chaos.counting import counting_task
from tests.stack import wait_until

pytestmark = [pytest.mark.temporal, pytest.mark.desktop]
chaos = pytest.mark.chaos


async def turning(system, **how):
    """A rollout in the middle of its turns, and its desktop."""
    submitted = await system.submit(counting_task(turns=12), max_turns=12, **how)
    record = await system.desktop(f"{submitted.rollout_id}/x1")
    await wait_until(lambda: len(system.counts_now(record).gui) >= 2)
    return submitted, record


async def test_cancel(system, table):
    submitted, record = await turning(system)
    await submitted.handle.cancel()
    played = await system.ended(submitted)
    assert (played.failure, played.kinds) == ("cancelled", ["cancelled"])
    assert not record.state_dir.exists()
    await system.verified(played)
    await system.nothing_left()
    table.add(8, "cancelled during its turns", system, played)


@chaos
async def test_cancel_during_setup(system, table):
    submitted = await system.submit(counting_task(gated=True))
    record = await system.desktop(f"{submitted.rollout_id}/x1")
    await wait_until(lambda: system.pending(submitted, "prepare_task"))
    await submitted.handle.cancel()
    played = await system.ended(submitted)
    assert played.kinds == ["cancelled"]
    assert not record.state_dir.exists()
    await system.verified(played)
    await system.nothing_left()
    table.add(8, "cancelled during setup", system, played)


async def test_terminated_in_the_ui(system, table):
    """The workflow cannot clean up any more: the reaper finds that the owner is closed."""
    submitted, record = await turning(system)
    execution = system.stack.client.get_workflow_handle(execution_workflow_id(f"{submitted.rollout_id}/x1"))
    await submitted.handle.terminate("by the test")
    await execution.terminate("by the test")
    with pytest.raises(WorkflowFailureError):
        await submitted.handle.result()
    await system.nothing_left()
    assert not record.state_dir.exists()
    table.note(8, "rollout and execution terminated", "terminated", system)


@chaos
async def test_only_the_execution_is_terminated(system, table):
    """The rollout is told by Temporal alone; a person meant it, so nothing is tried again."""
    submitted, record = await turning(system)
    execution = system.stack.client.get_workflow_handle(execution_workflow_id(f"{submitted.rollout_id}/x1"))
    await execution.terminate("by the test")
    played = await system.ended(submitted)
    assert (played.failure, played.kinds) == ("cancelled", ["cancelled"])
    assert "terminated" in played.result.outcome.cause.message
    await system.nothing_left()
    assert not record.state_dir.exists()
    table.note(8, "execution terminated", played.kinds[0], system)


@chaos
async def test_only_the_rollout_is_terminated(system, table):
    """Its execution is asked to cancel, tears down and seals."""
    submitted, record = await turning(system)
    await submitted.handle.terminate("by the test")
    execution = system.stack.client.get_workflow_handle(execution_workflow_id(f"{submitted.rollout_id}/x1"))
    with pytest.raises(WorkflowFailureError) as caught:
        await execution.result()
    assert caught.value.cause.type == "cancelled"
    assert not record.state_dir.exists()
    await system.nothing_left()
    table.note(8, "rollout terminated", "cancelled", system)


async def test_cancel_during_teardown(system, table):
    submitted, record = await turning(system)
    execution = system.stack.client.get_workflow_handle(execution_workflow_id(f"{submitted.rollout_id}/x1"))
    system.arm("teardown-started", "", signal_name="STOP")
    await submitted.handle.cancel()
    await system.until_fired()
    await execution.cancel()
    await submitted.handle.cancel()
    assert (await execution.describe()).status == WorkflowExecutionStatus.RUNNING
    system.fleet.wake()
    played = await system.ended(submitted)
    assert played.kinds == ["cancelled"]
    assert not record.state_dir.exists()
    await system.verified(played)
    await system.nothing_left()
    table.add(8, "cancelled again during teardown", system, played)
