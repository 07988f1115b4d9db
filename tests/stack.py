"""A whole system for tests: real Temporal server, worker, local desktops, evaluator, and the scripted policy over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import worker
from osworld_rollouts.contracts.execution import ExecutionView
from osworld_rollouts.contracts.identity import execution_workflow_id
from osworld_rollouts.contracts.request import Limits, Model, Rollout, RolloutRequest, Task
from osworld_rollouts.contracts.timing import Timing
from osworld_rollouts.desktops.local import assets, packages
from osworld_rollouts.settings import Settings, load_settings
from osworld_rollouts.submit import Submitted, submit
from osworld_rollouts.testing.policy_server import MODEL, PolicyServer
from osworld_rollouts.testing.scripts import Script, shipped_scripts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from temporalio.client import Client

ROOT = Path(__file__).resolve().parent.parent

# Crashes are noticed in seconds here, so that a chaos test takes seconds; what is proved does not depend on the numbers.
QUICK = Timing(
    heartbeat_s=5,
    host_grace_s=60,
    retry_pause_s=0.2,
    operation_s=30,
    observe_s=30,
    model_total_s=120,
    teardown_total_s=60,
)


def missing_packages() -> list[str]:
    """System packages without which no desktop can be made here."""
    return [problem.message for problem in packages.problems() if problem.fatal]


@dataclass
class Stack:
    """A running system, without or with a worker inside this process."""

    client: Client
    settings: Settings
    policy: PolicyServer
    campaign: str = "tests"
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    async def submit(
        self,
        task: Task,
        *,
        faults: str = "",
        campaign: str = "",
        executions: int = 1,
        timing: Timing = QUICK,
        sample: int = 0,
        base_url: str | None = None,
        execution_s: float = Limits().execution_s,
        **fields: object,
    ) -> Submitted:
        """Submit one rollout of a task to the scripted policy; `faults` is a suffix of its model name such as `:done`."""
        request = RolloutRequest(
            rollout=Rollout(
                task=task,
                model=Model(name=f"{MODEL}{faults}", base_url=base_url or self.policy.base_url, api_key_env=None),
                **{"max_turns": 30, **fields},
            ),
            campaign_id=campaign or self.campaign,
            sample_index=sample,
            limits=Limits(max_executions=executions, execution_s=execution_s),
        )
        return await submit(
            self.client,
            request,
            timing=timing,
            task_queue=self.settings.temporal.workflow_queue,
            pool_queue=self.settings.temporal.pool_queue,
        )

    async def view(self, rollout_id: str, number: int = 1) -> ExecutionView:
        """Where an execution is."""
        handle = self.client.get_workflow_handle(execution_workflow_id(f"{rollout_id}/x{number}"))
        return await handle.query("state", result_type=ExecutionView)

    def environment(self, **more: str) -> dict[str, str]:
        """Environment of a worker process that serves this system."""
        return {
            **os.environ,
            "ROLLOUTS_STATE_DIR": str(self.settings.state_dir),
            "ROLLOUTS_TEMPORAL__ADDRESS": self.settings.temporal.address,
            "ROLLOUTS_TEMPORAL__WORKFLOW_QUEUE": self.settings.temporal.workflow_queue,
            "ROLLOUTS_TEMPORAL__POOL_QUEUE": self.settings.temporal.pool_queue,
            "ROLLOUTS_TEMPORAL__HOST_QUEUE_PREFIX": self.settings.temporal.host_queue_prefix,
            "ROLLOUTS_HOST__REAP_EVERY_S": "2",
            "ROLLOUTS_LOG__FORMAT": "json",
            **more,
        }

    def start_worker(self, roles: str = "workflows,models,desktops", **environment: str) -> subprocess.Popen[bytes]:
        """A worker process; its log goes to the state directory."""
        log = (self.settings.state_dir / f"worker-{len(self.processes)}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "worker.py"), "--roles", roles],
            env=self.environment(**environment),
            stdout=log,
            stderr=log,
            cwd=ROOT,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def kill_worker(self, process: subprocess.Popen[bytes]) -> None:
        """SIGKILL to the worker alone, as the out-of-memory killer does it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=10)

    def logs(self) -> str:
        """Everything the worker processes said."""
        return "\n".join(
            path.read_text("utf-8", "replace") for path in sorted(self.settings.state_dir.glob("worker-*.log"))
        )

    def leftovers(self) -> list[str]:
        """Processes, folders and mounts of desktops that exist now."""
        found = [str(path) for path in (self.settings.state_dir / "desktops").glob("[0-9a-f]*")]
        found += [str(path) for path in (self.settings.state_dir / "work").glob("*")]
        mark = str(self.settings.state_dir / "desktops")
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (process / "cmdline").read_bytes().decode("utf-8", "replace"):
                    found.append(f"process {process.name}")
        return found


@contextlib.asynccontextmanager
async def running(
    client: Client, address: str, *, in_process: bool, name: str = "t", scripts: Iterable[Script] = ()
) -> AsyncIterator[Stack]:
    """A system of its own: queues, state directory and policy server are not shared with anything else.

    `scripts` are played beside the solutions of the shipped tasks.
    """
    root = Path(tempfile.mkdtemp(prefix="ro-", dir="/tmp"))
    tag = root.name
    settings = load_settings(
        state_dir=str(root),
        temporal={
            "address": address,
            "workflow_queue": f"rollouts-{tag}",
            "pool_queue": f"desktops-{tag}",
            "host_queue_prefix": f"host-{tag}",
        },
        host={"reap_every_s": 2.0},
    )
    _share_guest_python(root)
    async with PolicyServer(scripts=[*shipped_scripts().values(), *scripts]) as policy:
        stack = Stack(client, settings, policy, campaign=f"{name}-{tag}")
        stop, served = asyncio.Event(), None
        if in_process:
            served = asyncio.create_task(worker.run(settings, stop))
        try:
            yield stack
        finally:
            stop.set()
            if served is not None:
                await served
            for process in stack.processes:
                stack.kill_worker(process)
            await _remove_desktops(stack)
            if not os.environ.get("KEEP_STATE"):
                shutil.rmtree(root, ignore_errors=True)


async def _remove_desktops(stack: Stack) -> None:
    from osworld_rollouts.desktops.registry import create_provider

    provider = create_provider("local", state_dir=stack.settings.state_dir)
    for record in await provider.list():
        await provider.destroy(record.lease_id)


def _share_guest_python(root: Path) -> None:
    """Installing the guest's Python takes seconds and the network: once for all tests of this machine's user."""
    made = assets.guest_python(Path(tempfile.gettempdir()) / f"osworld-rollouts-tests-{os.getuid()}")
    (root / made.name).symlink_to(made)


async def wait_until(condition, limit_s: float = 60, every_s: float = 0.05) -> None:
    """Poll until `condition()` (a plain or async callable) is true."""
    deadline = time.monotonic() + limit_s
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"condition not met within {limit_s:g} s")
        await asyncio.sleep(every_s)
