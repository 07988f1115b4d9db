"""Files of the guest: read, write, list, download."""

from __future__ import annotations

import os
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from .wire import ApiError, Reply, Request, move_into_place

DOWNLOAD_TIMEOUT_S = 300
DOWNLOAD_TRIES = 3
MAX_TREE_NODES = 200_000


def expand(path: str) -> str:
    """`path` with `~` and environment variables replaced."""
    return os.path.expandvars(Path(path).expanduser())


def send_file(request: Request) -> Reply:
    """`POST /file` with form `file_path`: the bytes of the file.

    Raises:
        ApiError: 400 without a path, 404 when there is no such file.
    """
    if not request.form.get("file_path"):
        raise ApiError(400, "bad_request", "form field file_path is required")
    path = Path(expand(request.form["file_path"]))
    if not path.exists():
        raise ApiError(404, "file_not_found", f"there is no file {path}")
    if not path.is_file():
        # A folder has no bytes, and reading a pipe or a device would never end.
        raise ApiError(400, "not_a_file", f"{path} is not a regular file")
    if not os.access(path, os.R_OK):
        raise ApiError(403, "permission_denied", f"{path} may not be read by the desktop's user")
    return Reply(
        content_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{_ascii(path.name)}"'},
        file=path,
    )


def receive_file(request: Request) -> Reply:
    """`POST /setup/upload`, multipart with `file_path` and `file_data`: readers see the old file or the whole new one.

    Raises:
        ApiError: 400 when a field is missing, 500 when it cannot be written.
    """
    if not request.form.get("file_path") or "file_data" not in request.files:
        raise ApiError(400, "bad_request", "form fields file_path and file_data are required")
    upload = request.files["file_data"]
    path = expand(request.form["file_path"])
    try:
        move_into_place(upload.path, Path(path))
    except OSError as error:
        raise ApiError(500, "write_failed", f"{path} cannot be written: {error}") from error
    return Reply.text(f"File Uploaded: {upload.size} bytes")


def download(url: str, path: str) -> Reply:
    """Fetch `url` to `path`, whole or not at all.

    Raises:
        ApiError: 400 without url or path, 500 after the last try.
    """
    if not url or not path:
        raise ApiError(400, "bad_request", "url and path are required")
    target = expand(path)
    failure: Exception | None = None
    for _ in range(DOWNLOAD_TRIES):
        handle, spooled = tempfile.mkstemp(prefix="download-")
        try:
            with os.fdopen(handle, "wb") as file, urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT_S) as reply:
                while data := reply.read(2**18):
                    file.write(data)
                size = file.tell()
                expected = reply.headers.get("Content-Length")
            if expected is None or int(expected) == size:
                move_into_place(Path(spooled), Path(target))
                return Reply.text(f"File downloaded successfully: {size} bytes")
            failure = OSError(f"got {size} of {expected} bytes")
        except (OSError, ValueError, urllib.error.URLError) as error:
            failure = error
        finally:
            Path(spooled).unlink(missing_ok=True)
    raise ApiError(500, "download_failed", f"{url} could not be fetched to {target}: {failure}")


def directory_tree(path: str) -> dict[str, Any]:
    """The folder as `{"type", "name", "children"}`, children sorted by name.

    Raises:
        ApiError: 400 when it is not a folder, 413 when it has more than `MAX_TREE_NODES` entries.
    """
    root = Path(expand(path))
    if not root.is_dir():
        raise ApiError(400, "not_a_directory", f"{root} is not a directory")
    count = 0

    def node(folder: Path) -> dict[str, Any]:
        nonlocal count
        tree: dict[str, Any] = {"type": "directory", "name": folder.name, "children": []}
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            tree["error"] = str(error)
            return tree
        for entry in entries:
            count += 1
            if count > MAX_TREE_NODES:
                raise ApiError(413, "too_many_files", f"{root} has more than {MAX_TREE_NODES} entries")
            if entry.is_dir(follow_symlinks=False):
                tree["children"].append(node(Path(entry.path)))
            else:
                tree["children"].append({"type": "file", "name": entry.name})
        return tree

    return node(root)


def _ascii(name: str) -> str:
    return name.encode("ascii", "replace").decode().replace('"', "_").replace("\\", "_")
