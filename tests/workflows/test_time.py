"""Deadlines, leases, and the timeouts of every activity, on a real Temporal server."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.worker import Worker

from activities._failures import failure, unconfirmed
from osworld_rollouts.contracts.identity import execution_workflow_id
from osworld_rollouts.contracts.outcome import OutcomeKind, RolloutResult
from osworld_rollouts.contracts.timing import Timing
from osworld_rollouts.submit import submit
from tests.stack import wait_until
from tests.workflows.scripted import CLICK, DONE, Script, refuse, replying
from workflows.execution import ExecutionWorkflow
from workflows.rollout import RolloutWorkflow

pytestmark = pytest.mark.temporal
FAST = Timing(retry_pause_s=0.01)
SHORT_LEASE = Timing(retry_pause_s=0.01, lease_ttl_s=1.5)


@asynccontextmanager
async def world(env, script: Script):
    queue = f"time-{uuid.uuid4().hex[:8]}"
    async with Worker(
        env.client, task_queue=queue, workflows=[RolloutWorkflow, ExecutionWorkflow], activities=script.activities()
    ):

        async def start(request, timing: Timing = FAST):
            request = request.model_copy(update={"campaign_id": queue, "rollout_id": f"{queue}/task-1/0"})
            return await submit(env.client, request, timing=timing, task_queue=queue, pool_queue=queue)

        yield start


async def failed(submitted) -> RolloutResult:
    with pytest.raises(WorkflowFailureError) as caught:
        await submitted.handle.result()
    return RolloutResult.model_validate(caught.value.cause.details[0])


def slow_from(turn: int, seconds: float, *turns):
    """A model that takes its time from this turn on."""
    answer = replying(*turns)

    async def reply(step):
        if step.turn >= turn:
            await asyncio.sleep(seconds)
        return answer(step)

    return reply


async def test_deadline_during_a_model_call_is_scored_as_the_desktop_stands_and_masked(temporal_env, make_request):
    script = Script()
    script.model = slow_from(1, 30, [CLICK])
    async with world(temporal_env, script) as start:
        submitted = await start(make_request({"limits": {"execution_s": 2}}))
        result = await submitted.handle.result()
        assert result.outcome.kind is OutcomeKind.DEADLINE_REACHED
        assert (result.outcome.score, result.outcome.mask_sample, result.outcome.turns) == (1.0, True, 1)


async def test_model_that_cannot_be_reached_until_the_deadline_is_not_called_a_deadline(temporal_env, make_request):
    script = Script()

    def unreachable(_step):
        raise failure(OutcomeKind.MODEL_UNREACHABLE, "connection refused", phase="model", retry=True)

    script.model = unreachable
    async with world(temporal_env, script) as start:
        result = await failed(await start(make_request({"limits": {"execution_s": 2, "max_executions": 1}})))
        assert result.outcome.kind is OutcomeKind.MODEL_UNREACHABLE


async def test_time_that_is_over_before_the_first_turn_scores_nothing(temporal_env, make_request):
    script = Script()
    script.model = slow_from(0, 30, [CLICK])
    async with world(temporal_env, script) as start:
        result = await failed(await start(make_request({"limits": {"execution_s": 1, "max_executions": 2}})))
        assert [item.outcome.kind for item in result.executions] == [OutcomeKind.DEADLINE_EXCEEDED] * 2
        assert result.outcome.score is None
        assert script.named("evaluate") == []
        assert len(script.named("teardown_desktop")) == 2


async def test_waiting_for_a_free_desktop_is_no_part_of_the_deadline(temporal_env, make_request):
    script = Script()
    script.provision = lambda _step: asyncio.sleep(3)
    async with world(temporal_env, script) as start:
        result = await (await start(make_request({"limits": {"execution_s": 2.5}}))).handle.result()
        assert result.outcome.kind is OutcomeKind.AGENT_DONE


async def test_post_steps_and_evaluation_share_what_is_kept_for_scoring(temporal_env, make_request):
    script = Script()
    async with world(temporal_env, script) as start:
        await (await start(make_request({"limits": {"scoring_s": 40}}))).handle.result()
        (post,), (evaluate,) = script.named("prepare_evaluation"), script.named("evaluate")
        assert post.timeout_s == 40
        assert 30 < evaluate.timeout_s < 40


@pytest.mark.parametrize("what", ["model call", "operation"])
async def test_lease_is_renewed_while_something_takes_longer_than_it_lasts(temporal_env, make_request, what):
    script = Script()
    if what == "model call":
        script.model = slow_from(1, 4, [CLICK], [DONE])
    else:
        script.perform = lambda _step: asyncio.sleep(4)
    async with world(temporal_env, script) as start:
        result = await (await start(make_request(), SHORT_LEASE)).handle.result()
        assert result.outcome.kind is OutcomeKind.AGENT_DONE
        assert len(result.executions) == 1
        assert len(script.named("renew_lease")) >= 3


async def test_lease_is_renewed_while_paused_and_the_same_desktop_goes_on(temporal_env, make_request):
    script = Script()
    script.model = slow_from(0, 0.5, [CLICK], [CLICK], [CLICK], [DONE])
    async with world(temporal_env, script) as start:
        submitted = await start(make_request(), SHORT_LEASE)
        await wait_until(lambda: script.named("call_model"))
        await submitted.handle.execute_update("pause")
        await wait_until(lambda: len(script.named("renew_lease")) >= 6)  # twice as long as a lease lasts
        await submitted.handle.execute_update("resume")
        result = await submitted.handle.result()
        assert [item.outcome.kind for item in result.executions] == [OutcomeKind.AGENT_DONE]
        assert set(script.named("renew_lease")) == {result.executions[0].lease_id}


async def test_desktop_that_is_lost_in_a_pause_ends_the_execution(temporal_env, make_request):
    script = Script()
    script.model = slow_from(0, 0.5, [CLICK], [CLICK], [DONE])
    script.renew = refuse(OutcomeKind.DESKTOP_LOST, "the desktop is gone")
    async with world(temporal_env, script) as start:
        submitted = await start(make_request({"limits": {"max_executions": 1}}), SHORT_LEASE)
        await wait_until(lambda: script.named("call_model"))
        await submitted.handle.execute_update("pause")
        result = await failed(submitted)
        assert (result.outcome.kind, result.outcome.cause.phase) == (OutcomeKind.DESKTOP_LOST, "test")
        assert len(script.named("teardown_desktop")) == 1


async def test_every_activity_has_every_timeout_from_settings_and_everything_is_said_in_words(
    temporal_env, make_request
):
    script = Script()

    async def lose_the_first(step):
        await asyncio.sleep(1)
        if not step.known:
            raise unconfirmed("connection dropped after the request was sent")

    script.perform = lose_the_first
    refused = refuse(OutcomeKind.DESKTOP_NOT_READY, "no panel")
    script.provision = lambda step: refused(step) if "/x1" in step.lease_id else None
    numbers = {name: field.default for name, field in Timing.model_fields.items()}
    doubled = Timing(**{name: value * 2 for name, value in numbers.items()})
    found = []
    for base in (Timing(), doubled):
        timing = base.model_copy(update={"lease_ttl_s": 1.5, "retry_pause_s": 0.01})
        limits = {"limits": {"execution_s": 100_000, "scoring_s": 100_000}}
        async with world(temporal_env, script) as start:
            submitted = await start(make_request(limits), timing)
            result = await submitted.handle.result()
            ids = [submitted.handle.id, *(execution_workflow_id(item.execution_id) for item in result.executions)]
            found.append(await scheduled(temporal_env.client, ids))
    (once, timers), (twice, _) = found
    expected = {name for name, _ in script.calls}
    assert set(once) == set(twice) == expected
    assert len(expected) == len(script.activities())
    for name, limits in once.items():
        for kind, seconds in limits.items():
            assert seconds > 0, (name, kind)
            assert twice[name][kind] == pytest.approx(2 * seconds, rel=0.01), (name, kind)
    assert {words.partition(":")[0] for words in timers} == {
        "before execution 2",
        "until the desktop's lease is renewed",
    }


async def scheduled(client, workflow_ids: list[str]) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Timeouts of each activity by name, and what each timer is for."""
    activities, timers = {}, []
    for workflow_id in workflow_ids:
        async for event in client.get_workflow_handle(workflow_id).fetch_history_events():
            words = event.user_metadata.summary.data.decode()
            if event.HasField("timer_started_event_attributes"):
                assert words, event
                timers.append(words.strip('"'))
            if event.HasField("activity_task_scheduled_event_attributes"):
                assert words, event
                seen = event.activity_task_scheduled_event_attributes
                activities[seen.activity_type.name] = {
                    "heartbeat": seen.heartbeat_timeout.ToTimedelta().total_seconds(),
                    "start-to-close": seen.start_to_close_timeout.ToTimedelta().total_seconds(),
                    "schedule-to-start": seen.schedule_to_start_timeout.ToTimedelta().total_seconds(),
                }
    return activities, timers
