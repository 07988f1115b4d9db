"""The journal of model calls: what was sent and what came back, durable before anyone acts on it.

An attempt is written down before it is sent and again when its reply is there, so that a worker that dies in between leaves
one of two things: a reply, which the next attempt uses instead of buying another, or a note that a sample may exist which
nobody saw, which the record of the call repeats.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from osworld_rollouts.evidence.errors import BlobCorrupt, BlobMissing
from osworld_rollouts.evidence.store import key_segments, put_json
from osworld_rollouts.serving.client import RawReply

if TYPE_CHECKING:
    from collections.abc import Iterator

    from osworld_rollouts.contracts.model import ModelRequest
    from osworld_rollouts.evidence.store import EvidenceStore
    from osworld_rollouts.serving.errors import ModelCallError

ROOT: Final = "journal"
NO_REPLY: Final = "no reply recorded: a sample may exist"


@dataclass(frozen=True)
class CallKey:
    """Which call: the call-th of a turn of an execution."""

    execution_id: str
    turn: int
    call: int

    @property
    def prefix(self) -> str:
        """Where its entries stand in the store."""
        return f"{journal_prefix(self.execution_id)}/t{self.turn:06d}-c{self.call:03d}"


@dataclass(frozen=True)
class Attempt:
    """One attempt at a call.

    `state` is `replied`, `failed` (an error was seen) or `open` (neither was written down: the worker died or was cut off).
    """

    request_id: str
    attempt: int
    state: str
    started_at: str
    sent: str
    note: str
    kind: str = ""
    status: int | None = None
    sample_may_exist: bool = False
    received: str | None = None
    latency_ms: int = 0
    headers: dict[str, str] | None = None
    call: dict[str, Any] | None = None
    """Fields of the call's record that were known before sending: api, evidence, window, media, sampling, missing."""

    def as_json(self) -> dict[str, Any]:
        """For `ModelCallRecord.earlier_attempts`."""
        return {
            "request_id": self.request_id, "activity_attempt": self.attempt, "state": self.state, "started_at": self.started_at,
            "note": self.note, "kind": self.kind, "status": self.status, "sample_may_exist": self.sample_may_exist,
            "received": self.received, "latency_ms": self.latency_ms, "sent": self.sent,
        }  # fmt: skip


@dataclass(frozen=True)
class Found:
    """What the journal knows of a call: a reply to exactly this request, if one came, and every other attempt, oldest first."""

    reply: RawReply | None
    replied: Attempt | None
    earlier: tuple[Attempt, ...]


def journal_prefix(execution_id: str) -> str:
    """Where an execution's entries stand in the store."""
    return f"{ROOT}/{key_segments(execution_id)}/_calls"


def put_request(store: EvidenceStore, request: ModelRequest) -> str:
    """Store a request as sent (images as references, keys in order); its sha256."""
    source = {} if request.source is None else {"source": request.source}
    headers = {"headers": request.headers} if request.headers else {}
    return put_json(store, {"api": request.api, "body": request.body, **source, **headers})


class Journal:
    """The journal in an evidence store. Methods block; every one is durable when it returns."""

    def __init__(self, store: EvidenceStore) -> None:
        self._store = store

    def begin(
        self, key: CallKey, *, attempt: int, request_id: str, sent: str, call: dict[str, Any] | None = None
    ) -> None:
        """Write down that this request (the sha256 from `put_request`) is about to be sent, with what its record will say of it.

        Raises:
            ValueError: the request id was used before.
        """
        entry = {
            "attempt": attempt,
            "request_id": request_id,
            "sent": sent,
            "started_at": datetime.now(UTC).isoformat(),
            **({"call": call} if call is not None else {}),
        }
        if not self._store.put_named(self._name(key, request_id, "begun"), json.dumps(entry).encode(), exclusive=True):
            raise ValueError(f"request id {request_id} was used before; every attempt needs a fresh one")

    def received(self, key: CallKey, reply: RawReply) -> str:
        """Keep a reply; the sha256 of its bytes. Once this returns, the call is never bought again."""
        sha256 = self._store.put(reply.body)
        entry = {
            "status": reply.status, "received": sha256, "headers": reply.headers, "latency_ms": reply.latency_ms,
            "started_at": reply.started_at.isoformat(),
        }  # fmt: skip
        self._store.put_named(self._name(key, reply.request_id, "reply"), json.dumps(entry).encode())
        return sha256

    def failed(self, key: CallKey, request_id: str, error: ModelCallError) -> None:
        """Keep how an attempt failed, with what arrived of its reply."""
        entry = {
            "kind": error.kind, "status": error.status, "note": error.message, "sample_may_exist": error.sample_may_exist,
            "received": self._store.put(error.body) if error.body else None, "failed_at": datetime.now(UTC).isoformat(),
        }  # fmt: skip
        self._store.put_named(self._name(key, request_id, "failed"), json.dumps(entry).encode())

    def lookup(self, key: CallKey, sent: str) -> Found:
        """What is known of a call. A reply counts only if it answers exactly this request."""
        attempts = self.attempts(key)
        for attempt in attempts:
            if attempt.state != "replied" or attempt.sent != sent or attempt.received is None:
                continue
            try:
                body = self._store.get(attempt.received)
            except (BlobMissing, BlobCorrupt):
                continue  # a journal entry whose bytes are gone answers nothing; the attempt stays listed
            reply = RawReply(
                status=attempt.status or 200, body=body, headers=attempt.headers or {}, latency_ms=attempt.latency_ms,
                started_at=datetime.fromisoformat(attempt.started_at), request_id=attempt.request_id,
            )  # fmt: skip
            return Found(reply, attempt, tuple(other for other in attempts if other is not attempt))
        return Found(None, None, tuple(attempts))

    def attempts(self, key: CallKey) -> list[Attempt]:
        """Every attempt at a call, oldest first."""
        entries: dict[str, dict[str, Any]] = {}
        for name in self._store.list_named(key.prefix):
            request_id, _, part = name.rsplit("/", 1)[1].rpartition(".")
            data = self._store.get_named(name)
            if data is not None:
                entries.setdefault(request_id, {})[part] = json.loads(data)
        return sorted(
            (_attempt(parts) for parts in entries.values() if "begun" in parts), key=lambda item: item.started_at
        )

    def calls(self, execution_id: str) -> list[CallKey]:
        """Every call of an execution that was begun, in order."""
        places = {name.split("/")[-2] for name in self.keys(execution_id)}
        return [
            CallKey(execution_id, int(turn.removeprefix("t")), int(call.removeprefix("c")))
            for turn, _, call in (place.partition("-") for place in sorted(places))
        ]

    def keys(self, execution_id: str) -> Iterator[str]:
        """Names of all entries of an execution."""
        return self._store.list_named(journal_prefix(execution_id))

    def _name(self, key: CallKey, request_id: str, part: str) -> str:
        return f"{key.prefix}/{request_id}.{part}"


def _attempt(parts: dict[str, Any]) -> Attempt:
    begun, reply, failed = parts["begun"], parts.get("reply"), parts.get("failed")
    base: dict[str, Any] = {
        "request_id": begun["request_id"], "attempt": begun["attempt"], "sent": begun["sent"], "started_at": begun["started_at"],
        "call": begun.get("call"),
    }  # fmt: skip
    if reply is not None:
        return Attempt(
            **{**base, "started_at": reply["started_at"]}, state="replied", note="reply received", status=reply["status"],
            received=reply["received"], latency_ms=reply["latency_ms"], headers=reply["headers"],
        )  # fmt: skip
    if failed is not None:
        return Attempt(
            **base, state="failed", note=failed["note"], kind=failed["kind"], status=failed["status"],
            sample_may_exist=failed["sample_may_exist"], received=failed["received"],
        )  # fmt: skip
    return Attempt(**base, state="open", note=NO_REPLY, sample_may_exist=True)
