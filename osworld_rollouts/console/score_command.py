"""`rollouts score`: what a campaign amounts to, on a fixed denominator."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from rich.text import Text

from osworld_rollouts.console.errors import ConsoleError, ExitCode
from osworld_rollouts.console.output import STYLES, Output
from osworld_rollouts.console.rollouts import Filter, find_rollouts
from osworld_rollouts.metrics import Entry, Tally, by_domain, tally
from osworld_rollouts.settings import load_settings
from osworld_rollouts.temporal import connect

if TYPE_CHECKING:
    from osworld_rollouts.console.rollouts import RolloutRow

_ALL = 1_000_000
_COLUMNS = ("domain", "rollouts", "scored", "mean", "95 % interval", "unscored", "running")


def score(campaign: str, *, of: int | None = None, model: str | None = None, json: bool = False) -> int:
    """The score of a campaign, in all and by domain.

    The denominator is every rollout that was submitted. One that ended without a score is no zero: it is counted apart, with its
    outcome, and leaves the score of the whole between two bounds. The exit code is 1 until every rollout has a score.

    Parameters
    ----------
    campaign
        Its id.
    of
        How many rollouts there must be, for example 369; those that were never submitted count as missing.
    model
        Only this model's.
    json
        Print JSON.
    """
    return asyncio.run(_score(campaign, of, model, Output(as_json=json)))


async def _score(campaign: str, expected: int | None, model: str | None, out: Output) -> int:
    client = await connect(load_settings())
    rows = await find_rollouts(client, Filter(campaign=campaign, model=model), _ALL)
    if not rows:
        raise ConsoleError(
            f"campaign {campaign!r} has no rollouts",
            remedy="`rollouts list` shows what there is",
            code=ExitCode.NOT_FOUND,
        )
    entries = [_entry(row) for row in rows]
    try:
        total = tally(entries, expected=expected)
    except ValueError as error:
        raise ConsoleError(f"campaign {campaign!r} has {error}", remedy="--of names all of them") from error
    domains = by_domain(entries)
    models = sorted({row.model for row in rows})
    out.record(
        {
            "campaign": campaign,
            "models": models,
            **_facts(total),
            "domains": {name: _facts(domain) for name, domain in domains.items()},
        }
    )
    out.table(
        _COLUMNS,
        [*(_cells(name, domain) for name, domain in domains.items()), _cells("all", total)],
        right=_COLUMNS[1:],
    )
    out.line()
    for text, style in _words(total, models):
        out.line(text, style=style)
    return ExitCode.OK if total.complete else ExitCode.UNSCORED


def _entry(row: RolloutRow) -> Entry:
    outcome = row.outcome or (None if row.status == "running" else row.status)
    return Entry(
        row.task,
        row.domain or "-",
        row.score,
        outcome,
        running=row.status == "running",
        eligible=row.eligible is not False,
    )


def _facts(counted: Tally) -> dict[str, Any]:
    return {
        "rollouts": counted.total,
        "scored": counted.scored,
        "running": counted.running,
        "missing": counted.missing,
        "unscored": counted.outcomes,
        "masked": counted.masked,
        "points": counted.points,
        "mean": counted.mean,
        "interval_95": counted.interval,
        "bounds": counted.bounds,
        "complete": counted.complete,
    }


def _cells(name: str, counted: Tally) -> list[str | Text]:
    low, high = counted.interval or (None, None)
    return [
        Text(name, style="bold") if name == "all" else name,
        str(counted.total),
        str(counted.scored),
        _number(counted.mean),
        "" if low is None or high is None else f"{low:.3f} to {high:.3f}",
        Text(str(counted.unscored), style=STYLES["bad"]) if counted.unscored else "0",
        str(counted.running),
    ]


def _words(total: Tally, models: list[str]) -> list[tuple[str, str | None]]:
    lines: list[tuple[str, str | None]] = []
    if total.complete:
        lines.append((f"score {_number(total.mean)}: all {total.total} rollouts have one", STYLES["good"]))
    else:
        low, high = total.bounds or (0.0, 1.0)
        parts = [f"{count} {kind}" for kind, count in total.outcomes.items()]
        parts += [f"{total.running} still running"] if total.running else []
        parts += [f"{total.missing} never submitted"] if total.missing else []
        without = f"no score yet: {total.total - total.scored} of {total.total} have none ({', '.join(parts)})"
        lines.append(
            (f"{without}; whatever they would have been, it lies between {low:.3f} and {high:.3f}", STYLES["waiting"])
        )
    if total.masked:
        parts = [f"{count} {kind}" for kind, count in total.masked.items()]
        lines.append((f"counted, though the run was not as it should be: {', '.join(parts)}", STYLES["waiting"]))
    if len(models) > 1:
        lines.append(
            (f"{len(models)} models are counted together ({', '.join(models)}): --model takes one", STYLES["waiting"])
        )
    return lines


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
