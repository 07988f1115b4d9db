"""What can go wrong with evidence.

Three families. *Unavailable*: the store cannot be reached or written (a disk is full, a bucket is down): trying again may help and
nothing is known to be lost. *Missing or corrupt*: a blob that a record names is gone or its bytes differ from its name: trying
again does not help. *Refused*: what was handed in is not evidence (a record out of place, an image that is none).
"""

from __future__ import annotations

import errno as _errno
from typing import Final


class EvidenceError(Exception):
    """Anything wrong with evidence. `remedy` says what a person can do, or is empty."""

    remedy: str = ""


class EvidenceUnavailable(EvidenceError):
    """The store cannot be read or written now. `place` is the path or URL, `errno` the system's number where there is one."""

    def __init__(self, place: str, doing: str, *, errno: int | None = None, detail: str = "", remedy: str = "") -> None:
        self.place, self.errno = place, errno
        self.remedy = remedy or _REMEDIES.get(
            errno or 0, "check that the evidence store is reachable and writable, then retry"
        )
        code = f" [{_errno.errorcode.get(errno, str(errno))}]" if errno else ""
        super().__init__(f"evidence store: {doing} {place} failed{code}: {detail or 'unknown reason'}; {self.remedy}")

    @classmethod
    def from_os(cls, error: OSError, place: str, doing: str) -> EvidenceUnavailable:
        """The same failure with the system's words."""
        return cls(place, doing, errno=error.errno, detail=error.strerror or str(error))


_REMEDIES: Final[dict[int, str]] = {
    _errno.ENOSPC: "free space on that disk or point the evidence store elsewhere; the work continues on retry",
    _errno.EDQUOT: "raise the quota or point the evidence store elsewhere; the work continues on retry",
    _errno.EACCES: "give the worker's user write permission to the evidence store",
    _errno.EPERM: "give the worker's user write permission to the evidence store",
    _errno.EROFS: "the file system is mounted read-only: remount it or point the evidence store elsewhere",
    _errno.ENOTDIR: "a file stands where the store needs a directory: move it away or choose another store path",
    _errno.EIO: "the disk reports an I/O error: check its health",
    _errno.EMFILE: "too many open files: raise the worker's limit (ulimit -n)",
}


class BlobMissing(EvidenceError):
    """No blob has this sha256."""

    remedy = "restore the store from a copy, or run `rollouts store verify` to see which executions it touches"

    def __init__(self, sha256: str, place: str) -> None:
        self.sha256 = sha256
        super().__init__(f"blob {sha256} is missing from {place}; {self.remedy}")


class BlobCorrupt(EvidenceError):
    """The bytes stored under this sha256 are other bytes."""

    remedy = "restore the blob from a copy; putting the same content again repairs it"

    def __init__(self, sha256: str, place: str, detail: str) -> None:
        self.sha256 = sha256
        super().__init__(f"blob {sha256} in {place} is corrupt: {detail}; {self.remedy}")


class RecordUnreadable(EvidenceError):
    """A blob is intact but is no record of a schema this version knows."""

    def __init__(self, sha256: str, detail: str) -> None:
        self.sha256 = sha256
        super().__init__(f"blob {sha256} is not a record this version can read: {detail}")


class ChainBroken(EvidenceError):
    """A record does not fit where it stands in its chain."""


class UnusableImage(EvidenceError):
    """Bytes that were to be a screenshot are no image, a cut one, one of the wrong size, or blank where that was not allowed.

    `reason` is one of `empty`, `not_an_image`, `truncated`, `wrong_size`, `blank`.
    """

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        super().__init__(f"unusable image ({reason}): {detail}")
