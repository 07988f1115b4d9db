"""The chain of an execution's records: each names the sha256 of the one before it.

Whoever knows the head knows every byte behind it: a changed, dropped, duplicated or moved record changes the head. Temporal's
history carries the head after every step, so the history proves the chain.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from osworld_rollouts.contracts._base import canonical_json
from osworld_rollouts.contracts.evidence import Record, record_summary
from osworld_rollouts.evidence.errors import BlobCorrupt, BlobMissing, ChainBroken, RecordUnreadable
from osworld_rollouts.evidence.packing import sha256_hex
from osworld_rollouts.evidence.store import EvidenceStore, check_sha256

if TYPE_CHECKING:
    from collections.abc import Sequence

_RECORD: Final[TypeAdapter[Record]] = TypeAdapter(Record)
_CACHED_RECORDS: Final = 8192  # a 500-turn chain has about 1,100; 10-15 KB of memory each at most
_MAX_RECORDS: Final = 200_000  # a chain longer than any history allows is a defect, not evidence

R = TypeVar("R")


class _RecentRecords:
    """The records read or written last, checked once: every activity of an execution walks its chain."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._records: OrderedDict[str, Record] = OrderedDict()

    def get(self, sha256: str) -> Record | None:
        with self._lock:
            record = self._records.get(sha256)
            if record is not None:
                self._records.move_to_end(sha256)
            return record

    def add(self, sha256: str, record: Record) -> None:
        with self._lock:
            self._records[sha256] = record
            self._records.move_to_end(sha256)
            while len(self._records) > self._limit:
                self._records.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._records.clear()


_recent = _RecentRecords(_CACHED_RECORDS)


def forget_cached_records() -> None:
    """Empty this process's cache of records, so that the next walk reads every byte again."""
    _recent.clear()


def encode_record(record: Record) -> bytes:
    """The bytes whose sha256 is the record's name: canonical JSON."""
    return canonical_json(record.model_dump(mode="json"))


def next_index(store: EvidenceStore, head: str | None) -> int:
    """The index of the record that comes after `head`."""
    return 0 if head is None else read_record(store, head).index + 1


def append(store: EvidenceStore, head: str | None, record: Record) -> str:
    """Store the record that follows `head`; the new head. Appending the same record to the same head again gives the same head.

    Raises:
        ChainBroken: the record does not name `head`, its index or execution differs, or the chain has ended.
    """
    if record.previous != head:
        raise ChainBroken(
            f"record {record_summary(record)} names {record.previous} as the one before it, but the head is {head}"
        )
    if head is None:
        _expect_first(record)
    else:
        _expect_after(read_record(store, head), record)
    sha256 = store.put(encode_record(record))
    _recent.add(sha256, record)
    return sha256


def read_record(store: EvidenceStore, sha256: str, *, remember: bool = True) -> Record:
    """One record; without `remember` the store is read whatever this process knows already.

    Raises:
        BlobMissing, BlobCorrupt: as the store's `get`.
        RecordUnreadable: the blob is no record of a known schema.
    """
    record = _recent.get(sha256) if remember else None
    if record is None:
        record = decode_record(store.get(sha256), sha256)
        if remember:
            _recent.add(sha256, record)
    return record


def decode_record(data: bytes, sha256: str) -> Record:
    """A record from its bytes.

    Raises:
        RecordUnreadable: the bytes are no record of a known schema.
    """
    try:
        return _RECORD.validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise RecordUnreadable(sha256, f"{'.'.join(map(str, first['loc'])) or 'record'}: {first['msg']}") from error


def walk(store: EvidenceStore, head: str) -> list[Record]:
    """The records from the first to `head`. Raises as `read_record`, and ChainBroken when they do not fit together."""
    return [record for _, record in walk_named(store, head)]


def walk_named(store: EvidenceStore, head: str, *, remember: bool = True) -> list[tuple[str, Record]]:
    """As `walk`, each record with its sha256; without `remember` every byte is read again and nothing is kept in memory."""
    found: list[tuple[str, Record]] = []
    following: Record | None = None
    name: str | None = head
    while name is not None:
        record = read_record(store, name, remember=remember)
        if following is not None:
            _expect_after(record, following)
        found.append((name, record))
        if len(found) > _MAX_RECORDS:
            raise ChainBroken(f"more than {_MAX_RECORDS} records behind {head}")
        following, name = record, record.previous
    _expect_first(found[-1][1])
    found.reverse()
    return found


def last(records: Sequence[Record], kind: type[R]) -> R | None:
    """The newest record of a kind, or None."""
    return next((record for record in reversed(records) if isinstance(record, kind)), None)


@dataclass(frozen=True)
class ChainReport:
    """What `verify_chain` found. `problem` names the first record that differs, counted from the head back, and how."""

    head: str
    intact: bool
    records: tuple[str, ...] = ()
    witnessed: int = 0
    problem: str = ""
    problem_index: int | None = None
    problem_sha256: str | None = None
    kinds: dict[str, int] = field(default_factory=dict)


def verify_chain(store: EvidenceStore, head: str, history_heads: Sequence[str] | None = None) -> ChainReport:
    """Re-read and re-hash every record behind `head`, and hold them against the heads that Temporal's history carries.

    `history_heads` are all heads in the order of the history; each must be in this chain, in that order, and the last must not
    lie after `head`. None leaves the history out: the chain is then only consistent with itself.
    """
    names: list[str] = []
    kinds: dict[str, int] = {}
    following: Record | None = None
    name: str | None = head

    def report(problem: str, index: int | None, sha256: str | None) -> ChainReport:
        return ChainReport(
            head,
            intact=False,
            records=tuple(reversed(names)),
            problem=problem,
            problem_index=index,
            problem_sha256=sha256,
            kinds=kinds,
        )

    while name is not None:
        index = None if following is None else following.index - 1
        where = (
            "the head" if following is None else f"record {index} (named by record {following.index} {following.kind})"
        )
        try:
            check_sha256(name)
            data = store.get(name)
            if sha256_hex(data) != name:
                return report(f"{where}: the store returned other bytes than {name}", index, name)
            record = decode_record(data, name)
            if following is not None:
                _expect_after(record, following)
        except (BlobMissing, BlobCorrupt, RecordUnreadable, ChainBroken, ValueError) as error:
            return report(f"{where}: {error}", index, name)
        names.append(name)
        kinds[record.kind] = kinds.get(record.kind, 0) + 1
        if len(names) > _MAX_RECORDS:
            return report(f"more than {_MAX_RECORDS} records", None, name)
        if record.previous is None:
            try:
                _expect_first(record)
            except ChainBroken as error:
                return report(str(error), record.index, name)
        following, name = record, record.previous

    places = {sha256: place for place, sha256 in enumerate(reversed(names))}
    at = -1
    witnessed: set[str] = set()
    for number, witness in enumerate(history_heads or ()):
        place = places.get(witness)
        if place is None:
            return report(
                f"head {number} of the Temporal history, {witness}, is not in this chain: the chain was rewritten or belongs to another execution",
                None,
                witness,
            )
        if place < at:
            return report(
                f"head {number} of the Temporal history, {witness}, stands before the one the history had earlier: records were moved",
                place,
                witness,
            )
        at = place
        witnessed.add(witness)
    return ChainReport(head, intact=True, records=tuple(reversed(names)), witnessed=len(witnessed), kinds=kinds)


def _expect_first(record: Record) -> None:
    if record.index != 0 or record.previous is not None or record.kind != "execution_started":
        raise ChainBroken(f"a chain starts with record 0 execution_started, not with {record_summary(record)}")


def _expect_after(before: Record, record: Record) -> None:
    if record.index != before.index + 1:
        raise ChainBroken(
            f"record {record_summary(record)} does not follow {record_summary(before)}: expected index {before.index + 1}"
        )
    if record.execution_id != before.execution_id:
        raise ChainBroken(
            f"record {record_summary(record)} is of execution {record.execution_id}, the one before it of {before.execution_id}"
        )
    if record.kind == "execution_started":
        raise ChainBroken(f"a second execution_started at index {record.index}")
    if before.kind == "terminated":
        raise ChainBroken(f"record {record_summary(record)} comes after the end of the chain at index {before.index}")
