"""One execution as a page shows it, rebuilt from its evidence. What cannot be read is said on the page; the rest is shown."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from osworld_rollouts.console.viewer.marks import Mark, marks_of, summary_of
from osworld_rollouts.contracts import evidence as records
from osworld_rollouts.contracts.action import PythonCode
from osworld_rollouts.contracts.request import RolloutRequest
from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.errors import EvidenceError
from osworld_rollouts.evidence.transcript import is_unanswered

if TYPE_CHECKING:
    from datetime import datetime

    from osworld_rollouts.contracts.action import Action
    from osworld_rollouts.contracts.desktop import MediaRef
    from osworld_rollouts.contracts.outcome import Outcome
    from osworld_rollouts.evidence.store import EvidenceStore

SCRIPTED = "scripted"
_LOG_LIMIT = 200_000


@dataclass(frozen=True)
class ActionLine:
    """One action and how it ended in the guest. `ended` is None while that is not known."""

    number: int
    summary: str
    code: str | None
    ended: str | None
    problem: str = ""
    duration_ms: int | None = None


@dataclass
class TurnCard:
    """One turn: what the model saw, said and did, and how long each took."""

    number: int
    started_s: float
    before: MediaRef | None
    call: records.ModelCallRecord | None = None
    rejected: list[records.ModelCallRecord] = field(default_factory=list[records.ModelCallRecord])
    actions: list[ActionLine] = field(default_factory=list[ActionLine])
    marks: tuple[Mark, ...] = ()
    recoveries: list[str] = field(default_factory=list[str])
    model_ms: int = 0
    act_ms: int | None = None
    settle_ms: int | None = None
    stable: bool = True

    @property
    def title(self) -> str:
        """The turn in a few words."""
        if self.actions:
            return "; ".join(line.summary for line in self.actions)
        if self.call is not None and is_unanswered(self.call):
            return "no reply of the model was used"
        if self.call is not None and self.call.failure:
            return f"no action: {self.call.failure.kind.replace('_', ' ')}"
        return "no action"


@dataclass
class Trace:
    """Everything a page shows of one execution."""

    execution_id: str
    number: int
    head: str
    request: RolloutRequest | None = None
    started: records.ExecutionStarted | None = None
    prepared: records.DesktopPrepared | None = None
    turns: list[TurnCard] = field(default_factory=list[TurnCard])
    final: MediaRef | None = None
    post_steps: records.PostStepsRecord | None = None
    evaluation: records.EvaluationRecord | None = None
    evaluation_log: str = ""
    outcome: Outcome | None = None
    ended_at: datetime | None = None
    problems: list[str] = field(default_factory=list[str])
    spans: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    scripted: bool = False

    @property
    def duration_s(self) -> float | None:
        """From the first record to the last."""
        return (self.ended_at - self.started.recorded_at).total_seconds() if self.started and self.ended_at else None

    @property
    def rollout_id(self) -> str:
        """The logical rollout."""
        return self.started.rollout_id if self.started else self.execution_id.rpartition("/x")[0]

    @property
    def tokens(self) -> tuple[int, int]:
        """Prompt and generated tokens of all calls, as far as servers counted them."""
        calls = [call for turn in self.turns for call in (*turn.rejected, *([turn.call] if turn.call else []))]
        return sum(_usage(call, "prompt_tokens") for call in calls), sum(
            _usage(call, "completion_tokens") for call in calls
        )

    def media(self) -> dict[str, MediaRef]:
        """Every screenshot on the page, by sha256."""
        shown = [turn.before for turn in self.turns] + [
            self.final,
            self.prepared.observation.screenshot if self.prepared else None,
        ]
        return {ref.sha256: ref for ref in shown if ref is not None}


def read_trace(store: EvidenceStore, execution_id: str, head: str) -> Trace:
    """Read an execution backwards from its head, as far as it can be read. Never raises for damaged evidence."""
    trace = Trace(execution_id, _number(execution_id), head)
    found = _read_records(store, head, trace)
    for record in found:
        _add(store, trace, record)
    if found:
        trace.ended_at = found[-1].recorded_at
    trace.spans = _spans(found)
    trace.scripted = _is_scripted(trace)
    return trace


def _read_records(store: EvidenceStore, head: str, trace: Trace) -> list[records.Record]:
    found: list[records.Record] = []
    name: str | None = head
    while name is not None:
        try:
            record = chain.read_record(store, name)
        except EvidenceError as error:
            trace.problems.append(f"the evidence before this point cannot be read: {error}")
            break
        found.append(record)
        name = record.previous
    return found[::-1]


def _add(store: EvidenceStore, trace: Trace, record: records.Record) -> None:
    match record:
        case records.ExecutionStarted():
            trace.started = record
            trace.request = _request(store, record.request, trace)
        case records.DesktopPrepared():
            trace.prepared = record
            trace.final = record.observation.screenshot
        case records.ModelCallRecord():
            _add_call(trace, record)
        case records.OperationsRecord():
            _add_operations(trace, record)
        case records.RecoveryRecord():
            card = _card(trace, record.turn, record)
            card.recoveries += [
                f"{item.operation_id.rpartition('/')[2]}: {item.state}{f' ({item.detail})' if item.detail else ''}"
                for item in record.operations
            ]
        case records.PostStepsRecord():
            trace.post_steps = record
        case records.EvaluationRecord():
            trace.evaluation = record
            trace.evaluation_log = _text(store, record.log)
        case records.Terminated():
            trace.outcome = record.outcome


def _card(trace: Trace, turn: int, record: records.Record) -> TurnCard:
    if not trace.turns or trace.turns[-1].number != turn:
        since = (record.recorded_at - trace.started.recorded_at).total_seconds() if trace.started else 0
        begun = since - record.latency_ms / 1000 if isinstance(record, records.ModelCallRecord) else since
        trace.turns.append(TurnCard(turn, max(0.0, begun), trace.final))
    return trace.turns[-1]


def _add_call(trace: Trace, record: records.ModelCallRecord) -> None:
    card = _card(trace, record.turn, record)
    if card.call is not None:
        card.rejected.append(card.call)
    card.call = record
    card.model_ms += record.latency_ms
    card.marks = marks_of(record.actions)
    card.actions = [_line(number, action) for number, action in enumerate(record.actions, start=1)]


def _add_operations(trace: Trace, record: records.OperationsRecord) -> None:
    card = _card(trace, record.turn, record)
    ended = {outcome.operation_id.rpartition("/o")[2]: outcome for outcome in record.outcomes}
    lines: list[ActionLine] = []
    for line in card.actions:
        outcome = ended.get(str(line.number - 1))
        if outcome is None:
            lines.append(line)
            continue
        problem = outcome.error or (f"return code {outcome.returncode}" if outcome.returncode else "")
        words = "result taken from the ledger" if outcome.replayed else "done"
        lines.append(ActionLine(line.number, line.summary, line.code, words, problem, outcome.duration_ms))
    card.actions = lines
    card.act_ms = sum(outcome.duration_ms for outcome in record.outcomes)
    card.settle_ms = record.observation.settle_ms
    card.stable = record.observation.stable
    trace.final = record.observation.screenshot


def _line(number: int, action: Action) -> ActionLine:
    return ActionLine(number, summary_of(action), action.code if isinstance(action, PythonCode) else None, None)


def _spans(found: list[records.Record]) -> list[tuple[str, float]]:
    """Seconds by what they were spent on, from the times of the records."""
    names = {
        "prepared": "desktop and setup", "model_call": "model", "operations": "acting", "recovery": "recovery",
        "post_steps": "evaluation", "evaluation": "evaluation", "terminated": "closing",
    }  # fmt: skip
    spans: dict[str, float] = {}
    for before, record in itertools.pairwise(found):
        name = names.get(record.kind, record.kind)
        spans[name] = spans.get(name, 0.0) + max(0.0, (record.recorded_at - before.recorded_at).total_seconds())
    return list(spans.items())


def _is_scripted(trace: Trace) -> bool:
    named = [trace.request.rollout.model.name if trace.request else None]
    for turn in trace.turns:
        if turn.call is not None:
            named += [turn.call.served_model, turn.call.system_fingerprint]
    return any(name is not None and name.startswith(SCRIPTED) for name in named)


def _request(store: EvidenceStore, sha256: str, trace: Trace) -> RolloutRequest | None:
    try:
        return RolloutRequest.model_validate_json(store.get(sha256))
    except (EvidenceError, ValueError) as error:
        trace.problems.append(f"the request cannot be read: {error}")
        return None


def _text(store: EvidenceStore, sha256: str) -> str:
    try:
        data = store.get(sha256)
    except EvidenceError as error:
        return f"[cannot be read: {error}]"
    text = data[:_LOG_LIMIT].decode("utf-8", "replace")
    try:
        parsed: Any = json.loads(data)
    except ValueError:
        return text
    if isinstance(parsed, dict):
        return "\n".join(f"--- {name}\n{value}" for name, value in parsed.items() if value)[:_LOG_LIMIT]
    return text


def _number(execution_id: str) -> int:
    number = execution_id.rpartition("/x")[2]
    return int(number) if number.isdigit() else 0


def _usage(call: records.ModelCallRecord, name: str) -> int:
    value = (call.usage or {}).get(name)
    return int(value) if isinstance(value, int | float) else 0
