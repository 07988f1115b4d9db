"""Case 6: the guest server killed, the desktop removed, the desktop frozen: different causes, different outcomes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from osworld_rollouts.desktops.local import processes
from tests.chaos.counting import counting_task
from tests.stack import wait_until

pytestmark = [pytest.mark.temporal, pytest.mark.desktop, pytest.mark.chaos]


async def test_guest_server_killed_between_operations(system, table):
    """The session starts it again, its ledger is on disk, and the rollout goes on."""
    submitted = await system.submit(counting_task(), faults=":slow=4@1")
    record = await system.desktop(f"{submitted.rollout_id}/x1")
    await wait_until(lambda: system.asked(submitted, turn=1))
    killed = _server(record)
    os.kill(killed, signal.SIGKILL)
    await wait_until(lambda: _server(record) not in {None, killed})
    played = await system.ended(submitted)
    assert played.kinds == ["agent_done"]
    assert played.generations == [1, 1, 1, 1]
    await system.exactly_once(played)
    table.add(6, "guest server killed between operations", system, played)


async def test_guest_server_killed_during_an_operation(system, table):
    """It clicked, and whether it would have pressed nobody can know: a new execution on a fresh desktop."""
    submitted = await system.submit(counting_task(pause_s=2))
    record = await system.desktop(f"{submitted.rollout_id}/x1")
    await wait_until(lambda: len(system.counts_now(record).gui) == 3, 60, 0.01)
    os.kill(_server(record), signal.SIGKILL)
    played = await system.ended(submitted)
    assert played.kinds == ["operation_indeterminate", "agent_done"]
    assert not record.state_dir.exists()
    await system.exactly_once(played)
    table.add(6, "guest server killed during an operation", system, played)


async def test_desktop_removed(system, table):
    submitted = await system.submit(counting_task(), faults=":slow=4@1")
    record = await system.desktop(f"{submitted.rollout_id}/x1")
    await wait_until(lambda: system.asked(submitted, turn=1))
    for process in processes.find(record.marker):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    played = await system.ended(submitted)
    assert played.kinds == ["desktop_lost", "agent_done"]
    assert "gone" in played.result.executions[0].outcome.cause.message
    await system.exactly_once(played)
    table.add(6, "desktop removed", system, played)


async def test_desktop_frozen(system, table):
    submitted = await system.submit(counting_task(), faults=":slow=4@1")
    record = await system.desktop(f"{submitted.rollout_id}/x1")
    await wait_until(lambda: system.asked(submitted, turn=1))
    frozen_at = time.monotonic()
    for pid in _tree(record):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    await wait_until(lambda: not record.state_dir.exists(), 150)
    noticed_s = time.monotonic() - frozen_at
    played = await system.ended(submitted)
    assert played.kinds == ["desktop_unresponsive", "agent_done"]
    assert noticed_s < 120
    await system.exactly_once(played)
    table.add(6, "desktop frozen", system, played)


def _tree(record) -> list[int]:
    """Every process of a desktop, as this host numbers them."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [process.pid for process in processes.find(record.marker)]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid and child not in found]
    return found


def _server(record) -> int | None:
    """The guest's HTTP server, if it runs."""
    for pid in _tree(record):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"server" in words and b"--token-stdin" in words:
                return pid
    return None
