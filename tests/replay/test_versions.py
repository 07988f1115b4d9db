"""Worker versioning as the settings turn it on: a running rollout ends on the version it began with, a new one takes the current version.

The activities are scripted: only which worker is given what is tested here.
"""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager

import pytest
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.service import RPCError
from temporalio.worker import Worker

import worker
from osworld_rollouts.contracts.identity import execution_workflow_id
from osworld_rollouts.contracts.timing import Timing
from osworld_rollouts.settings import load_settings
from osworld_rollouts.submit import submit
from tests.stack import wait_until
from tests.workflows.scripted import CLICK, DONE, Script, replying
from workflows.execution import ExecutionWorkflow
from workflows.rollout import RolloutWorkflow

pytestmark = pytest.mark.temporal


@asynccontextmanager
async def version(env, tmp_path, queue: str, build: str):
    """A worker of one version, made current; gives what its activities were asked."""
    script = Script()
    script.model = replying([CLICK], [CLICK], [CLICK], [DONE])
    settings = load_settings(state_dir=str(tmp_path), worker={"deployment": queue, "build_id": build})
    async with Worker(
        env.client,
        task_queue=queue,
        workflows=[RolloutWorkflow, ExecutionWorkflow],
        activities=script.activities(),
        **worker._shared(settings),
    ):

        async def current() -> bool:
            request = SetWorkerDeploymentCurrentVersionRequest(
                namespace=env.client.namespace, deployment_name=queue, build_id=build
            )
            try:
                await env.client.workflow_service.set_worker_deployment_current_version(request)
            except RPCError:
                return False  # the server has not heard of this version yet
            return True

        await wait_until(current)
        yield script


async def test_a_running_rollout_stays_on_its_version(temporal_env, make_request, tmp_path):
    queue = f"versions-{uuid.uuid4().hex[:8]}"

    async def start(sample: int):
        request = make_request({"campaign_id": queue, "sample_index": sample})
        return await submit(
            temporal_env.client, request, timing=Timing(retry_pause_s=0.01), task_queue=queue, pool_queue=queue
        )

    async with version(temporal_env, tmp_path, queue, "one") as one:
        running = await start(0)
        await wait_until(lambda: len(one.named("call_model")) >= 1)
        execution = temporal_env.client.get_workflow_handle(execution_workflow_id(f"{running.rollout_id}/x1"))
        await execution.execute_update("pause")
        async with version(temporal_env, tmp_path, queue, "two") as two:
            fresh = await start(1)
            assert (await fresh.handle.result()).outcome.score == 1.0
            assert {name for name, _ in two.calls} >= {"prepare_task", "call_model", "evaluate"}
            before = len(two.calls)
            await execution.execute_update("resume")
            assert (await running.handle.result()).outcome.score == 1.0
            assert len(two.calls) == before
            assert len(one.named("evaluate")) == 1
