"""Sequencing of rollouts and executions on a real Temporal server."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities._failures import failure, unconfirmed
from activities.model import _result
from osworld_rollouts import temporal
from osworld_rollouts.contracts.action import Fail, PythonCode
from osworld_rollouts.contracts.evidence import ModelCallRecord
from osworld_rollouts.contracts.execution import ExecutionStart, ExecutionView, OperationTrace, RolloutStart
from osworld_rollouts.contracts.identity import execution_workflow_id, rollout_workflow_id
from osworld_rollouts.contracts.model import ParsedReply
from osworld_rollouts.contracts.outcome import ExecutionResult, OutcomeKind, RolloutResult
from osworld_rollouts.contracts.request import ParsePolicy, Task
from osworld_rollouts.contracts.steps import HistoryWindow, OperationOutcome, ParseFailure, Performed
from osworld_rollouts.contracts.timing import Timing
from osworld_rollouts.submit import RequestConflictError, RequestTooLargeError, submit
from tests.workflows.scripted import CLICK, DONE, Script, refuse, replying
from workflows.execution import ExecutionWorkflow
from workflows.rollout import RolloutWorkflow

pytestmark = pytest.mark.temporal
FAST = Timing(retry_pause_s=0.01)


@pytest.fixture
def reply_record():
    return ModelCallRecord(
        execution_id="c/t/0/x1",
        index=1,
        previous="0" * 64,
        recorded_at=datetime(2026, 1, 1, tzinfo=UTC),
        turn=0,
        call=0,
        activity_attempt=1,
        request_id="r",
        window=HistoryWindow(),
        sent="0" * 64,
        received="0" * 64,
    )


@asynccontextmanager
async def world(env, script: Script):
    """A worker that serves one fresh queue for everything."""
    queue = f"q-{uuid.uuid4().hex[:8]}"
    async with Worker(
        env.client, task_queue=queue, workflows=[RolloutWorkflow, ExecutionWorkflow], activities=script.activities()
    ):

        async def start(request, timing: Timing = FAST):
            request = request.model_copy(
                update={"campaign_id": queue, "rollout_id": f"{queue}/task-1/{request.sample_index}"}
            )
            return await submit(env.client, request, timing=timing, task_queue=queue, pool_queue=queue)

        yield start


async def failed_result(submitted) -> tuple[ApplicationError, RolloutResult]:
    with pytest.raises(WorkflowFailureError) as caught:
        await submitted.handle.result()
    error = caught.value.cause
    assert isinstance(error, ApplicationError)
    return error, RolloutResult.model_validate(error.details[0])


async def test_done_is_scored(temporal_env, make_request):
    script = Script()
    async with world(temporal_env, script) as start:
        submitted = await start(make_request())
        result = await submitted.handle.result()
        assert result.outcome.kind is OutcomeKind.AGENT_DONE
        assert (result.outcome.score, result.outcome.eligible, result.outcome.turns) == (1.0, True, 2)
        assert [name for name, _ in script.calls] == [
            "open_execution",
            "provision_desktop",
            "prepare_task",
            "call_model",
            "perform_operation",
            "call_model",
            "prepare_evaluation",
            "evaluate",
            "teardown_desktop",
            "seal_execution",
        ]
        (evaluate,) = script.named("evaluate")
        assert evaluate.last_action == "done"
        (perform,) = script.named("perform_operation")
        assert perform.operations[0].operation_id == f"{submitted.rollout_id}/x1/t0/o0"
        assert perform.operations[0].seq == 3
        description = await submitted.handle.describe()
        attributes = description.typed_search_attributes
        assert attributes.get(temporal.SCORE) == 1.0
        assert attributes.get(temporal.OUTCOME) == "agent_done"


async def test_horizon_is_scored_and_eligible_and_not_a_fail(temporal_env, make_request):
    script = Script()
    script.model = replying([CLICK])
    script.evaluate = lambda step: 0.0 if step.last_action != "fail" else 1.0
    async with world(temporal_env, script) as start:
        result = await (await start(make_request(max_turns=3))).handle.result()
        assert result.outcome.kind is OutcomeKind.HORIZON_REACHED
        assert (result.outcome.score, result.outcome.eligible, result.outcome.turns) == (0.0, True, 3)
        assert len(script.named("call_model")) == len(script.named("perform_operation")) == 3


async def test_fail_said_by_the_agent_reaches_the_evaluator(temporal_env, make_request):
    script = Script()
    script.model = replying([Fail()])
    async with world(temporal_env, script) as start:
        result = await (await start(make_request())).handle.result()
        assert result.outcome.kind is OutcomeKind.AGENT_FAIL
        assert script.named("evaluate")[0].last_action == "fail"


async def test_actions_before_done_in_one_reply_are_executed(temporal_env, make_request):
    script = Script()
    script.model = replying([CLICK, PythonCode(code="x = 1"), DONE, CLICK])
    async with world(temporal_env, script) as start:
        await (await start(make_request())).handle.result()
        (perform,) = script.named("perform_operation")
        assert [item.action.kind for item in perform.operations] == ["click", "python"]


async def test_infrastructure_failure_is_retried_on_a_new_execution_and_both_are_listed(temporal_env, make_request):
    script = Script()
    failing = refuse(OutcomeKind.DESKTOP_LOST, "the desktop is gone")
    script.perform = lambda step: failing(step) if "/x1/" in step.operations[0].operation_id else None
    async with world(temporal_env, script) as start:
        submitted = await start(make_request())
        result = await submitted.handle.result()
        assert [item.outcome.kind for item in result.executions] == [OutcomeKind.DESKTOP_LOST, OutcomeKind.AGENT_DONE]
        assert result.executions[0].outcome.score is None
        assert not result.executions[0].outcome.eligible
        assert len({step.lease_id for step in script.named("provision_desktop")}) == 2
        first = temporal_env.client.get_workflow_handle(execution_workflow_id(result.executions[0].execution_id))
        with pytest.raises(WorkflowFailureError) as caught:
            await first.result()
        assert caught.value.cause.type == "desktop_lost"
        assert caught.value.cause.message == "the desktop is gone"
        assert {step.reason for step in script.named("teardown_desktop")} == {"desktop_lost", "agent_done"}


async def test_budget_spent_fails_the_rollout_with_the_cause(temporal_env, make_request):
    script = Script()
    script.provision = refuse(OutcomeKind.DESKTOP_NOT_READY, "no panel after 60 s")
    async with world(temporal_env, script) as start:
        error, result = await failed_result(await start(make_request({"limits": {"max_executions": 2}})))
        assert error.type == "desktop_not_ready"
        assert "no panel after 60 s" in error.message
        assert [item.number for item in result.executions] == [1, 2]
        assert result.outcome.score is None


async def test_no_verdict_is_never_a_zero(temporal_env, make_request):
    script = Script()
    script.evaluate = refuse(OutcomeKind.EVALUATION_FAILED, "the guest dropped the connection")
    async with world(temporal_env, script) as start:
        error, result = await failed_result(await start(make_request({"limits": {"max_executions": 1}})))
        assert error.type == "evaluation_failed"
        assert result.outcome.score is None
        assert result.outcome.mask_sample


async def test_lost_reply_is_asked_about_and_not_repeated(temporal_env, make_request):
    script = Script()

    def lose_the_first(step):
        if not step.known:
            raise unconfirmed("connection dropped after the request was sent")

    script.perform = lose_the_first
    async with world(temporal_env, script) as start:
        result = await (await start(make_request())).handle.result()
        assert result.outcome.kind is OutcomeKind.AGENT_DONE
        assert len(script.named("recover_operation")) == 1
        second = script.named("perform_operation")[1]
        assert second.known == tuple(item.operation_id for item in second.operations)


async def test_absent_operation_is_dispatched_again_under_the_same_id(temporal_env, make_request):
    script = Script()
    seen: list[str] = []

    def refuse_once(step):
        seen.append(step.operations[0].operation_id)
        if len(seen) == 1:
            raise unconfirmed("connection refused")

    script.perform, script.recover = refuse_once, lambda _step: "absent"
    async with world(temporal_env, script) as start:
        await (await start(make_request())).handle.result()
        assert seen[0] == seen[1]
        assert script.named("perform_operation")[1].known == ()


async def test_unknown_operation_ends_the_execution_as_indeterminate(temporal_env, make_request):
    script = Script()
    script.perform, script.recover = (
        lambda _step: (_ for _ in ()).throw(unconfirmed("dropped")),
        lambda _step: "unknown",
    )
    async with world(temporal_env, script) as start:
        error, result = await failed_result(await start(make_request({"limits": {"max_executions": 1}})))
        assert error.type == "operation_indeterminate"
        assert "t0/o0" in error.message
        assert len(script.named("perform_operation")) == 1
        assert result.outcome.score is None


async def test_only_the_observation_is_repeated_when_only_it_failed(temporal_env, make_request):
    script = Script()
    failing = refuse(OutcomeKind.OBSERVATION_FAILED, "screenshot is truncated")
    script.perform = lambda step: failing(step) if not step.known else None
    async with world(temporal_env, script) as start:
        result = await (await start(make_request())).handle.result()
        assert result.outcome.kind is OutcomeKind.AGENT_DONE
        assert script.named("recover_operation") == []
        assert len(script.named("perform_operation")) == 2


@pytest.mark.parametrize(
    ("policy", "calls", "turns"), [("noop", 3, 3), ("stop", 1, 1), ("resample", 9, 3), ("feedback", 9, 3)]
)
async def test_replies_without_actions_are_scored_as_the_desktop_stands(
    temporal_env, make_request, policy, calls, turns
):
    script = Script()
    script.model = replying(ParseFailure(kind="unparseable", message="no code block"))
    script.evaluate = lambda step: 0.5 if step.last_action is None else 1.0
    async with world(temporal_env, script) as start:
        request = make_request(parse_policy=ParsePolicy(on_failure=policy, resamples=2, max_failed_turns=3))
        result = await (await start(request)).handle.result()
        assert result.outcome.kind is OutcomeKind.POLICY_RESPONSE_INVALID
        assert (result.outcome.score, result.outcome.turns) == (0.5, turns)
        assert len(script.named("call_model")) == calls
        assert any(step.feedback for step in script.named("call_model")) is (policy == "feedback")


@pytest.mark.parametrize(
    ("asked", "resolved", "calls"),
    [
        (None, ParsePolicy(on_failure="resample", resamples=2, resample_temperature=0.4, max_failed_turns=1), 3),
        (ParsePolicy(max_failed_turns=2), None, 2),  # opened by a worker that did not resolve it yet
        (None, None, 3),
    ],
)
async def test_the_parse_policy_is_the_one_the_execution_was_opened_with(
    temporal_env, make_request, asked, resolved, calls
):
    script = Script()
    script.parse_policy = resolved
    script.model = replying(ParseFailure(kind="empty", message="the reply is empty"))
    async with world(temporal_env, script) as start:
        result = await (await start(make_request(parse_policy=asked))).handle.result()
        assert result.outcome.kind is OutcomeKind.POLICY_RESPONSE_INVALID
        asks = script.named("call_model")
        assert len(asks) == calls
        assert [step.temperature for step in asks] == ([None, 0.4, 0.4] if resolved else [None] * calls)


async def test_overflow_drops_images_until_none_can_go(temporal_env, make_request):
    script = Script()
    script.model = lambda step: replying("overflow" if step.turn >= 2 else [CLICK])(step)
    async with world(temporal_env, script) as start:
        result = await (await start(make_request())).handle.result()
        assert result.outcome.kind is OutcomeKind.CONTEXT_OVERFLOW
        last_turn = [step for step in script.named("call_model") if step.turn == 2]
        assert len(last_turn) == 3  # three screenshots, two, one


async def test_pause_resume_and_stop_after_turn(temporal_env, make_request):
    script = Script()
    script.model = replying([CLICK])
    async with world(temporal_env, script) as start:
        submitted = await start(make_request(max_turns=10_000))
        execution = temporal_env.client.get_workflow_handle(execution_workflow_id(f"{submitted.rollout_id}/x1"))
        await until(lambda: len(script.named("perform_operation")) >= 2)
        await submitted.handle.execute_update("pause", result_type=str)
        await until_async(lambda: view(execution, lambda state: state.paused))
        await asyncio.sleep(0.5)
        before = len(script.named("call_model"))
        await asyncio.sleep(0.5)
        assert len(script.named("call_model")) == before
        with pytest.raises(WorkflowUpdateFailedError):
            await execution.execute_update("pause")
        await submitted.handle.execute_update("resume")
        await until(lambda: len(script.named("call_model")) > before)
        await submitted.handle.execute_update("stop_after_turn")
        result = await submitted.handle.result()
        assert result.outcome.kind is OutcomeKind.STOPPED_BY_OPERATOR
        assert result.outcome.score == 1.0
        assert not result.outcome.eligible
        ledger = await execution.query("ledger", result_type=list[OperationTrace])
        assert {item.state for item in ledger} == {"observed"}


async def test_cancel_tears_down_and_seals(temporal_env, make_request):
    script = Script()
    script.model = replying([CLICK])
    async with world(temporal_env, script) as start:
        submitted = await start(make_request(max_turns=10_000))
        await until(lambda: len(script.named("perform_operation")) >= 1)
        await submitted.handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await submitted.handle.result()
        await until(lambda: script.named("seal_execution"))
        assert script.named("seal_execution")[0].outcome.kind is OutcomeKind.CANCELLED
        assert len(script.named("teardown_desktop")) == 1
        assert script.named("evaluate") == []


@pytest.mark.parametrize("ready", [False, True])
async def test_cancelled_while_a_desktop_is_made_ends_when_it_is_gone(temporal_env, make_request, ready):
    """The host removes what it began; if the desktop was ready all the same, the execution removes it."""
    script = Script()
    gone: list[bool] = []

    async def make(_step):
        try:
            while True:
                activity.heartbeat()
                await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            await asyncio.sleep(1)
            gone.append(True)
            if not ready:
                raise
            asyncio.current_task().uncancel()

    script.provision = make
    async with world(temporal_env, script) as start:
        submitted = await start(make_request(), Timing(heartbeat_s=1.5))
        await until(lambda: script.named("provision_desktop"))
        await submitted.handle.cancel()
        error, result = await failed_result(submitted)
        assert gone
        assert error.type == "cancelled"
        assert [item.outcome.kind for item in result.executions] == [OutcomeKind.CANCELLED]
        assert len(script.named("teardown_desktop")) == ready
        assert script.named("prepare_task") == []


async def test_cancelled_between_two_executions_lists_what_there_was(temporal_env, make_request):
    script = Script()
    script.provision = refuse(OutcomeKind.DESKTOP_NOT_READY, "no panel")
    async with world(temporal_env, script) as start:
        submitted = await start(make_request(), Timing(retry_pause_s=60))
        await until(lambda: script.named("seal_execution"))
        await until_async(lambda: rests(submitted.handle))
        await submitted.handle.cancel()
        error, result = await failed_result(submitted)
        assert error.type == "cancelled"
        assert result.outcome.kind is OutcomeKind.CANCELLED
        assert [item.outcome.kind for item in result.executions] == [OutcomeKind.DESKTOP_NOT_READY]


async def test_cancelled_while_a_failed_execution_is_tidied_up_starts_no_other(temporal_env, make_request):
    """The execution has failed by itself and no longer listens; the cancellation counts for the rollout all the same."""
    script = Script()
    script.perform = refuse(OutcomeKind.DESKTOP_LOST, "gone")
    go_on = asyncio.Event()

    async def slowly(_step):
        await go_on.wait()

    script.teardown = slowly
    async with world(temporal_env, script) as start:
        submitted = await start(make_request(), Timing(retry_pause_s=1))
        await until(lambda: script.named("teardown_desktop"))
        await submitted.handle.cancel()
        execution = temporal_env.client.get_workflow_handle(f"{submitted.handle.id}/x1")
        await until_async(lambda: asks_to_cancel(execution))
        go_on.set()
        error, result = await failed_result(submitted)
        assert error.type == "cancelled"
        assert result.outcome.kind is OutcomeKind.CANCELLED
        assert [item.outcome.kind for item in result.executions] == [OutcomeKind.DESKTOP_LOST]


async def test_execution_that_is_there_from_before_is_not_run_again(temporal_env, make_request):
    script = Script()
    async with world(temporal_env, script) as start:
        request = make_request()
        submitted = await start(request)
        await submitted.handle.result()
        reset = ResetWorkflowExecutionRequest(
            namespace=temporal_env.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=submitted.handle.id),
            reason="by the test",
            request_id=uuid.uuid4().hex,
            workflow_task_finish_event_id=4,
        )
        await temporal_env.client.workflow_service.reset_workflow_execution(reset)
        again = temporal_env.client.get_workflow_handle(submitted.handle.id)
        with pytest.raises(WorkflowFailureError) as caught:
            await again.result()
        assert caught.value.cause.type == "request_invalid"
        assert "is there from before" in caught.value.cause.message
        assert len(script.named("provision_desktop")) == 1


async def test_late_result_of_an_old_execution_never_wins(temporal_env, make_request):
    """The old worker's answer comes when the rollout has gone on with a new execution: Temporal has closed what it would answer."""
    script = Script()
    asked, answer = asyncio.Event(), asyncio.Event()
    refused: list[str] = []

    async def late(step):
        if "/x1/" not in step.operations[0].operation_id:
            return
        task, token = asyncio.current_task(), activity.info().task_token
        asked.set()
        try:
            await answer.wait()
        except asyncio.CancelledError:
            task.uncancel()
            await answer.wait()
        outcome = OperationOutcome(operation_id=step.operations[0].operation_id, returncode=0)
        try:
            await temporal_env.client.get_async_activity_handle(task_token=token).complete(
                Performed(head="f" * 64, outcomes=(outcome,))
            )
        except RPCError as error:
            refused.append(error.message)

    script.perform, script.recover = late, lambda _step: "unknown"
    async with world(temporal_env, script) as start:
        submitted = await start(make_request(), Timing(retry_pause_s=0.01, heartbeat_s=1.5))
        await asked.wait()
        result = await submitted.handle.result()
        assert [item.outcome.kind for item in result.executions] == [
            OutcomeKind.OPERATION_INDETERMINATE,
            OutcomeKind.AGENT_DONE,
        ]
        answer.set()
        await until(lambda: refused)
        again = await temporal_env.client.get_workflow_handle(submitted.handle.id, result_type=RolloutResult).result()
        assert again == result
        first = temporal_env.client.get_workflow_handle(execution_workflow_id(result.executions[0].execution_id))
        assert (await first.describe()).status == WorkflowExecutionStatus.FAILED
        assert "f" * 64 not in (await first.fetch_history()).to_json()


async def test_continue_as_new_goes_on_at_the_same_turn_on_the_same_desktop(temporal_env, make_request):
    script = Script()
    script.parse_policy = ParsePolicy(on_failure="resample", resamples=1)
    script.model = replying(*[[CLICK]] * 19, ParseFailure(kind="empty", message="the reply is empty"))
    queue = f"q-{uuid.uuid4().hex[:8]}"
    async with Worker(
        temporal_env.client, task_queue=queue, workflows=[ExecutionWorkflow], activities=script.activities()
    ):
        request = make_request({"rollout_id": f"{queue}/t/0"}, max_turns=20)
        start = ExecutionStart(
            rollout=RolloutStart(request=request, timing=FAST, task_queue=queue, pool_queue=queue),
            execution_id=f"{queue}/t/0/x1",
            number=1,
            continue_after_events=80,
        )
        handle = await temporal_env.client.start_workflow(
            temporal.EXECUTION_WORKFLOW,
            start,
            id=f"rollout/{queue}/t/0/x1",
            task_queue=queue,
            result_type=ExecutionResult,
        )
        result = await handle.result()
        assert (result.outcome.kind, result.outcome.turns) == (OutcomeKind.HORIZON_REACHED, 20)
        assert result.run_id != handle.first_execution_run_id
        assert len(script.named("provision_desktop")) == 1
        assert [step.turn for step in script.named("call_model")] == [*range(20), 19]  # resampled, as it was opened
        seqs = [item.seq for step in script.named("perform_operation") for item in step.operations]
        assert seqs == list(range(3, 22))


async def test_same_id_same_request_is_found_and_a_different_one_refused(temporal_env, make_request):
    script = Script()
    async with world(temporal_env, script) as start:
        first = await start(make_request())
        again = await start(make_request())
        assert (first.existed, again.existed) == (False, True)
        assert (await again.handle.result()).outcome.kind is OutcomeKind.AGENT_DONE
        finished = await start(make_request())
        assert finished.existed
        with pytest.raises(RequestConflictError) as caught:
            await start(make_request(max_turns=7))
        assert caught.value.fields == ["max_turns"]
        assert len(script.named("provision_desktop")) == 1


async def test_an_oversize_request_is_refused_with_its_size_before_anything_starts(temporal_env, make_request):
    document = {
        "id": "big",
        "instruction": "x",
        "config": [],
        "evaluator": {"func": "infeasible", "blob": "x" * 600_000},
    }
    with pytest.raises(RequestTooLargeError, match=r"60\d,\d{3} bytes, limit 524,288"):
        await submit(temporal_env.client, make_request(task=Task.from_document(document, "os")))


async def test_failed_executions_are_listed_without_their_details(temporal_env, make_request):
    script = Script()

    def fail_at_length(_step):
        raise failure(
            OutcomeKind.PREPARE_FAILED,
            "a step failed",
            phase="preparing",
            details={"output": "x" * 4000, "traceback": "y" * 4000},
        )

    script.provision = fail_at_length
    async with world(temporal_env, script) as start:
        request = make_request({"limits": {"max_executions": 8}})
        error, result = await failed_result(await start(request, Timing(retry_pause_s=0)))
        assert error.type == "prepare_failed"
        assert len(result.executions) == 8
        assert len(result.model_dump_json()) < 30_000


def test_a_reply_with_more_actions_than_a_turn_holds_is_a_parse_failure(reply_record):
    parsed = ParsedReply(actions=(CLICK,) * 10_000)
    reply = _result("0" * 64, reply_record, parsed, reused=False, latency_ms=1)
    assert reply.actions == ()
    assert reply.failure is not None
    assert reply.failure.kind == "too_many_actions"
    assert len(reply.model_dump_json()) < 2_000


async def test_history_per_turn_is_small(temporal_env, make_request):
    """14 events and 3 KB a turn, the promise of DESIGN.md section 10: the difference of two lengths, so without the fixed part."""
    script = Script()
    script.model = replying([CLICK])
    sizes = {}
    for sample, turns in enumerate((10, 40)):
        async with world(temporal_env, script) as start:
            submitted = await start(make_request({"sample_index": sample}, max_turns=turns))
            await submitted.handle.result()
            handle = temporal_env.client.get_workflow_handle(execution_workflow_id(f"{submitted.rollout_id}/x1"))
            info = (await handle.describe()).raw_description.workflow_execution_info
            sizes[turns] = (info.history_length, info.history_size_bytes)
    events, size = ((sizes[40][place] - sizes[10][place]) / 30 for place in (0, 1))
    assert events <= 14, events
    assert size < 3072, size


async def rests(handle) -> bool:
    """Whether a rollout waits between two executions, as its search attributes say."""
    described = await handle.describe()
    return str(described.typed_search_attributes.get(temporal.PHASE)).startswith("waiting for execution")


async def asks_to_cancel(handle) -> bool:
    """Whether a cancellation stands in the history of a workflow."""
    history = await handle.fetch_history()
    return any(event.HasField("workflow_execution_cancel_requested_event_attributes") for event in history.events)


async def view(handle, choose):
    return choose(await handle.query("state", result_type=ExecutionView))


async def until(condition, limit_s: float = 15) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.02)


async def until_async(condition, limit_s: float = 15) -> None:
    async with asyncio.timeout(limit_s):
        while not await condition():
            await asyncio.sleep(0.05)


def test_workflow_ids_are_those_of_the_design():
    assert rollout_workflow_id("c/t/0") == "rollout/c/t/0"
    assert execution_workflow_id("c/t/0/x2") == "rollout/c/t/0/x2"
