"""Verification against the history of a real Temporal server, over continue-as-new."""

from __future__ import annotations

import asyncio
import json
import uuid

import pytest
from temporalio import activity, workflow
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from osworld_rollouts.console.main import run
from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.store import blob_path
from osworld_rollouts.evidence.verify import history_heads, verify_execution
from tests.evidence.exact import exact_execution

pytestmark = pytest.mark.temporal


@activity.defn
async def step(head: str) -> dict[str, object]:
    return {"head": head, "other": 1}


@activity.defn
async def without_a_head() -> None:
    return None


@workflow.defn
class Steps:
    """Carries heads as an execution does: three steps a run, then continue-as-new."""

    @workflow.run
    async def run(self, heads: list[str]) -> None:
        from datetime import timedelta

        for head in heads[:3]:
            await workflow.execute_activity(step, head, start_to_close_timeout=timedelta(seconds=30))
        await workflow.execute_activity(without_a_head, start_to_close_timeout=timedelta(seconds=30))
        if heads[3:]:
            workflow.continue_as_new(heads[3:])


@pytest.fixture
def carried(temporal_env):
    """Run an execution's heads through a workflow."""

    async def carry(workflow_id, heads):
        queue = f"history-{uuid.uuid4().hex}"
        async with Worker(
            temporal_env.client, task_queue=queue, workflows=[Steps], activities=[step, without_a_head],
            workflow_runner=UnsandboxedWorkflowRunner(),
        ):  # fmt: skip
            await temporal_env.client.execute_workflow(Steps.run, heads, id=workflow_id, task_queue=queue)
        return temporal_env.client

    return carry


def unique() -> str:
    return f"camp-{uuid.uuid4().hex[:8]}/task/0/x1"


async def test_heads_over_continue_as_new(store, carried):
    name = unique()
    made = exact_execution(store, name)
    client = await carried(f"rollout/{name}", made.heads)
    heads = await history_heads(client, f"rollout/{name}")
    assert heads == made.heads
    report = verify_execution(store, made.head, heads)
    assert report.intact, report.problem
    assert report.witnessed == len(made.heads)


async def test_a_chain_that_was_rewritten_does_not_match_the_history(store, carried):
    name = unique()
    made = exact_execution(store, name, score=0.0)
    client = await carried(f"rollout/{name}", made.heads)
    records = chain.walk(store, made.head)
    better = records[-1].model_copy(update={"outcome": records[-1].outcome.model_copy(update={"score": 1.0})})
    forged = store.put(chain.encode_record(better))
    report = verify_execution(store, forged, await history_heads(client, f"rollout/{name}"))
    assert not report.intact
    assert made.head in report.problem


async def test_the_command(store, carried, temporal_env, capsys, monkeypatch, tmp_path):
    name = unique()
    rollout = name.removesuffix("/x1")
    made = exact_execution(store, name)
    await carried(f"rollout/{name}", made.heads)
    monkeypatch.setenv("ROLLOUTS_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("ROLLOUTS_STORE__URL", str(store.path))
    monkeypatch.setenv("ROLLOUTS_TEMPORAL__ADDRESS", temporal_env.client.service_client.config.target_host)

    async def verify(*arguments):
        code = await asyncio.to_thread(run, ["verify", rollout, "--json", *arguments])
        return code, json.loads(capsys.readouterr().out)["executions"][0]

    code, said = await verify()
    assert (code, said["intact"], said["witnessed"], said["history_checked"]) == (0, True, len(made.heads), True)
    call = chain.walk(store, made.head)[2]
    (store.path / blob_path(call.generated_token_ids)).write_bytes(b"[1,2,3]")
    code, said = await verify()
    assert (code, said["intact"], said["problem_index"]) == (1, False, 2)
    assert said["blob_problems"][0]["field"] == "generated_token_ids"
    store.delete_blob(made.heads[4])
    code, said = await verify()
    assert (code, said["problem_index"]) == (1, 4)
