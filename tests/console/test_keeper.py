"""The keeper starts again what died, and less often what keeps dying."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from osworld_rollouts.console import keeper
from osworld_rollouts.console.processes import Registry

START = """
import sys
from pathlib import Path
from osworld_rollouts.console.processes import Registry
registry = Registry(Path(sys.argv[1]))
if registry.find("kept") is None:
    registry.start("kept", ["sleep", "300"])
"""


@pytest.fixture
def registry(tmp_path):
    made = Registry(tmp_path)
    yield made
    for process in made.running():
        process.stop(1)


def _until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def test_what_died_is_started_again_and_nothing_after_the_keeper_ended(registry, tmp_path):
    kept = registry.start("kept", ["sleep", "300"])
    again = [sys.executable, "-c", START, str(tmp_path)]
    registry.start(
        "keeper", [sys.executable, "-m", "osworld_rollouts.console.keeper", str(tmp_path), "kept", "--", *again]
    )
    os.kill(kept.pid, signal.SIGKILL)
    _until(lambda: (now := registry.find("kept")) is not None and now.pid != kept.pid)
    assert "gone: kept; starting again" in (registry.log_dir / "keeper.log").read_text(encoding="utf-8")
    assert registry.stop("keeper") is True
    registry.stop("kept")
    time.sleep(keeper.LOOK_EVERY_S + 0.5)
    assert registry.find("kept") is None


@pytest.mark.parametrize(("restarts", "pause"), [(0, 0), (1, 2), (2, 4), (5, 32), (6, 60), (50, 60)])
def test_what_keeps_dying_is_started_less_often(restarts, pause):
    assert keeper.pause_before(restarts) == pause
