"""What `rollouts demo` needs around its rollouts: a scripted policy, a watch over the worker, and what an earlier demo left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from temporalio.service import RPCError

from osworld_rollouts import temporal
from osworld_rollouts.console.control_commands import cancel_rollouts
from osworld_rollouts.console.embedded import NAME as SERVER
from osworld_rollouts.console.errors import ConsoleError, ExitCode
from osworld_rollouts.console.launch import write_record
from osworld_rollouts.console.rollouts import Filter, find_rollouts
from osworld_rollouts.console.services import WORKER, start_services

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from temporalio.client import Client

    from osworld_rollouts.console.processes import Process, Registry
    from osworld_rollouts.console.services import Services
    from osworld_rollouts.settings import Settings

POLICY = "policy"
SCRIPTED_MODEL = "scripted-solver"
TASKS = ("terminal-count-errors", "text-edit-save", "calc-total-formula")
"""Three short tasks that show a terminal, an editor and a spreadsheet."""

_URL = re.compile(r"http://127\.0\.0\.1:\d+/v1")
_POLICY_START_S = 30
_TEARDOWN_S = 60


async def start_policy(registry: Registry, port: int = 0) -> tuple[Process, str]:
    """The scripted policy server as a process that ends with this one; (process, base URL).

    Raises:
        ConsoleError: it does not come up.
    """
    registry.stop(POLICY)
    process = registry.start(
        POLICY,
        [sys.executable, "-P", "-m", "osworld_rollouts.testing.policy_server", "--port", str(port)],
        dies_with_us=True,
    )
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _POLICY_START_S
    while loop.time() < deadline and process.alive():
        found = _URL.search(process.log_tail(20))
        if found:
            return process, found[0]
        await asyncio.sleep(0.05)
    raise ConsoleError(
        f"the scripted policy did not start: {process.log_tail(1)}",
        remedy=f"read {process.log}",
        code=ExitCode.ENVIRONMENT,
    )


@contextlib.asynccontextmanager
async def watched(
    services: Services, registry: Registry, policy_url: str | None, say: Callable[[str], None]
) -> AsyncGenerator[None]:
    """While inside, a server, worker or policy that died is started again; rollouts go on where they were."""
    port = int(policy_url.removesuffix("/v1").rpartition(":")[2]) if policy_url else 0

    async def look() -> None:
        while True:
            await asyncio.sleep(1)
            if services.server and registry.find(SERVER) is None:
                say("the Temporal server died; starting it again on its database")
                await start_services(services.settings, registry, lambda _: None, viewer=False, worker=False)
            if registry.find(WORKER) is None:
                say("the worker died; starting it again, rollouts go on where they were")
                await start_services(
                    services.settings, registry, lambda _: None, viewer=False, worker_dies_with_us=True
                )
            if policy_url and registry.find(POLICY) is None:
                say("the scripted policy died; starting it again")
                await start_policy(registry, port)

    task = asyncio.create_task(look())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task


@dataclass(frozen=True)
class Campaign:
    """A note of the campaign a demo runs, so that the next demo can end it when this one was killed."""

    registry: Registry

    def begin(self, campaign: str) -> None:
        """Note it before its first rollout."""
        self.registry.run_dir.mkdir(parents=True, exist_ok=True)
        write_record(self._path, {"campaign": campaign})

    def end(self) -> None:
        """Nothing of it runs any more."""
        self._path.unlink(missing_ok=True)

    def abandoned(self) -> str | None:
        """The campaign of a demo that did not get to its end."""
        try:
            return str(json.loads(self._path.read_text(encoding="utf-8"))["campaign"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def _path(self) -> Path:
        return self.registry.run_dir / ".demo-campaign.json"


async def end_campaign(client: Client, campaign: str) -> int:
    """Cancel what of a campaign still runs and wait until its desktops are gone; how many there were.

    What does not end in time is terminated: nobody waits for it, and the host then removes its desktop.
    """
    running = [row.rollout_id for row in await find_rollouts(client, Filter(campaign=campaign, running=True), 10_000)]
    if running:
        try:
            await cancel_rollouts(client, running, timeout_s=_TEARDOWN_S)
        except ConsoleError:
            await _terminate(client, campaign)
    return len(running)


async def _terminate(client: Client, campaign: str) -> None:
    """Executions as well as rollouts: one that hears of its end only when a worker looks would still hold its desktop."""
    query = f'{temporal.CAMPAIGN.name}="{campaign}" AND ExecutionStatus="Running"'
    async for found in client.list_workflows(query):
        with contextlib.suppress(RPCError):
            await client.get_workflow_handle(found.id, run_id=found.run_id).terminate("its demo was killed")


async def missing_for_desktops(settings: Settings) -> list[str]:
    """Look before anything is started whether this machine can hold a local desktop; returns what is merely worth knowing.

    Raises:
        ConsoleError: it cannot; the remedy is the command that installs what is missing.
    """
    try:
        from osworld_rollouts.desktops.registry import create_provider  # noqa: PLC0415  (a worker's package, absent where one only submits)

        provider = create_provider("local", state_dir=settings.state_dir)
    except ImportError as error:
        raise ConsoleError(
            f"the demo runs a worker, and {error.name} is not installed",
            remedy="make setup, which installs a worker's packages from the lock",
            code=ExitCode.ENVIRONMENT,
        ) from error
    problems = await provider.preflight()
    for problem in problems:
        if problem.fatal:
            raise ConsoleError(problem.message, remedy=problem.remedy, code=ExitCode.ENVIRONMENT)
    return [f"{problem.message}; to change it: {problem.remedy}" for problem in problems]
