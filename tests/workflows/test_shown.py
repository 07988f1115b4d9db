"""What a person sees in Temporal of a rollout: search attributes while it runs, summaries, Markdown details, the cause of a failure."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowFailureError

from osworld_rollouts import temporal
from osworld_rollouts.contracts.action import PythonCode
from osworld_rollouts.contracts.identity import execution_workflow_id
from osworld_rollouts.contracts.outcome import OutcomeKind
from osworld_rollouts.contracts.request import Task
from tests.stack import wait_until
from tests.workflows.scripted import CLICK, DONE, Script, refuse, replying
from tests.workflows.test_time import slow_from, world

pytestmark = pytest.mark.temporal


async def details(handle) -> str:
    """The Markdown on the tab *User metadata*."""
    metadata = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return metadata.current_details


async def attributes(handle):
    return (await handle.describe()).typed_search_attributes


async def test_running_execution(temporal_env, make_request):
    script = Script()
    script.model = slow_from(0, 0.3, [CLICK], [CLICK], [CLICK], [PythonCode(code="print('*now*')")], [CLICK])
    async with world(temporal_env, script) as start:
        submitted = await start(make_request({"purpose": "evaluation"}, max_turns=100))
        execution = temporal_env.client.get_workflow_handle(execution_workflow_id(f"{submitted.rollout_id}/x1"))
        await wait_until(lambda: len(script.named("call_model")) >= 6)
        await submitted.handle.execute_update("pause")
        await wait_until(lambda: shown(execution, "paused"))
        seen, rollout = await attributes(execution), await attributes(submitted.handle)
        turn = seen.get(temporal.TURN)
        assert turn >= 5
        assert {
            key.name: seen.get(key)
            for key in (
                *(temporal.TASK, temporal.DOMAIN, temporal.MODEL, temporal.ADAPTER, temporal.PURPOSE),
                *(temporal.PHASE, temporal.EXECUTION, temporal.ROLLOUT),
            )
        } == {
            "RolloutTask": "task-1",
            "RolloutDomain": "os",
            "RolloutModel": "scripted",
            "RolloutAdapter": "pyautogui",
            "RolloutPurpose": "evaluation",
            "RolloutPhase": "turns",
            "RolloutExecution": 1,
            "RolloutId": submitted.rollout_id,
        }
        assert seen.get(temporal.CAMPAIGN) == submitted.rollout_id.split("/")[0]
        assert (seen.get(temporal.SCORE), seen.get(temporal.OUTCOME)) == (None, None)
        assert (rollout.get(temporal.PHASE), rollout.get(temporal.EXECUTION)) == ("execution 1", 1)
        text = await details(execution)
        assert text.startswith("**Rename the file**")
        assert [f"| {number} |" in text for number in range(turn - 3, turn + 1)] == [False, True, True, True]
        assert "paused" in text
        assert "in `file:///evidence`; `rollouts verify" in text
        assert f"Running: `{submitted.rollout_id}/x1`" in await details(submitted.handle)
        await submitted.handle.execute_update("stop_after_turn")
        await submitted.handle.result()
        seen = await attributes(execution)
        assert (seen.get(temporal.SCORE), seen.get(temporal.OUTCOME)) == (1.0, "stopped_by_operator")
        assert (seen.get(temporal.ELIGIBLE), seen.get(temporal.PHASE)) == (False, "closed")
        text = await details(execution)
        assert "Outcome **stopped_by_operator**, score **1**, masked" in text


async def test_text_of_tasks_and_models_makes_no_markdown(temporal_env, make_request):
    script = Script()
    script.model = replying([PythonCode(code="x = '[here](javascript:alert(1))'")], [DONE])
    document = {
        "id": "t",
        "instruction": "<b>Click</b> ![x](http://x)\n# now",
        "config": [],
        "evaluator": {"func": "infeasible"},
    }
    async with world(temporal_env, script) as start:
        submitted = await start(make_request(task=Task.from_document(document, "os")))
        await submitted.handle.result()
        text = await details(temporal_env.client.get_workflow_handle(f"{submitted.handle.id}/x1"))
        assert "\\<b\\>Click\\</b\\> \\!\\[x\\](http://x) \\# now" in text
        assert "\\[here\\](javascript" in text


@pytest.mark.parametrize("kind", [OutcomeKind.DESKTOP_LOST, OutcomeKind.MODEL_REJECTED, OutcomeKind.EVALUATION_FAILED])
async def test_failure_is_its_cause_in_one_sentence(temporal_env, make_request, kind):
    script = Script()
    body = refuse(kind, "the reason of it")
    if kind is OutcomeKind.DESKTOP_LOST:
        script.perform = body
    elif kind is OutcomeKind.MODEL_REJECTED:
        script.model = body
    else:
        script.evaluate = body
    async with world(temporal_env, script) as start, asyncio.timeout(60):
        submitted = await start(make_request({"limits": {"max_executions": 1}}))
        execution = temporal_env.client.get_workflow_handle(f"{submitted.handle.id}/x1")
        for handle, message in (
            (submitted.handle, "the reason of it (execution 1 of at most 1)"),
            (execution, "the reason of it"),
        ):
            with pytest.raises(WorkflowFailureError) as caught:
                await handle.result()
            assert (caught.value.cause.type, caught.value.cause.message) == (str(kind), message)
        assert "> the reason of it" in await details(execution)


async def shown(handle, word: str) -> bool:
    return word in await details(handle)
