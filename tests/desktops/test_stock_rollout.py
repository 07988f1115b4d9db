"""A whole rollout on a machine somebody already runs: OSWorld's own kind of server, a network that loses replies."""

from __future__ import annotations

import itertools

import pytest

from osworld_rollouts.contracts.desktop import DesktopSpec
from osworld_rollouts.contracts.evidence import DesktopPrepared, OperationsRecord
from osworld_rollouts.desktops.attached_machines import MachineBook
from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.store import open_store
from osworld_rollouts.tasks import shipped_tasks
from tests.desktops import rig
from tests.desktops.stock import INNER_PORT, machine
from tests.stack import missing_packages, running

pytestmark = [pytest.mark.temporal, pytest.mark.desktop]
TASKS = {task.task_id: task for task in shipped_tasks()}


@pytest.fixture(params=["text-edit-save", "terminal-count-errors"])
def task(request):
    return TASKS[request.param]


@pytest.fixture
async def stock():
    """A desktop of its own, because a task wants a clean one."""
    maker, lease = rig.provider(), rig.new_lease()
    record = await maker.create(rig.spec(), lease, rig.owner())
    async with machine(record, port=INNER_PORT) as found:
        yield found
    await maker.destroy(lease)


async def test_a_shipped_task_is_solved_while_every_fourth_reply_of_an_effect_is_lost(
    temporal_env, stock, task, monkeypatch
):
    pytest.importorskip("desktop_env", reason="the evaluator extra is not installed")
    assert not missing_packages(), missing_packages()
    monkeypatch.setenv("ROLLOUTS_ATTACHED", f"vm1={stock.address}")
    numbers = itertools.count(1)
    stock.drop = lambda request: b'"do\\": \\"run' in request and next(numbers) % 4 == 0
    address = temporal_env.client.service_client.config.target_host
    async with running(temporal_env.client, address, in_process=True, name="attached") as stack:
        submitted = await stack.submit(task, desktop=DesktopSpec(provider="attached"))
        result = await submitted.handle.result()
        assert result.outcome.score == 1.0, result
        assert result.outcome.eligible
        assert stock.dropped >= 1

        (execution,) = result.executions
        store = open_store(stack.settings.store.url)
        records = chain.walk(store, execution.evidence_head)
        (prepared,) = (record for record in records if isinstance(record, DesktopPrepared))
        assert (prepared.lease.provider, prepared.lease.tier) == ("attached", "attached")
        operations = [item for record in records if isinstance(record, OperationsRecord) for item in record.operations]
        done = [item for item in operations if "command" in item]
        assert done
        assert all(item["returncode"] == 0 for item in done)

        headers = b"".join(request.split(b"\r\n\r\n")[0].lower() for request in stock.requests)
        assert b"x-operation" not in headers
        entry = MachineBook.of(stack.settings.state_dir).entry("vm1")
        assert entry.state == "dirty"
        assert entry.last_lease
        assert stack.leftovers() == []
