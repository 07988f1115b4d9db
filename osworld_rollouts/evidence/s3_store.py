"""The store in an S3-compatible bucket, through `obstore` (extra `s3`). Same layout as the directory.

Credentials, region and endpoint come from the usual variables of the worker (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL) and are never stored.
An object appears whole or not at all, so there are no temporary files.
"""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store as _Bucket

from osworld_rollouts.evidence.errors import BlobMissing, EvidenceUnavailable
from osworld_rollouts.evidence.packing import pack, sha256_hex, unpack
from osworld_rollouts.evidence.store import StoredItem, blob_path, named_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from obstore.store import ObjectStore, RetryConfig

_FRESH: Final = timedelta(hours=1)  # a blob older than this is written again when put, so that gc sees it as in use
_RETRIES: Final[RetryConfig] = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=20),
}  # beyond it Temporal tries again
_REMEDY: Final = "check bucket, endpoint and credentials (AWS_* variables of this process), then retry"


class BucketStore:
    """Blobs and named things as objects below a prefix."""

    def __init__(self, bucket: ObjectStore, url: str) -> None:
        self._bucket = bucket
        self._url = url

    def __repr__(self) -> str:
        return f"BucketStore({self._url!r})"

    @property
    def url(self) -> str:
        """`s3://bucket/prefix`."""
        return self._url

    def put(self, data: bytes) -> str:
        """Store content once; its sha256."""
        sha256 = sha256_hex(data)
        path = blob_path(sha256)
        try:
            found = obstore.head(self._bucket, path)
        except FileNotFoundError:
            found = None
        except (BaseError, OSError) as error:
            raise self._unavailable("reading", path, error) from error
        packed = pack(data)
        fresh = (
            found is not None and found["size"] == len(packed) and datetime.now(UTC) - found["last_modified"] < _FRESH
        )
        if not fresh:
            self._put(path, packed)
        return sha256

    def get(self, sha256: str) -> bytes:
        """The content, checked against its name."""
        stored = self._get(blob_path(sha256))
        if stored is None:
            raise BlobMissing(sha256, self._url)
        return unpack(stored, sha256, self._url)

    def has(self, sha256: str) -> bool:
        """Whether an object stands under this sha256."""
        try:
            obstore.head(self._bucket, blob_path(sha256))
        except FileNotFoundError:
            return False
        except (BaseError, OSError) as error:
            raise self._unavailable("reading", blob_path(sha256), error) from error
        return True

    def put_named(self, key: str, data: bytes, *, exclusive: bool = False) -> bool:
        """Write a named thing, replacing it; with `exclusive` (If-None-Match), False when it exists."""
        return self._put(named_path(key), data, exclusive=exclusive)

    def get_named(self, key: str) -> bytes | None:
        """A named thing, or None."""
        return self._get(named_path(key))

    def list_named(self, prefix: str) -> Iterator[str]:
        """Keys below a prefix that ends at a segment; all for the empty one."""
        below = named_path(prefix.rstrip("/")) if prefix else "named"
        for item in self._list(below):
            yield item.name.removeprefix("named/")

    def blobs(self) -> Iterator[StoredItem]:
        """Every blob."""
        for item in self._list("blobs"):
            yield StoredItem(item.name.rsplit("/", 1)[-1], item.stored_bytes, item.put_at)

    def delete_blob(self, sha256: str) -> None:
        """Remove a blob."""
        self._delete(blob_path(sha256))

    def delete_named(self, key: str) -> None:
        """Remove a named thing."""
        self._delete(named_path(key))

    def _put(self, path: str, data: bytes, *, exclusive: bool = False) -> bool:
        try:
            obstore.put(self._bucket, path, data, mode="create" if exclusive else "overwrite", use_multipart=False)
        except AlreadyExistsError:
            return False
        except (BaseError, OSError) as error:
            raise self._unavailable("writing", path, error) from error
        return True

    def _get(self, path: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._bucket, path).bytes())
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise self._unavailable("reading", path, error) from error

    def _list(self, prefix: str) -> Iterator[StoredItem]:
        try:
            for batch in obstore.list(self._bucket, prefix=prefix):
                for item in batch:
                    yield StoredItem(item["path"], item["size"], item["last_modified"])
        except (BaseError, OSError) as error:
            raise self._unavailable("listing", prefix, error) from error

    def _delete(self, path: str) -> None:
        try:
            with contextlib.suppress(FileNotFoundError):
                obstore.delete(self._bucket, path)
        except (BaseError, OSError) as error:
            raise self._unavailable("deleting", path, error) from error

    def _unavailable(self, doing: str, path: str, error: Exception) -> EvidenceUnavailable:
        said = str(error).strip().splitlines()
        return EvidenceUnavailable(
            f"{self._url}/{path}", doing, detail=said[0] if said else type(error).__name__, remedy=_REMEDY
        )


def open_s3(url: str) -> BucketStore:
    """The store at `s3://bucket[/prefix]`.

    Raises:
        EvidenceUnavailable: the settings are not usable. That the bucket answers, the first read or write finds out.
        ValueError: the URL names no bucket.
    """
    parts = urlsplit(url)
    if not parts.netloc or parts.query or parts.username:
        raise ValueError(f"{url!r}: expected s3://bucket/prefix; credentials and endpoint come from AWS_* variables")
    prefix = parts.path.strip("/")
    try:
        bucket = _Bucket(
            parts.netloc,
            prefix=prefix or None,
            retry_config=_RETRIES,
            client_options={"timeout": "30s", "allow_http": _endpoint().startswith("http://")},
        )
    except (BaseError, OSError) as error:
        raise EvidenceUnavailable(url, "opening", detail=str(error), remedy=_REMEDY) from error
    return BucketStore(bucket, f"s3://{parts.netloc}" + (f"/{prefix}" if prefix else ""))


def _endpoint() -> str:
    return (
        os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL")
        or os.environ.get("AWS_ENDPOINT")
        or ""
    )
