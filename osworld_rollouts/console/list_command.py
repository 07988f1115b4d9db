"""`rollouts list`."""

from __future__ import annotations

import asyncio
import difflib
from typing import TYPE_CHECKING

from rich.text import Text

from osworld_rollouts.console.errors import ConsoleError
from osworld_rollouts.console.output import STYLES, Output, middle
from osworld_rollouts.console.rollouts import (
    Filter,
    RolloutRow,
    check_campaign,
    count_rollouts,
    find_rollouts,
    with_doing,
)
from osworld_rollouts.contracts.outcome import OutcomeKind
from osworld_rollouts.settings import load_settings
from osworld_rollouts.temporal import connect

if TYPE_CHECKING:
    from collections.abc import Iterable

COLUMNS = ("rollout", "state", "turn", "score", "attempt", "elapsed")
NUMBERS = ("turn", "score", "attempt", "elapsed")
_DESCRIBED = 50
"""Running rows whose executions the server is asked about; each is a request."""
_STATE_WIDTH, _ID_WIDTH = 24, 20
_GAP = 2


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
    if limit < 1:
        raise ConsoleError(f"--limit {limit} shows nothing", remedy="it must be at least 1")
    if outcome is not None and outcome not in set(OutcomeKind):
        near = difflib.get_close_matches(outcome, list(OutcomeKind), n=3)
        raise ConsoleError(
            f"--outcome {outcome!r} is no outcome" + (f", did you mean {' or '.join(near)}?" if near else ""),
            remedy=f"there are: {', '.join(OutcomeKind)}",
        )
    chosen = Filter(campaign, task, domain, model, outcome, purpose, running, failed, query)
    asyncio.run(_list(chosen, limit, Output(as_json=json)))


async def _list(chosen: Filter, limit: int, out: Output) -> None:
    client = await connect(load_settings())
    rows = await with_doing(client, await find_rollouts(client, chosen, limit), _DESCRIBED)
    if not rows and chosen.campaign is not None:
        await check_campaign(client, chosen.campaign)
    total = await count_rollouts(client, chosen)
    out.record({"total": total, "rollouts": [row.as_json() for row in rows]})
    if not rows:
        out.line(
            "no rollouts"
            + (" match" if chosen != Filter() else " yet; submit some with `rollouts submit`, or try `rollouts demo`")
        )
        return
    out.table(COLUMNS, table_rows(rows, width=out.width), right=NUMBERS, wrapped=("state",))
    if total > len(rows):
        out.line(f"{len(rows)} of {total}; --limit shows more", style="dim")


def table_rows(rows: Iterable[RolloutRow], *, width: int | None = None) -> list[list[str | Text]]:
    """Rows for COLUMNS. On a terminal of so many columns, ids give up their middles rather than the other columns their words."""
    cells: list[list[str | Text]] = [
        [
            row.rollout_id,
            state_text(row),
            "" if row.turn is None or row.status != "running" else str(row.turn),
            score_text(row.score),
            "" if row.execution is None else str(row.execution),
            duration(row.elapsed_s),
        ]
        for row in rows
    ]
    if width is None:
        return cells
    longest = [max(len(name), *(len(row[at]) for row in cells)) for at, name in enumerate(COLUMNS)]
    others = min(longest[1], _STATE_WIDTH) + sum(longest[2:]) + _GAP * (len(COLUMNS) - 1)
    return [[middle(str(name), max(_ID_WIDTH, width - others)), *rest] for name, *rest in cells]


def state_text(row: RolloutRow) -> Text:
    """What it does, or how it ended."""
    if row.status == "running":
        return Text(row.state, style=STYLES["running"])
    if row.outcome is None or row.status not in {"completed", "failed"}:
        return Text(row.status, style=STYLES["bad"])
    ended = outcome_text(row.outcome, row.eligible)
    ended.style = "" if row.status == "completed" else STYLES["bad"]
    return ended


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
