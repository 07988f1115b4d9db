"""How an execution ended. The taxonomy's rules (whose fault, retry, eligibility) live in `osworld_rollouts/outcomes.py`."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from osworld_rollouts.contracts._base import Contract


class OutcomeKind(StrEnum):
    """One word for how an execution ended. A failure's kind is also the type of the Temporal failure."""

    # The agent's episode ended and was scored.
    AGENT_DONE = "agent_done"
    AGENT_FAIL = "agent_fail"
    HORIZON_REACHED = "horizon_reached"
    POLICY_RESPONSE_INVALID = "policy_response_invalid"
    POLICY_STOPPED = "policy_stopped"
    CONTEXT_OVERFLOW = "context_overflow"
    DEADLINE_REACHED = "deadline_reached"
    STOPPED_BY_OPERATOR = "stopped_by_operator"
    # It was not.
    REQUEST_INVALID = "request_invalid"
    TASK_UNSUPPORTED = "task_unsupported"
    DESKTOP_UNAVAILABLE = "desktop_unavailable"
    DESKTOP_NOT_READY = "desktop_not_ready"
    DESKTOP_LOST = "desktop_lost"
    DESKTOP_UNRESPONSIVE = "desktop_unresponsive"
    HOST_LOST = "host_lost"
    PREPARE_FAILED = "prepare_failed"
    OPERATION_INDETERMINATE = "operation_indeterminate"
    OPERATION_REFUSED = "operation_refused"
    OBSERVATION_FAILED = "observation_failed"
    MODEL_UNREACHABLE = "model_unreachable"
    MODEL_REJECTED = "model_rejected"
    EVIDENCE_REFUSED = "evidence_refused"
    EVALUATION_FAILED = "evaluation_failed"
    EVIDENCE_UNAVAILABLE = "evidence_unavailable"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    CANCELLED = "cancelled"
    INTERNAL_ERROR = "internal_error"


class Cause(Contract):
    """Why, in words for a person: what happened, to what, and what to do."""

    kind: OutcomeKind
    message: str
    phase: str = ""
    remedy: str = ""
    details: dict[str, str] = Field(default_factory=dict)


class Outcome(Contract):
    """The end of one execution. `score` is the evaluator's or absent. `eligible` is derived by runtime admission."""

    kind: OutcomeKind
    score: float | None = None
    eligible: bool = False
    admission_reason: str = ""
    admission_policy: str = ""
    turns: int = 0
    cause: Cause | None = None
    also: tuple[Cause, ...] = Field(
        default=(), description="later problems (teardown, sealing) that do not change the outcome"
    )

    @property
    def mask_sample(self) -> bool:
        """True when a trainer must not use the sample: the negation of `eligible`."""
        return not self.eligible


class ExecutionResult(Contract):
    """What an execution leaves behind in Temporal; everything else is in its evidence."""

    execution_id: str
    number: int
    outcome: Outcome
    evidence_head: str | None = None
    lease_id: str | None = None
    host_id: str | None = None
    workflow_id: str = ""
    run_id: str = ""
    unanswered_calls: int = Field(default=0, description="model calls of which no reply was used")
    unseen_samples: int = Field(
        default=0, description="attempts at model calls that may have left a sample nobody saw, each perhaps paid for"
    )


class RolloutResult(Contract):
    """A rollout's end: its outcome is the last execution's; every execution is listed."""

    rollout_id: str
    request_digest: str
    outcome: Outcome
    executions: tuple[ExecutionResult, ...]
