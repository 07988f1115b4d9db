"""Temporal server, worker and page on this machine: started where they are missing, reused where they run."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

from osworld_rollouts.console.embedded import EmbeddedServer, ensure_server, free_port
from osworld_rollouts.console.errors import ConsoleError, ExitCode
from osworld_rollouts.settings import explain_settings, load_settings
from osworld_rollouts.temporal import SEARCH_ATTRIBUTES, connect

if TYPE_CHECKING:
    from collections.abc import Callable

    from temporalio.client import Client

    from osworld_rollouts.console.processes import Process, Registry
    from osworld_rollouts.settings import Settings

WORKER = "worker"
VIEWER = "viewer"
POLL_S = 75
"""A poll waits up to a minute for work; who has not polled for longer is gone. The server itself remembers for five minutes."""

NEEDED = {"models": ("openai",), "desktops": ("aiohttp", "PIL", "desktop_env")}
"""Modules without which a worker with this role ends at once; they come with the extras `worker` and `evaluator`."""

_OURS = ("default", "server started by `rollouts up`")


@dataclass(frozen=True)
class Services:
    """What runs now. `server` is None when an external Temporal is configured. `started` names what this call started."""

    settings: Settings
    client: Client
    server: EmbeddedServer | None
    worker: Process | None
    viewer: Process | None
    started: tuple[str, ...]


def uses_embedded_server() -> bool:
    """Whether the settings leave the address to us; otherwise somebody named a Temporal service, and we start none."""
    origins = {name: origin for name, _, origin in explain_settings()}
    return origins["temporal.address"] in _OURS


async def start_services(
    settings: Settings,
    registry: Registry,
    say: Callable[[str], None],
    *,
    worker: bool = True,
    viewer: bool = True,
    worker_dies_with_us: bool = False,
) -> Services:
    """Have server, worker and page running.

    Args:
        settings: where and how.
        registry: state files of our processes.
        say: told each step in words, as it begins.
        worker: start a worker; False when workers run elsewhere.
        viewer: start the page.
        worker_dies_with_us: a worker started here ends when the calling process dies.

    Raises:
        ConsoleError, EmbeddedServerError, ProcessError: naming what did not start and its log.
    """
    started: list[str] = []
    if worker:
        can_work(settings)
    with registry.lock("up", wait_s=120):
        server = None
        if uses_embedded_server():
            say("Temporal server")
            server = await ensure_server(settings, registry, SEARCH_ATTRIBUTES)
            started += ["temporal"] if server.started else []
            settings = load_settings(state_dir=settings.state_dir, temporal={"address": server.address})
        client = await connect(settings)
        worker_process = viewer_process = None
        if worker:
            say("worker")
            worker_process, fresh = await _ensure_worker(settings, registry, client, dies_with_us=worker_dies_with_us)
            started += [WORKER] if fresh else []
        if viewer:
            say("page")
            viewer_process, fresh = await _ensure_viewer(settings, registry)
            started += [VIEWER] if fresh else []
    return Services(settings, client, server, worker_process, viewer_process, tuple(started))


def can_work(settings: Settings) -> None:
    """Look for a worker's packages before anything is started.

    Raises:
        ConsoleError: naming those that are not installed.
    """
    wanted = [name for role in settings.worker.roles for name in NEEDED.get(role, ())]
    missing = [name for name in wanted if find_spec(name) is None]
    if missing:
        raise ConsoleError(
            f"a worker needs {', '.join(missing)}, not installed here",
            remedy="make setup, which installs a worker's packages from the lock; or `rollouts up --no-worker`",
            code=ExitCode.ENVIRONMENT,
        )


async def pollers(
    client: Client, queue: str, kind: TaskQueueType.ValueType = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
) -> list[str]:
    """Identities of the workers that were seen to poll a task queue within POLL_S. One of this host whose process is gone is left out."""
    answer = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind)
    )
    now = datetime.now(UTC)
    return [
        poller.identity
        for poller in answer.pollers
        if (now - poller.last_access_time.ToDatetime(UTC)).total_seconds() < POLL_S and not is_gone(poller.identity)
    ]


def is_gone(identity: str) -> bool:
    """Whether a worker's identity, `pid@host` by default, names a process of this host that no longer runs."""
    pid, _, host = identity.partition("@")
    if host != socket.gethostname() or not (pid.isascii() and pid.isdigit()):
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


async def _ensure_worker(
    settings: Settings, registry: Registry, client: Client, *, dies_with_us: bool
) -> tuple[Process, bool]:
    wanted = {
        "address": settings.temporal.address,
        "namespace": settings.temporal.namespace,
        "store": settings.store.url,
        "version": version("osworld-rollouts"),
    }
    process = registry.find(WORKER)
    if process and any(process.facts.get(name) != value for name, value in wanted.items()):
        registry.stop(WORKER, settings.worker.graceful_shutdown_s + 10)
        process = None
    fresh = process is None
    if process is None:
        roles = ",".join(settings.worker.roles)
        process = registry.start(
            WORKER,
            [sys.executable, "-P", "-m", "worker", "--roles", roles],
            facts={**wanted, "roles": list(settings.worker.roles)},
            environment=child_environment(settings),
            dies_with_us=dies_with_us,
        )
    await _until(process, lambda: _polls(client, settings, process), settings.embedded.start_timeout_s, registry)
    return process, fresh


async def _polls(client: Client, settings: Settings, process: Process) -> bool:
    return any(str(process.pid) in identity for identity in await pollers(client, settings.temporal.workflow_queue))


async def _ensure_viewer(settings: Settings, registry: Registry) -> tuple[Process, bool]:
    wanted = {"address": settings.temporal.address, "store": settings.store.url, "version": version("osworld-rollouts")}
    process = registry.find(VIEWER)
    if process and any(process.facts.get(name) != value for name, value in wanted.items()):
        registry.stop(VIEWER)
        process = None
    fresh = process is None
    if process is None:
        port = free_port(settings.viewer.port)
        process = registry.start(
            VIEWER,
            [sys.executable, "-P", "-m", "osworld_rollouts.console.main", "view", "--port", str(port)],
            facts={**wanted, "url": f"http://127.0.0.1:{port}"},
            environment=child_environment(settings),
        )
    url = str(process.facts["url"])
    await _until(process, lambda: asyncio.to_thread(_serves, url), settings.embedded.start_timeout_s, registry)
    return process, fresh


def _serves(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=2) as answer:  # noqa: S310  (our own http address)
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


async def _until(process: Process, ready: Callable[[], Any], timeout_s: float, registry: Registry) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not await ready():
        if not process.alive():
            registry.stop(process.name)
            raise ConsoleError(
                f"the {process.name} ended at once: {process.log_tail(1) or 'no output'}",
                remedy=f"read {process.log}",
                code=ExitCode.ENVIRONMENT,
            )
        if loop.time() > deadline:
            registry.stop(process.name)
            raise ConsoleError(
                f"the {process.name} did not become ready within {timeout_s:g} s",
                remedy=f"read {process.log}",
                code=ExitCode.ENVIRONMENT,
            )
        await asyncio.sleep(0.1)


def child_environment(settings: Settings) -> dict[str, str]:
    """What makes a child of ours see the same settings, also where ours came from arguments."""
    environment = {
        "ROLLOUTS_STATE_DIR": str(settings.state_dir),
        "ROLLOUTS_TEMPORAL__ADDRESS": settings.temporal.address,
        "ROLLOUTS_TEMPORAL__NAMESPACE": settings.temporal.namespace,
    }
    named = os.environ.get("ROLLOUTS_CONFIG")
    if named:
        environment["ROLLOUTS_CONFIG"] = str(Path(named).expanduser().absolute())
    return environment
