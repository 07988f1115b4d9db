"""`rollouts list`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rich.text import Text

from osworld_rollouts.console.output import STYLES, Output
from osworld_rollouts.console.rollouts import Filter, RolloutRow, count_rollouts, find_rollouts
from osworld_rollouts.settings import load_settings
from osworld_rollouts.temporal import connect

if TYPE_CHECKING:
    from collections.abc import Iterable

COLUMNS = ("rollout", "state", "turn", "score", "outcome", "attempt", "elapsed")
NUMBERS = ("turn", "score", "attempt", "elapsed")


def list_rollouts(
    *,
    campaign: str | None = None,
    task: str | None = None,
    domain: str | None = None,
    model: str | None = None,
    outcome: str | None = None,
    purpose: str | None = None,
    running: bool = False,
    failed: bool = False,
    query: str | None = None,
    limit: int = 50,
    json: bool = False,
) -> None:
    """List rollouts, newest first.

    Parameters
    ----------
    campaign
        Only this campaign.
    task
        Only this task.
    domain
        Only this domain, for example libreoffice_calc.
    model
        Only this model.
    outcome
        Only this outcome, for example agent_done or desktop_lost.
    purpose
        Only this purpose, for example train.
    running
        Only running ones.
    failed
        Only those that ended without a score.
    query
        A visibility query of Temporal's own, for example "RolloutScore < 0.5".
    limit
        At most so many.
    json
        Print JSON.
    """
    chosen = Filter(campaign, task, domain, model, outcome, purpose, running, failed, query)
    asyncio.run(_list(chosen, limit, Output(as_json=json)))


async def _list(chosen: Filter, limit: int, out: Output) -> None:
    client = await connect(load_settings())
    rows = await find_rollouts(client, chosen, limit)
    total = await count_rollouts(client, chosen)
    out.record({"total": total, "rollouts": [row.as_json() for row in rows]})
    if not rows:
        out.line(
            "no rollouts"
            + (" match" if chosen != Filter() else " yet; submit some with `rollouts submit`, or try `rollouts demo`")
        )
        return
    out.table(COLUMNS, table_rows(rows), right=NUMBERS)
    if total > len(rows):
        out.line(f"{len(rows)} of {total}; --limit shows more", style="dim")


def table_rows(rows: Iterable[RolloutRow]) -> list[list[str | Text]]:
    """Rows for COLUMNS."""
    return [
        [
            row.rollout_id,
            state_text(row),
            "" if row.turn is None or row.status != "running" else str(row.turn),
            score_text(row.score),
            outcome_text(row.outcome, row.eligible),
            "" if row.execution is None else str(row.execution),
            duration(row.elapsed_s),
        ]
        for row in rows
    ]


def state_text(row: RolloutRow) -> Text:
    """Running with its phase, or how the workflow closed."""
    if row.status == "running":
        return Text(row.phase or "starting", style=STYLES["running"])
    return Text(row.status, style="" if row.status == "completed" else STYLES["bad"])


def score_text(score: float | None) -> Text:
    """The evaluator's number, or a dash: a missing score is not a zero."""
    if score is None:
        return Text("-", style=STYLES["dim"])
    return Text(f"{score:g}", style=STYLES["good"] if score > 0 else STYLES["waiting"])


def outcome_text(outcome: str | None, eligible: bool | None) -> Text:
    """The outcome in one word, and whether the sample is masked."""
    text = Text(outcome or "")
    if outcome and eligible is False:
        text.append(" masked", style=STYLES["dim"])
    return text


def duration(seconds: float) -> str:
    """`7 s`, `2:05`, `1:02:03`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
