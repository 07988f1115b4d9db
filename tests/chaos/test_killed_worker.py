"""Cases 1 and 4: `kill -9` of the worker between every pair of states of an operation and of a model call."""

from __future__ import annotations

import json

import pytest

from osworld_rollouts.contracts.evidence import ModelCallRecord, OperationsRecord
from osworld_rollouts.evidence import chain
from tests.chaos.conftest import SCRIPTS
from tests.chaos.counting import counting_task, counts
from tests.chaos.system import System, once
from tests.stack import running, wait_until

pytestmark = [pytest.mark.temporal, pytest.mark.desktop]
chaos = pytest.mark.chaos


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("act-started", marks=chaos),
        pytest.param("act-before-dispatch", marks=chaos),
        "act-after-landing",
        pytest.param("act-after-observation", marks=chaos),
        pytest.param("act-after-record", marks=chaos),
    ],
)
async def test_gui_action_goes_on_on_the_same_desktop(system, table, place):
    system.arm(place, "/t1/o0")
    played = await system.play(counting_task())
    assert system.fired
    assert played.kinds == ["agent_done"]
    assert played.generations == [1, 1, 1, 1]
    await system.exactly_once(played)
    table.add(1, f"worker killed at {place}", system, played)


@chaos
async def test_gui_action_killed_while_the_guest_performs_it(system, table):
    submitted = await system.submit(counting_task(pause_s=2))
    record = await system.desktop(f"{submitted.rollout_id}/x1")
    await wait_until(
        lambda: len(system.counts_now(record).gui) == 3, 60, 0.01
    )  # turn 1 has clicked and not yet pressed
    system.fleet.kill_all()
    assert len(system.counts_now(record).gui) == 3
    played = await system.ended(submitted)
    assert played.kinds == ["agent_done"]
    act = [
        item
        for item in chain.walk(system.store, played.result.executions[0].evidence_head)
        if isinstance(item, OperationsRecord)
    ]
    assert [record.operations[0]["replayed"] for record in act] == [False, True, False]
    await system.exactly_once(played)
    table.add(1, "worker killed while the guest performs a GUI action", system, played)


@chaos
async def test_gui_action_intended_and_no_host_there_to_take_it(temporal_env, table):
    """The desktop's host dies while the model generates; the action waits in its queue until the host is back."""
    address = temporal_env.client.service_client.config.target_host
    async with running(temporal_env.client, address, in_process=False, name="intended", scripts=SCRIPTS) as stack:
        system = System(stack)
        stack.start_worker("workflows,models")
        host = stack.start_worker("desktops")
        submitted = await system.submit(counting_task(), faults=":slow=4@1")
        await wait_until(lambda: system.asked(submitted, turn=1), 90)
        stack.kill_worker(host)
        await wait_until(lambda: system.scheduled(submitted, "perform_operation", 2))
        assert not await system.pending(submitted, "perform_operation")  # intended, and not dispatched
        stack.start_worker("desktops")
        played = await system.ended(submitted)
        assert played.kinds == ["agent_done"]
        assert played.generations == [1, 1, 1, 1]
        await system.exactly_once(played)
        table.add(1, "worker killed before a GUI action is dispatched", system, played)


@pytest.mark.parametrize(
    ("place", "ending"),
    [
        pytest.param("prepare-started", "/x1", marks=chaos),
        pytest.param("setup-before-dispatch", "/x1/setup/o1", marks=chaos),
        ("setup-after-landing", "/x1/setup/o1"),
        pytest.param("prepare-after-setup", "/x1", marks=chaos),
        pytest.param("prepare-after-observation", "/x1", marks=chaos),
        pytest.param("prepare-after-record", "/x1", marks=chaos),
    ],
)
async def test_setup_is_never_repeated_on_a_dirty_desktop(system, table, place, ending):
    system.arm(place, ending)
    submitted = await system.submit(counting_task())
    first = await system.desktop(f"{submitted.rollout_id}/x1")
    await system.until_fired()
    assert once(system.counts_now(first).setup)
    played = await system.ended(submitted)
    assert played.kinds == ["prepare_failed", "agent_done"]
    assert played.result.executions[0].lease_id != played.result.executions[1].lease_id
    assert not first.state_dir.exists()
    await system.exactly_once(played)
    table.add(1, f"worker killed at {place}", system, played)


@pytest.mark.parametrize(
    ("place", "ending"),
    [
        pytest.param("post-started", "/x1", marks=chaos),
        pytest.param("post-before-dispatch", "/x1/post/o1", marks=chaos),
        ("post-after-landing", "/x1/post/o1"),
        pytest.param("post-after-steps", "/x1", marks=chaos),
        pytest.param("post-after-record", "/x1", marks=chaos),
    ],
)
async def test_post_steps_are_never_repeated_on_a_dirty_desktop(system, table, place, ending):
    system.arm(place, ending)
    submitted = await system.submit(counting_task())
    first = await system.desktop(f"{submitted.rollout_id}/x1")
    await system.until_fired()
    seen = system.counts_now(first)
    assert seen.gui == counts()
    assert once(seen.post)
    played = await system.ended(submitted)
    assert played.kinds == ["evaluation_failed", "agent_done"]
    assert not first.state_dir.exists()
    await system.exactly_once(played)
    table.add(1, f"worker killed at {place}", system, played)


@chaos
@pytest.mark.parametrize("place", ["evaluate-started", "evaluate-after-verdict", "evaluate-after-record"])
async def test_evaluation_is_asked_again_on_the_same_desktop(system, table, place):
    system.arm(place, "/x1")
    played = await system.play(counting_task())
    assert system.fired
    assert played.kinds == ["agent_done"]
    await system.exactly_once(played)
    table.add(1, f"worker killed at {place}", system, played)


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("model-before-send", marks=chaos),
        "model-after-journal",
        pytest.param("model-after-record", marks=chaos),
    ],
)
async def test_model_reply_is_bought_once(system, table, place):
    system.arm(place, "/x1/t1")
    played = await system.play(counting_task())
    assert system.fired
    assert played.kinds == ["agent_done"]
    assert played.generations == [1, 1, 1, 1]
    await system.exactly_once(played)
    table.add(4, f"worker killed at {place}", system, played)


async def test_killed_while_the_model_generates(system, table):
    submitted = await system.submit(counting_task(), faults=":slow=3@1")
    await wait_until(lambda: system.asked(submitted, turn=1))
    system.fleet.kill_all()
    played = await system.ended(submitted)
    assert played.kinds == ["agent_done"]
    assert played.generations == [1, 1, 1, 1]
    await system.exactly_once(played)
    table.add(4, "worker killed while the model generates", system, played)


@chaos
async def test_reply_that_was_received_and_not_yet_written_down_is_said_to_exist(system, table):
    """Between the last byte and the journal's sync lies a window that nobody can close: the evidence says so."""
    system.arm("model-after-reply", "/x1/t1")
    played = await system.play(counting_task())
    assert system.fired
    assert played.generations == [1, 2, 1, 1]
    records = chain.walk(system.store, played.result.executions[0].evidence_head)
    call = next(record for record in records if isinstance(record, ModelCallRecord) and record.turn == 1)
    assert [(item["state"], item["sample_may_exist"]) for item in call.earlier_attempts] == [("open", True)], (
        json.dumps(call.earlier_attempts)
    )
    await system.exactly_once(played)
    table.add(4, "worker killed at model-after-reply", system, played)
