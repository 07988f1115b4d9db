"""Calls that no reply was used of: what an execution's journal knows and its chain does not say yet.

A call whose attempts all failed, or that a cancellation, a time limit or a worker's death cut off, leaves no record of its own:
nothing came to make one from. Before an execution is sealed its journal is read once more, and each such call gets its record, so
that what was asked for, and what may have been generated and paid for, stands in the chain like everything else.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from osworld_rollouts.contracts.evidence import ModelCallRecord
from osworld_rollouts.contracts.steps import HistoryWindow
from osworld_rollouts.evidence import chain, transcript
from osworld_rollouts.serving.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from osworld_rollouts.contracts.evidence import Record
    from osworld_rollouts.evidence.store import EvidenceStore
    from osworld_rollouts.serving.journal import Attempt, CallKey

NOT_WRITTEN_DOWN: Final = "window, media, sampling: the worker that made the attempt did not write them down"
_SHORT: Final = 2000


def record_unanswered(store: EvidenceStore, records: Sequence[Record], head: str, why: str = "") -> str:
    """Append a record for every call that the journal knows and the chain does not; the new head.

    Args:
        store: where the journal is.
        records: the chain, from the first record to `head`.
        head: its last record's sha256.
        why: how the execution ended, for a reply that came and was not used.
    """
    journal = Journal(store)
    last = records[-1]
    told = {(call.turn, call.call) for call in transcript.calls(records)}
    for key in journal.calls(last.execution_id):
        attempts = [] if (key.turn, key.call) in told else journal.attempts(key)
        if attempts:
            last = _record(key, attempts, records, last, head, why)
            head = chain.append(store, head, last)
    return head


def _record(
    key: CallKey, attempts: Sequence[Attempt], records: Sequence[Record], last: Record, head: str, why: str
) -> ModelCallRecord:
    final = attempts[-1]
    before = transcript.previous_call(records)
    facts: dict[str, Any] = final.call or {"window": HistoryWindow(), "missing": (NOT_WRITTEN_DOWN,)}
    note = final.note if final.state == "failed" else _unused(final, why)
    return ModelCallRecord.model_validate(
        {
            **facts,
            "execution_id": key.execution_id,
            "index": last.index + 1,
            "previous": head,
            "recorded_at": datetime.now(UTC),
            "turn": key.turn,
            "call": key.call,
            "activity_attempt": final.attempt,
            "request_id": final.request_id,
            "started_at": final.started_at,
            "sent": final.sent,
            "received": None,
            "status": final.status,
            "latency_ms": final.latency_ms,
            "earlier_attempts": [item.as_json() for item in attempts],
            "error": note[:_SHORT],
            "segment": before.segment if before else 0,
        }
    )


def _unused(attempt: Attempt, why: str) -> str:
    ended = f"; the execution ended: {why}" if why else ""
    return f"{attempt.note}, and it was not used{ended}" if attempt.state == "replied" else f"{attempt.note}{ended}"
