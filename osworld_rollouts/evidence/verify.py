"""Whether an execution's evidence is whole: its chain, the heads in Temporal's history, and every blob that a record names."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from osworld_rollouts.contracts.evidence import ExecutionStarted, Terminated
from osworld_rollouts.evidence import transcript
from osworld_rollouts.evidence.chain import decode_record, verify_chain, walk_named
from osworld_rollouts.evidence.errors import BlobCorrupt, BlobMissing, EvidenceError
from osworld_rollouts.evidence.references import named_blobs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from temporalio.client import Client, WorkflowHistory
    from temporalio.converter import PayloadCodec

    from osworld_rollouts.contracts.evidence import Record
    from osworld_rollouts.evidence.index import ExecutionPointer
    from osworld_rollouts.evidence.store import EvidenceStore


@dataclass(frozen=True)
class BlobProblem:
    """A blob that a record names and that is not there, or not as named."""

    record_index: int
    record_kind: str
    field: str
    sha256: str
    problem: str


@dataclass(frozen=True)
class ExecutionReport:
    """What `verify_execution` found. `intact` means: every record, every blob, and every head that the history carries."""

    execution_id: str
    head: str
    intact: bool
    records: int
    blobs: int
    witnessed: int
    history_checked: bool
    problem: str = ""
    problem_index: int | None = None
    blob_problems: tuple[BlobProblem, ...] = ()
    ended: bool = False
    unanswered_calls: int = 0
    """Model calls of which no reply was used."""
    unseen_samples: int = 0
    """Attempts at model calls that may have left a sample nobody saw."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def verify_execution(store: EvidenceStore, head: str, history_heads: Sequence[str] | None = None) -> ExecutionReport:
    """Re-hash an execution's records and every blob they name, and hold the chain against the history.

    Args:
        store: where the evidence is.
        head: the last record.
        history_heads: heads in the order of Temporal's history; None checks the chain against itself only.
    """
    report = verify_chain(store, head, history_heads)
    problems: list[BlobProblem] = []
    checked: dict[str, str] = {}
    execution_id, ended = "", False
    unanswered = unseen = 0
    for sha256 in report.records:
        record = decode_record(store.get(sha256), sha256)
        if isinstance(record, ExecutionStarted):
            execution_id = record.execution_id
        ended = isinstance(record, Terminated)
        unanswered += transcript.is_unanswered(record)
        unseen += transcript.unseen_samples([record])
        for field, blob in named_blobs(record):
            if blob not in checked:
                checked[blob] = _problem(store, blob)
            if checked[blob]:
                problems.append(BlobProblem(record.index, record.kind, field, blob, checked[blob]))
    problem = report.problem
    if not problem and problems:
        first = problems[0]
        problem = f"record {first.record_index} {first.record_kind}: {first.field} {first.sha256} {first.problem}"
    return ExecutionReport(
        execution_id=execution_id, head=head, intact=report.intact and not problems, records=len(report.records), blobs=len(checked),
        witnessed=report.witnessed, history_checked=history_heads is not None, problem=problem,
        problem_index=report.problem_index if report.problem else (problems[0].record_index if problems else None),
        blob_problems=tuple(problems), ended=ended, unanswered_calls=unanswered, unseen_samples=unseen,
    )  # fmt: skip


def verify_sealed(
    store: EvidenceStore, pointer: ExecutionPointer, history_heads: Sequence[str] | None = None
) -> ExecutionReport:
    """As `verify_execution`, and the store's pointer must name the history's chain, its end and its outcome."""
    problem, index = ("", None) if not history_heads else _parting(store, pointer.head, history_heads)
    head = history_heads[-1] if history_heads and problem else pointer.head
    report = verify_execution(store, head, history_heads)
    if report.intact and not problem:
        problem, index = _not_its_end(store, pointer, report)
    if report.intact and problem:
        report = replace(report, intact=False, problem=problem, problem_index=index)
    elif problem:
        report = replace(report, problem=f"{report.problem}; {problem}")
    return replace(report, execution_id=pointer.execution_id)


def _not_its_end(store: EvidenceStore, pointer: ExecutionPointer, report: ExecutionReport) -> tuple[str, int | None]:
    """Why an intact chain is not the one that was sealed under this pointer."""
    last = decode_record(store.get(pointer.head), pointer.head)
    if report.execution_id != pointer.execution_id:
        return f"the store's pointer leads to the evidence of {report.execution_id}", None
    if not isinstance(last, Terminated):
        return (
            f"it was sealed, and its chain ends with record {last.index} {last.kind}: the end was dropped",
            last.index,
        )
    if last.outcome != pointer.outcome:
        said = f"{pointer.outcome.kind}, score {pointer.outcome.score}"
        return (
            f"the store's pointer says {said}; record {last.index} says {last.outcome.kind}, score {last.outcome.score}",
            last.index,
        )
    return "", None


def _parting(store: EvidenceStore, head: str, history_heads: Sequence[str]) -> tuple[str, int | None]:
    """Where the chain that the store points to leaves the one of Temporal's history: the first record that differs, and how."""
    try:
        named = walk_named(store, head, remember=False)
    except EvidenceError:
        return "", None  # the walk from this head tells where and why
    places = {name: at for at, (name, _) in enumerate(named)}
    common = -1
    for witness in history_heads:
        if witness in places:
            common = max(common, places[witness])
            continue
        at, theirs = common + 1, _ancestor(store, witness, common + 1)
        ours = f"{named[at][1].kind} {named[at][0]}" if at < len(named) else "no such record"
        if theirs is None:
            how = f"the history's {witness} is in no chain of this store"
        else:
            fields = _differing(theirs[1], named[at][1]) if at < len(named) else []
            how = f"the history has {theirs[1].kind} {theirs[0]}" + (
                f", differing in {', '.join(fields)}" if fields else ""
            )
        return f"record {at}: the store's pointer leads to {ours}; {how}: the chain was rewritten", at
    return "", None


def _ancestor(store: EvidenceStore, name: str | None, index: int) -> tuple[str, Record] | None:
    """The record with this index at or behind a head, as far as it can be read."""
    while name is not None:
        try:
            record = decode_record(store.get(name), name)
        except EvidenceError:
            return None
        if record.index == index:
            return name, record
        name = record.previous
    return None


def _differing(one: Record, other: Record) -> list[str]:
    if one.kind != other.kind:
        return []
    mine, yours = one.model_dump(mode="json"), other.model_dump(mode="json")
    return sorted(key for key in {*mine, *yours} if mine.get(key) != yours.get(key))


def _problem(store: EvidenceStore, sha256: str) -> str:
    try:
        store.get(sha256)
    except BlobMissing:
        return "is missing"
    except BlobCorrupt as error:
        return f"is corrupt: {error}"
    except ValueError as error:
        return str(error)
    return ""


def heads_of_payloads(payloads: Iterable[bytes]) -> list[str]:
    """Every `head` at the top of an activity's JSON result, in order; repeats are kept once."""
    heads: list[str] = []
    for data in payloads:
        try:
            value = json.loads(data)
        except ValueError:
            continue
        head = value.get("head") if isinstance(value, dict) else None
        if isinstance(head, str) and (not heads or heads[-1] != head):
            heads.append(head)
    return heads


async def heads_of_history(history: WorkflowHistory, codec: PayloadCodec | None = None) -> list[str]:
    """Heads that the activities of one workflow run returned, in the order of their scheduling.

    Args:
        history: from `WorkflowHandle.fetch_history()`.
        codec: the client's payload codec, when payloads are encrypted.
    """
    scheduled: dict[int, bytes] = {}
    for event in history.events:
        if not event.HasField("activity_task_completed_event_attributes"):
            continue
        done = event.activity_task_completed_event_attributes
        payloads = list(done.result.payloads)
        if codec is not None:
            payloads = await codec.decode(payloads)
        if payloads:
            scheduled[done.scheduled_event_id] = payloads[0].data
    return heads_of_payloads(data for _, data in sorted(scheduled.items()))


async def history_heads(client: Client, workflow_id: str, run_id: str | None = None) -> list[str]:
    """Heads that a workflow's history carries, over all runs that continue-as-new made of it, oldest first.

    Raises:
        temporalio.service.RPCError: the workflow is not there (its history may be past the namespace's retention).
    """
    codec = client.data_converter.payload_codec
    runs: list[list[str]] = []
    while True:
        history = await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
        runs.append(await heads_of_history(history, codec))
        before = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
        if not before:
            break
        run_id = before
    heads = [head for run in reversed(runs) for head in run]
    return [head for at, head in enumerate(heads) if not at or head != heads[at - 1]]


class NotSealed(EvidenceError):
    """There is no pointer to the execution's evidence in this store."""

    remedy = "the execution is still running, ended before it could be sealed, or was sealed into another store"

    def __init__(self, execution_id: str, place: str) -> None:
        super().__init__(f"no evidence of {execution_id} in {place}; {self.remedy}")
