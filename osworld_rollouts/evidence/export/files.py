"""Writing rows as JSON Lines or Parquet, in constant memory; a file takes its final name when it is whole."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final, Protocol

from osworld_rollouts.evidence.errors import EvidenceError

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

# Rows become Arrow arrays early, because as Python objects ids take many times the room; row groups are large, because the writer
# keeps something about each until the file is closed (measured: 36 MB for 390 of them).
_BATCH_ROWS: Final = 64
_BATCH_BYTES: Final = 2 << 20  # of prompt ids and requests
_GROUP_ROWS: Final = 8192
_GROUP_BYTES: Final = 16 << 20


class ExportError(EvidenceError):
    """An export that cannot be written."""


class NothingToExport(ExportError):
    """A campaign without a sealed execution."""


class PlaceInUse(ExportError):
    """A directory that holds something."""


class RowFile(Protocol):
    """A file of rows."""

    def write(self, row: dict[str, Any]) -> None:
        """Add a row."""
        ...

    def close(self) -> dict[str, Any]:
        """Finish; what the manifest says about the file: name, rows, bytes, sha256."""
        ...


class JsonLines:
    """Rows as JSON, one a line."""

    def __init__(self, path: Path) -> None:
        self._path, self._part = path, path.with_name(f"{path.name}.part")
        self._file = self._part.open("w", encoding="utf-8")
        self._rows = 0

    def write(self, row: dict[str, Any]) -> None:
        """Add a row."""
        self._file.write(json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n")
        self._rows += 1

    def close(self) -> dict[str, Any]:
        """Finish."""
        self._file.close()
        return _finished(self._part, self._path, self._rows)


class Parquet:
    """Rows as Parquet, zstd, with the schema of `schema.py`."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        from pyarrow import parquet  # noqa: PLC0415 - extra `export`

        self._path, self._part, self._schema = path, path.with_name(f"{path.name}.part"), schema
        self._writer = parquet.ParquetWriter(self._part, schema, compression="zstd")
        self._buffer: list[dict[str, Any]] = []
        self._buffer_bytes = 0
        self._group: list[pa.RecordBatch] = []
        self._rows = 0

    def write(self, row: dict[str, Any]) -> None:
        """Add a row; a full row group goes to the file."""
        self._buffer.append(row)
        self._buffer_bytes += len(row.get("request") or "") + 4 * len(row.get("prompt_token_ids") or ())
        self._rows += 1
        if len(self._buffer) >= _BATCH_ROWS or self._buffer_bytes >= _BATCH_BYTES:
            self._pack()

    def close(self) -> dict[str, Any]:
        """Finish."""
        self._pack()
        self._flush()
        self._writer.close()
        return _finished(self._part, self._path, self._rows)

    def _pack(self) -> None:
        import pyarrow as pa  # noqa: PLC0415 - extra `export`

        if self._buffer:
            self._group.append(pa.RecordBatch.from_pylist(self._buffer, schema=self._schema))
            self._buffer, self._buffer_bytes = [], 0
        rows, size = sum(batch.num_rows for batch in self._group), sum(batch.nbytes for batch in self._group)
        if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa  # noqa: PLC0415 - extra `export`

        if self._group:
            self._writer.write_table(pa.Table.from_batches(self._group, schema=self._schema))
            self._group = []


def sha256_of(path: Path) -> str:
    """Sha256 of a file, hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _finished(part: Path, path: Path, rows: int) -> dict[str, Any]:
    part.replace(path)
    return {"name": path.name, "rows": rows, "bytes": path.stat().st_size, "sha256": sha256_of(path)}
