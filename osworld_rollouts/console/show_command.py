"""`rollouts show ROLLOUT`."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from osworld_rollouts.console.links import Links
from osworld_rollouts.console.list_command import duration, outcome_text, score_text
from osworld_rollouts.console.output import STYLES, Output, calls_left_open, one_line
from osworld_rollouts.console.pending import until
from osworld_rollouts.console.rollouts import RolloutDetails, describe_rollout
from osworld_rollouts.contracts.identity import execution_workflow_id
from osworld_rollouts.settings import load_settings
from osworld_rollouts.temporal import connect

if TYPE_CHECKING:
    from osworld_rollouts.console.pending import PendingActivity
    from osworld_rollouts.contracts.execution import ExecutionView
    from osworld_rollouts.contracts.outcome import ExecutionResult


def show(rollout: str, /, *, json: bool = False) -> None:
    """One rollout: outcome, executions, causes, links.

    Parameters
    ----------
    rollout
        The rollout's id, for example demo/terminal-count-errors/0.
    json
        Print JSON.
    """
    asyncio.run(_show(rollout.removeprefix("rollout/"), Output(as_json=json)))


async def _show(rollout_id: str, out: Output) -> None:
    settings = load_settings()
    details = await describe_rollout(await connect(settings), rollout_id)
    links = Links.of(settings)
    out.record(_as_json(details, links))
    row = details.row
    style = STYLES["running"] if row.status == "running" else "" if row.status == "completed" else STYLES["bad"]
    out.line(Text(row.rollout_id, style="bold").append("  ").append(details.state, style=style))
    out.paragraph(one_line(details.instruction, 1000))
    out.line()
    facts: list[tuple[str, str | Text]] = [
        ("task", f"{row.domain}/{row.task}"),
        ("model", row.model),
        ("campaign", row.campaign),
        *((f"label {name}", value) for name, value in details.labels.items()),
        (
            "submitted",
            f"{row.started_at.astimezone():%Y-%m-%d %H:%M:%S}, {duration(row.elapsed_s)} {'so far' if row.status == 'running' else 'in all'}",
        ),
    ]
    if row.outcome:
        facts += [("outcome", outcome_text(row.outcome, row.eligible)), ("score", score_text(row.score))]
    if details.failure:
        facts.append(("cause", Text(one_line(details.failure, 600), style=STYLES["bad"])))
    out.table(("", ""), facts)
    for name, url in (
        ("Temporal", links.workflow(row.workflow_id, row.run_id)),
        ("page", _page(details, links)),
    ):
        if url:
            out.line(f"{name:<9}  {url}")
    if details.running:
        out.line()
        _show_running(details.running, details.state, out)
    for item in row.doing.activities if row.doing else ():
        _show_pending(item, out)
    if details.executions:
        out.line()
        out.table(
            ("execution", "outcome", "score", "turns", "host", "evidence"),
            map(_execution_row, details.executions),
            right=("score", "turns"),
            wrapped=("outcome", "host"),
        )
        for execution in details.executions:
            for words in _causes(execution):
                out.paragraph(f"x{execution.number}: {words}")
    if details.note:
        out.note(details.note, style=STYLES["waiting"])


def _show_running(view: ExecutionView, state: str, out: Output) -> None:
    turns = f"turn {min(view.turn + 1, view.max_turns)} of at most {view.max_turns}"
    out.line(f"x{view.execution_id.rpartition('/x')[2]}: {state}, {turns}", style=STYLES["running"])
    if not view.recent:
        return
    out.table(
        ("turn", "action", ""),
        ((str(turn.turn + 1), one_line(turn.actions, 70), one_line(turn.note, 60)) for turn in view.recent),
        right=("turn",),
    )


def _show_pending(item: PendingActivity, out: Output) -> None:
    """What the execution waits for: how often it was tried, why that failed, when it is tried next and when it is given up."""
    attempt = f"attempt {item.attempt}" + (f" of at most {item.max_attempts}" if item.max_attempts else "")
    if item.next_at is not None and item.next_at > datetime.now(UTC):
        now = f"tried next {_moment(item.next_at)}"
    elif item.state == "scheduled":
        now = "waiting for a worker to take it"
    else:
        now = "under way" if item.state == "started" else "being cancelled"
    if item.since is not None and "next" not in now:
        now += f" for {duration((datetime.now(UTC) - item.since).total_seconds())}"
    end = f", given up {_moment(item.gives_up_at)}" if item.gives_up_at else ""
    out.paragraph(f"{item.words}: {attempt}, {now}{end}")
    if item.last_failure:
        out.paragraph(f"  last failure: {one_line(item.last_failure, 400)}", style=STYLES["bad"])


def _moment(moment: datetime) -> str:
    return f"in {duration(until(moment).total_seconds())} ({moment.astimezone():%H:%M:%S})"


def _page(details: RolloutDetails, links: Links) -> str | None:
    """The page's address, where there is something to show: a rollout that ended without evidence has no page."""
    ended = details.row.status != "running"
    heads = [execution.evidence_head for execution in details.executions]
    recorded = any(heads) or (not heads and details.row.status not in {"completed", "failed"})
    return None if ended and not recorded else links.rollout(details.row.rollout_id)


def _execution_row(execution: ExecutionResult) -> list[str | Text]:
    outcome = execution.outcome
    return [
        f"x{execution.number}",
        outcome_text(outcome.kind, outcome.eligible),
        score_text(outcome.score),
        str(outcome.turns),
        execution.host_id or "",
        (execution.evidence_head or "")[:12],
    ]


def _causes(execution: ExecutionResult) -> list[str]:
    """Why it ended as it did, what went wrong afterwards, and what it leaves open: a line each."""
    outcome = execution.outcome
    left_open = calls_left_open(execution.unanswered_calls, execution.unseen_samples)
    return [
        *([one_line(outcome.cause.message, 400)] if outcome.cause else []),
        *(f"also: {one_line(problem.message, 400)}" for problem in outcome.also),
        *([left_open] if left_open else []),
    ]


def _as_json(details: RolloutDetails, links: Links) -> dict[str, Any]:
    row = details.row
    return {
        **row.as_json(),
        "state": details.state,
        "instruction": details.instruction,
        "labels": details.labels,
        "failure": details.failure,
        "executions": [
            {
                **execution.model_dump(mode="json"),
                "temporal": links.workflow(execution_workflow_id(execution.execution_id), execution.run_id or None),
            }
            for execution in details.executions
        ],
        "running": details.running.model_dump(mode="json") if details.running else None,
        "pending_activities": [asdict(item) for item in row.doing.activities] if row.doing else [],
        "links": {"temporal": links.workflow(row.workflow_id, row.run_id), "page": _page(details, links)},
        "note": details.note,
    }
