"""The operation ledger: an effect on the desktop happens at most once per operation id.

Each operation is one file `ops/<hash of the id>.json`, created exclusively and synced before the effect starts, and a second
file `.result` written when it ended. Whatever the server's fate, the pair tells the truth: no file, it never arrived;
the first alone, it started and nobody knows how it ended (`running` in the process that runs it, else
`interrupted`); both, the recorded reply is the answer for ever.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .wire import ApiError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Operation:
    """One entry. Times are Unix seconds; `state` is running, finished or interrupted."""

    operation_id: str
    seq: int
    fence: int
    request: str
    digest: str
    started_at: float
    state: str = "running"
    finished_at: float | None = None
    status: int | None = None
    content_type: str = ""
    done: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def file_name(self) -> str:
        """Name of the entry's files, without their ending."""
        return hashlib.sha256(self.operation_id.encode()).hexdigest()[:40]


class Ledger:
    """The ledger in `folder`; one process holds it at a time.

    Raises:
        BlockingIOError: another live server holds the folder.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ops = folder / "ops"
        self._ops.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._holder = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._operations: dict[str, Operation] = {}
        self.fence = self._read_fence()
        for path in sorted(self._ops.glob("*.json")):
            self._load(path)
        self.last_seq = max((op.seq for op in self._operations.values()), default=-1)

    def close(self) -> None:
        """Let another server hold the folder."""
        os.close(self._holder)

    def admit(self, operation_id: str, seq: int, fence: int, request: str, digest: str) -> tuple[Operation, bool]:
        """Decide whether this request may take effect, and record durably that it will.

        Returns the entry and whether it is new: only then may the caller perform the effect, after which it calls
        `finish`. `digest` identifies the request's content; empty means it is not compared.

        Raises:
            ApiError: 409 `stale_fence`, `stale_sequence` or `operation_mismatch`; 507 `ledger_unavailable` when the entry
                cannot be written, in which case nothing may be performed.
        """
        with self._lock:
            if fence < self.fence:
                raise ApiError(
                    409, "stale_fence", f"fence {fence} is older than the lease's fence {self.fence}", fence=self.fence
                )
            if fence > self.fence:
                self._write_fence(fence)
            known = self._operations.get(operation_id)
            if known is not None:
                if known.request != request or (digest and known.digest and known.digest != digest):
                    raise ApiError(
                        409,
                        "operation_mismatch",
                        f"operation {operation_id} was recorded for another request ({known.request}); "
                        "a new effect needs a new operation id",
                    )
                return known, False
            if seq <= self.last_seq:
                raise ApiError(
                    409,
                    "stale_sequence",
                    f"operation {operation_id} has sequence {seq}, but {self.last_seq} was already recorded",
                    last_seq=self.last_seq,
                )
            operation = Operation(operation_id, seq, fence, request, digest, time.time())
            self._create(operation)
            self._operations[operation_id] = operation
            self.last_seq = seq
            return operation, True

    def finish(self, operation: Operation, status: int, content_type: str, body: bytes) -> None:
        """Record the reply. A ledger that cannot keep it leaves the operation `interrupted`, never `finished`.

        Raises:
            ApiError: 507 `ledger_unavailable`; the effect happened and its result is not kept.
        """
        finished_at = time.time()
        head = {"status": status, "content_type": content_type, "finished_at": finished_at}
        try:
            self._write(self._ops / f"{operation.file_name}.result", json.dumps(head).encode() + b"\n" + body)
        except OSError as error:
            self.interrupt(operation)
            raise ApiError(
                507,
                "ledger_unavailable",
                f"operation {operation.operation_id} was performed but its result could not be kept: {error}",
            ) from error
        operation.status, operation.content_type, operation.finished_at = status, content_type, finished_at
        operation.state = "finished"
        operation.done.set()

    def interrupt(self, operation: Operation) -> None:
        """The effect was begun and its end is unknown."""
        operation.state = "interrupted"
        operation.done.set()

    def get(self, operation_id: str) -> Operation | None:
        """The entry, or None if the operation never arrived."""
        with self._lock:
            return self._operations.get(operation_id)

    def all(self) -> list[Operation]:
        """Every entry in the order of `seq`."""
        with self._lock:
            return sorted(self._operations.values(), key=lambda op: op.seq)

    def body(self, operation: Operation) -> bytes:
        """The recorded reply body of a finished operation."""
        data = (self._ops / f"{operation.file_name}.result").read_bytes()
        return data.split(b"\n", 1)[1]

    def _load(self, path: Path) -> None:
        try:
            record: dict[str, Any] = json.loads(path.read_bytes())
            operation = Operation(**record, state="interrupted")
        except (ValueError, TypeError):
            # A crash between create and sync left a torn entry: it was begun, so its file name stays taken.
            operation = Operation(f"torn:{path.stem}", -1, 0, "", "", path.stat().st_mtime, state="interrupted")
        result = path.with_suffix(".result")
        if result.exists():
            head = json.loads(result.read_bytes().split(b"\n", 1)[0])
            operation.state = "finished"
            operation.status, operation.content_type = head["status"], head["content_type"]
            operation.finished_at = head["finished_at"]
        operation.done.set()
        self._operations[operation.operation_id] = operation

    def _create(self, operation: Operation) -> None:
        record = {
            "operation_id": operation.operation_id,
            "seq": operation.seq,
            "fence": operation.fence,
            "request": operation.request,
            "digest": operation.digest,
            "started_at": operation.started_at,
        }
        path = self._ops / f"{operation.file_name}.json"
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            raise ApiError(
                409, "operation_interrupted", f"operation {operation.operation_id} has a torn entry; its end is unknown"
            ) from None
        except OSError as error:
            raise _unavailable(operation, error) from error
        try:
            try:
                os.write(handle, json.dumps(record).encode())
                os.fsync(handle)
            finally:
                os.close(handle)
            self._sync_folder(self._ops)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise _unavailable(operation, error) from error

    def _read_fence(self) -> int:
        try:
            return int((self._folder / "fence").read_text())
        except FileNotFoundError:
            return 0

    def _write_fence(self, fence: int) -> None:
        try:
            self._write(self._folder / "fence", str(fence).encode())
        except OSError as error:
            raise ApiError(507, "ledger_unavailable", f"fence {fence} cannot be recorded: {error}") from error
        self.fence = fence

    def _write(self, path: Path, data: bytes) -> None:
        temporary = path.with_suffix(".part")
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        self._sync_folder(path.parent)

    @staticmethod
    def _sync_folder(folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _unavailable(operation: Operation, error: OSError) -> ApiError:
    return ApiError(
        507, "ledger_unavailable", f"operation {operation.operation_id} was not performed: its entry failed: {error}"
    )
