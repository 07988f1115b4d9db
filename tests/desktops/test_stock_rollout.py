"""A whole rollout on a machine somebody already runs: OSWorld's own kind of server, a network that loses replies."""

from __future__ import annotations

import itertools

import pytest

from osworld_rollouts.contracts.desktop import DesktopSpec
from osworld_rollouts.contracts.evidence import DesktopPrepared, OperationsRecord
from osworld_rollouts.desktops.attached_machines import MachineBook
from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.store import open_store
from osworld_rollouts.failpoints import VARIABLE
from osworld_rollouts.tasks import shipped_tasks
from tests.chaos.counting import counting_script, counting_task
from tests.chaos.system import BRISK
from tests.desktops import rig
from tests.desktops.stock import INNER_PORT, machine
from tests.stack import missing_packages, running, wait_until

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


@pytest.mark.parametrize("place", [pytest.param("act-before-dispatch", marks=pytest.mark.chaos), "act-after-landing"])
async def test_a_killed_worker_and_lost_replies_cost_no_effect_by_the_guests_own_count(
    temporal_env, stock, tmp_path, place
):
    """The task's score is 1 only if every click, key, setup and post-step is there exactly once and in order."""
    pytest.importorskip("desktop_env", reason="the evaluator extra is not installed")
    numbers = itertools.count(1)
    # Not the killed operation's own: with its reply lost the place after its landing is never reached.
    stock.drop = lambda request: b'"seq\\"' in request and b"/t1/o0" not in request and next(numbers) % 3 == 0
    failpoint = tmp_path / "failpoint"
    failpoint.write_text(f"KILL {place} /t1/o0")
    environment = {"ROLLOUTS_ATTACHED": f"vm1={stock.address}", VARIABLE: str(failpoint)}
    address = temporal_env.client.service_client.config.target_host
    scripts = [counting_script()]
    async with running(temporal_env.client, address, in_process=False, name="attached", scripts=scripts) as stack:
        first = stack.start_worker(**environment)
        submitted = await stack.submit(counting_task(), desktop=DesktopSpec(provider="attached"), settle=BRISK)
        await wait_until(lambda: first.poll() is not None, 120)
        assert failpoint.with_suffix(".fired").exists()
        stack.start_worker(**environment)
        result = await submitted.handle.result()
        assert result.outcome.score == 1.0, result
        assert len(result.executions) == 1
        assert stock.dropped >= 3
