"""Scores of campaigns: the denominator stays, nothing becomes a zero."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osworld_rollouts.metrics import Entry, by_domain, tally, wilson


def entry(score=None, outcome="agent_done", domain="os", *, running=False):
    return Entry("task", domain, score, None if running else outcome, running=running)


SOLVED, UNSOLVED, LOST = entry(1.0), entry(0.0), entry(outcome="desktop_lost")


def test_complete():
    counted = tally([SOLVED, SOLVED, UNSOLVED, entry(0.5)])
    assert counted.complete
    assert counted.mean == 0.625
    assert counted.bounds == (0.625, 0.625)
    assert counted.outcomes == {}


def test_a_failure_is_no_zero_and_stays_in_the_denominator():
    counted = tally([SOLVED, LOST, LOST, entry(outcome="prepare_failed"), entry(running=True)])
    assert (counted.total, counted.scored, counted.unscored, counted.running, counted.missing) == (5, 1, 3, 1, 0)
    assert counted.outcomes == {"desktop_lost": 2, "prepare_failed": 1}
    assert counted.mean == 1.0
    assert counted.bounds == (0.2, 1.0)
    assert not counted.complete


def test_what_was_never_submitted_is_missing():
    counted = tally([SOLVED], expected=4)
    assert (counted.total, counted.missing) == (4, 3)
    assert counted.bounds == (0.25, 1.0)
    assert not counted.complete


def test_more_than_expected_is_refused():
    with pytest.raises(ValueError, match="2 rollouts, expected 1"):
        tally([SOLVED, SOLVED], expected=1)


def test_masked_ones_count_and_are_told():
    counted = tally([SOLVED, Entry("task", "os", 0.0, "stopped_by_operator", eligible=False), LOST])
    assert counted.mean == 0.5
    assert counted.masked == {"stopped_by_operator": 1}


def test_nothing_has_no_score():
    counted = tally([])
    assert (counted.mean, counted.bounds, counted.interval) == (None, None, None)
    assert tally([LOST]).mean is None
    assert tally([LOST]).bounds == (0.0, 1.0)


def test_by_domain():
    domains = by_domain(
        [entry(1.0, domain="vlc"), entry(0.0, domain="gimp"), entry(outcome="desktop_lost", domain="gimp")]
    )
    assert list(domains) == ["gimp", "vlc"]
    assert (domains["gimp"].total, domains["gimp"].mean, domains["vlc"].mean) == (2, 0.0, 1.0)


@pytest.mark.parametrize(
    ("points", "count", "low", "high"),
    # Newcombe (1998), table I, method 3: 81 of 263, 15 of 148, 0 of 20, 1 of 29
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilsons_interval_as_published(points, count, low, high):
    assert wilson(points, count) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("points", "count"), [(1, 0), (-0.1, 2), (2.1, 2)])
def test_no_interval_of_nonsense(points, count):
    with pytest.raises(ValueError, match="points of"):
        wilson(points, count)


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=50))
def test_bounds_hold_whatever_the_missing_scores_are(scores):
    counted = tally([entry(score, "desktop_lost" if score is None else "agent_done") for score in scores])
    low, high = counted.bounds
    for filled in (0.0, 0.37, 1.0):
        assert low - 1e-9 <= sum(filled if score is None else score for score in scores) / len(scores) <= high + 1e-9
    if counted.interval:
        assert counted.interval[0] - 1e-9 <= counted.mean <= counted.interval[1] + 1e-9
