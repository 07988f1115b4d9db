"""`rollouts up | down | status`: the processes on this machine."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from osworld_rollouts.console.control_commands import cancel_rollouts
from osworld_rollouts.console.embedded import NAME as SERVER
from osworld_rollouts.console.keeper import NAME as KEEPER
from osworld_rollouts.console.list_command import duration
from osworld_rollouts.console.output import STYLES, Output, middle
from osworld_rollouts.console.processes import Registry
from osworld_rollouts.console.rollouts import Filter, count_rollouts, find_rollouts
from osworld_rollouts.console.services import (
    POLL_S,
    VIEWER,
    WORKER,
    child_environment,
    pollers,
    start_services,
    uses_embedded_server,
)
from osworld_rollouts.desktops.lease_registry import LeaseRegistry
from osworld_rollouts.settings import load_settings
from osworld_rollouts.temporal import TemporalUnreachableError, connect

if TYPE_CHECKING:
    from osworld_rollouts.console.processes import Process
    from osworld_rollouts.console.services import Services
    from osworld_rollouts.desktops._provider import DesktopRecord
    from osworld_rollouts.settings import Settings

_ORDER = (VIEWER, WORKER, SERVER)
_DEFAULT_ADDRESS = "127.0.0.1:7233"
"""Where Temporal's own programs look when nobody tells them."""


def up(*, no_worker: bool = False, no_page: bool = False, no_keeper: bool = False, json: bool = False) -> None:
    """Start Temporal server, worker and page on this machine, in the background. What runs already is kept.

    A keeper stays with them and starts again what is killed.

    Parameters
    ----------
    no_worker
        Workers run elsewhere.
    no_page
        Without the page.
    no_keeper
        Nothing is started again when it dies.
    json
        Print JSON.
    """
    out = Output(as_json=json)
    settings = load_settings()
    registry = Registry(settings.state_dir)
    services = asyncio.run(
        start_services(settings, registry, lambda what: out.note(f"{what} …"), worker=not no_worker, viewer=not no_page)
    )
    if not no_keeper:
        _keep(registry, services, settings)
    out.record({"started": list(services.started), "processes": [_entry(process) for process in registry.running()]})
    _print_processes(registry, out, set(services.started))
    if services.server is not None and services.server.address != _DEFAULT_ADDRESS:
        out.line(
            f"not on {_DEFAULT_ADDRESS}: other programs reach it with TEMPORAL_ADDRESS={services.server.address}",
            style=STYLES["waiting"],
        )
    if services.server is None:
        out.line(f"Temporal at {services.settings.temporal.address} is not ours: used, not started", style="dim")
    out.note("`rollouts down` ends them, `rollouts status` shows them")


def _keep(registry: Registry, services: Services, settings: Settings) -> None:
    """Have a keeper for exactly what runs now."""
    kept = [
        name
        for name, there in ((SERVER, services.server), (WORKER, services.worker), (VIEWER, services.viewer))
        if there
    ]
    running = registry.find(KEEPER)
    if running and running.facts.get("keeps") == kept:
        return
    registry.stop(KEEPER, 2)
    flags = [*([] if services.worker else ["--no-worker"]), *([] if services.viewer else ["--no-page"])]
    again = [sys.executable, "-P", "-m", "osworld_rollouts.console.main", "up", "--no-keeper", "--json", *flags]
    command = [
        sys.executable,
        "-P",
        "-m",
        "osworld_rollouts.console.keeper",
        str(settings.state_dir),
        *kept,
        "--",
        *again,
    ]
    environment = {
        name: value for name, value in child_environment(settings).items() if name != "ROLLOUTS_TEMPORAL__ADDRESS"
    }
    registry.start(KEEPER, command, facts={"keeps": kept}, environment=environment)


def down(*, cancel: bool = False, json: bool = False) -> None:
    """End what `up` and `demo` started on this machine. Running rollouts go on when it is up again.

    Parameters
    ----------
    cancel
        First cancel running rollouts of this machine's Temporal server, so that no desktop is left.
    json
        Print JSON.
    """
    out = Output(as_json=json)
    settings = load_settings()
    registry = Registry(settings.state_dir)
    running = (
        asyncio.run(_before_down(settings, registry, cancel=cancel))
        if uses_embedded_server() and registry.find(SERVER)
        else 0
    )
    registry.stop(KEEPER, 2)  # first, so that it does not start again what is ended here
    with registry.lock("up", wait_s=120):
        names = sorted(
            (process.name for process in registry.running()),
            key=lambda name: _ORDER.index(name) if name in _ORDER else -1,
        )
        ended = [name for name in names if registry.stop(name, settings.worker.graceful_shutdown_s + 10)]
    out.record({"ended": ended, "unfinished_rollouts": running})
    out.line(f"ended: {', '.join(ended)}" if ended else "nothing was running")
    if running:
        out.line(
            f"{running} unfinished rollouts and their desktops wait for `rollouts up`; `rollouts up && rollouts down --cancel` ends them",
            style=STYLES["waiting"],
        )


def status(*, json: bool = False) -> None:
    """What runs on this machine, and what the Temporal server has.

    Parameters
    ----------
    json
        Print JSON.
    """
    asyncio.run(_status(Output(as_json=json)))


async def _status(out: Output) -> None:
    settings = load_settings()
    registry = Registry(settings.state_dir)
    processes = registry.running()
    server: dict[str, Any] = {
        "address": settings.temporal.address,
        "namespace": settings.temporal.namespace,
        "ours": uses_embedded_server(),
        "reachable": False,
    }
    try:
        client = await connect(settings)
        server |= {"reachable": True, "running_rollouts": await count_rollouts(client, Filter(running=True))}
        server["workers"] = sorted({*await pollers(client, settings.temporal.workflow_queue)})
    except TemporalUnreachableError:
        pass
    desktops = LeaseRegistry(settings.state_dir / "desktops").all()
    out.record(
        {
            "temporal": server,
            "processes": [_entry(process) for process in processes],
            "desktops": [_desktop(record) for record in desktops],
            "state_dir": str(settings.state_dir),
            "store": settings.store.url,
        }
    )
    if processes:
        _print_processes(registry, out, set())
        out.line()
    if not server["reachable"]:
        out.line(
            Text("Temporal: ")
            .append(f"nobody answers at {settings.temporal.address}", style=STYLES["bad"])
            .append("; `rollouts up` starts one")
        )
    else:
        workers = len(server["workers"])
        out.line(
            f"Temporal at {settings.temporal.address}, namespace {settings.temporal.namespace}: {server['running_rollouts']} rollouts running, {workers or 'no'} worker{'' if workers == 1 else 's'} seen in the last {POLL_S} s"
        )
    if desktops:
        now = datetime.now(UTC)
        rows = [
            (
                record.owner.execution_id if out.width is None else middle(record.owner.execution_id, out.width - 30),
                record.provider,
                record.state,
                duration((now - record.created_at).total_seconds()),
            )
            for record in desktops
        ]
        out.line()
        out.table(("desktop of", "provider", "", "since"), rows, right=("since",), wrapped=())
        out.line()
    out.line(f"state in {settings.state_dir}, evidence in {settings.store.url}", style="dim")


async def _before_down(settings: Settings, registry: Registry, *, cancel: bool) -> int:
    """Unfinished rollouts that remain."""
    try:
        client = await connect(settings)
    except TemporalUnreachableError:
        return 0
    running = await find_rollouts(client, Filter(running=True), 100_000)
    if cancel and running and registry.find(WORKER):
        await cancel_rollouts(client, [row.rollout_id for row in running], timeout_s=300)
        return 0
    return len(running)


def _print_processes(registry: Registry, out: Output, fresh: set[str]) -> None:
    rows: list[list[str | Text]] = []
    for process in registry.running():
        address = process.facts.get("address") if process.name == SERVER else None
        where = (
            (f"{process.facts.get('ui_url')}  gRPC {address}" if address else None)
            or process.facts.get("url")
            or ", ".join(process.facts.get("roles") or process.facts.get("keeps") or [])
        )
        state = (
            Text("started", style=STYLES["good"])
            if process.name in fresh
            else Text(f"up {duration(process.uptime_s())}", style=STYLES["dim"])
        )
        rows.append([process.name, state, str(process.pid), str(where), str(process.facts.get("version", ""))])
    out.table(("process", "", "pid", "where", "version"), rows)


def _desktop(record: DesktopRecord) -> dict[str, Any]:
    fields = {"lease_id", "provider", "state", "tier", "created_at", "expires_at"}
    return {**record.model_dump(mode="json", include=fields), "execution_id": record.owner.execution_id}


def _entry(process: Process) -> dict[str, Any]:
    return {
        "name": process.name,
        "pid": process.pid,
        "uptime_s": round(process.uptime_s(), 1),
        "log": str(process.log),
        **process.facts,
    }
