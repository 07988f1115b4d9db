"""The desktops of this host on disk: one folder for each lease, with its record, its token and its lock.

Everything survives the worker. A folder without a record is a desktop whose making was cut short; it still counts as ours, because
of its name, which nobody gives a folder by hand. Anything else that lies here is not ours and is left alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import SecretStr, ValidationError

from osworld_rollouts.desktops._provider import DesktopError, DesktopRecord

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

MAX_SOCKET_PATH = 100
"""Bytes; the kernel's limit for a unix socket is 107."""

_NAME = re.compile(r"[0-9a-f]{12}")
_LAST = {"record.json": 1, "token": 2}
"""A folder with both is listed, one without a record is tidied away; there must be nothing in between."""


class LeaseRegistry:
    """The folder `root`, shared by every worker of one host. `sockets` says that unix sockets lie in the leases' folders."""

    def __init__(self, root: Path, *, sockets: bool = True) -> None:
        self.root = root
        self._sockets = sockets

    def folder(self, lease_id: str) -> Path:
        """Where the desktop of this lease lives, whether it exists or not.

        Raises:
            DesktopError: the path is too long for unix sockets.
        """
        folder = self.root / _name(lease_id)
        if self._sockets and len(os.fsencode(folder / "sock" / "server.sock")) > MAX_SOCKET_PATH:
            raise DesktopError(
                f"{folder} is too long for unix sockets ({MAX_SOCKET_PATH} bytes); choose a shorter state directory"
            )
        return folder

    @contextmanager
    def lock(self, lease_id: str) -> Generator[Path]:
        """Hold the lease's lock and give its folder; two makers of one desktop take turns."""
        folder = self.folder(lease_id)
        self.root.mkdir(parents=True, exist_ok=True)
        handle = _lock_file(self._lock_path(folder), fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            if not folder.exists():
                self._lock_path(folder).unlink(missing_ok=True)
            os.close(handle)

    def tidy(self) -> None:
        """Remove folders without a record: what was left when a making or a removal was cut short. Nothing runs in them."""
        for folder in self.folders():
            if (folder / "record.json").exists():
                continue
            try:
                handle = _lock_file(self._lock_path(folder), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            try:
                if not (folder / "record.json").exists():
                    self.remove(folder)
                    self._lock_path(folder).unlink(missing_ok=True)
            finally:
                os.close(handle)

    def _lock_path(self, folder: Path) -> Path:
        return self.root / f".{folder.name}.lock"

    def write(self, record: DesktopRecord) -> None:
        """Keep the record and its token, each whole or not at all."""
        folder = record.state_dir
        _write(folder / "token", record.token.get_secret_value())
        _write(folder / "record.json", record.model_dump_json(indent=1))

    def read(self, lease_id: str) -> DesktopRecord | None:
        """The record of this lease, or None."""
        return self._read(self.folder(lease_id))

    def all(self) -> list[DesktopRecord]:
        """Every readable record, oldest first."""
        records = (self._read(folder) for folder in self.folders())
        return sorted((record for record in records if record is not None), key=lambda record: record.created_at)

    def folders(self) -> list[Path]:
        """Every folder a desktop has or had, with or without a record."""
        if not self.root.is_dir():
            return []
        return sorted(path for path in self.root.iterdir() if _NAME.fullmatch(path.name) and path.is_dir())

    def remove(self, folder: Path) -> None:
        """Delete a desktop's folder, what `read` needs last, so that an interrupted removal is found again.

        Raises:
            DesktopError: something cannot be deleted, or the folder is not one of ours.
        """
        if folder.parent != self.root:
            raise DesktopError(f"{folder} is not a desktop of {self.root}; it is left alone")
        try:
            for entry in sorted(folder.iterdir(), key=lambda path: _LAST.get(path.name, 0)) if folder.is_dir() else ():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
            if folder.is_dir():
                folder.rmdir()
        except OSError as error:
            raise DesktopError(f"{folder} cannot be deleted: {error}") from error

    @staticmethod
    def _read(folder: Path) -> DesktopRecord | None:
        try:
            token = (folder / "token").read_text()
            stored = DesktopRecord.model_validate_json((folder / "record.json").read_text())
        except (OSError, ValidationError):
            return None
        if _name(stored.lease_id) != folder.name:
            return None  # a copy that somebody made
        return stored.model_copy(update={"token": SecretStr(token)})


def _name(lease_id: str) -> str:
    """The name of a lease's folder."""
    return hashlib.sha256(lease_id.encode()).hexdigest()[:12]


def _lock_file(path: Path, how: int) -> int:
    """An open, locked descriptor of `path`; a file that was unlinked while we waited is made again."""
    while True:
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, how)
            if os.fstat(handle).st_ino == path.stat().st_ino:
                return handle
        except FileNotFoundError:
            pass
        except BlockingIOError:
            os.close(handle)
            raise
        os.close(handle)


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.new")
    with os.fdopen(os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
