"""What happened turn by turn, rebuilt from the chain: the only source from which history is rendered into a prompt."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from osworld_rollouts.contracts.evidence import (
    DesktopPrepared,
    EvaluationRecord,
    ExecutionStarted,
    ModelCallRecord,
    OperationsRecord,
    Record,
    Terminated,
)
from osworld_rollouts.evidence.errors import ChainBroken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from osworld_rollouts.contracts.action import Action
    from osworld_rollouts.contracts.desktop import Observation
    from osworld_rollouts.contracts.steps import OperationOutcome, ParseFailure
    from osworld_rollouts.evidence.store import EvidenceStore


@dataclass(frozen=True)
class Shrink:
    """A prompt that the server refused as too long, by call number, and how many images the next one had (None: there was none)."""

    call: int
    from_images: int
    to_images: int | None


@dataclass
class Turn:
    """One turn as recorded.

    `observation` is what the desktop showed before it, `after` what it showed once the turn's operations were done (None when
    there were none). `calls` are all model calls of the turn in order, those whose reply could not be used too.
    """

    turn: int
    observation: Observation
    calls: list[ModelCallRecord] = field(default_factory=list)
    operations: OperationsRecord | None = None

    @property
    def accepted(self) -> ModelCallRecord | None:
        """The call whose actions were taken: the turn's last, if it holds actions."""
        return self.calls[-1] if self.calls and self.calls[-1].actions else None

    @property
    def final(self) -> ModelCallRecord | None:
        """The turn's last call that was answered, accepted or not: what history shows of a turn."""
        return next((call for call in reversed(self.calls) if not call.overflow and call.received is not None), None)

    @property
    def rejected(self) -> list[ModelCallRecord]:
        """Answered calls whose reply held no usable action, oldest first."""
        return [call for call in self.calls if call.failure is not None and not call.overflow]

    @property
    def shrinks(self) -> list[Shrink]:
        """Prompts of the turn that were too long, oldest first."""
        following = [*self.calls[1:], None]
        return [
            Shrink(call.call, len(call.media), None if after is None else len(after.media))
            for call, after in zip(self.calls, following, strict=True)
            if call.overflow
        ]

    @property
    def actions(self) -> tuple[Action, ...]:
        """Actions of the accepted reply."""
        return self.accepted.actions if self.accepted else ()

    @property
    def outcomes(self) -> tuple[OperationOutcome, ...]:
        """How the turn's operations ended in the guest."""
        return self.operations.outcomes if self.operations else ()

    @property
    def failure(self) -> ParseFailure | None:
        """Why the turn holds no action, when it holds none."""
        return self.final.failure if self.final and not self.actions else None

    @property
    def after(self) -> Observation | None:
        """What the desktop showed after the turn's operations."""
        return self.operations.observation if self.operations else None


def turns(records: Sequence[Record], before: int | None = None) -> list[Turn]:
    """Every turn that has a record, oldest first; with `before`, only turns with a smaller number (the finished ones).

    Raises:
        ChainBroken: a turn before the desktop was prepared.
    """
    found: dict[int, Turn] = {}
    seen: Observation | None = None
    for record in records:
        if isinstance(record, DesktopPrepared):
            seen = record.observation
        elif isinstance(record, ModelCallRecord | OperationsRecord):
            if seen is None:
                raise ChainBroken(
                    f"record {record.index} {record.kind} of turn {record.turn} comes before the desktop was prepared"
                )
            turn = found.setdefault(record.turn, Turn(record.turn, seen))
            if isinstance(record, ModelCallRecord):
                turn.calls.append(record)
            else:
                turn.operations = record
                seen = record.observation
    return [turn for number, turn in sorted(found.items()) if before is None or number < before]


def current_observation(records: Sequence[Record]) -> Observation:
    """What the desktop showed last.

    Raises:
        ChainBroken: the desktop was not prepared yet.
    """
    for record in reversed(records):
        if isinstance(record, DesktopPrepared | OperationsRecord):
            return record.observation
    raise ChainBroken("nothing was observed yet: the chain holds no prepared record")


def calls(records: Sequence[Record]) -> list[ModelCallRecord]:
    """Every model call, oldest first."""
    return [record for record in records if isinstance(record, ModelCallRecord)]


def previous_call(records: Sequence[Record]) -> ModelCallRecord | None:
    """The call before the next one that the server answered: the one a new call may extend."""
    return next((call for call in reversed(calls(records)) if call.received is not None and not call.overflow), None)


def is_unanswered(record: Record) -> bool:
    """Whether this is the record of a call of which no reply was used."""
    return isinstance(record, ModelCallRecord) and record.received is None and not record.overflow


def unseen_samples(records: Sequence[Record]) -> int:
    """Attempts at model calls that may have left a sample nobody saw: generated, perhaps paid for, and in no record."""
    return sum(1 for call in calls(records) for attempt in call.earlier_attempts if attempt.get("sample_may_exist"))


def started(records: Sequence[Record]) -> ExecutionStarted:
    """The first record."""
    first = records[0]
    if not isinstance(first, ExecutionStarted):
        raise ChainBroken(f"the chain starts with {first.kind}")
    return first


def evaluation(records: Sequence[Record]) -> EvaluationRecord | None:
    """What the evaluator said, if it was asked."""
    return next((record for record in reversed(records) if isinstance(record, EvaluationRecord)), None)


def terminated(records: Sequence[Record]) -> Terminated | None:
    """The last record, if the execution ended."""
    return records[-1] if records and isinstance(records[-1], Terminated) else None


def output_items(store: EvidenceStore, call: ModelCallRecord) -> tuple[dict[str, Any], ...]:
    """A reply's items as received (tool calls; items of Responses and Messages), for adapters that send them back."""
    return () if call.output is None else _output(store, call.output)


@functools.lru_cache(maxsize=4096)
def _output(store: EvidenceStore, sha256: str) -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(store.get(sha256)))
