"""The store in a directory."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from osworld_rollouts.evidence.errors import BlobCorrupt, BlobMissing, EvidenceUnavailable
from osworld_rollouts.evidence.packing import pack, sha256_hex, unpack
from osworld_rollouts.evidence.store import StoredItem, blob_path, named_path

if TYPE_CHECKING:
    from collections.abc import Iterator

_TEMPORARY: Final = ".tmp-"


class LocalStore:
    """Blobs and named things as files below a directory, which is made when missing.

    A write goes to a temporary file in the same directory, is synced, and takes its final name in one step; then the
    directory is synced. A process that dies in between leaves a `.tmp-*` file, which `rollouts store gc` removes.
    """

    def __init__(self, path: Path | str, *, min_free_bytes: int = 0, durable: bool = True) -> None:
        self.path = Path(path).absolute()
        self._min_free_bytes = min_free_bytes
        self._durable = (
            durable  # False for copies that can be made again: whole or not at all, and not synced one by one
        )
        try:
            for part in ("blobs", "named"):
                (self.path / part).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EvidenceUnavailable.from_os(error, str(self.path), "creating") from error

    def __repr__(self) -> str:
        return f"LocalStore({str(self.path)!r})"

    @property
    def url(self) -> str:
        """`file:///…`."""
        return self.path.as_uri()

    def put(self, data: bytes) -> str:
        """Store content once; its sha256."""
        sha256 = sha256_hex(data)
        target = self.path / blob_path(sha256)
        try:
            unpack(target.read_bytes(), sha256, str(target))
            os.utime(target)  # fresh for gc: a running execution counts on it again
        except FileNotFoundError:
            self._write(target, pack(data), exclusive=False)
        except BlobCorrupt:
            self._write(target, pack(data), exclusive=False)
        except OSError as error:
            raise EvidenceUnavailable.from_os(error, str(target), "writing") from error
        return sha256

    def get(self, sha256: str) -> bytes:
        """The content, checked against its name."""
        target = self.path / blob_path(sha256)
        try:
            stored = target.read_bytes()
        except FileNotFoundError:
            self._expect_present("blobs")
            raise BlobMissing(sha256, str(self.path)) from None
        except OSError as error:
            raise EvidenceUnavailable.from_os(error, str(target), "reading") from error
        return unpack(stored, sha256, str(self.path))

    def has(self, sha256: str) -> bool:
        """Whether a file stands under this sha256."""
        return (self.path / blob_path(sha256)).is_file()

    def put_named(self, key: str, data: bytes, *, exclusive: bool = False) -> bool:
        """Write a named thing, replacing it; with `exclusive`, False when it exists."""
        return self._write(self.path / named_path(key), data, exclusive=exclusive)

    def get_named(self, key: str) -> bytes | None:
        """A named thing, or None."""
        target = self.path / named_path(key)
        try:
            return target.read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            self._expect_present("named")
            return None
        except OSError as error:
            raise EvidenceUnavailable.from_os(error, str(target), "reading") from error

    def list_named(self, prefix: str) -> Iterator[str]:
        """Keys below a prefix that ends at a segment; all for the empty one."""
        self._expect_present("named")
        root = self.path / "named"
        start = self.path / named_path(prefix.rstrip("/")) if prefix else root
        for directory, _, names in os.walk(start):
            for name in names:
                if not name.startswith(_TEMPORARY):
                    yield (Path(directory) / name).relative_to(root).as_posix()

    def blobs(self) -> Iterator[StoredItem]:
        """Every blob."""
        for directory, _, names in os.walk(self.path / "blobs"):
            for name in names:
                if name.startswith(_TEMPORARY):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    status = (Path(directory) / name).stat()
                    yield StoredItem(name, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))

    def leftovers(self) -> Iterator[StoredItem]:
        """Temporary files of writers that died; the name is the path below the store."""
        for directory, _, names in os.walk(self.path):
            for name in names:
                if name.startswith(_TEMPORARY):
                    path = Path(directory) / name
                    with contextlib.suppress(FileNotFoundError):
                        status = path.stat()
                        when = datetime.fromtimestamp(status.st_mtime, UTC)
                        yield StoredItem(path.relative_to(self.path).as_posix(), status.st_size, when)

    def delete_blob(self, sha256: str) -> None:
        """Remove a blob."""
        self._delete(self.path / blob_path(sha256))

    def delete_named(self, key: str) -> None:
        """Remove a named thing."""
        self._delete(self.path / named_path(key))

    def delete_leftover(self, item: StoredItem) -> None:
        """Remove a temporary file that `leftovers` gave."""
        target = self.path / item.name
        if not target.name.startswith(_TEMPORARY):
            raise ValueError(f"{item.name} is not a temporary file")
        self._delete(target)

    def _delete(self, target: Path) -> None:
        try:
            target.unlink(missing_ok=True)
        except OSError as error:
            raise EvidenceUnavailable.from_os(error, str(target), "deleting") from error

    def _write(self, target: Path, data: bytes, *, exclusive: bool) -> bool:
        temporary = target.parent / f"{_TEMPORARY}{secrets.token_hex(8)}"
        try:
            self._ready(target.parent)
            self._expect_room(len(data))
            try:
                with temporary.open("xb") as file:
                    file.write(data)
                    if self._durable:
                        file.flush()
                        os.fsync(file.fileno())
                if exclusive:
                    try:
                        os.link(temporary, target)
                    except FileExistsError:
                        return False
                else:
                    temporary.replace(target)
                if self._durable:
                    _sync_directory(target.parent)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise EvidenceUnavailable.from_os(error, str(target), "writing") from error
        return True

    def _expect_present(self, part: str) -> None:
        """A store whose mount has gone is away; it does not say that there is nothing."""
        if not (self.path / part).is_dir():
            raise EvidenceUnavailable(
                str(self.path),
                "reading",
                detail="the store's directory is gone",
                remedy="mount or restore the evidence store",
            )

    def _expect_room(self, size: int) -> None:
        if self._min_free_bytes:
            status = os.statvfs(self.path)
            free = status.f_bavail * status.f_frsize
            if free - size < self._min_free_bytes:
                raise OSError(
                    errno.ENOSPC, f"{free} bytes are left and {self._min_free_bytes} must stay free", str(self.path)
                )

    def _ready(self, directory: Path) -> None:
        """Make the directory, with its entry in its parents durable too."""
        if directory.is_dir():
            return
        if not self.path.is_dir():  # never recreate a store whose mount has gone
            raise FileNotFoundError(2, "the store's directory is gone", str(self.path))
        made: list[Path] = []
        level = directory
        while not level.is_dir():
            made.append(level)
            level = level.parent
        directory.mkdir(parents=True, exist_ok=True)
        for level in reversed(made) if self._durable else ():
            _sync_directory(level.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
