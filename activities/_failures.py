"""How an activity fails: one typed error whose type is the outcome kind and whose detail is the cause."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from temporalio.exceptions import ApplicationError

from osworld_rollouts.contracts.outcome import Cause, OutcomeKind

if TYPE_CHECKING:
    from osworld_rollouts.serving.errors import ModelCallError

UNCONFIRMED = "operation_unconfirmed"
"""Sent to the desktop, and it is not known whether it landed. The workflow asks the guest."""


def failure(
    kind: OutcomeKind,
    message: str,
    *,
    phase: str,
    remedy: str = "",
    details: dict[str, str] | None = None,
    retry: bool = False,
    retry_after_s: float | None = None,
) -> ApplicationError:
    """An error for Temporal. With `retry` another attempt of the same activity may follow; the workflow's policy bounds it."""
    cause = Cause(kind=kind, message=message[:2000], phase=phase, remedy=remedy[:500], details=_short(details or {}))
    return ApplicationError(
        cause.message,
        cause.model_dump(mode="json"),
        type=str(kind),
        non_retryable=not retry,
        next_retry_delay=timedelta(seconds=retry_after_s) if retry_after_s is not None else None,
    )


def unconfirmed(message: str) -> ApplicationError:
    """An error that makes the workflow ask the guest what landed."""
    return ApplicationError(message[:2000], type=UNCONFIRMED, non_retryable=True)


def _short(details: dict[str, str]) -> dict[str, str]:
    return {
        key: value if len(value) <= 4000 else f"{value[:2000]}\n…\n{value[-1900:]}" for key, value in details.items()
    }


def call_failure(error: ModelCallError, phase: str) -> ApplicationError:
    """A model call that brought no reply: another attempt follows where the same request may succeed later."""
    return failure(
        OutcomeKind.MODEL_UNREACHABLE if error.retryable else OutcomeKind.MODEL_REJECTED,
        error.message,
        phase=phase,
        remedy=error.remedy,
        retry=error.retryable,
        retry_after_s=error.retry_after,
        details={
            "kind": error.kind,
            "status": str(error.status),
            "sample_may_exist": str(error.sample_may_exist).lower(),
        },
    )
