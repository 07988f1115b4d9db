"""What is larger than Temporal takes fails at once and says so, whoever sent it."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from temporalio.client import WorkflowFailureError

from osworld_rollouts import temporal
from osworld_rollouts.contracts.execution import RolloutStart
from osworld_rollouts.contracts.outcome import OutcomeKind
from osworld_rollouts.contracts.request import Task
from tests.workflows.scripted import Script
from tests.workflows.test_time import failed, world

pytestmark = pytest.mark.temporal


@pytest.mark.parametrize("name", ["call_model", "perform_operation", "provision_desktop", "evaluate"])
async def test_answer_that_is_too_large_is_not_asked_for_again(temporal_env, make_request, name):
    """By default Temporal's client calls this retryable, and the activity would loop."""
    script = Script()
    script.grow = {name: 3_000_000}
    async with world(temporal_env, script) as start, asyncio.timeout(20):
        result = await failed(await start(make_request({"limits": {"max_executions": 1}})))
        assert result.outcome.kind is OutcomeKind.INTERNAL_ERROR
        assert "larger than a Temporal payload" in result.outcome.cause.message
        assert len(script.named(name)) == 1


async def test_request_that_another_client_started_too_large_is_refused_by_the_workflow(temporal_env, make_request):
    document = {
        "id": "big",
        "instruction": "x",
        "config": [],
        "evaluator": {"func": "infeasible", "blob": "x" * 900_000},
    }
    request = make_request(task=Task.from_document(document, "os"))
    script = Script()
    async with world(temporal_env, script) as start:
        small = await start(make_request())
        queue = small.rollout_id.split("/")[0]
        handle = await temporal_env.client.start_workflow(
            temporal.ROLLOUT_WORKFLOW,
            RolloutStart(request=request, task_queue=queue, pool_queue=queue),
            id=f"rollout/big-{uuid.uuid4().hex[:8]}",
            task_queue=queue,
        )
        async with asyncio.timeout(20):
            with pytest.raises(WorkflowFailureError) as caught:
                await handle.result()
        assert caught.value.cause.type == "request_invalid"
        assert "limit 524,288" in caught.value.cause.message
