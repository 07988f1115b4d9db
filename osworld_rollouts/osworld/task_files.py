"""The files a task downloads: fetched once, kept by content, and put where `desktop-env` looks for its own cache.

The package downloads into `<cache>/<task id>/` without a temporary name, a lock, a length or a hash, and takes whatever is there: a
killed worker leaves half a file that every later run trusts. Here a file is downloaded beside the store, checked for length (and
for the sha256 that Hugging Face states), synced and moved into `sha256/<hash>`, which is never written again; `urls/<uuid5 of the address>.json`
says which hash an address has. An execution gets hard links under the package's own names, replacing whatever was there,
after the content was hashed again. So a half file cannot come to be, and a file that a metric changed is noticed and fetched anew.

Offline, every file has to be in the store: `add` puts it there. Layout of names: `SetupController._download_setup` and
`getters/file.py: get_cloud_file` of desktop-env 1.0.2.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import structlog

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

log = structlog.get_logger()

HISTORY_URL = (
    "https://huggingface.co/datasets/xlangai/ubuntu_osworld_file_cache/resolve/main/chrome/"
    "44ee5668-ecd5-4366-a6ce-c1c9b8d4e938/history_empty.sqlite?download=true"
)
"""Fixed in `SetupController._update_browse_history_setup`, kept there as `history_new.sqlite`."""

_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})


class TaskFileUnavailable(Exception):
    """A file that a task needs cannot be had. The message names the address, the cause and the remedy."""


@dataclass(frozen=True, slots=True)
class TaskFile:
    """One download of a task: its address, the package's name for it inside the task's cache folder, and who wants it.

    `overwritten` marks a name that another getter of the task writes to as well (multi_apps/74d5859f): it gets a copy of its own.
    """

    url: str
    name: str
    used_by: str
    overwritten: bool = False


def task_files(
    document: dict[str, Any], parts: Iterable[str] = ("config", "postconfig", "evaluator")
) -> list[TaskFile]:
    """Every file the package would download for a task, without repetition.

    `parts` selects setup (`config`), post-steps (`postconfig`) and what the getters fetch (`evaluator`).
    """
    evaluator = document.get("evaluator") or {}
    found: dict[str, TaskFile] = {}
    for part in parts:
        if part == "evaluator":
            files = _getter_files(evaluator)
        else:
            steps = (document if part == "config" else evaluator).get(part) or []
            files = _step_files(steps, part)
        for file in files:
            found.setdefault(file.name, file)
    return list(found.values())


def unsafe_names(document: dict[str, Any]) -> list[str]:
    """Names in a task that would leave its cache folder: absolute ones, and those with `..`."""
    evaluator = document.get("evaluator") or {}
    names = [file.name for file in task_files(document)]
    for getter in _getters(evaluator):
        names += [name for name in _listed(getter.get("dest")) if isinstance(name, str)]
        if getter.get("type") == "cache_file":
            names.append(str(getter.get("path")))
    for step in [*(document.get("config") or []), *(evaluator.get("postconfig") or [])]:
        parameters = step.get("parameters") or {}
        names += [str(parameters[key]) for key in ("stdout", "stderr") if isinstance(parameters.get(key), str)]
    return sorted({name for name in names if not _is_inside(name)})


class TaskFiles:
    """The store in `folder`, shared by every worker of the host.

    With `offline` nothing is downloaded. `token` is sent to huggingface.co as a bearer token where its files need one. At most
    `at_once` files are downloaded at a time: hundreds of rollouts that start together would be turned away (HTTP 429).
    """

    def __init__(
        self, folder: Path, *, offline: bool = False, token: str | None = None, timeout_s: float = 600, at_once: int = 4
    ) -> None:
        self._blobs = folder / "sha256"
        self._urls = folder / "urls"
        self.offline = offline
        self._token = token
        self._timeout_s = timeout_s
        self._locks: dict[str, asyncio.Lock] = {}
        self._slots = asyncio.Semaphore(at_once)
        for path in (self._blobs, self._urls):
            path.mkdir(parents=True, exist_ok=True)

    def add(self, url: str, path: Path) -> str:
        """Put a file into the store as the content of `url`; returns its sha256."""
        part = self._new_part()
        try:
            shutil.copyfile(path, part)
            return self._keep(url, part)
        finally:
            part.unlink(missing_ok=True)

    def missing(self, files: Iterable[TaskFile]) -> list[TaskFile]:
        """Those that are not in the store."""
        return [file for file in files if self._known(file.url) is None]

    async def place(self, files: Iterable[TaskFile], folder: Path) -> dict[str, str]:
        """Put every file into `folder` (the task's own cache folder) under its name; returns sha256 by name.

        Raises:
            TaskFileUnavailable: for the first that cannot be had.
        """
        files = list(files)
        placed = await asyncio.gather(*(self._place(file, folder) for file in files))
        return {file.name: digest for file, digest in zip(files, placed, strict=True)}

    async def fetch(self, url: str) -> str:
        """The sha256 of the content of `url`, downloading it if the store does not have it.

        Raises:
            TaskFileUnavailable: it cannot be had.
        """
        async with self._locks.setdefault(url, asyncio.Lock()):
            digest = await asyncio.to_thread(self._verified, url)
            if digest is not None:
                return digest
            if self.offline:
                raise TaskFileUnavailable(
                    f"{url} is not in the task file store and downloads are off; fetch the task's files beforehand"
                )
            async with self._slots:
                return await self._download(url)

    async def _place(self, file: TaskFile, folder: Path) -> str:
        if not _is_inside(file.name):
            raise TaskFileUnavailable(f"the task names a file outside its cache folder: {file.name!r}")
        digest = await self.fetch(file.url)
        await asyncio.to_thread(self._link_or_copy, file, digest, folder / file.name)
        return digest

    def _link_or_copy(self, file: TaskFile, digest: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        near = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            if file.overwritten or not _link(self._blobs / digest, near):
                shutil.copyfile(self._blobs / digest, near)
            near.replace(target)
        finally:
            # Renaming one link onto another of the same file does nothing and leaves both.
            near.unlink(missing_ok=True)

    async def _download(self, url: str, *, tries: int = 4) -> str:
        headers = (
            {"Authorization": f"Bearer {self._token}"}
            if self._token and urlsplit(url).hostname == "huggingface.co"
            else {}
        )
        timeout = aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=20, sock_read=60)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=True, headers=headers) as session:
            for attempt in range(1, tries + 1):
                try:
                    return await self._download_once(session, url)
                except aiohttp.ClientResponseError as error:
                    problem, final = f"HTTP {error.status} {error.message}", error.status not in _RETRIED
                    retry_after = (error.headers or {}).get("Retry-After", "")
                except (aiohttp.ClientError, TimeoutError, _Damaged) as error:
                    problem, final, retry_after = f"{type(error).__name__}: {error}", False, ""
                if final or attempt == tries:
                    raise TaskFileUnavailable(
                        f"{url} cannot be downloaded: {problem} (tried {attempt} times); check the network, or add the file to the task file store"
                    )
                pause = min(float(retry_after), 60) if retry_after.isdigit() else 2.0 ** (attempt - 1)
                log.warning("task file download failed", url=url, problem=problem, attempt=attempt, pause_s=pause)
                await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def _download_once(self, session: aiohttp.ClientSession, url: str) -> str:
        part = self._new_part()
        try:
            async with session.get(url) as reply:
                reply.raise_for_status()
                with part.open("wb") as file:
                    async for chunk in reply.content.iter_chunked(2**18):
                        file.write(chunk)
                stated = _stated_sha256(reply)
                length = reply.content_length
            encoded = "Content-Encoding" in reply.headers
            size = part.stat().st_size
            if length is not None and not encoded and size != length:
                raise _Damaged(f"{size} of {length} bytes arrived")
            digest = await asyncio.to_thread(_sha256, part)
            if stated and stated != digest:
                raise _Damaged(f"its sha256 is {digest}, the server states {stated}")
            return await asyncio.to_thread(self._keep, url, part)
        finally:
            part.unlink(missing_ok=True)

    def _new_part(self) -> Path:
        handle, name = tempfile.mkstemp(prefix=".part-", dir=self._blobs)
        os.close(handle)
        return Path(name)

    def _keep(self, url: str, part: Path) -> str:
        digest = _sha256(part)
        _sync(part)
        part.chmod(0o444)
        part.replace(self._blobs / digest)
        entry = {
            "url": url,
            "sha256": digest,
            "bytes": (self._blobs / digest).stat().st_size,
            "fetched_at": time.time(),
        }
        handle, near = tempfile.mkstemp(prefix=".part-", dir=self._urls)
        with os.fdopen(handle, "w") as file:
            json.dump(entry, file)
            file.flush()
            os.fsync(file.fileno())
        Path(near).replace(self._entry(url))
        for folder in (self._blobs, self._urls):
            _sync(folder)
        return digest

    def _entry(self, url: str) -> Path:
        return self._urls / f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}.json"

    def _known(self, url: str) -> str | None:
        try:
            entry = json.loads(self._entry(url).read_bytes())
            digest = str(entry["sha256"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return digest if entry.get("url") == url and (self._blobs / digest).is_file() else None

    def _verified(self, url: str) -> str | None:
        digest = self._known(url)
        if digest is None or _sha256(self._blobs / digest) == digest:
            return digest
        log.warning("a kept task file was changed and is dropped", url=url, sha256=digest)
        with contextlib.suppress(FileNotFoundError):
            (self._blobs / digest).unlink()
        return None


class _Damaged(Exception):
    """What arrived is not what was sent."""


def _step_files(steps: list[dict[str, Any]], used_by: str) -> Iterator[TaskFile]:
    for step in steps:
        parameters = step.get("parameters") or {}
        if step.get("type") == "download":
            for file in parameters.get("files") or []:
                url, path = file.get("url"), file.get("path")
                if url and path:
                    yield TaskFile(url, f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}_{PurePosixPath(path).name}", used_by)
        elif step.get("type") == "update_browse_history":
            yield TaskFile(HISTORY_URL, "history_new.sqlite", used_by)


def _getter_files(evaluator: dict[str, Any]) -> Iterator[TaskFile]:
    written = {
        name
        for getter in _getters(evaluator)
        if getter.get("type") != "cloud_file"
        for name in _listed(getter.get("dest"))
    }
    for getter in _getters(evaluator):
        if getter.get("type") == "cloud_file":
            for url, name in zip(_listed(getter.get("path")), _listed(getter.get("dest")), strict=False):
                if isinstance(url, str) and isinstance(name, str):
                    yield TaskFile(url, name, "evaluator", overwritten=name in written)


def _getters(evaluator: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for key in ("result", "expected"):
        for getter in _listed(evaluator.get(key)):
            if isinstance(getter, dict):
                yield getter


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        return False
    return True


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and path != PurePosixPath()


def _stated_sha256(reply: aiohttp.ClientResponse) -> str:
    """The hash that Hugging Face states for a large file, on the redirect to its storage (`X-Linked-ETag`)."""
    for part in (*reply.history, reply):
        etag = part.headers.get("X-Linked-ETag", "").strip('"')
        if len(etag) == 64:
            return etag
    return ""


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
