"""The live display: what a person reads while rollouts run."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from osworld_rollouts.console.campaign import Progress
from osworld_rollouts.console.list_command import duration
from osworld_rollouts.console.progress import LiveProgress
from osworld_rollouts.console.rollouts import RolloutRow
from osworld_rollouts.contracts.execution import ExecutionView, TurnSummary
from osworld_rollouts.contracts.outcome import Outcome, OutcomeKind, RolloutResult
from tests.console.samples import HOSTILE


def row(number, status="running", **fields):
    started = datetime.now(UTC) - timedelta(seconds=75)
    base = {
        "rollout_id": f"night/task-{number}/0", "workflow_id": "w", "run_id": "r", "status": status, "campaign": "night", "task": f"task-{number}",
        "domain": "os", "model": "m", "phase": "turns", "execution": 1, "turn": 3, "outcome": None, "score": None, "eligible": None,
        "started_at": started, "closed_at": None if status == "running" else started + timedelta(seconds=60),
    }  # fmt: skip
    return RolloutRow(**{**base, **fields})


def view(number, **fields):
    base = {
        "execution_id": f"night/task-{number}/0/x1", "phase": "model", "turn": 3, "max_turns": 15, "paused": False, "stop_requested": False, "head": None,
        "lease_id": None, "host_id": None, "score": None, "outcome": None, "recent": (TurnSummary(turn=2, actions="click(640, 380)"),),
    }  # fmt: skip
    return ExecutionView(**{**base, **fields})


def draw(rows, views, height=24, ended=0):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=110, height=height, color_system=None)
    result = RolloutResult(
        rollout_id="x", request_digest="d", outcome=Outcome(kind=OutcomeKind.AGENT_DONE, score=1.0), executions=()
    )
    progress = Progress(len(rows), ended={str(number): (result, None) for number in range(ended)})
    live = LiveProgress(None, console, campaign="night", progress=progress)
    live._rows, live._views = rows, {item.execution_id: item for item in views}
    console.print(live)
    return out.getvalue()


def test_phase_turn_action_score_and_time_are_shown():
    text = draw(
        [
            row(1),
            row(2, "completed", outcome="agent_done", score=1.0, eligible=True),
            row(3, "failed", outcome="desktop_lost", eligible=False),
        ],
        [view(1)],
        ended=2,
    )
    assert "task-1/0" in text
    assert "the model thinks" in text
    assert "3/15" in text
    assert "click(640, 380)" in text
    assert "1:15" in text
    assert "agent_done" in text
    assert "desktop_lost masked" in text
    assert "2 of 3 done" in text
    assert "1 running" in text


def test_a_second_attempt_and_a_pause_are_said():
    text = draw([row(1, execution=2)], [view(1, execution_id="night/task-1/0/x2", paused=True, phase="turns")])
    assert "working, pausing after this turn · attempt 2" in text


def test_a_thousand_rollouts_fit_the_terminal():
    text = draw([row(number) for number in range(1000)], [], height=20)
    assert len(text.splitlines()) < 20
    assert "988 more not shown" in text


def test_hostile_text_cannot_drive_the_terminal():
    text = draw([row(1)], [view(1, recent=(TurnSummary(turn=0, actions=HOSTILE),))])
    assert "\x1b]0" not in text
    assert "\x07" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.9, "59 s"), (60, "1:00"), (3599, "59:59"), (3600, "1:00:00"), (90061, "25:01:01")],
)
def test_durations(seconds, words):
    assert duration(seconds) == words
