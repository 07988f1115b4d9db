"""The desktops of this host on disk: one folder for each lease, with its record, its token and its lock.

Everything survives the worker. A folder without a readable record is a desktop whose making was cut short; it still counts
as ours, because only we make folders here.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr, ValidationError

from osworld_rollouts.desktops._provider import DesktopError, DesktopRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_SOCKET_PATH = 100
"""Bytes; the kernel's limit for a unix socket is 107."""


class LeaseRegistry:
    """The folder `root`, shared by every worker of one host."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, lease_id: str) -> Path:
        """Where the desktop of this lease lives, whether it exists or not.

        Raises:
            DesktopError: the path is too long for unix sockets.
        """
        folder = self.root / hashlib.sha256(lease_id.encode()).hexdigest()[:12]
        if len(os.fsencode(folder / "sock" / "server.sock")) > MAX_SOCKET_PATH:
            raise DesktopError(
                f"{folder} is too long for unix sockets ({MAX_SOCKET_PATH} bytes); choose a shorter state directory"
            )
        return folder

    @contextmanager
    def lock(self, lease_id: str) -> Iterator[Path]:
        """Hold the lease's lock and give its folder. The lock file stays; it is what makes two makers take turns."""
        folder = self.folder(lease_id)
        self.root.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.root / f".{folder.name}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(handle)

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
        return sorted(path for path in self.root.iterdir() if path.is_dir() and not path.name.startswith("."))

    def remove(self, folder: Path) -> None:
        """Delete a desktop's folder, the record last, so that an interrupted removal is found again.

        Raises:
            DesktopError: something cannot be deleted, or the folder is not one of ours.
        """
        if folder.parent != self.root:
            raise DesktopError(f"{folder} is not a desktop of {self.root}; it is left alone")
        try:
            for entry in sorted(folder.iterdir(), key=lambda path: path.name == "record.json") if folder.is_dir() else ():
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
        return stored.model_copy(update={"token": SecretStr(token)})


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.new")
    with os.fdopen(os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
