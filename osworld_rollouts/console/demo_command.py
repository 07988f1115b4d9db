"""`rollouts demo`: three tasks on a desktop of this machine, from nothing to scores and pages."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from osworld_rollouts.console.campaign import Progress, submit_all
from osworld_rollouts.console.demo import (
    POLICY,
    SCRIPTED_MODEL,
    TASKS,
    Campaign,
    end_campaign,
    missing_for_desktops,
    start_policy,
    watched,
)
from osworld_rollouts.console.embedded import NAME as SERVER
from osworld_rollouts.console.errors import ConsoleError, ExitCode
from osworld_rollouts.console.links import Links
from osworld_rollouts.console.list_command import duration, outcome_text, score_text
from osworld_rollouts.console.output import STYLES, Output, one_line
from osworld_rollouts.console.processes import Registry
from osworld_rollouts.console.progress import LiveProgress
from osworld_rollouts.console.requests import AgentOptions, ModelOptions, ScheduleOptions, build_requests
from osworld_rollouts.console.rollouts import Filter, find_rollouts
from osworld_rollouts.console.services import VIEWER, WORKER, start_services
from osworld_rollouts.console.viewer.export import export_index, export_rollout
from osworld_rollouts.contracts.identity import rollout_workflow_id
from osworld_rollouts.evidence.errors import EvidenceError
from osworld_rollouts.evidence.store import open_store
from osworld_rollouts.settings import load_settings
from osworld_rollouts.tasks.catalog import load_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path

    from osworld_rollouts.console.rollouts import RolloutRow
    from osworld_rollouts.console.services import Services
    from osworld_rollouts.contracts.request import RolloutRequest, Task
    from osworld_rollouts.settings import Settings


@dataclass(frozen=True)
class _Plan:
    """What the demo was asked to do."""

    tasks: tuple[Task, ...]
    model: str | None
    base_url: str | None
    max_turns: int

    @property
    def scripted(self) -> bool:
        return self.base_url is None


def demo(
    *tasks: str,
    model: str | None = None,
    base_url: str | None = None,
    max_turns: int = 15,
    keep: bool = False,
    json: bool = False,
) -> int:
    """Run three tasks on a desktop of this machine and show everything that happened.

    Without --base-url the policy is a script that plays known solutions, not a model. Temporal server and page stay when the demo
    ends, so that its links work; `rollouts down` ends them.

    Parameters
    ----------
    tasks
        Other tasks than the usual three; `rollouts tasks` lists the shipped ones.
    model
        Your own model's name.
    base_url
        Address of its OpenAI-compatible server, usually ending in /v1. The key is read from OPENAI_API_KEY.
    max_turns
        The horizon.
    keep
        Keep the worker too.
    json
        Print JSON.
    """
    if (model is None) != (base_url is None):
        raise ConsoleError(
            "your own model needs both --model and --base-url", remedy="without them the scripted policy plays"
        )
    out = Output(as_json=json)
    settings = load_settings()
    registry = Registry(settings.state_dir)
    plan = _Plan(tuple(load_tasks(tasks or TASKS)), model, base_url, max_turns)
    with registry.lock("demo"):
        before = {process.name for process in registry.running()}
        ends: tuple[str, ...] = (POLICY, WORKER, VIEWER, SERVER)
        try:
            code = asyncio.run(_demo(plan, settings, registry, out))
            ends = (POLICY,) if keep else (POLICY, WORKER)
            return code
        finally:
            # In plain code, so that it happens also when a second Ctrl-C broke off everything above, or comes now.
            before_us = signal.signal(signal.SIGINT, signal.SIG_IGN)
            for name in ends:
                if name not in before:
                    registry.stop(name, settings.worker.graceful_shutdown_s)
            signal.signal(signal.SIGINT, before_us)


async def _demo(plan: _Plan, settings: Settings, registry: Registry, out: Output) -> int:
    with _status(out) as say:
        worth_knowing = await missing_for_desktops(settings)
        services = await start_services(settings, registry, say, worker_dies_with_us=True)
        noted = Campaign(registry)
        await _end_abandoned(services, noted, say)
        base_url = plan.base_url
        if base_url is None:
            say("scripted policy")
            _, base_url = await start_policy(registry)
    requests = _requests(plan, base_url)
    for words in worth_knowing:
        out.note(words, style=STYLES["waiting"])
    _introduce(plan, services, out)
    noted.begin(requests[0].campaign_id)
    try:
        progress = await _run(services, registry, requests, plan, base_url, out)
    except asyncio.CancelledError:
        out.note("cancelling, and removing the desktops (Ctrl-C again leaves at once)", style=STYLES["waiting"])
        await end_campaign(services.client, requests[0].campaign_id)
        noted.end()
        raise
    noted.end()
    pages = await asyncio.to_thread(_export, services.settings, requests)
    await _report(services, requests, progress, pages, plan, out)
    return ExitCode.OK if progress.scored == len(requests) else ExitCode.UNSCORED


async def _run(
    services: Services, registry: Registry, requests: Sequence[RolloutRequest], plan: _Plan, base_url: str, out: Output
) -> Progress:
    policy_url = base_url if plan.scripted else None
    progress = Progress(len(requests))
    live = LiveProgress(services.client, out.errors, campaign=requests[0].campaign_id, progress=progress)
    async with watched(services, registry, policy_url, out.note):
        if out.as_json:
            return await submit_all(services.client, services.settings, requests, wait=True)
        async with live:
            return await submit_all(services.client, services.settings, requests, wait=True, on_change=live.update)


async def _end_abandoned(services: Services, noted: Campaign, say: Callable[[str], None]) -> None:
    """Rollouts of a demo that was killed have nobody waiting for them."""
    campaign = noted.abandoned()
    if campaign is not None:
        say("ending what a killed demo left")
        await end_campaign(services.client, campaign)
        noted.end()


def _requests(plan: _Plan, base_url: str) -> list[RolloutRequest]:
    model = ModelOptions(model=plan.model or SCRIPTED_MODEL, base_url=base_url)
    campaign = f"demo-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    return build_requests(
        plan.tasks, model, AgentOptions(max_turns=plan.max_turns), ScheduleOptions(campaign=campaign, purpose="demo")
    )


def _introduce(plan: _Plan, services: Services, out: Output) -> None:
    policy = (
        "a script that plays known solutions, not a model"
        if plan.scripted
        else f"{one_line(plan.model or '', 60)} at {one_line(plan.base_url or '', 100)}"
    )
    out.note(f"policy: {policy}", style=None)
    if services.server:
        out.note(f"Temporal UI: {services.server.ui_url}", style=None)
    if services.viewer:
        out.note(f"page: {services.viewer.facts['url']}", style=None)
    out.note("")


def _export(settings: Settings, requests: Sequence[RolloutRequest]) -> dict[str, Path]:
    """The page of each rollout as files, which need no server; none for a rollout that left no evidence."""
    pages: dict[str, Path] = {}
    for request in requests:
        with contextlib.suppress(ConsoleError, EvidenceError):
            directory = settings.state_dir / "pages" / request.rollout_id
            pages[request.rollout_id] = export_rollout(
                open_store(settings.store.url), request.rollout_id, directory, Links.of(settings)
            )
    if pages:
        campaign = requests[0].campaign_id
        with contextlib.suppress(EvidenceError):
            export_index(
                open_store(settings.store.url), settings.state_dir / "pages" / campaign, pages, Links.of(settings),
                campaign=campaign, submitted=len(requests),
            )  # fmt: skip
    return pages


async def _report(
    services: Services,
    requests: Sequence[RolloutRequest],
    progress: Progress,
    pages: dict[str, Path],
    plan: _Plan,
    out: Output,
) -> None:
    links, campaign = Links.of(services.settings), requests[0].campaign_id
    rows = {
        row.rollout_id: row for row in await find_rollouts(services.client, Filter(campaign=campaign), len(requests))
    }
    records = [
        _record(request.rollout_id, progress, rows.get(request.rollout_id), pages, links) for request in requests
    ]
    out.record(
        {"campaign": campaign, "scripted": plan.scripted, "rollouts": records, "temporal_ui": links.campaign(campaign)}
    )
    out.table(
        ("task", "score", "outcome", "turns", "attempts", "time"),
        [_cells(request, progress, record["elapsed_s"]) for request, record in zip(requests, records, strict=True)],
        right=("score", "turns", "attempts", "time"),
    )
    for request in requests:
        result, failure = progress.ended.get(request.rollout_id, (None, None))
        cause = result.outcome.cause.message if result and result.outcome.cause else failure
        if cause:
            out.line(f"{request.rollout.task.task_id}: {one_line(cause, 400)}", style=STYLES["bad"])
    out.line()
    for record in records:
        out.line(f"page      {record['links']['page'] or record['links']['file'] or 'none: no evidence was written'}")
    if pages:
        out.line(f"as files  {(services.settings.state_dir / 'pages' / campaign / 'index.html').as_uri()}")
    if links.ui_url:
        out.line(f"Temporal  {links.campaign(campaign)}")
    out.line()
    if plan.scripted:
        out.line(
            "The policy was a script, not a model. Yours: rollouts demo --base-url https://…/v1 --model NAME",
            style="dim",
        )
    out.line("Temporal server and page still run; `rollouts down` ends them.", style="dim")


def _record(
    rollout_id: str, progress: Progress, row: RolloutRow | None, pages: dict[str, Path], links: Links
) -> dict[str, Any]:
    result, failure = progress.ended.get(rollout_id, (None, None))
    urls = {
        "temporal": links.workflow(rollout_workflow_id(rollout_id), row.run_id if row else None),
        "page": links.rollout(rollout_id),
        "file": pages[rollout_id].as_uri() if rollout_id in pages else None,
    }
    elapsed = round(row.elapsed_s, 3) if row else 0.0
    return {
        "rollout_id": rollout_id, "result": result.model_dump(mode="json") if result else None, "failure": failure, "elapsed_s": elapsed, "links": urls
    }  # fmt: skip


def _cells(request: RolloutRequest, progress: Progress, elapsed_s: float) -> list[str | Text]:
    task = request.rollout.task.task_id
    result, _ = progress.ended.get(request.rollout_id, (None, None))
    if result is None:
        return [task, score_text(None), Text("no result", style=STYLES["bad"]), "", "", duration(elapsed_s)]
    outcome = result.outcome
    return [
        task,
        score_text(outcome.score),
        outcome_text(outcome.kind, outcome.eligible),
        str(outcome.turns),
        str(len(result.executions)),
        duration(elapsed_s),
    ]


@contextlib.contextmanager
def _status(out: Output) -> Generator[Callable[[str], None]]:
    """Words about what is being started: a spinner on a terminal, lines elsewhere."""
    if out.as_json or not out.errors.is_terminal:
        yield lambda what: out.note(f"{what} …")
        return
    with out.errors.status("starting") as status:
        yield lambda what: status.update(f"starting: {what}")
