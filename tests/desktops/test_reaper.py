"""What the reaper of a host removes, and what it leaves alone, with a real Temporal server to ask about owners.

The desktops are records and folders without processes: which one goes is decided from those. That processes, mounts and displays go with
them is shown by the chaos suite.
"""

from __future__ import annotations

import shutil
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import SecretStr
from temporalio.testing import WorkflowEnvironment

from osworld_rollouts import temporal
from osworld_rollouts.contracts.desktop import DesktopSpec, LeaseOwner
from osworld_rollouts.desktops._provider import DesktopRecord, Endpoints
from osworld_rollouts.desktops.host import DesktopHost
from osworld_rollouts.desktops.lease_registry import LeaseRegistry
from tests.conftest import temporal_binary

pytestmark = pytest.mark.temporal


@pytest.fixture
def registry(short_tmp):
    return LeaseRegistry(short_tmp / "desktops")


@pytest.fixture
def host(short_tmp):
    return DesktopHost(short_tmp, host_id="h", task_queue="q", capacity=4, lease_ttl_s=600)


@pytest.fixture
async def owner(temporal_env):
    """Start a workflow that no worker takes: it is running until something ends it."""
    started = []

    async def start():
        workflow_id = f"rollout/{uuid.uuid4()}/x1"
        started.append(
            await temporal_env.client.start_workflow(temporal.EXECUTION_WORKFLOW, id=workflow_id, task_queue="nobody")
        )
        return started[-1]

    yield start
    for handle in started:
        if (await handle.describe()).close_time is None:
            await handle.terminate("the test is over")


def desktop(registry, owner_id: str, *, state="ready", made=timedelta(0), lasts=timedelta(minutes=5)) -> DesktopRecord:
    lease_id, now = f"{owner_id}#{uuid.uuid4()}", datetime.now(UTC)
    folder = registry.folder(lease_id)
    folder.mkdir(parents=True)
    record = DesktopRecord(
        lease_id=lease_id,
        provider="local",
        owner=LeaseOwner(workflow_id=owner_id, run_id="r", execution_id="e"),
        host_id="h",
        state=state,
        state_dir=folder,
        endpoints=Endpoints(server=folder / "sock/server.sock"),
        token=SecretStr("secret"),
        spec=DesktopSpec(),
        width=1920,
        height=1080,
        image_identity="i",
        tier="bubblewrap",
        marker=uuid.uuid4().hex,
        created_at=now - made,
        expires_at=now + lasts,
    )
    registry.write(record)
    return record


async def test_owner_decides(temporal_env, host, registry, owner):
    running, ended = await owner(), await owner()
    await ended.terminate("in the UI")
    kept = desktop(registry, running.id)
    gone = desktop(registry, ended.id)
    unknown = desktop(registry, f"rollout/{uuid.uuid4()}/x1")
    assert sorted(await host.reap(temporal_env.client)) == sorted([gone.lease_id, unknown.lease_id])
    assert [record.lease_id for record in registry.all()] == [kept.lease_id]
    assert kept.state_dir.exists()
    assert not gone.state_dir.exists()
    assert await host.reap(temporal_env.client) == []


async def test_expired_and_half_made_ones_go_although_their_owner_runs(temporal_env, host, registry, owner):
    running = await owner()
    expired = desktop(registry, running.id, lasts=-timedelta(seconds=1))
    half = desktop(registry, running.id, state="making", made=timedelta(minutes=30))
    fresh = desktop(registry, running.id, state="making", made=timedelta(seconds=30))
    assert sorted(await host.reap(temporal_env.client)) == sorted([expired.lease_id, half.lease_id])
    assert [record.lease_id for record in registry.all()] == [fresh.lease_id]


async def test_nothing_goes_while_temporal_cannot_be_asked(host, registry):
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=temporal_binary(), dev_server_log_level="error"
    ) as server:
        client = server.client
    kept = desktop(registry, "rollout/somebody/x1")
    assert await host.reap(client) == []
    assert kept.state_dir.exists()


async def test_what_merely_looks_like_ours_survives(temporal_env, host, registry, owner, short_tmp):
    ended = await owner()
    await ended.terminate("in the UI")
    gone = desktop(registry, ended.id)
    copy = registry.root / f"{gone.state_dir.name}.bak"
    shutil.copytree(gone.state_dir, copy)
    renamed = registry.root / "0123456789ab"
    shutil.copytree(gone.state_dir, renamed)  # the right form, and the record of another
    strangers = [registry.root / "notes", registry.root / "0123456789AB", short_tmp / "desktops-of-mine"]
    for folder in strangers:
        folder.mkdir()
        (folder / "file").write_text("mine")
    link = registry.root / "mine"
    link.symlink_to(strangers[-1])
    assert await host.reap(temporal_env.client) == [gone.lease_id]
    assert await host.reap(temporal_env.client) == []
    assert not gone.state_dir.exists()
    assert (copy / "record.json").exists()
    assert (renamed / "record.json").exists()
    assert all((folder / "file").read_text() == "mine" for folder in strangers)
    assert link.is_symlink()
