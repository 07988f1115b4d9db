"""One operation on the guest, at most once: send, and when the reply is lost ask the guest's ledger."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from activities._failures import failure, unconfirmed
from osworld_rollouts.contracts.outcome import OutcomeKind
from osworld_rollouts.contracts.steps import OperationOutcome
from osworld_rollouts.desktops.guest_client import GuestError, GuestRefused, GuestUnreachable, Operation, ReplyLost
from osworld_rollouts.failpoints import reach

if TYPE_CHECKING:
    from osworld_rollouts.desktops.guest_client import CommandResult, GuestClient, OperationStatus

_RECONNECT_S = 10.0  # a guest server that restarts is back within this
_POLL_S = 0.5
_WATCH_S = 5.0  # how often the ledger is asked about an operation that takes long
_SILENT = 4  # unanswered questions in a row after which the reply is no longer waited for


@dataclass(frozen=True)
class Landed:
    """An operation that the guest has finished: its outcome and the guest's own answer."""

    outcome: OperationOutcome
    answer: dict[str, Any]


async def operate(client: GuestClient, code: str, operation: Operation) -> Landed:
    """Run Python in the guest under an operation id.

    Raises:
        ApplicationError: operation_refused; operation_indeterminate; operation_unconfirmed when the ledger cannot be asked either.
        GuestUnreachable: never sent, and the guest cannot be reached.
    """
    reach("act-before-dispatch", operation.operation_id)
    started = time.monotonic()
    while True:
        try:
            result = await _watched(client, code, operation)
            reach("act-after-landing", operation.operation_id)
        except GuestUnreachable:
            if time.monotonic() - started > _RECONNECT_S:
                raise
            await asyncio.sleep(_POLL_S)
            continue
        except ReplyLost as error:
            return await settled(client, operation, str(error))
        except GuestRefused as error:
            return await _refused(client, operation, error)
        took = round((time.monotonic() - started) * 1000)
        answer = {"output": result.output, "error": result.error, "returncode": result.returncode}
        return Landed(
            OperationOutcome(
                operation_id=operation.operation_id,
                returncode=result.returncode,
                error=_tail(result.error) if result.returncode else "",
                replayed=result.replayed,
                duration_ms=took,
            ),
            answer,
        )


async def _watched(client: GuestClient, code: str, operation: Operation) -> CommandResult:
    """Run the code; stop waiting for a reply once the guest has ended the operation, or answers nothing at all.

    Raises:
        GuestError: as `GuestClient.execute`.
    """
    running = asyncio.ensure_future(
        client.execute(["python", "-c", code], operation=operation, timeout=operation.timeout)
    )
    silent, finished = 0, False
    try:
        while not (await asyncio.wait([running], timeout=_WATCH_S))[0]:
            if finished:
                raise ReplyLost(f"{operation.operation_id} is finished in the guest and its reply did not come")
            try:
                status = await client.operation(operation.operation_id, timeout=_WATCH_S)
                silent, finished = 0, status is not None and status.state == "finished"
            except GuestRefused:
                silent = 0
            except GuestError as error:
                silent += 1
                if silent == _SILENT:
                    raise ReplyLost(
                        f"the guest answers nothing while {operation.operation_id} runs: {error}"
                    ) from error
        return running.result()
    finally:
        running.cancel()


async def settled(client: GuestClient, operation: Operation, why: str) -> Landed:
    """Ask the ledger until the operation has ended.

    Raises:
        ApplicationError: operation_unconfirmed when it cannot be asked or never arrived; operation_indeterminate when it was cut short.
    """
    deadline = time.monotonic() + operation.timeout + _RECONNECT_S
    while True:
        try:
            status = await client.operation(operation.operation_id, timeout=_RECONNECT_S)
        except GuestError as error:
            if time.monotonic() > deadline - operation.timeout:
                raise unconfirmed(f"{operation.operation_id}: {why}; the ledger cannot be asked: {error}") from error
            await asyncio.sleep(_POLL_S)
            continue
        if status is None:
            raise unconfirmed(f"{operation.operation_id}: {why}; the guest has not seen it")
        if status.state == "finished":
            return recorded(status)
        if status.state == "interrupted" or time.monotonic() > deadline:
            raise _indeterminate(operation.operation_id, status.state)
        await asyncio.sleep(_POLL_S)


def recorded(status: OperationStatus) -> Landed:
    """The result that the ledger holds."""
    answer = _json(status.body)
    took = round(((status.finished_at or status.started_at) - status.started_at) * 1000)
    error = str(answer.get("error") or answer.get("message") or "") if status.returncode != 0 else ""
    return Landed(
        OperationOutcome(
            operation_id=status.operation_id,
            returncode=status.returncode,
            error=_tail(error),
            replayed=True,
            duration_ms=took,
        ),
        answer,
    )


async def _refused(client: GuestClient, operation: Operation, error: GuestRefused) -> Landed:
    if error.kind == "operation_running":
        return await settled(client, operation, str(error))
    if error.kind == "operation_interrupted":
        raise _indeterminate(operation.operation_id, "interrupted")
    if error.status >= 500:
        # The guest's own word (it ran longer than it may) is in its ledger; anybody between us can say 500 too.
        return await settled(client, operation, str(error))
    raise failure(
        OutcomeKind.OPERATION_REFUSED,
        f"the guest refused {operation.operation_id}: {error}",
        phase="acting",
        remedy="another worker may hold this desktop; look for two workers with the same state directory",
    )


def _indeterminate(operation_id: str, state: str) -> Exception:
    return failure(
        OutcomeKind.OPERATION_INDETERMINATE,
        f"it cannot be known whether {operation_id} landed: the guest's ledger says {state}",
        phase="acting",
        remedy="nothing to mend; a new execution starts on a fresh desktop if the retry budget allows",
    )


def _json(body: str | None) -> dict[str, Any]:
    try:
        value = json.loads(body or "{}")
    except ValueError:
        value = {"text": body}
    return value if isinstance(value, dict) else {"value": value}


def _tail(text: str) -> str:
    return text if len(text) <= 500 else f"…{text[-499:]}"
