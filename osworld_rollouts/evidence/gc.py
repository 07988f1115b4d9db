"""Removing what no kept execution reaches, and counting what there is.

What may still be needed is kept: everything that a kept execution's chain names or may name, the journal of calls whose execution
is not sealed, and every blob younger than the grace period, because a step stores blobs before a record names them. The chains of
running executions are known to Temporal only (`unsealed.py` asks it); without their heads the grace period is all that protects
them. If any kept chain cannot be read to its start, nothing is removed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from osworld_rollouts.contracts.evidence import ModelCallRecord
from osworld_rollouts.evidence.chain import decode_record, encode_record
from osworld_rollouts.evidence.errors import BlobMissing, EvidenceError
from osworld_rollouts.evidence.index import execution_key, list_pointers
from osworld_rollouts.evidence.local_store import LocalStore
from osworld_rollouts.evidence.references import is_json, nested_blobs, possible_blobs
from osworld_rollouts.evidence.store import key_segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from osworld_rollouts.contracts.evidence import Record
    from osworld_rollouts.evidence.index import ExecutionPointer
    from osworld_rollouts.evidence.store import EvidenceStore

GRACE: Final = timedelta(days=7)
_JOURNAL: Final = "journal"


class UnsafeToCollect(EvidenceError):
    """A kept execution's chain cannot be read, so it is not known what it needs."""


@dataclass
class GcReport:
    """What gc removed, or would remove."""

    dry_run: bool
    kept_executions: int = 0
    forgotten_executions: list[str] = field(default_factory=list)
    kept_blobs: int = 0
    young_blobs: int = 0
    removed_blobs: int = 0
    removed_bytes: int = 0
    removed_journal_entries: int = 0
    removed_leftovers: int = 0

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def collect(
    store: EvidenceStore, *, forget: Callable[[ExecutionPointer], bool] | None = None, extra_heads: Iterable[str] = (),
    grace: timedelta = GRACE, dry_run: bool = True, now: datetime | None = None,
) -> GcReport:  # fmt: skip
    """Remove blobs that no kept execution reaches.

    Args:
        store: the store.
        forget: executions to forget; their pointers are removed first. None keeps all that are sealed.
        extra_heads: heads of chains that have no pointer yet, such as those of running executions.
        grace: what was put within it is kept, whatever reaches it.
        dry_run: only say what would happen.
        now: for tests.

    Raises:
        UnsafeToCollect: a kept chain cannot be read; nothing was removed.
    """
    report = GcReport(dry_run)
    limit = (now or datetime.now(UTC)) - grace
    pointers = list(list_pointers(store))
    forgotten = [pointer for pointer in pointers if forget is not None and forget(pointer)]
    report.forgotten_executions = [pointer.execution_id for pointer in forgotten]
    kept = [pointer for pointer in pointers if pointer not in forgotten]
    report.kept_executions = len(kept)
    reached: set[bytes] = set()
    walked: set[str] = set()
    for head in (*(pointer.head for pointer in kept), *extra_heads):
        _mark(store, head, reached, walked)
    closed = {key_segments(pointer.execution_id) for pointer in pointers}
    journal = list(_journal(store, closed, limit, reached))
    for pointer in forgotten if not dry_run else ():  # first, so that no pointer ever leads to a blob that is gone
        store.delete_named(execution_key(pointer.execution_id))
    for item in store.blobs():
        if bytes.fromhex(item.name) in reached:
            report.kept_blobs += 1
        elif item.put_at >= limit:
            report.young_blobs += 1
        else:
            report.removed_blobs += 1
            report.removed_bytes += item.stored_bytes
            if not dry_run:
                store.delete_blob(item.name)
    report.removed_journal_entries = len(journal)
    leftovers = [item for item in store.leftovers() if item.put_at < limit] if isinstance(store, LocalStore) else []
    report.removed_leftovers = len(leftovers)
    if not dry_run:
        for key in journal:
            store.delete_named(key)
        for item in leftovers:
            if isinstance(store, LocalStore):
                store.delete_leftover(item)
    return report


def _mark(store: EvidenceStore, head: str, reached: set[bytes], walked: set[str]) -> None:
    name: str | None = head
    while name is not None and name not in walked:
        try:
            data = store.get(name)
            record = decode_record(data, name)
        except EvidenceError as error:
            raise UnsafeToCollect(f"the chain behind {head} cannot be read: {error}. Nothing was removed") from error
        walked.add(name)
        reached.add(bytes.fromhex(name))
        _mark_words(data, reached)
        for blob in nested_blobs(record):
            try:
                inner = store.get(blob)
            except BlobMissing:
                continue
            except EvidenceError as error:
                raise UnsafeToCollect(
                    f"blob {blob} of the chain behind {head} cannot be read: {error}. Nothing was removed"
                ) from error
            if is_json(inner):
                _mark_words(inner, reached)
        name = record.previous


def _mark_words(data: bytes, reached: set[bytes]) -> None:
    reached.update(bytes.fromhex(word) for word in possible_blobs(data))


def _journal(store: EvidenceStore, closed: set[str], limit: datetime, reached: set[bytes]) -> Iterator[str]:
    """Journal entries to remove: those of sealed executions. What the others name is kept."""
    for key in store.list_named(_JOURNAL):
        execution = key.removeprefix(f"{_JOURNAL}/").partition("/_calls/")[0]
        data = store.get_named(key)
        if data is None:
            continue
        entry = json.loads(data)
        when = entry.get("started_at") or entry.get("failed_at")
        if execution in closed and isinstance(when, str) and datetime.fromisoformat(when) < limit:
            yield key
        elif execution not in closed:
            _mark_words(data, reached)


@dataclass
class StoreStats:
    """What is in a store."""

    url: str
    blobs: int = 0
    stored_bytes: int = 0
    executions: int = 0
    campaigns: dict[str, int] = field(default_factory=dict)
    records: dict[str, int] = field(default_factory=dict)
    record_bytes: int = 0
    turns: int = 0
    screenshots: int = 0
    screenshots_sent: int = 0
    screenshot_bytes: int = 0
    bytes_per_turn: float | None = None

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def stats(store: EvidenceStore, *, walk: bool = True) -> StoreStats:
    """Count blobs, executions and, with `walk`, what is in their chains."""
    found = StoreStats(store.url)
    for item in store.blobs():
        found.blobs += 1
        found.stored_bytes += item.stored_bytes
    pictures: dict[str, int] = {}
    for pointer in list_pointers(store):
        found.executions += 1
        found.campaigns[pointer.campaign_id] = found.campaigns.get(pointer.campaign_id, 0) + 1
        if walk:
            for record in _records(store, pointer.head):
                _count(record, found, pictures)
    found.screenshots, found.screenshot_bytes = len(pictures), sum(pictures.values())
    found.bytes_per_turn = round(found.stored_bytes / found.turns, 1) if found.turns else None
    return found


def _records(store: EvidenceStore, head: str) -> Iterator[Record]:
    name: str | None = head
    while name is not None:
        record = decode_record(store.get(name), name)
        yield record
        name = record.previous


def _count(record: Record, found: StoreStats, pictures: dict[str, int]) -> None:
    found.records[record.kind] = found.records.get(record.kind, 0) + 1
    found.record_bytes += len(encode_record(record))
    if isinstance(record, ModelCallRecord):
        found.turns += record.call == 0
        found.screenshots_sent += len(record.media)
    seen = [*getattr(record, "media", ())]
    observation = getattr(record, "observation", None)
    if observation is not None:
        seen.append(observation.screenshot)
    for media in seen:
        pictures[media.sha256] = media.bytes
