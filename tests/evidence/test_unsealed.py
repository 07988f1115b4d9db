"""gc asks a real Temporal server which executions run, and keeps what only their histories point to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
import uuid
from datetime import timedelta

import pytest
from temporalio import activity, workflow
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from osworld_rollouts.console.main import run
from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.gc import collect
from osworld_rollouts.evidence.index import read_pointer
from osworld_rollouts.evidence.store import blob_path
from osworld_rollouts.evidence.unsealed import unsealed_executions
from osworld_rollouts.evidence.verify import verify_execution
from osworld_rollouts.temporal import EXECUTION_WORKFLOW, start_attributes
from tests.evidence.exact import exact_execution, make_request

pytestmark = pytest.mark.temporal
OLD = time.time() - 30 * 86400


@activity.defn
async def unsealed_step(head: str) -> dict[str, object]:
    return {"head": head}


@workflow.defn(name=EXECUTION_WORKFLOW)
class Held:
    """An execution as gc sees it: heads in its history over two runs, then waiting for a person."""

    def __init__(self) -> None:
        self.released = False

    @workflow.signal
    def release(self) -> None:
        self.released = True

    @workflow.run
    async def run(self, heads: list[str]) -> None:
        await workflow.execute_activity(unsealed_step, heads[0], start_to_close_timeout=timedelta(seconds=30))
        if heads[1:]:
            workflow.continue_as_new(heads[1:])
        await workflow.wait_condition(lambda: self.released)


@pytest.fixture
async def held(temporal_env):
    queue, handles = f"unsealed-{uuid.uuid4().hex}", []

    async def start(execution_id, campaign, heads):
        rollout_id = execution_id.rpartition("/")[0]
        handle = await temporal_env.client.start_workflow(
            Held.run, heads, id=f"rollout/{execution_id}", task_queue=queue,
            search_attributes=start_attributes(make_request(rollout_id, campaign), execution=1),
        )  # fmt: skip
        handles.append(handle)
        return handle

    async with Worker(
        temporal_env.client, task_queue=queue, workflows=[Held], activities=[unsealed_step],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):  # fmt: skip
        yield start
        for handle in handles:
            with contextlib.suppress(RPCError):  # it ended before
                await handle.signal(Held.release)
            await handle.result()


@pytest.fixture
def command(store, temporal_env, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("ROLLOUTS_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("ROLLOUTS_STORE__URL", str(store.path))
    monkeypatch.setenv("ROLLOUTS_TEMPORAL__ADDRESS", temporal_env.client.service_client.config.target_host)

    async def call(*arguments):
        code = await asyncio.to_thread(run, ["store", "gc", *arguments])
        return code, capsys.readouterr()

    return call


def unsealed(store, execution_id, campaign):
    """A chain as a running execution has it: no end and no pointer, and all of it old."""
    made = exact_execution(store, execution_id, campaign=campaign)
    pointers = [key for key in store.list_named("executions") if campaign in key]
    for key in pointers:
        store.delete_named(key)
    store.delete_blob(made.head)
    assert read_pointer(store, execution_id) is None
    collect(
        store, extra_heads=made.heads[:-1], grace=timedelta(0), dry_run=False
    )  # the end, and what the builder left over
    for item in list(store.blobs()):
        os.utime(store.path / blob_path(item.name), (OLD, OLD))
    return made.heads[:-1]


async def known(client, execution_id):
    for _ in range(200):  # visibility follows the history a little later
        found = {item.execution_id: item for item in await unsealed_executions(client, set())}
        if execution_id in found and found[execution_id].head:
            return found[execution_id]
        await asyncio.sleep(0.05)
    raise TimeoutError(execution_id)


async def test_what_runs_is_kept_however_old_and_what_nobody_knows_goes(store, temporal_env, held, command):
    campaign = f"camp-{uuid.uuid4().hex[:8]}"
    heads = unsealed(store, f"{campaign}/task/0/x1", campaign)
    orphan = store.put(b"nobody names this")
    os.utime(store.path / blob_path(orphan), (OLD, OLD))
    await held(f"{campaign}/task/0/x1", campaign, [heads[1], heads[-1]])
    found = await known(temporal_env.client, f"{campaign}/task/0/x1")
    for _ in range(200):  # until the second run carries its head
        if found.head == heads[-1]:
            break
        await asyncio.sleep(0.05)
        found = await known(temporal_env.client, f"{campaign}/task/0/x1")
    assert (found.campaign_id, found.running, found.head) == (campaign, True, heads[-1])

    before = len(list(store.blobs()))
    code, shown = await command()
    assert code == 0
    assert "would remove 1 blobs" in shown.out
    assert re.search(r"\d+ others \(\d+ running\)", shown.out)  # the server is shared with other tests
    assert len(list(store.blobs())) == before

    code, shown = await command("--delete", "--forget", campaign)
    assert (code, store.has(orphan)) == (0, False)
    chain.forget_cached_records()
    assert verify_execution(store, heads[-1], heads).intact
    assert len(list(store.blobs())) == before - 1

    code, shown = await command("--delete", "--days", "0")
    assert code == 3
    assert "what they just stored" in shown.err


async def test_an_execution_that_ended_unsealed_is_kept_until_its_campaign_is_forgotten(
    store, temporal_env, held, command
):
    campaign = f"camp-{uuid.uuid4().hex[:8]}"
    heads = unsealed(store, f"{campaign}/task/0/x1", campaign)
    handle = await held(f"{campaign}/task/0/x1", campaign, [heads[-1]])
    await known(temporal_env.client, f"{campaign}/task/0/x1")
    await handle.signal(Held.release)
    await handle.result()
    for _ in range(200):
        if not (await known(temporal_env.client, f"{campaign}/task/0/x1")).running:
            break
        await asyncio.sleep(0.05)
    before = len(list(store.blobs()))
    assert (await command("--delete"))[0] == 0
    assert len(list(store.blobs())) == before
    assert (await command("--delete", "--forget", campaign))[0] == 0
    assert list(store.blobs()) == []


async def test_an_execution_of_another_store_does_not_stop_this_one(store, temporal_env, held, command):
    campaign = f"camp-{uuid.uuid4().hex[:8]}"
    await held(f"{campaign}/task/0/x1", campaign, ["f" * 64])
    await known(temporal_env.client, f"{campaign}/task/0/x1")
    orphan = store.put(b"nobody names this")
    os.utime(store.path / blob_path(orphan), (OLD, OLD))
    code, shown = await command("--delete")
    assert (code, store.has(orphan)) == (0, False), shown.err


async def test_a_running_chain_that_is_damaged_stops_everything(store, temporal_env, held, command):
    campaign = f"camp-{uuid.uuid4().hex[:8]}"
    heads = unsealed(store, f"{campaign}/task/0/x1", campaign)
    await held(f"{campaign}/task/0/x1", campaign, [heads[-1]])
    await known(temporal_env.client, f"{campaign}/task/0/x1")
    store.delete_blob(heads[2])
    before = len(list(store.blobs()))
    code, shown = await command("--delete")
    assert code != 0
    assert "Nothing was removed" in shown.err
    assert len(list(store.blobs())) == before
