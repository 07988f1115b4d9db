"""Case 7: the host that holds the desktop is gone for good; a new execution runs elsewhere, and the host cleans up if it comes back."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from osworld_rollouts.desktops.lease_registry import LeaseRegistry
from osworld_rollouts.desktops.registry import create_provider
from tests.chaos.conftest import SCRIPTS
from tests.chaos.counting import counting_task
from tests.chaos.system import System
from tests.stack import QUICK, _share_guest_python, running, wait_until

pytestmark = [pytest.mark.temporal, pytest.mark.desktop, pytest.mark.chaos]


@pytest.fixture
async def host_dirs():
    """State directories of two hosts of desktops."""
    folders = [Path(tempfile.mkdtemp(prefix="ro-", dir="/tmp")) for _ in range(2)]
    for folder in folders:
        _share_guest_python(folder)
    yield folders
    for folder in folders:
        provider = create_provider("local", state_dir=folder)
        for record in await provider.list():
            await provider.destroy(record.lease_id)
        shutil.rmtree(folder, ignore_errors=True)


async def test_new_execution_elsewhere_within_the_grace(temporal_env, table, host_dirs):
    address = temporal_env.client.service_client.config.target_host
    async with running(temporal_env.client, address, in_process=False, name="hosts", scripts=SCRIPTS) as stack:
        system = System(stack)
        store = {"ROLLOUTS_STORE__URL": stack.settings.store.url}
        stack.start_worker("workflows,models")
        places = [
            {**store, "ROLLOUTS_STATE_DIR": str(folder), "ROLLOUTS_HOST__ID": f"h{number}"}
            for number, folder in enumerate(host_dirs, 1)
        ]
        first = stack.start_worker("desktops", **places[0])
        registry = LeaseRegistry(host_dirs[0] / "desktops")
        submitted = await system.submit(
            counting_task(), faults=":slow=4@1", timing=QUICK.model_copy(update={"host_grace_s": 10.0})
        )
        await wait_until(lambda: system.asked(submitted, turn=1), 90)
        stack.kill_worker(first)
        second = stack.start_worker("desktops", **places[1])
        played = await system.ended(submitted)
        assert played.kinds == ["host_lost", "agent_done"]
        assert [item.host_id for item in played.result.executions] == ["h1", "h2"]
        assert "host_grace_s" in played.result.executions[0].outcome.cause.remedy
        assert not await system.scheduled(submitted, "teardown_desktop", 1)  # nobody is there to do it
        assert played.counts is not None
        assert played.result.outcome.score == 1.0
        await system.verified(played)
        assert len(registry.all()) == 1  # its desktop outlived the host's worker
        returned = stack.start_worker("desktops", **places[0])
        await wait_until(lambda: registry.all() == [])
        table.add(7, "desktop host gone for good", system, played)
        for process in (second, returned):
            stack.kill_worker(process)
