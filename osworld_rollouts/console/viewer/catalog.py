"""Which rollouts there are to show and what they amount to: the evidence store's and, while it answers, the Temporal server's."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from osworld_rollouts.console.viewer.trace import SCRIPTED
from osworld_rollouts.contracts.evidence import ExecutionStarted, ModelCallRecord
from osworld_rollouts.contracts.request import RolloutRequest
from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.errors import EvidenceError
from osworld_rollouts.evidence.index import list_pointers
from osworld_rollouts.evidence.store import get_json
from osworld_rollouts.metrics import Entry, Tally, by_domain, tally

if TYPE_CHECKING:
    from datetime import datetime

    from osworld_rollouts.console.rollouts import RolloutRow
    from osworld_rollouts.console.viewer.live import Known, LiveExecution
    from osworld_rollouts.evidence.index import ExecutionPointer
    from osworld_rollouts.evidence.store import EvidenceStore

PAGE_SIZE = 300
_NO_DOMAIN = "domain not known"


@dataclass(frozen=True)
class Row:
    """One finished rollout: its last execution. `turns` is None for one that left no evidence."""

    rollout_id: str
    kind: str
    score: float | None
    eligible: bool
    reason: str
    turns: int | None
    attempts: int
    model: str
    scripted: bool
    ended_at: datetime


@dataclass(frozen=True)
class Listing:
    """One page of the overview. `counted` is over every rollout, not over the page; `answers` says whether Temporal's are among them."""

    campaign: str | None
    rows: list[Row]
    finished: int
    counted: Tally
    domains: dict[str, Tally]
    live: list[LiveExecution]
    answers: bool
    page: int
    pages: int


@dataclass(frozen=True)
class _Ending:
    """How a rollout ended. `turns` is None where only Temporal tells."""

    kind: str
    score: float | None
    eligible: bool
    reason: str
    turns: int | None
    at: datetime


@dataclass(frozen=True)
class _Found:
    """A rollout as the store has it, as Temporal has it, or both."""

    rollout_id: str
    pointers: list[ExecutionPointer]
    row: RolloutRow | None

    @property
    def running(self) -> bool:
        return self.row is not None and self.row.status == "running"

    @property
    def campaign(self) -> str:
        return self.row.campaign if self.row else self.pointers[-1].campaign_id

    @property
    def ending(self) -> _Ending:
        """The evidence's, unless the last execution could not be sealed: then Temporal tells of another outcome."""
        row = self.row
        if row is None or (self.pointers and row.outcome in {None, str(self.pointers[-1].outcome.kind)}):
            end, outcome = self.pointers[-1], self.pointers[-1].outcome
            kind, reason = str(outcome.kind), outcome.admission_reason
            return _Ending(kind, outcome.score, outcome.eligible, reason, outcome.turns, end.sealed_at)
        kind, eligible = row.outcome or row.status, row.eligible is not False
        return _Ending(kind, row.score, eligible, "", None, row.closed_at or row.started_at)

    def entry(self) -> Entry:
        """For counting."""
        row = self.row
        task = row.task if row else self.pointers[-1].task_id
        domain = (row.domain if row else "") or _NO_DOMAIN
        if self.running:
            return Entry(task, domain, None, None, running=True)
        end = self.ending
        return Entry(task, domain, end.score, end.kind, eligible=end.eligible)

    def as_row(self, store: EvidenceStore, models: ModelNames) -> Row:
        """For the list of finished ones."""
        row, end = self.row, self.ending
        model, scripted = models.of(store, self.pointers[-1]) if self.pointers else ("", False)
        model = model or (row.model if row else "")
        attempts = max(len(self.pointers), (row.execution or 1) if row else 1)
        return Row(
            self.rollout_id,
            end.kind,
            end.score,
            end.eligible,
            end.reason,
            end.turns,
            attempts,
            model,
            scripted or model.startswith(SCRIPTED),
            end.at,
        )


def last_executions(store: EvidenceStore) -> dict[str, list[ExecutionPointer]]:
    """Sealed executions by rollout, each list in the order of their numbers."""
    found: dict[str, list[ExecutionPointer]] = {}
    for pointer in list_pointers(store):
        found.setdefault(pointer.rollout_id, []).append(pointer)
    for pointers in found.values():
        pointers.sort(key=lambda pointer: pointer.number)
    return found


def list_page(
    by_rollout: dict[str, list[ExecutionPointer]],
    store: EvidenceStore,
    known: Known,
    *,
    campaign: str | None,
    page: int,
    models: ModelNames,
    expected: int | None = None,
    size: int = PAGE_SIZE,
) -> Listing:
    """The newest finished rollouts first. A rollout that runs, perhaps again, is not among the finished ones.

    With `expected` that many are the denominator of the counts; those of which nothing is known count as missing.
    """
    found = [
        _Found(name, by_rollout.get(name, []), known.rollouts.get(name)) for name in {**by_rollout, **known.rollouts}
    ]
    found = [rollout for rollout in found if campaign is None or rollout.campaign == campaign]
    entries = [rollout.entry() for rollout in found]
    ended = sorted(
        (rollout for rollout in found if not rollout.running), key=lambda rollout: rollout.ending.at, reverse=True
    )
    size = max(1, size)
    pages = max(1, -(-len(ended) // size))
    page = min(max(page, 1), pages)
    chosen = {rollout.rollout_id for rollout in found}
    return Listing(
        campaign,
        [rollout.as_row(store, models) for rollout in ended[(page - 1) * size : page * size]],
        len(ended),
        tally(entries, expected=expected),
        by_domain(entries) if campaign and known.answers else {},
        [view for view in known.running if view.rollout_id in chosen],
        known.answers,
        page,
        pages,
    )


class Sealed:
    """Sealed executions of a store, read again no more often than reading them is cheap."""

    def __init__(self, store: EvidenceStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._read_at = 0.0
        self._took_s = 0.0
        self._found: dict[str, list[ExecutionPointer]] = {}

    def by_rollout(self) -> dict[str, list[ExecutionPointer]]:
        """As `last_executions`, at most ten times as old as it takes to read.

        Raises:
            EvidenceError: the store cannot be read.
        """
        with self._lock:
            begun = time.monotonic()
            if not self._read_at or begun - self._read_at > 10 * self._took_s:
                self._found = last_executions(self._store)
                self._read_at = time.monotonic()
                self._took_s = self._read_at - begun
            return self._found


class ModelNames:
    """The model of an execution and whether it was a script, from its last model call, read once."""

    _LOOK_BACK = 12  # after the last call come at most its operations, post-steps, evaluation, recoveries and the end

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, bool]] = {}

    def of(self, store: EvidenceStore, pointer: ExecutionPointer) -> tuple[str, bool]:
        """(name as the server was asked for it, or as the request has it where no call was made; scripted); empty where the evidence cannot be read."""
        if pointer.head not in self._known:
            self._known[pointer.head] = self._read(store, pointer.head)
        return self._known[pointer.head]

    def _read(self, store: EvidenceStore, head: str) -> tuple[str, bool]:
        name: str | None = head
        try:
            for _ in range(self._LOOK_BACK):
                if name is None:
                    break
                record = chain.read_record(store, name)
                if isinstance(record, ModelCallRecord):
                    sent = get_json(store, record.sent)
                    body = cast("dict[str, Any]", sent).get("body") if isinstance(sent, dict) else None
                    model = str(cast("dict[str, Any]", body).get("model") or "") if isinstance(body, dict) else ""
                    told = (model, record.served_model or "", record.system_fingerprint or "")
                    return model or record.served_model or "", any(text.startswith(SCRIPTED) for text in told)
                if isinstance(record, ExecutionStarted):  # no call was made
                    model = RolloutRequest.model_validate_json(store.get(record.request)).rollout.model.name
                    return model, model.startswith(SCRIPTED)
                name = record.previous
        except (EvidenceError, ValueError):
            pass
        return "", False
