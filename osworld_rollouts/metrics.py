"""What a campaign amounts to: a score on a fixed denominator, never with an invented zero. Pure functions.

Vocabulary. The *denominator* is every rollout that was submitted, or the number the caller says there must be. A rollout is *scored*
(the evaluator gave a number), *unscored* (it ended without one: an infrastructure failure, an unsupported task, a cancellation), *running*, or
*missing* (expected, never submitted). Only scored ones have a value; the others widen the *bounds* between which the score of the whole
denominator lies, whatever they would have been.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Z_95 = 1.959964
"""Standard normal quantile of a two-sided 95 % interval."""


@dataclass(frozen=True)
class Entry:
    """One rollout. `score` is the evaluator's, from 0 to 1, or None; `outcome` is None while it runs."""

    task: str
    domain: str
    score: float | None
    outcome: str | None
    running: bool = False
    eligible: bool = True


@dataclass(frozen=True)
class Tally:
    """Rollouts counted together. `total` is the denominator; `outcomes` counts the unscored ones by outcome kind.

    `masked` counts, by outcome kind, the scored ones that runtime admission does not trust, such as those a person stopped. Their score is the
    evaluator's and counts; whoever reads it must know how many there are.
    """

    total: int
    scored: int
    running: int
    points: float
    outcomes: dict[str, int]
    masked: dict[str, int]

    @property
    def unscored(self) -> int:
        """Ended without a score."""
        return sum(self.outcomes.values())

    @property
    def missing(self) -> int:
        """Expected and never submitted."""
        return self.total - self.scored - self.running - self.unscored

    @property
    def complete(self) -> bool:
        """Whether every rollout of the denominator has a score."""
        return self.scored == self.total

    @property
    def mean(self) -> float | None:
        """Mean score of the scored ones; the score of the campaign when it is `complete`."""
        return self.points / self.scored if self.scored else None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Least and greatest score of the whole denominator; equal when it is `complete`."""
        if not self.total:
            return None
        return self.points / self.total, (self.points + self.total - self.scored) / self.total

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the mean as an estimate for tasks like these (`wilson`)."""
        return wilson(self.points, self.scored) if self.scored else None


def tally(entries: Iterable[Entry], *, expected: int | None = None) -> Tally:
    """Count rollouts; with `expected` that is the denominator.

    Raises:
        ValueError: there are more rollouts than expected.
    """
    entries = list(entries)
    if expected is not None and len(entries) > expected:
        raise ValueError(f"{len(entries)} rollouts, expected {expected}")
    scores = [entry.score for entry in entries if entry.score is not None]
    ended = [entry for entry in entries if entry.score is None and not entry.running]
    return Tally(
        total=len(entries) if expected is None else expected,
        scored=len(scores),
        running=sum(entry.running and entry.score is None for entry in entries),
        points=math.fsum(scores),
        outcomes=_kinds(ended),
        masked=_kinds(entry for entry in entries if entry.score is not None and not entry.eligible),
    )


def _kinds(entries: Iterable[Entry]) -> dict[str, int]:
    return dict(Counter(entry.outcome or "unknown" for entry in entries).most_common())


def by_domain(entries: Iterable[Entry]) -> dict[str, Tally]:
    """A tally for each domain, in alphabetical order."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.domain, []).append(entry)
    return {domain: tally(groups[domain]) for domain in sorted(groups)}


def wilson(points: float, count: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson's score interval for a proportion of `points` in `count` (Wilson 1927).

    Scores between 0 and 1 vary no more than successes and failures with the same mean, so for partial credit it is too wide rather
    than too narrow. It takes rollouts for independent: several samples of one task are less than that.

    Raises:
        ValueError: `count` is not positive, or `points` is not between 0 and `count`.
    """
    if count <= 0 or not 0 <= points <= count:
        raise ValueError(f"{points} points of {count}")
    share = points / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)
