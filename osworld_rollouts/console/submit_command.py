"""`rollouts submit`: uses the Temporal client only."""

from __future__ import annotations

import asyncio
from pathlib import Path  # noqa: TC003  (cyclopts reads annotations)
from typing import TYPE_CHECKING, Any

from rich.text import Text

from osworld_rollouts.console.campaign import Progress, submit_all
from osworld_rollouts.console.errors import ConsoleError, ExitCode
from osworld_rollouts.console.links import Links
from osworld_rollouts.console.list_command import outcome_text, score_text
from osworld_rollouts.console.output import STYLES, Output, one_line
from osworld_rollouts.console.progress import LiveProgress
from osworld_rollouts.console.requests import AgentOptions, ModelOptions, ScheduleOptions, build_requests, read_requests
from osworld_rollouts.contracts.identity import rollout_workflow_id
from osworld_rollouts.settings import load_settings
from osworld_rollouts.tasks.catalog import load_tasks
from osworld_rollouts.temporal import connect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from osworld_rollouts.contracts.request import RolloutRequest

_DEFAULTS = (ModelOptions(), AgentOptions(), ScheduleOptions())


def submit(
    *tasks: str,
    index: Path | None = None,
    request: Path | None = None,
    wait: bool = False,
    in_flight: int | None = None,
    dry_run: bool = False,
    model: ModelOptions = _DEFAULTS[0],
    agent: AgentOptions = _DEFAULTS[1],
    schedule: ScheduleOptions = _DEFAULTS[2],
    json: bool = False,
) -> int:
    """Submit tasks as rollouts. Submitting the same ones again returns what runs or has run.

    Parameters
    ----------
    tasks
        `shipped`, ids of shipped tasks, task files, or a directory of OSWorld tasks.
    index
        With a directory: only the tasks in this file, for example test_small.json.
    request
        A RolloutRequest as a JSON file, or what --dry-run --json printed, instead of tasks and options.
    wait
        Follow them to their ends.
    in_flight
        At most so many unfinished at a time; implies --wait.
    dry_run
        Print what would be submitted.
    model
        The policy model.
    agent
        The agent.
    schedule
        Names and budgets.
    json
        Print JSON.
    """
    if request is not None:
        requests = read_requests(request)
    elif tasks:
        requests = build_requests(load_tasks(tasks, index=index), model, agent, schedule)
    else:
        raise ConsoleError(
            "no task named", remedy="for example `rollouts submit shipped …`; `rollouts tasks` lists the shipped ones"
        )
    if in_flight is not None and in_flight < 1:
        raise ConsoleError(f"--in-flight must be at least 1, got {in_flight}")
    out = Output(as_json=json)
    if dry_run:
        _preview(requests, out)
        return ExitCode.OK
    return asyncio.run(_submit(requests, wait=wait or in_flight is not None, in_flight=in_flight, out=out))


async def _submit(requests: Sequence[RolloutRequest], *, wait: bool, in_flight: int | None, out: Output) -> int:
    settings = load_settings()
    client = await connect(settings)
    progress = Progress(len(requests))
    if not wait:
        progress = await submit_all(client, settings, requests, wait=False)
        report(requests, progress, Links.of(settings), out)
        return ExitCode.OK
    live = LiveProgress(client, out.errors, campaign=requests[0].campaign_id, progress=progress)
    if out.as_json:
        progress = await submit_all(client, settings, requests, wait=True, in_flight=in_flight)
    else:
        async with live:
            progress = await submit_all(
                client, settings, requests, wait=True, in_flight=in_flight, on_change=live.update
            )
    report(requests, progress, Links.of(settings), out)
    return ExitCode.OK if progress.scored == len(requests) else ExitCode.UNSCORED


def report(requests: Sequence[RolloutRequest], progress: Progress, links: Links, out: Output) -> None:
    """What was submitted and, as far as it ended, how."""
    out.record({"rollouts": [_entry(request, progress, links) for request in requests]})
    if progress.ended:
        out.table(
            ("task", "score", "outcome", "turns", "attempts", "cause"),
            [_result_row(request, progress) for request in requests],
            right=("score", "turns", "attempts"),
        )
        mean = _mean(progress)
        out.line(
            Text(
                f"{progress.scored} of {progress.total} scored"
                + (f"; mean over those {mean:g}" if mean is not None else ""),
                style="bold",
            )
        )
        return
    new = sum(1 for item in progress.submitted.values() if not item.existed)
    out.table(
        ("rollout", ""),
        [
            (item.rollout_id, Text("found" if item.existed else "submitted", style=STYLES["dim"]))
            for item in progress.submitted.values()
        ],
    )
    out.line(f"{new} submitted, {len(progress.submitted) - new} were there already", style="bold")
    out.note(f"follow them: rollouts list --campaign {requests[0].campaign_id}")


def _result_row(request: RolloutRequest, progress: Progress) -> list[str | Text]:
    result, failure = progress.ended.get(request.rollout_id, (None, None))
    if result is None:
        return [
            request.rollout_id,
            score_text(None),
            Text("no result", style=STYLES["bad"]),
            "",
            "",
            one_line(failure or "", 90),
        ]
    outcome = result.outcome
    cause = one_line(outcome.cause.message, 90) if outcome.cause else ""
    return [
        request.rollout_id,
        score_text(outcome.score),
        outcome_text(outcome.kind, outcome.eligible),
        str(outcome.turns),
        str(len(result.executions)),
        cause,
    ]


def _entry(request: RolloutRequest, progress: Progress, links: Links) -> dict[str, Any]:
    submitted = progress.submitted.get(request.rollout_id)
    result, failure = progress.ended.get(request.rollout_id, (None, None))
    workflow_id = rollout_workflow_id(request.rollout_id)
    return {
        "rollout_id": request.rollout_id,
        "workflow_id": workflow_id,
        "request_digest": request.request_digest(),
        "existed": submitted.existed if submitted else None,
        "ended": request.rollout_id in progress.ended,
        "result": result.model_dump(mode="json") if result else None,
        "failure": failure,
        "links": {"temporal": links.workflow(workflow_id), "page": links.rollout(request.rollout_id)},
    }


def _mean(progress: Progress) -> float | None:
    scores = [
        result.outcome.score for result, _ in progress.ended.values() if result and result.outcome.score is not None
    ]
    return sum(scores) / len(scores) if scores else None


def _preview(requests: Sequence[RolloutRequest], out: Output) -> None:
    out.record(
        {
            "rollouts": [
                {
                    "rollout_id": item.rollout_id,
                    "request_digest": item.request_digest(),
                    "request": item.model_dump(mode="json"),
                }
                for item in requests
            ]
        }
    )
    out.table(
        ("rollout", "digest", "instruction"),
        [
            (item.rollout_id, item.request_digest()[:12], one_line(item.rollout.task.instruction, 80))
            for item in requests
        ],
    )
    out.line(f"{len(requests)} would be submitted", style="bold")
    out.note("the server was not asked whether rollouts with these ids exist already")
