"""An episode of 500 turns, on a real Temporal server."""

from __future__ import annotations

import json
import uuid

import pytest
from temporalio.worker import Worker

from osworld_rollouts import temporal
from osworld_rollouts.contracts.execution import ExecutionStart, RolloutStart
from osworld_rollouts.contracts.outcome import ExecutionResult, OutcomeKind
from osworld_rollouts.contracts.timing import Timing
from tests.replay.record import runs
from tests.workflows.scripted import CLICK, Script, replying
from workflows.execution import ExecutionWorkflow

pytestmark = [pytest.mark.temporal, pytest.mark.slow, pytest.mark.timeout(600)]
TURNS = 500
WARNING_EVENTS, WARNING_BYTES = 10_240, 10 * 2**20
"""Where Temporal begins to warn."""


@pytest.mark.parametrize("after_events", [ExecutionStart.model_fields["continue_after_events"].default, 2000])
async def test_500_turns_fit(temporal_env, make_request, after_events):
    """In several histories, each far below Temporal's warnings, on the same desktop, no turn and no number twice."""
    script, queue = Script(), f"long-{uuid.uuid4().hex[:8]}"
    script.model = replying([CLICK])
    async with Worker(
        temporal_env.client, task_queue=queue, workflows=[ExecutionWorkflow], activities=script.activities()
    ):
        request = make_request({"rollout_id": f"{queue}/t/0"}, max_turns=TURNS)
        handle = await temporal_env.client.start_workflow(
            temporal.EXECUTION_WORKFLOW,
            ExecutionStart(
                rollout=RolloutStart(request=request, timing=Timing(), task_queue=queue, pool_queue=queue),
                execution_id=f"{queue}/t/0/x1",
                number=1,
                continue_after_events=after_events,
            ),
            id=f"rollout/{queue}/t/0/x1",
            task_queue=queue,
            result_type=ExecutionResult,
        )
        result = await handle.result()
    assert (result.outcome.kind, result.outcome.turns, result.outcome.score) == (
        OutcomeKind.HORIZON_REACHED,
        TURNS,
        1.0,
    )
    assert len(script.named("provision_desktop")) == len(script.named("teardown_desktop")) == 1
    assert [step.turn for step in script.named("call_model")] == list(range(TURNS))
    operations = [item for step in script.named("perform_operation") for item in step.operations]
    assert [item.seq for item in operations] == list(range(3, 3 + TURNS))
    assert len({item.operation_id for item in operations}) == TURNS
    histories = await runs(temporal_env.client, handle.id)
    assert len(histories) > 1  # the server suggests it at 4,096 events
    sizes = await lengths(temporal_env.client, handle.id, histories)
    for events, size in sizes:
        assert events < min(WARNING_EVENTS, after_events + 100)
        assert size < WARNING_BYTES
    assert sum(events for events, _ in sizes) <= 14 * TURNS + 100 * len(sizes)
    assert sum(size for _, size in sizes) < 3072 * TURNS


async def lengths(client, workflow_id: str, histories: list[str]) -> list[tuple[int, int]]:
    """Events and bytes of each run, as the server counts them."""
    found = []
    for text in histories:
        started = json.loads(text)["events"][0]["workflowExecutionStartedEventAttributes"]
        handle = client.get_workflow_handle(workflow_id, run_id=started["originalExecutionRunId"])
        info = (await handle.describe()).raw_description.workflow_execution_info
        found.append((info.history_length, info.history_size_bytes))
    return found
