"""What a running rollout does, in words: the same in `list`, in `show` and in the live display."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osworld_rollouts.console.pending import Doing
    from osworld_rollouts.contracts.execution import ExecutionView

_PHASES = {
    "": "starting",
    "starting": "waiting for a worker",
    "opening": "opening its evidence",
    "provisioning": "making a desktop",
    "preparing": "setting up the task",
    "turns": "working",
    "model": "the model thinks",
    "acting": "acting",
    "recovering": "asking the guest what landed",
    "post-steps": "closing what is open",
    "evaluating": "OSWorld's evaluator looks",
    "teardown": "removing the desktop",
    "sealing": "sealing the evidence",
    "closed": "attempt ended",
}


def phase_words(phase: str) -> str:
    """A phase as the workflows name it, for a person. An execution is an attempt at the rollout."""
    if phase.startswith("waiting for execution "):
        return f"waiting before attempt {phase.rpartition(' ')[2]}"
    if phase.startswith("execution "):
        return f"attempt {phase.rpartition(' ')[2]} starts"
    return _PHASES.get(phase, phase)


def state_words(phase: str, doing: Doing | None = None, view: ExecutionView | None = None) -> str:
    """What a running rollout does now, what a person has asked of it, and what is being tried again.

    Args:
        phase: the newest known.
        doing: what the server says of the running execution; without it, no pause can be told from one that is asked for.
        view: what the execution says of itself, when a worker answers.
    """
    if doing is not None:
        phase = doing.phase or phase
    words = [phase_words(phase)]
    if doing is not None and doing.waits_for_worker:
        words = ["waiting for a worker"]
    elif phase == "provisioning" and doing is not None and doing.waits_for_desktop:
        words = ["waiting for a free desktop"]
    elif doing is not None and doing.paused and (view is None or view.paused):
        words = ["paused"]
    if view is not None and view.paused and words != ["paused"]:
        words.append("pausing after this turn")
    if view is not None and view.stop_requested and phase == "turns":
        words.append("stopping after this turn")
    again = max(doing.activities, key=lambda item: item.attempt, default=None) if doing is not None else None
    if again is not None and again.attempt > 1:
        words.append(f"{again.words} attempt {again.attempt}")
    return ", ".join(words)
