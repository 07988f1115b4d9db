"""Exporting a campaign: streaming, one execution in memory at a time."""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from osworld_rollouts.evidence.errors import EvidenceError
from osworld_rollouts.evidence.export.files import ExportError, JsonLines, NothingToExport, Parquet, PlaceInUse, RowFile
from osworld_rollouts.evidence.export.rows import Execution, call_rows, read_execution, rollout_row
from osworld_rollouts.evidence.index import list_pointers
from osworld_rollouts.evidence.local_store import LocalStore
from osworld_rollouts.evidence.references import named_blobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from osworld_rollouts.evidence.index import ExecutionPointer
    from osworld_rollouts.evidence.store import EvidenceStore

Format = Literal["jsonl", "parquet", "nemo-gym"]
Blobs = Literal["all", "none"]
MANIFEST: Final = "manifest.json"
BLOBS: Final = "evidence"


@dataclass
class ExportReport:
    """What was exported. `problems` names executions whose evidence is not intact: none of their calls is in the files."""

    campaign_id: str
    format: str
    path: str
    rollouts: int = 0
    executions: int = 0
    calls: int = 0
    left_out: int = 0
    unscored: int = 0
    without_evidence: dict[str, int] | None = None
    """Rollouts of the campaign that are in no file, because nothing of them is sealed, by how they stand; None: nobody was asked."""
    blobs: int = 0
    files: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    fields_left_out: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def export_campaign(
    store: EvidenceStore, campaign_id: str, out: Path | str, *, format: Format = "jsonl",  # noqa: A002 - the flag's name
    only_eligible: bool = False, blobs: Blobs = "all", progress: Callable[[ExportReport], None] | None = None,
    without_evidence: dict[str, int] | None = None,
) -> ExportReport:  # fmt: skip
    """Write a campaign's sealed rollouts to a new directory.

    Args:
        store: where the evidence is.
        campaign_id: which campaign.
        out: a directory that does not exist or is empty.
        format: jsonl or parquet (calls and rollouts), or nemo-gym (one row for each rollout).
        only_eligible: leave out rollouts that runtime admission masked, and earlier executions.
        blobs: `all` copies records, replies, requests and images beside the rows, so that the export can be verified and its
            images shown anywhere; `none` leaves them in the store.
        progress: called after each rollout.
        without_evidence: what Temporal knows and the store does not, for the manifest (`ExportReport.without_evidence`).

    Raises:
        ExportError: the directory is in use, the campaign has no sealed rollout, or the extra for the format is missing.
    """
    target = Path(out)
    keys = sorted((item.rollout_id, item.number) for item in list_pointers(store, campaign_id=campaign_id))
    if not keys:
        raise NothingToExport(
            f"campaign {campaign_id!r} has no sealed execution in {store.url}; check the name with `rollouts list`, and the store's URL"
        )
    if target.exists() and any(target.iterdir()):
        raise PlaceInUse(f"{target} is not empty; choose another directory or remove it")
    target.mkdir(parents=True, exist_ok=True)
    report = ExportReport(campaign_id, format, str(target), without_evidence=without_evidence)
    writers = _writers(target, format)
    copy = LocalStore(target / BLOBS, durable=False) if blobs == "all" else None
    for rollout_id, group in groupby(keys, key=lambda key: key[0]):
        numbers = [number for _, number in group]
        executions = _read(store, rollout_id, numbers, report)
        if executions:
            _write_rollout(store, executions, writers, copy, report, only_eligible=only_eligible)
            if progress is not None:
                progress(report)
    report.files = [writer.close() for writer in writers.values()]
    manifest = report.as_json() | {
        "path": ".",
        "schema_version": 1, "made_by": f"osworld-rollouts {importlib.metadata.version('osworld-rollouts')}",
        "made_at": datetime.now(UTC).isoformat(), "store": store.url, "only_eligible": only_eligible, "blobs": blobs,
    }  # fmt: skip
    (target / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return report


def _writers(target: Path, format: Format) -> dict[str, RowFile]:  # noqa: A002 - as above
    if format == "jsonl":
        return {name: JsonLines(target / f"{name}.jsonl") for name in ("calls", "rollouts")}
    if format == "nemo-gym":
        return {name: JsonLines(target / f"{name}.jsonl") for name in ("rollouts", "unscored")}
    try:
        from osworld_rollouts.evidence.export import schema  # noqa: PLC0415 - extra `export`
    except ImportError as error:
        raise ExportError(
            f"Parquet needs pyarrow ({error}); install the extra: pip install 'osworld-rollouts[export]'"
        ) from error
    return {
        "calls": Parquet(target / "calls.parquet", schema.CALLS),
        "rollouts": Parquet(target / "rollouts.parquet", schema.ROLLOUTS),
    }


def _read(store: EvidenceStore, rollout_id: str, numbers: list[int], report: ExportReport) -> list[Execution]:
    """The rollout's executions whose chains are intact; none when the last is not, for it decides."""
    found: list[Execution] = []
    for pointer in _pointers(store, rollout_id, numbers):
        try:
            found.append(read_execution(store, pointer))
        except EvidenceError as error:
            report.problems.append(f"{pointer.execution_id}: {error}")
            if pointer.number == numbers[-1]:
                return []
    return found


def _pointers(store: EvidenceStore, rollout_id: str, numbers: list[int]) -> Iterator[ExecutionPointer]:
    wanted = {pointer.number: pointer for pointer in list_pointers(store, rollout_id=rollout_id)}
    return (wanted[number] for number in numbers)


def _write_rollout(
    store: EvidenceStore, executions: list[Execution], writers: dict[str, RowFile], copy: LocalStore | None, report: ExportReport,
    *, only_eligible: bool,
) -> None:  # fmt: skip
    last = executions[-1]
    if only_eligible:
        if not last.pointer.outcome.eligible:
            report.left_out += 1
            return
        executions = [last]
    try:
        if "calls" in writers:
            report.blobs += sum(_ensure(store, item, copy) for item in executions)
            for item in executions:
                for row in call_rows(store, item, final=item is last):
                    writers["calls"].write(row)
                    report.calls += 1
            writers["rollouts"].write(rollout_row(executions))
        else:
            _write_nemo_gym(store, last, writers, report)
    except EvidenceError as error:  # a blob that a record names is gone: nothing of this rollout was written
        report.problems.append(f"{last.pointer.execution_id}: {error}")
        return
    report.rollouts += 1
    report.executions += len(executions)


def _write_nemo_gym(store: EvidenceStore, last: Execution, writers: dict[str, RowFile], report: ExportReport) -> None:
    from osworld_rollouts.evidence.export.nemo_gym import LEFT_OUT, nemo_gym_row  # noqa: PLC0415 - one format of three

    report.fields_left_out = LEFT_OUT
    if last.pointer.outcome.score is None:
        writers["unscored"].write(rollout_row([last]))
        report.unscored += 1
        return
    row = nemo_gym_row(store, last, report.rollouts)
    writers["rollouts"].write(row)
    report.calls += len(row["response"]["trajectory_model_calls"])


def _ensure(store: EvidenceStore, execution: Execution, copy: LocalStore | None) -> int:
    """Read every blob that the rows and their verification need, before a row is written; copy what is not copied yet."""
    wanted: dict[str, None] = {}
    for name, record in execution.named:
        wanted[name] = None
        if record.kind in {"execution_started", "model_call"}:
            wanted.update(dict.fromkeys(sha256 for _, sha256 in named_blobs(record)))
    missing = [name for name in wanted if copy is None or not copy.has(name)]
    for name in missing:
        data = store.get(name)
        if copy is not None:
            copy.put(data)
    return 0 if copy is None else len(missing)
