"""`rollouts show ROLLOUT`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from rich.text import Text

from osworld_rollouts.console.links import Links
from osworld_rollouts.console.list_command import duration, outcome_text, score_text, state_text
from osworld_rollouts.console.output import STYLES, Output, calls_left_open, one_line
from osworld_rollouts.console.rollouts import RolloutDetails, describe_rollout
from osworld_rollouts.contracts.identity import execution_workflow_id
from osworld_rollouts.settings import load_settings
from osworld_rollouts.temporal import connect

if TYPE_CHECKING:
    from osworld_rollouts.contracts.execution import ExecutionView
    from osworld_rollouts.contracts.outcome import ExecutionResult


def show(rollout: str, /, *, json: bool = False) -> None:
    """One rollout: outcome, executions, causes, links.

    Parameters
    ----------
    rollout
        The rollout's id, for example demo/os-terminal-command/0.
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
    out.line(Text(row.rollout_id, style="bold").append("  ").append(state_text(row)))
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
        ("page", links.rollout(row.rollout_id)),
    ):
        if url:
            out.line(f"{name:<9}  {url}")
    if details.running:
        out.line()
        _show_running(details.running, out)
    if details.executions:
        out.line()
        out.table(
            ("execution", "outcome", "score", "turns", "host", "evidence", "cause"),
            map(_execution_row, details.executions),
            right=("score", "turns"),
        )
    if details.note:
        out.note(details.note, style=STYLES["waiting"])


def _show_running(view: ExecutionView, out: Output) -> None:
    paused = ", paused" if view.paused else ", stopping after this turn" if view.stop_requested else ""
    out.line(
        f"running {view.execution_id}: {view.phase}, turn {view.turn} of at most {view.max_turns}{paused}",
        style=STYLES["running"],
    )
    out.table(
        ("turn", "action", ""),
        ((str(turn.turn + 1), one_line(turn.actions, 70), one_line(turn.note, 60)) for turn in view.recent),
        right=("turn",),
    )


def _execution_row(execution: ExecutionResult) -> list[str | Text]:
    outcome = execution.outcome
    cause = one_line(outcome.cause.message, 70) if outcome.cause else ""
    also = f" (also: {one_line(outcome.also[0].message, 60)})" if outcome.also else ""
    left_open = calls_left_open(execution.unanswered_calls, execution.unseen_samples)
    return [
        f"x{execution.number}",
        outcome_text(outcome.kind, outcome.eligible),
        score_text(outcome.score),
        str(outcome.turns),
        execution.host_id or "",
        (execution.evidence_head or "")[:12],
        cause + also + (f" ({left_open})" if left_open else ""),
    ]


def _as_json(details: RolloutDetails, links: Links) -> dict[str, Any]:
    row = details.row
    return {
        **row.as_json(),
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
        "links": {"temporal": links.workflow(row.workflow_id, row.run_id), "page": links.rollout(row.rollout_id)},
        "note": details.note,
    }
