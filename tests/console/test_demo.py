"""`rollouts demo` and `up`, `down` for real: server, worker, desktop, evaluator, pages; interrupted, killed, and run again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from osworld_rollouts.console import demo
from osworld_rollouts.console.errors import ExitCode
from osworld_rollouts.console.processes import Registry
from osworld_rollouts.console.rollouts import Filter, find_rollouts
from osworld_rollouts.desktops.lease_registry import LeaseRegistry
from osworld_rollouts.desktops.local import processes as desktop_processes
from osworld_rollouts.submit import submit
from tests.console.conftest import HEARING

pytestmark = [pytest.mark.desktop, pytest.mark.temporal, pytest.mark.timeout(600)]
COMMAND = [sys.executable, "-m", "osworld_rollouts.console.main"]
SHORT = ("terminal-count-errors",)


class Machine:
    """One state directory with its ports, as if it were a machine of its own."""

    def __init__(self, state: Path):
        self.state = state
        self.registry = Registry(state)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("ROLLOUTS_", "TEMPORAL_"))},
            "ROLLOUTS_STATE_DIR": str(state),
            "ROLLOUTS_EMBEDDED__PORT": str(_free()),
            "ROLLOUTS_EMBEDDED__UI_PORT": str(_free()),
            "ROLLOUTS_VIEWER__PORT": str(_free()),
        }
        self.markers: set[str] = set()

    def run(self, *arguments) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*COMMAND, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
            cwd="/",
        )

    def start(self, *arguments) -> subprocess.Popen:
        return subprocess.Popen(
            [*HEARING, *COMMAND, *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
        )

    def names(self) -> list[str]:
        return [process.name for process in self.registry.running()]

    def desktops(self) -> set[str]:
        """Markers of desktops that are registered here now; remembered for `left_over`."""
        found = {record.marker for record in LeaseRegistry(self.state / "desktops").all()}
        self.markers |= found
        return found

    def wait_for_a_ready_desktop(self, seconds=240):
        def ready():
            self.desktops()
            return any(record.state == "ready" for record in LeaseRegistry(self.state / "desktops").all())

        _until(ready, seconds)

    def wait_for_turns(self, seconds=240):
        """Until a running rollout's model was called."""

        async def look():
            client = await Client.connect(self.registry.find("temporal").facts["address"])
            async with asyncio.timeout(seconds):
                while not any((row.turn or 0) >= 1 for row in await find_rollouts(client, Filter(running=True), 10)):
                    await asyncio.sleep(0.1)

        asyncio.run(look())

    def left_over(self) -> list[str]:
        """Everything of this state directory that still lives: processes, desktops, mounts."""
        self.desktops()
        found = [f"process {name}" for name in self.names()]
        found += [f"desktop {marker}" for marker in self.markers if desktop_processes.alive(marker)]
        found += [
            f"desktop folder {path.name}" for path in (self.state / "desktops").glob("[0-9a-f]*") if path.is_dir()
        ]
        found += [
            line for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines() if str(self.state) in line
        ]
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                environ, argv = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(self.state).encode() in environ + argv and int(entry.name) != os.getpid():
                found.append(f"pid {entry.name}: {argv[:120]!r}")
        return found


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """One for all tests here: the guest's packages are installed into it once."""
    return tmp_path_factory.mktemp("demo") / "state"


@pytest.fixture
def machine(state):
    made = Machine(state)
    yield made
    if made.desktops():
        made.run("up", "--no-page")
    made.run("down", "--cancel")
    assert made.left_over() == []


def _free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.1)


def test_the_demo_scores_links_and_can_be_repeated(machine):
    done = machine.run("demo", *SHORT, "--json")
    assert done.returncode == ExitCode.OK, done.stderr
    answer = json.loads(done.stdout)
    assert answer["scripted"] is True
    (rollout,) = answer["rollouts"]
    assert rollout["result"]["outcome"]["score"] == 1.0
    page = Path(unquote(urlsplit(rollout["links"]["file"]).path)).read_text(encoding="utf-8")
    assert "scripted policy, not a model" in page
    assert page.count("<article") >= 4
    assert machine.names() == ["temporal", "viewer"]
    assert machine.desktops() == set()

    server = machine.registry.find("temporal").pid
    again = machine.run("demo", *SHORT)
    assert again.returncode == ExitCode.OK, again.stderr
    assert "not a model" in again.stdout
    assert machine.registry.find("temporal").pid == server
    status = json.loads(machine.run("status", "--json").stdout)
    assert status["temporal"]["running_rollouts"] == 0
    listed = json.loads(machine.run("list", "--json").stdout)
    assert [row["score"] for row in listed["rollouts"][:2]] == [1.0, 1.0]

    assert machine.run("down").returncode == ExitCode.OK
    assert machine.left_over() == []


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_interrupted_it_leaves_nothing_that_the_next_run_does_not_remove(machine, times):
    demo = machine.start("demo", *SHORT)
    machine.wait_for_a_ready_desktop()
    for _ in range(times):
        demo.send_signal(signal.SIGINT)
        time.sleep(0.3)
    out, _ = demo.communicate(timeout=120)
    assert demo.returncode == ExitCode.INTERRUPTED, out
    assert "Traceback" not in out
    assert machine.names() == []
    if times == 1:
        assert machine.left_over() == []
    again = machine.run("demo", *SHORT)
    assert again.returncode == ExitCode.OK, again.stderr
    assert machine.desktops() == set()
    assert json.loads(machine.run("list", "--running", "--json").stdout)["total"] == 0


@pytest.mark.slow
def test_killed_it_is_cleaned_up_by_the_next_run(machine):
    demo = machine.start("demo", *SHORT)
    machine.wait_for_a_ready_desktop()
    demo.send_signal(signal.SIGKILL)
    demo.communicate()
    _until(lambda: machine.names() == ["temporal", "viewer"])  # worker and policy end with it
    old = set(machine.markers)
    again = machine.run("demo", *SHORT)
    assert again.returncode == ExitCode.OK, again.stderr
    assert not any(desktop_processes.alive(marker) for marker in old)
    rollouts = json.loads(machine.run("list", "--json").stdout)["rollouts"][:2]
    assert sorted((row["outcome"], row["score"]) for row in rollouts) == [("agent_done", 1.0), ("cancelled", None)]


@pytest.mark.slow
def test_a_killed_worker_is_started_again_and_the_same_desktop_goes_on(machine):
    demo = machine.start("demo", *SHORT, "--json")
    machine.wait_for_a_ready_desktop()
    (marker,) = machine.desktops()
    machine.wait_for_turns()  # a worker killed during the set-up costs the desktop, by design
    os.kill(machine.registry.find("worker").pid, signal.SIGKILL)
    out, _ = demo.communicate(timeout=300)
    assert demo.returncode == ExitCode.OK, out
    (rollout,) = json.loads(out[out.index("{") :])["rollouts"]
    assert rollout["result"]["outcome"]["score"] == 1.0
    assert machine.markers == {marker}
    assert len(rollout["result"]["executions"]) == 1


async def test_what_cannot_be_cancelled_in_time_is_terminated(temporal_env, make_request, monkeypatch):
    """Here because no worker polls; a demo must not fail for ever because of one that was killed."""
    monkeypatch.setattr(demo, "_TEARDOWN_S", 1)
    request = make_request({"campaign_id": f"killed-{os.getpid()}"})
    submitted = await submit(temporal_env.client, request, task_queue="nobody polls this")
    chosen = Filter(campaign=request.campaign_id, running=True)
    async with asyncio.timeout(20):
        while not await find_rollouts(temporal_env.client, chosen, 10):
            await asyncio.sleep(0.1)
    assert await demo.end_campaign(temporal_env.client, request.campaign_id) == 1
    description = await submitted.handle.describe()
    assert description.status is WorkflowExecutionStatus.TERMINATED


def test_a_second_demo_at_once_is_refused(machine):
    with machine.registry.lock("demo"):
        done = machine.run("demo", *SHORT)
    assert done.returncode == ExitCode.CONFLICT
    assert f"`rollouts demo` is already running (pid {os.getpid()})" in done.stderr


def test_without_display_packages_the_demo_says_what_to_install(machine, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    machine.environment["PATH"] = str(bare)
    done = machine.run("demo", *SHORT)
    del machine.environment["PATH"]
    machine.environment["PATH"] = os.environ["PATH"]
    assert done.returncode == ExitCode.ENVIRONMENT
    assert "apt-get install" in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2
    assert machine.names() == []


@pytest.mark.slow
def test_a_killed_server_is_started_again_and_the_rollout_goes_on(machine):
    demo = machine.start("demo", *SHORT, "--json")
    machine.wait_for_a_ready_desktop()
    os.kill(machine.registry.find("temporal").pid, signal.SIGKILL)
    out, _ = demo.communicate(timeout=300)
    assert demo.returncode == ExitCode.OK, out
    (rollout,) = json.loads(out[out.index("{") :])["rollouts"]
    assert rollout["result"]["outcome"]["score"] == 1.0


@pytest.mark.slow
def test_up_starts_again_what_is_killed_until_down(machine):
    up = machine.run("up", "--json")
    assert up.returncode == ExitCode.OK, up.stderr
    assert machine.names() == ["keeper", "temporal", "viewer", "worker"]
    before = {process.name: process.pid for process in machine.registry.running()}
    again = machine.run("up", "--json")
    assert json.loads(again.stdout)["started"] == []
    for name in ("worker", "temporal"):
        os.kill(before[name], signal.SIGKILL)
    _until(
        lambda: (
            machine.names() == ["keeper", "temporal", "viewer", "worker"]
            and machine.registry.find("worker").pid != before["worker"]
        ),
        120,
    )
    assert machine.registry.find("viewer").pid == before["viewer"]
    down = machine.run("down")
    assert down.returncode == ExitCode.OK
    time.sleep(3)
    assert machine.left_over() == []
