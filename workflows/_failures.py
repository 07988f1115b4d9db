"""From what Temporal raises to a cause a person understands. Pure."""

from __future__ import annotations

import asyncio

from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    FailureError,
    TerminatedError,
    TimeoutType,
    is_cancelled_exception,
)
from temporalio.exceptions import (
    TimeoutError as TemporalTimeoutError,
)

from osworld_rollouts.contracts.outcome import Cause, OutcomeKind

UNCONFIRMED = "operation_unconfirmed"
"""Failure type of an activity that sent an operation and does not know whether it landed: the guest must be asked."""

PAYLOAD_TOO_LARGE = "PayloadsTooLarge"
"""Failure type by which the SDK says that an activity's answer is larger than Temporal takes."""

_ON_TIMEOUT = {
    "provisioning": OutcomeKind.DESKTOP_NOT_READY,
    "preparing": OutcomeKind.PREPARE_FAILED,
    "model": OutcomeKind.MODEL_UNREACHABLE,
    "acting": OutcomeKind.OPERATION_INDETERMINATE,
    "recovering": OutcomeKind.OPERATION_INDETERMINATE,
    "paused": OutcomeKind.HOST_LOST,
    "post-steps": OutcomeKind.EVALUATION_FAILED,
    "evaluating": OutcomeKind.EVALUATION_FAILED,
    "opening": OutcomeKind.EVIDENCE_UNAVAILABLE,
    "sealing": OutcomeKind.EVIDENCE_UNAVAILABLE,
}


class ExecutionFailed(Exception):
    """Leaves the turn loop with the cause that ends the execution."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.message)
        self.cause = cause


def needs_recovery(error: ActivityError) -> bool:
    """Whether operations may have reached the desktop while their reply is lost."""
    inner = error.cause
    if isinstance(inner, ApplicationError):
        return inner.type == UNCONFIRMED
    if isinstance(inner, TemporalTimeoutError):
        return inner.type in {TimeoutType.HEARTBEAT, TimeoutType.START_TO_CLOSE, TimeoutType.SCHEDULE_TO_CLOSE}
    return False


def out_of_time(error: ActivityError) -> bool:
    """Whether an activity was given up while it worked, because all the time it had was over. An answer that it failed is none of that."""
    return isinstance(error.cause, TemporalTimeoutError) and error.cause.type == TimeoutType.SCHEDULE_TO_CLOSE


def observation_failed(error: ActivityError) -> bool:
    """Whether the effects landed and only looking at the desktop failed."""
    return isinstance(error.cause, ApplicationError) and error.cause.type == OutcomeKind.OBSERVATION_FAILED


def cause_of(error: BaseException, phase: str) -> Cause:
    """The first cause inside what Temporal raised, in one sentence."""
    if isinstance(error, ExecutionFailed):
        return error.cause
    if isinstance(error, asyncio.CancelledError | CancelledError) or is_cancelled_exception(error):
        return Cause(kind=OutcomeKind.CANCELLED, message="cancelled on request", phase=phase)
    if isinstance(error, ChildWorkflowError) and error.cause is not None:
        return cause_of(error.cause, phase)
    inner = error.cause if isinstance(error, ActivityError) else error
    if isinstance(inner, TerminatedError):
        return Cause(
            kind=OutcomeKind.CANCELLED,
            message=f"terminated in Temporal: {inner.message}",
            phase=phase,
            remedy="cancel instead of terminating, so that the evidence is sealed; the desktop is removed by its host's reaper",
        )
    if isinstance(inner, TemporalTimeoutError):
        return _timeout(inner, phase)
    if isinstance(inner, ApplicationError):
        return _application(inner, phase)
    message = inner.message if isinstance(inner, FailureError) else str(inner)
    return Cause(
        kind=OutcomeKind.INTERNAL_ERROR, message=f"{phase}: {type(inner).__name__}: {message}"[:2000], phase=phase
    )


def _application(error: ApplicationError, phase: str) -> Cause:
    for detail in error.details:
        if isinstance(detail, dict) and {"kind", "message"} <= detail.keys():
            return Cause.model_validate(detail)
    if error.type == PAYLOAD_TOO_LARGE:
        return Cause(
            kind=OutcomeKind.INTERNAL_ERROR,
            message=f"{phase}: the step's answer is larger than a Temporal payload may be (2 MB): {error.message}"[
                :2000
            ],
            phase=phase,
            remedy="this is a defect of osworld-rollouts; please report it with the worker's log",
        )
    kind = OutcomeKind(error.type) if error.type in set(OutcomeKind) else OutcomeKind.INTERNAL_ERROR
    prefix = "" if kind is not OutcomeKind.INTERNAL_ERROR else f"{phase}: {error.type or 'error'}: "
    return Cause(kind=kind, message=f"{prefix}{error.message}"[:2000], phase=phase)


def _timeout(error: TemporalTimeoutError, phase: str) -> Cause:
    if error.type == TimeoutType.SCHEDULE_TO_START:
        if phase == "provisioning":
            return Cause(
                kind=OutcomeKind.DESKTOP_UNAVAILABLE,
                message="no desktop host had room within the pool's waiting time",
                phase=phase,
                remedy="start more desktop hosts (worker.py --roles desktops) or raise timing.pool_wait_s",
            )
        if phase in {"opening", "model", "sealing"}:
            return Cause(
                kind=OutcomeKind.INTERNAL_ERROR,
                message=f"{phase}: no worker polls the queue",
                phase=phase,
                remedy="start a worker (worker.py --roles workflows,models)",
            )
        return Cause(
            kind=OutcomeKind.HOST_LOST,
            message=f"{phase}: the host that holds the desktop did not take the step within its grace time",
            phase=phase,
            remedy="start that host's worker again with the same state directory, or raise timing.host_grace_s",
        )
    what = {
        TimeoutType.HEARTBEAT: "the worker died or lost its connection",
        TimeoutType.START_TO_CLOSE: "the step took longer than its limit",
        TimeoutType.SCHEDULE_TO_CLOSE: "the step did not end within all its attempts' limit",
    }.get(error.type or TimeoutType.START_TO_CLOSE, "timed out")
    return Cause(kind=_ON_TIMEOUT.get(phase, OutcomeKind.INTERNAL_ERROR), message=f"{phase}: {what}", phase=phase)
