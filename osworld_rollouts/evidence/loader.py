"""Reading an export back: verified rollouts one after another, images decoded when looked at.

for rollout in open_campaign("out/"):
    for call in rollout.calls:
        call.row["prompt_token_ids"], call.images()[0].size, call.admission.eligible
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osworld_rollouts.evidence.admission import Expected, RolloutAdmission, admit_rollout
from osworld_rollouts.evidence.errors import EvidenceError, EvidenceUnavailable
from osworld_rollouts.evidence.local_store import LocalStore
from osworld_rollouts.evidence.store import EvidenceStore, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from PIL.Image import Image

    from osworld_rollouts.evidence.admission import CallAdmission

_MANIFEST = "manifest.json"
_BLOBS = "evidence"


class NotAnExport(EvidenceError):
    """A path that is no export of calls and rollouts."""


@dataclass(frozen=True)
class ExportedCall:
    """One model call: its row, and what trainer admission says about it."""

    row: dict[str, Any]
    admission: CallAdmission | None
    _store: EvidenceStore = field(repr=False)

    def image_bytes(self) -> list[bytes]:
        """The images as sent, in order."""
        return [self._store.get(item["sha256"]) for item in self.row["media"]]

    def images(self) -> list[Image]:
        """The images as sent, decoded, in order."""
        from PIL import Image  # noqa: PLC0415 - only who looks at images needs it

        return [Image.open(io.BytesIO(data)).convert("RGB") for data in self.image_bytes()]

    def messages(self) -> Any:
        """What the model was sent, images as `media://<sha256>`."""
        return json.loads(self.row["request"])


@dataclass(frozen=True)
class ExportedRollout:
    """One rollout: its row, its model calls (all executions), and trainer admission of its final execution."""

    row: dict[str, Any]
    rows: list[dict[str, Any]] = field(repr=False)
    admission: RolloutAdmission
    _store: EvidenceStore = field(repr=False)

    @cached_property
    def calls(self) -> list[ExportedCall]:
        """Model calls of the final execution, in order."""
        judged = {call.record_sha256: call for call in self.admission.calls}
        return [
            ExportedCall(row, judged.get(row["record_sha256"]), self._store)
            for row in self.rows
            if row["final_execution"]
        ]


class Campaign:
    """An exported campaign. Iterating streams: one rollout is in memory at a time."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            self.manifest: dict[str, Any] = json.loads((self.path / _MANIFEST).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise NotAnExport(
                f"{self.path} has no {_MANIFEST}; make one with `rollouts export CAMPAIGN --out {self.path}`"
            ) from None
        except ValueError as error:
            raise NotAnExport(f"{self.path / _MANIFEST} is not readable: {error}") from error
        if self.manifest.get("format") not in {"jsonl", "parquet"}:
            raise NotAnExport(
                f"{self.path} is in the format {self.manifest.get('format')!r}; this reads jsonl and parquet"
            )
        inside = self.path / _BLOBS
        try:
            self._store = LocalStore(inside) if inside.is_dir() else open_store(self.manifest["store"])
        except EvidenceUnavailable as error:
            raise NotAnExport(f"{self.path} holds no evidence and its store is not reachable: {error}") from error
        self.broken: list[str] = []

    def __iter__(self) -> Iterator[ExportedRollout]:
        return self.rollouts()

    def __len__(self) -> int:
        return int(self.manifest["rollouts"])

    def rollouts(
        self, *, only_eligible: bool = False, keep_broken: bool = False, expected: Expected | None = None
    ) -> Iterator[ExportedRollout]:
        """Rollouts whose evidence is intact.

        Args:
            only_eligible: leave out those that trainer admission refuses.
            keep_broken: give those too whose evidence is not intact; otherwise they are listed in `broken`.
            expected: identities to hold every rollout against.
        """
        self.broken = []
        groups = groupby(self._rows("calls"), key=lambda row: row["rollout_id"])
        group = next(groups, None)
        for row in self._rows("rollouts"):
            rows: list[dict[str, Any]] = []
            if group is not None and group[0] == row["rollout_id"]:
                rows = list(group[1])
                group = next(groups, None)
            admission = admit_rollout(
                row, (item for item in rows if item["final_execution"]), self._store.get, expected=expected
            )
            if not admission.intact:
                self.broken.append(f"{row['rollout_id']}: {'; '.join(admission.reasons)}")
                if not keep_broken:
                    continue
            if admission.eligible or not only_eligible:
                yield ExportedRollout(row, rows, admission, self._store)

    def _rows(self, name: str) -> Iterator[dict[str, Any]]:
        if self.manifest["format"] == "jsonl":
            with (self.path / f"{name}.jsonl").open(encoding="utf-8") as file:
                for line in file:
                    yield json.loads(line)
            return
        from pyarrow import parquet  # noqa: PLC0415 - extra `export`

        file = parquet.ParquetFile(
            self.path / f"{name}.parquet", pre_buffer=False
        )  # buffering ahead keeps the whole file
        for group in range(file.num_row_groups):
            for batch in file.iter_batches(batch_size=64, row_groups=[group]):
                yield from batch.to_pylist()


def open_campaign(path: Path | str) -> Campaign:
    """An export made by `rollouts export`.

    Raises:
        NotAnExport: there is none, or it is of another format.
    """
    return Campaign(path)
