"""Rollouts from submission to score on a real desktop, with OSWorld's own evaluator."""

from __future__ import annotations

import json

import pytest
from temporalio.client import WorkflowFailureError

from osworld_rollouts.contracts.evidence import (
    DesktopPrepared,
    ExecutionStarted,
    ModelCallRecord,
    OperationsRecord,
    Terminated,
)
from osworld_rollouts.contracts.outcome import OutcomeKind, RolloutResult
from osworld_rollouts.contracts.request import ParsePolicy, Task
from osworld_rollouts.evidence import chain, index
from osworld_rollouts.evidence.store import open_store
from osworld_rollouts.evidence.verify import history_heads, verify_execution
from osworld_rollouts.tasks import shipped_tasks
from tests.stack import wait_until

pytestmark = [pytest.mark.temporal, pytest.mark.desktop]
TASKS = {task.task_id: task for task in shipped_tasks()}


async def failure_of(submitted):
    with pytest.raises(WorkflowFailureError) as caught:
        await submitted.handle.result()
    error = caught.value.cause
    return error, RolloutResult.model_validate(error.details[0])


@pytest.mark.parametrize("name", sorted(TASKS))
async def test_shipped_task_is_solved_by_the_script_and_not_by_saying_done(stack, name):
    solved = await stack.submit(TASKS[name], campaign=f"{stack.campaign}-solve")
    lazy = await stack.submit(TASKS[name], faults=":done", campaign=f"{stack.campaign}-lazy")
    result = await solved.handle.result()
    assert result.outcome.score == 1.0, result
    assert result.outcome.eligible
    result = await lazy.handle.result()
    assert (result.outcome.kind, result.outcome.score) == (OutcomeKind.AGENT_DONE, 0.0)
    assert stack.leftovers() == []


async def test_evidence_holds_the_whole_rollout(stack):
    submitted = await stack.submit(TASKS["text-edit-save"], campaign=f"{stack.campaign}-evidence")
    result = await submitted.handle.result()
    store = open_store(stack.settings.store.url)
    (execution,) = result.executions
    records = chain.walk(store, execution.evidence_head)
    kinds = [type(record) for record in records]
    assert kinds[0] is ExecutionStarted
    assert kinds[1] is DesktopPrepared
    assert kinds[-1] is Terminated
    calls = [record for record in records if isinstance(record, ModelCallRecord)]
    acts = [record for record in records if isinstance(record, OperationsRecord)]
    assert len(calls) == result.outcome.turns
    assert acts
    assert all(item["returncode"] == 0 for record in acts for item in record.operations if "command" in item)
    sent = json.loads(store.get(calls[0].sent))
    assert calls[0].media[0].sha256 in json.dumps(sent)
    assert calls[0].served_model
    assert "scripted" in calls[0].served_model
    pointer = index.read_pointer(store, execution.execution_id)
    assert pointer is not None
    assert pointer.head == execution.evidence_head
    assert chain.verify_chain(store, pointer.head).intact


@pytest.mark.parametrize(
    ("faults", "kind"),
    [
        (":garbage", OutcomeKind.POLICY_RESPONSE_INVALID),
        (":empty", OutcomeKind.POLICY_RESPONSE_INVALID),
        (":truncated", OutcomeKind.POLICY_RESPONSE_INVALID),
    ],
)
async def test_replies_without_an_action_are_scored_as_the_desktop_stands(stack, faults, kind):
    policy = ParsePolicy(max_failed_turns=2)
    submitted = await stack.submit(
        TASKS["terminal-count-errors"], faults=faults, parse_policy=policy, campaign=f"{stack.campaign}-{faults[1:]}"
    )
    result = await submitted.handle.result()
    assert (result.outcome.kind, result.outcome.score, result.outcome.turns) == (kind, 0.0, 2)


async def test_a_server_that_stumbles_is_asked_again_and_every_attempt_is_recorded(stack):
    submitted = await stack.submit(
        TASKS["terminal-count-errors"], faults=":http=500x2", campaign=f"{stack.campaign}-500"
    )
    result = await submitted.handle.result()
    assert result.outcome.score == 1.0
    records = chain.walk(open_store(stack.settings.store.url), result.executions[0].evidence_head)
    first = next(record for record in records if isinstance(record, ModelCallRecord))
    assert [attempt["status"] for attempt in first.earlier_attempts] == [500, 500]


async def test_unreachable_model_is_a_typed_failure_with_a_remedy(stack):
    submitted = await stack.submit(
        TASKS["terminal-count-errors"],
        base_url="http://127.0.0.1:9/v1",
        campaign=f"{stack.campaign}-down",
        timing=stack.settings.timeouts.model_copy(update={"model_total_s": 3.0}),
    )
    error, result = await failure_of(submitted)
    assert error.type == "model_unreachable"
    assert "127.0.0.1:9" in error.message
    assert result.outcome.score is None
    assert result.outcome.mask_sample
    await wait_until(lambda: stack.leftovers() == [])


async def test_a_call_that_failed_for_good_is_in_the_evidence_with_every_attempt(stack):
    """503 after generating, until the time is up: what is paid, what is recorded, what the sample says."""
    submitted = await stack.submit(
        TASKS["terminal-count-errors"],
        faults=":http=503x99",
        campaign=f"{stack.campaign}-503",
        timing=stack.settings.timeouts.model_copy(update={"model_total_s": 6.0}),
    )
    error, result = await failure_of(submitted)
    assert error.type == "model_unreachable"
    (execution,) = result.executions[:1]
    store = open_store(stack.settings.store.url)
    records = chain.walk(store, execution.evidence_head)
    call = records[-2]
    assert isinstance(call, ModelCallRecord)
    assert (call.turn, call.call, call.received, call.status) == (0, 0, None, 503)
    attempts = call.earlier_attempts
    assert len(attempts) >= 2
    assert len({attempt["request_id"] for attempt in attempts}) == len(attempts)
    assert [attempt["activity_attempt"] for attempt in attempts] == list(range(1, len(attempts) + 1))
    assert {(attempt["kind"], attempt["sample_may_exist"]) for attempt in attempts} == {("server_error", True)}
    assert (execution.unanswered_calls, execution.unseen_samples) == (1, len(attempts))
    assert call.media
    assert call.sampling["max_tokens"]
    heads = await history_heads(stack.client, execution.workflow_id)
    report = verify_execution(store, execution.evidence_head, heads)
    assert (report.intact, report.unseen_samples) == (True, len(attempts))


async def test_unknown_adapter_fails_before_a_desktop_is_made(stack):
    submitted = await stack.submit(
        TASKS["terminal-count-errors"], adapter={"name": "telepathy"}, campaign=f"{stack.campaign}-adapter"
    )
    error, result = await failure_of(submitted)
    assert error.type == "request_invalid"
    assert "telepathy" in error.message
    assert "pyautogui" in error.message
    assert result.executions[0].lease_id is None


async def test_unknown_metric_is_refused_and_named(stack):
    document = {
        **TASKS["terminal-count-errors"].document,
        "evaluator": {"func": "no_such_metric", "result": {"type": "rule"}},
    }
    task = Task.from_document(document, "os")
    error, result = await failure_of(await stack.submit(task, campaign=f"{stack.campaign}-metric"))
    assert error.type == "task_unsupported"
    assert "no_such_metric" in error.message
    assert result.outcome.score is None


async def test_failing_setup_step_is_named_and_never_a_zero(stack):
    document = {
        **TASKS["terminal-count-errors"].document,
        "config": [
            {"type": "execute", "parameters": {"command": ["true"]}},
            {"type": "execute", "parameters": {"command": ["sh", "-c", "echo broken >&2; exit 7"]}},
        ],
    }
    error, result = await failure_of(
        await stack.submit(Task.from_document(document, "os"), campaign=f"{stack.campaign}-setup")
    )
    assert error.type == "prepare_failed"
    assert "step 2" in error.message
    assert result.outcome.score is None
    assert result.outcome.cause is not None
    assert "broken" in json.dumps(result.outcome.cause.details)
