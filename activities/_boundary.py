"""What surrounds every step: correlation ids in the log, heartbeats, and a type for whatever escapes."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import structlog
from temporalio import activity
from temporalio.exceptions import FailureError

from activities._failures import failure
from activities._heartbeat import heartbeating
from osworld_rollouts.contracts.outcome import OutcomeKind
from osworld_rollouts.evidence.errors import EvidenceError, EvidenceUnavailable
from osworld_rollouts.logs import correlated

log = structlog.get_logger()


@asynccontextmanager
async def boundary(phase: str, **ids: str | int) -> AsyncGenerator[None]:
    """Run a step. An evidence store that is away may be tried again; a defect of ours is not retried for hours in silence.

    Raises:
        ApplicationError: evidence_unavailable (retried), internal_error, or whatever typed error the step raises itself.
    """
    with correlated(**ids, attempt=activity.info().attempt):
        try:
            async with heartbeating():
                yield
        except asyncio.CancelledError:
            # What this attempt brings from here on stays in the evidence store and in the guest's ledger; nobody takes it for the result.
            log.warning("given up by Temporal or by this worker's end", phase=phase)
            raise
        except FailureError:
            raise
        except EvidenceUnavailable as error:
            raise failure(
                OutcomeKind.EVIDENCE_UNAVAILABLE, str(error), phase=phase, remedy=error.remedy, retry=True
            ) from error
        except EvidenceError as error:
            raise failure(OutcomeKind.EVIDENCE_UNAVAILABLE, str(error), phase=phase, remedy=error.remedy) from error
        except Exception as error:
            log.exception("step failed unexpectedly", phase=phase)
            raise failure(
                OutcomeKind.INTERNAL_ERROR,
                f"{phase}: {type(error).__name__}: {error}",
                phase=phase,
                remedy="this is a defect of osworld-rollouts; please report it with the traceback",
                details={"traceback": traceback.format_exc()},
            ) from error
