"""The taxonomy of outcomes: whose fault, whether another execution may help, whether the sample counts. Pure functions and one table.

Vocabulary. An execution has one outcome *kind*. *Scored* kinds are ends of the agent's episode: the evaluator is asked, and the
score is its own. The others are failures: there is no score, the execution workflow fails with the kind as its failure type.
*Eligible* is runtime admission's judgement that execution and evaluation were reliable; `mask_sample` is its negation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from osworld_rollouts.contracts.outcome import OutcomeKind

ADMISSION_POLICY = "osworld-rollouts-runtime-admission-v1"


class Fault(StrEnum):
    """Whose doing an outcome is."""

    POLICY = "policy"
    TASK = "task"
    EVALUATOR = "evaluator"
    DESKTOP = "desktop"
    MODEL_ENDPOINT = "model endpoint"
    OPERATOR = "operator"
    SYSTEM = "system"


@dataclass(frozen=True)
class Rule:
    """What follows from an outcome kind."""

    fault: Fault
    scored: bool
    retry_may_help: bool
    eligible: bool
    meaning: str


_P, _D, _M, _S = Fault.POLICY, Fault.DESKTOP, Fault.MODEL_ENDPOINT, Fault.SYSTEM

RULES: dict[OutcomeKind, Rule] = {
    OutcomeKind.AGENT_DONE: Rule(_P, True, False, True, "the agent said DONE"),
    OutcomeKind.AGENT_FAIL: Rule(_P, True, False, True, "the agent said FAIL"),
    OutcomeKind.HORIZON_REACHED: Rule(_P, True, False, True, "the turns were used up"),
    OutcomeKind.POLICY_RESPONSE_INVALID: Rule(_P, True, False, True, "replies in a row held no action"),
    OutcomeKind.POLICY_STOPPED: Rule(
        _P, True, False, True, "the policy ended without DONE or FAIL, or asked for a person"
    ),
    OutcomeKind.CONTEXT_OVERFLOW: Rule(
        _P, True, False, True, "the prompt did not fit the model with the fewest images"
    ),
    OutcomeKind.DEADLINE_REACHED: Rule(
        _S, True, False, False, "the execution's wall-clock deadline came before the horizon"
    ),
    OutcomeKind.STOPPED_BY_OPERATOR: Rule(Fault.OPERATOR, True, False, False, "a person stopped it after a turn"),
    OutcomeKind.REQUEST_INVALID: Rule(Fault.OPERATOR, False, False, False, "the request cannot be run as written"),
    OutcomeKind.TASK_UNSUPPORTED: Rule(
        Fault.TASK, False, False, False, "this evaluator or desktop cannot run the task truthfully"
    ),
    OutcomeKind.DESKTOP_UNAVAILABLE: Rule(_D, False, True, False, "no desktop could be made or none was free"),
    OutcomeKind.DESKTOP_NOT_READY: Rule(_D, False, True, False, "the desktop did not pass its readiness gate"),
    OutcomeKind.DESKTOP_LOST: Rule(_D, False, True, False, "the desktop or its guest server is gone"),
    OutcomeKind.DESKTOP_UNRESPONSIVE: Rule(_D, False, True, False, "the desktop is there and does not answer"),
    OutcomeKind.HOST_LOST: Rule(_S, False, True, False, "the host that holds the desktop no longer polls its queue"),
    OutcomeKind.PREPARE_FAILED: Rule(_D, False, True, False, "a setup step failed"),
    OutcomeKind.OPERATION_INDETERMINATE: Rule(_S, False, True, False, "it cannot be known whether an effect landed"),
    OutcomeKind.OPERATION_REFUSED: Rule(
        _S, False, True, False, "the guest refused an operation: stale fence or sequence"
    ),
    OutcomeKind.OBSERVATION_FAILED: Rule(_D, False, True, False, "the desktop gave no usable screenshot"),
    OutcomeKind.MODEL_UNREACHABLE: Rule(
        _M, False, True, False, "the model's server did not answer within all attempts"
    ),
    OutcomeKind.MODEL_REJECTED: Rule(_M, False, False, False, "the model's server refused the request"),
    OutcomeKind.EVIDENCE_REFUSED: Rule(_M, False, False, False, "exact evidence was asked for and cannot be had"),
    OutcomeKind.EVALUATION_FAILED: Rule(Fault.EVALUATOR, False, True, False, "the evaluator gave no verdict"),
    OutcomeKind.EVIDENCE_UNAVAILABLE: Rule(_S, False, True, False, "the evidence store cannot be read or written"),
    OutcomeKind.DEADLINE_EXCEEDED: Rule(_S, False, True, False, "time ran out before there was anything to score"),
    OutcomeKind.CANCELLED: Rule(Fault.OPERATOR, False, False, False, "a person cancelled it"),
    OutcomeKind.INTERNAL_ERROR: Rule(_S, False, True, False, "a defect of this software"),
}


def retry_allowed(kind: OutcomeKind, number: int, max_executions: int) -> bool:
    """Whether a new execution starts after the n-th ended in `kind`."""
    return RULES[kind].retry_may_help and number < max_executions


@dataclass(frozen=True)
class EpisodeFacts:
    """What is known when the turn loop is left without a failure."""

    terminal_action: str | None = None
    turns_used_up: bool = False
    invalid_replies: bool = False
    overflow: bool = False
    policy_stopped: bool = False
    deadline: bool = False
    operator_stop: bool = False


def episode_outcome(facts: EpisodeFacts) -> OutcomeKind:
    """Which scored kind the facts amount to: what the agent said wins, then who stopped it, then what ran out.

    Raises:
        ValueError: when no fact says why the episode ended, or the terminal action is unknown.
    """
    terminal = {"done": OutcomeKind.AGENT_DONE, "fail": OutcomeKind.AGENT_FAIL, "call_user": OutcomeKind.POLICY_STOPPED}
    if facts.terminal_action is not None:
        if facts.terminal_action not in terminal:
            raise ValueError(f"{facts.terminal_action!r} is not a terminal action; known: {sorted(terminal)}")
        return terminal[facts.terminal_action]
    for holds, kind in (
        (facts.policy_stopped, OutcomeKind.POLICY_STOPPED),
        (facts.overflow, OutcomeKind.CONTEXT_OVERFLOW),
        (facts.invalid_replies, OutcomeKind.POLICY_RESPONSE_INVALID),
        (facts.operator_stop, OutcomeKind.STOPPED_BY_OPERATOR),
        (facts.deadline, OutcomeKind.DEADLINE_REACHED),
        (facts.turns_used_up, OutcomeKind.HORIZON_REACHED),
    ):
        if holds:
            return kind
    raise ValueError("the episode ended and no fact says why")


@dataclass(frozen=True)
class Admission:
    """Runtime admission: whether the sample may be used, why, and by which policy."""

    eligible: bool
    reason: str
    policy: str = ADMISSION_POLICY


def admit(kind: OutcomeKind, score: float | None, *, exact: bool = False, violations: int = 0) -> Admission:
    """Judge whether execution and evaluation are reliable. Touches neither score nor outcome.

    Stated rule for exact evidence: one violated call masks the sample.
    """
    rule = RULES[kind]
    if not rule.eligible:
        return Admission(eligible=False, reason=f"{kind}: {rule.meaning}")
    if score is None:
        return Admission(eligible=False, reason="not scored")
    if exact and violations:
        return Admission(eligible=False, reason=f"exact evidence violated {violations} time(s)")
    return Admission(eligible=True, reason=str(kind))
