"""Processes of ours: found after any death of the starter, never confused with others, ended for certain."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from osworld_rollouts.console import launch
from osworld_rollouts.console.processes import BusyError, Process, ProcessError, Registry

SLEEP = ["sleep", "300"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(300)",
]


@pytest.fixture
def registry(tmp_path):
    made = Registry(tmp_path)
    yield made
    for process in made.running():
        process.stop(0.1)


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def test_a_started_process_is_found_and_stopped(registry):
    process = registry.start("sleeper", SLEEP, facts={"url": "http://x"})
    found = registry.find("sleeper")
    assert found == process
    assert found.facts == {"url": "http://x"}
    assert 0 <= found.uptime_s() < 30
    assert registry.stop("sleeper") is True
    assert registry.find("sleeper") is None
    assert registry.stop("sleeper") is False
    assert not process.alive()


def test_what_ignores_sigterm_is_killed(registry):
    process = registry.start("stubborn", STUBBORN)
    wait_for(process.log_tail)
    assert process.stop(0.2) is True
    assert not process.alive()


def test_a_reused_pid_is_somebody_else(registry):
    process = registry.start("sleeper", SLEEP)
    other = subprocess.Popen(SLEEP)
    try:
        record = {**launch.identity(process.pid), "pid": other.pid, "argv": [], "log": "x", "facts": {}}
        launch.write_record(registry.path("imposter"), record)
        assert registry.find("imposter") is None
        assert registry.stop("imposter") is False
        assert (
            Process(name="i", pid=other.pid, started=1, boot_id="b", pid_namespace="n", argv=(), log=Path("x")).stop(1)
            is False
        )
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"pid": 1}', '{"pid": "x"}'])
def test_a_damaged_state_file_is_no_process(registry, damage):
    registry.run_dir.mkdir(parents=True)
    registry.path("broken").write_text(damage, encoding="utf-8")
    assert registry.find("broken") is None
    assert registry.running() == []


def test_a_process_of_another_boot_is_gone(registry):
    process = registry.start("sleeper", SLEEP)
    record = json.loads(registry.path("sleeper").read_text(encoding="utf-8"))
    launch.write_record(registry.path("sleeper"), {**record, "boot_id": "another"})
    assert registry.find("sleeper") is None
    assert process.alive()
    process.stop(1)


def test_a_program_that_does_not_exist_is_one_clear_error(registry):
    process = registry.start("nothing", ["no-such-program-here"])
    wait_for(lambda: not process.alive())
    assert "cannot run no-such-program-here" in process.log_tail()
    assert registry.find("nothing") is None


def test_the_log_of_the_run_before_is_kept(registry):
    for _ in range(2):
        process = registry.start("speaker", [sys.executable, "-c", "print('hello')"])
        wait_for(lambda process=process: not process.alive())
    assert (registry.log_dir / "speaker.log").read_text(encoding="utf-8") == "hello\n"
    assert (registry.log_dir / "speaker.log.1").read_text(encoding="utf-8") == "hello\n"


STARTER = """
import os, signal, sys, time
from pathlib import Path
from osworld_rollouts.console.processes import Registry
process = Registry(Path(sys.argv[1])).start("child", ["sleep", "300"], dies_with_us=sys.argv[2] == "1")
print(process.pid, flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize(("dies_with_us", "survives"), [("0", True), ("1", False)])
def test_a_killed_starter(registry, tmp_path, dies_with_us, survives):
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path), dies_with_us], stdout=subprocess.PIPE, text=True
    )
    pid = int(starter.stdout.readline())
    assert registry.find("child").pid == pid
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    starter.stdout.close()
    if survives:
        time.sleep(0.3)
        assert registry.find("child") is not None
        assert registry.stop("child") is True
    else:
        wait_for(lambda: registry.find("child") is None)


def test_a_lock_is_held_by_one_and_ends_with_its_holder(registry, tmp_path):
    with registry.lock("demo"), pytest.raises(BusyError, match=str(os.getpid())) as caught, registry.lock("demo"):
        pass
    assert caught.value.pid == os.getpid()
    script = f"import time; from pathlib import Path; from osworld_rollouts.console.processes import Registry\nwith Registry(Path({str(tmp_path)!r})).lock('demo'):\n print('held', flush=True); time.sleep(300)"
    holder = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(BusyError), registry.lock("demo"):
        pass
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with registry.lock("demo", wait_s=5):
        pass


def test_a_directory_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises((ProcessError, OSError)):
        Registry(tmp_path / "file").start("x", SLEEP)
