"""Markdown for the Temporal UI. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osworld_rollouts.contracts.execution import ExecutionStart, ExecutionView
    from osworld_rollouts.contracts.outcome import Outcome, RolloutResult


def execution_details(
    start: ExecutionStart, view: ExecutionView, outcome: Outcome | None, store: str | None = None
) -> str:
    """Instruction, place, last three turns, score, evidence."""
    rollout = start.rollout.request.rollout
    lines = [
        f"**{_text(rollout.task.instruction)}**",
        "",
        f"{rollout.task.domain}/{rollout.task.task_id} · {_text(rollout.model.name)} · {rollout.adapter.name}",
        "",
        f"Phase **{view.phase}**, turn {view.turn} of at most {view.max_turns}" + (" — paused" if view.paused else ""),
    ]
    if view.recent:
        lines += ["", "| turn | action | |", "| --- | --- | --- |"]
        lines += [f"| {item.turn + 1} | {_text(item.actions)} | {_text(item.note)} |" for item in view.recent]
    if outcome:
        score = "no score" if outcome.score is None else f"score **{outcome.score:g}**"
        lines += [
            "",
            f"Outcome **{outcome.kind}**, {score}, {'eligible' if outcome.eligible else 'masked'}: {outcome.admission_reason}",
        ]
        if outcome.cause:
            lines += ["", f"> {_text(outcome.cause.message)}"]
    if view.head:
        rollout_id = start.rollout.request.rollout_id
        place = f" in `{store.replace('`', '')}`" if store else ""
        lines += [
            "",
            f"Evidence head `{view.head}`{place}; `rollouts verify {rollout_id}` checks it against this history",
        ]
    if view.lease_id:
        lines += [f"Desktop `{view.lease_id}` on host `{view.host_id}`"]
    return "\n".join(lines)


def rollout_details(instruction: str, executions: RolloutResult | None, running: str | None) -> str:
    """Which executions there were and which one runs."""
    lines = [f"**{_text(instruction)}**", ""]
    if executions:
        lines += ["| execution | outcome | score | evidence |", "| --- | --- | --- | --- |"]
        lines += [
            f"| {item.execution_id} | {item.outcome.kind} | "
            f"{'' if item.outcome.score is None else format(item.outcome.score, 'g')} | `{(item.evidence_head or '')[:16]}` |"
            for item in executions.executions
        ]
    if running:
        lines += ["", f"Running: `{running}`"]
    return "\n".join(lines)


def _text(value: str) -> str:
    """Untrusted text in one Markdown table cell."""
    line = " ".join(value.split())
    for character in "\\`*_{}[]<>|#!":
        line = line.replace(character, "\\" + character)
    return line[:300]
