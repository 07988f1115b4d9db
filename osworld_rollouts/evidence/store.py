"""The content-addressed store: blobs under the sha256 of their content, and a few named things.

Layout, the same in a directory and in a bucket:

    blobs/ab/cd/<sha256>     the content, or a zstd frame of it when that is smaller and the content is not packed already
    named/<key>              pointers (an execution's head) and the journal of model calls

Which of the two a blob file is, its first four bytes say (the zstd magic number, RFC 8878); the sha256 is always that of the
uncompressed content, and every read checks it. `zstd -dc blobs/ab/cd/<sha256>` shows a compressed one.

A store is safe to share between threads and processes. A write is durable and visible whole, or not at all.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from osworld_rollouts.evidence.errors import EvidenceUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

_SHA256: Final = re.compile(r"^[0-9a-f]{64}$")
_SEGMENT: Final = re.compile(r"^[A-Za-z0-9_~][A-Za-z0-9_.~=+-]*$")
_MAX_SEGMENT: Final = 240  # a file name has at most 255 bytes on common file systems; temporary names need some
_SHORT: Final = 160


@dataclass(frozen=True)
class StoredItem:
    """One stored thing: its name (a sha256 or a key), bytes as stored, and when it was last put."""

    name: str
    stored_bytes: int
    put_at: datetime


class EvidenceStore(Protocol):
    """Blobs by sha256 and named things by key. All methods block; call them from a thread in async code.

    Every method raises EvidenceUnavailable when the store cannot be reached or written.
    """

    @property
    def url(self) -> str:
        """Where it is, for people and settings."""
        ...

    def put(self, data: bytes) -> str:
        """Store content once; its sha256. Content that is there already is checked, repaired if damaged, and marked fresh."""
        ...

    def get(self, sha256: str) -> bytes:
        """The content, checked against its name.

        Raises:
            BlobMissing: nothing is stored under it.
            BlobCorrupt: other bytes are.
        """
        ...

    def has(self, sha256: str) -> bool:
        """Whether something is stored under it (not whether it is intact)."""
        ...

    def put_named(self, key: str, data: bytes, *, exclusive: bool = False) -> bool:
        """Write a named thing, replacing it; with `exclusive`, False (and nothing written) when it exists."""
        ...

    def get_named(self, key: str) -> bytes | None:
        """A named thing, or None."""
        ...

    def list_named(self, prefix: str) -> Iterator[str]:
        """Keys below a prefix that ends at a segment (`executions/demo`), in no particular order."""
        ...

    def blobs(self) -> Iterator[StoredItem]:
        """Every blob, in no particular order."""
        ...

    def delete_blob(self, sha256: str) -> None:
        """Remove a blob; removing what is gone is a success."""
        ...

    def delete_named(self, key: str) -> None:
        """Remove a named thing; removing what is gone is a success."""
        ...


def put_json(store: EvidenceStore, value: Any) -> str:
    """Store a JSON value; its sha256. Keys keep their order (a prompt's tool schemas are rendered in it); no blanks, UTF-8.

    Raises:
        ValueError: for NaN or infinity, which JSON cannot carry.
    """
    return store.put(json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode())


def get_json(store: EvidenceStore, sha256: str) -> Any:
    """A stored JSON value. Raises as `EvidenceStore.get`."""
    return json.loads(store.get(sha256))


def check_sha256(value: str) -> str:
    """The value, if it is 64 lower-case hex digits.

    Raises:
        ValueError: it is not.
    """
    if not _SHA256.match(value):
        raise ValueError(f"{value!r} is not a sha256: expected 64 lower-case hex digits")
    return value


def blob_path(sha256: str) -> str:
    """Place of a blob below the store's root."""
    return f"blobs/{check_sha256(sha256)[:2]}/{sha256[2:4]}/{sha256}"


def named_path(key: str) -> str:
    """Place of a named thing below the store's root.

    Raises:
        ValueError: for a key that is empty, absolute, climbs, or has characters outside `A-Za-z0-9_.~=+-`.
    """
    segments = key.split("/")
    for segment in segments:
        if not _SEGMENT.match(segment) or len(segment) > _MAX_SEGMENT:
            raise ValueError(
                f"{key!r} is not a usable name: segment {segment!r} must match {_SEGMENT.pattern} and be at most {_MAX_SEGMENT} long"
            )
    return f"named/{key}"


def key_segments(identifier: str) -> str:
    """An id with slashes (an execution id) as part of a key: over-long segments are cut and end in `~` and part of their sha256."""
    import hashlib  # noqa: PLC0415 - only for the rare long id

    return "/".join(
        segment if len(segment) <= _SHORT else f"{segment[:_SHORT]}~{hashlib.sha256(segment.encode()).hexdigest()[:24]}"
        for segment in identifier.split("/")
    )


def open_store(url: str | Path, *, min_free_bytes: int = 0) -> EvidenceStore:
    """The store at a path, a `file:///…` URL or `s3://bucket/prefix` (needs the extra `s3`; see docs/evidence.md for its settings).

    A local store refuses to write when its disk has less than `min_free_bytes` left, so that a full disk is one clear failure.

    Raises:
        EvidenceUnavailable: the place cannot be created or reached, or the extra is not installed.
        ValueError: another scheme.
    """
    from osworld_rollouts.evidence.local_store import LocalStore  # noqa: PLC0415 - siblings import this module

    text = str(url)
    scheme = urlsplit(text).scheme if "://" in text else ""
    if scheme == "":
        return LocalStore(Path(text).expanduser(), min_free_bytes=min_free_bytes)
    if scheme == "file":
        return LocalStore(Path(unquote(urlsplit(text).path)), min_free_bytes=min_free_bytes)
    if scheme == "s3":
        try:
            from osworld_rollouts.evidence.s3_store import open_s3  # noqa: PLC0415 - optional extra
        except ImportError as error:
            raise EvidenceUnavailable(
                text, "opening", detail=f"{error}", remedy="install the extra: pip install 'osworld-rollouts[s3]'"
            ) from error
        return open_s3(text)
    raise ValueError(f"{text!r}: an evidence store is a path, file:///path or s3://bucket/prefix")
