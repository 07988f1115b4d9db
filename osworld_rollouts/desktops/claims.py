"""Whether a desktop takes up room: somebody works on it, or a living worker is making it or has just made it.

The second is a lock, which ends with the process that holds it.

Without it a desktop whose maker died would take up room for ever, while the execution it was made for waits for room to adopt it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Claims:
    """One file for each lease in `folder`, locked by the worker that provisions it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}
        self._begun: set[str] = set()

    def take(self, lease_id: str) -> None:
        """Hold the claim, unless another living worker does."""
        if lease_id in self._held:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._path(lease_id), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return
        self._held[lease_id] = handle

    def drop(self, lease_id: str) -> None:
        """Let go of the claim, if it is ours."""
        handle = self._held.pop(lease_id, None)
        if handle is not None:
            self._path(lease_id).unlink(missing_ok=True)
            os.close(handle)

    def held(self, lease_id: str) -> bool:
        """Whether a living worker holds the claim."""
        if lease_id in self._held:
            return True
        try:
            handle = os.open(self._path(lease_id), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def begin(self, lease_id: str) -> None:
        """Somebody works on the desktop from now on: it takes up room whoever lives."""
        if lease_id not in self._begun:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._path(lease_id).with_suffix(".begun").touch()
            self._begun.add(lease_id)

    def begun(self, lease_id: str) -> bool:
        """Whether somebody works or worked on the desktop."""
        return lease_id in self._begun or self._path(lease_id).with_suffix(".begun").exists()

    def forget(self, lease_id: str) -> None:
        """The desktop is gone."""
        self.drop(lease_id)
        self._begun.discard(lease_id)
        self._path(lease_id).with_suffix(".begun").unlink(missing_ok=True)

    @property
    def ours(self) -> list[str]:
        """Leases whose claim this process holds."""
        return list(self._held)

    def _path(self, lease_id: str) -> Path:
        return self._folder / hashlib.sha256(lease_id.encode()).hexdigest()[:24]
