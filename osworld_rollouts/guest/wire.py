"""Requests, replies and errors of the guest's HTTP server."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs

MAX_MEMORY_BODY = 64 * 2**20
"""Bytes of a body that is not multipart; larger ones are refused with 413."""


class ApiError(Exception):
    """A refused or failed request: HTTP status, a stable `type` and a sentence; `extra` joins the JSON body."""

    def __init__(self, status: int, kind: str, message: str, **extra: Any) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.extra = extra

    def reply(self) -> Reply:
        """The structured JSON every error is sent as."""
        error = {"type": self.kind, "message": self.message}
        return Reply.json({"status": "error", "message": self.message, "error": error, **self.extra}, self.status)


@dataclass
class Reply:
    """One HTTP reply. Exactly one of `body` (bytes) and `file` (path, streamed) is sent."""

    status: int = 200
    body: bytes = b""
    content_type: str = "text/html; charset=utf-8"
    headers: dict[str, str] = field(default_factory=dict)
    file: Path | None = None

    @classmethod
    def json(cls, value: Any, status: int = 200) -> Reply:
        """`value` as JSON."""
        return cls(status, json.dumps(value).encode(), "application/json")

    @classmethod
    def text(cls, value: str, status: int = 200) -> Reply:
        """Plain text, with the content type OSWorld's Flask server uses."""
        return cls(status, value.encode())


@dataclass
class Upload:
    """One file of a multipart form, spooled to `path`; whoever handles the request may move it away."""

    filename: str
    path: Path
    size: int


class Request:
    """One HTTP request with its body read: JSON or form in memory, multipart files on disk."""

    def __init__(self, method: str, target: str, headers: Any) -> None:
        self.method = method
        self.path, _, query = target.partition("?")
        self.query = {key: values[-1] for key, values in parse_qs(query).items()}
        self.headers = headers
        self.body = b""
        self.form: dict[str, str] = {}
        self.files: dict[str, Upload] = {}

    def read_body(self, stream: IO[bytes], spool: Path) -> None:
        """Read the whole body from `stream`; multipart files are spooled into `spool`.

        Raises:
            ApiError: 400 for a malformed body, 413 for one larger than `MAX_MEMORY_BODY` (multipart is not limited).
        """
        content_type = self.headers.get("Content-Type", "")
        body = BodyReader(stream, self.headers)
        if content_type.lower().startswith("multipart/form-data"):
            MultipartReader(body, content_type, spool).read(self.form, self.files)
            return
        self.body = body.read_all(MAX_MEMORY_BODY)
        if content_type.lower().startswith("application/x-www-form-urlencoded"):
            parsed = parse_qs(self.body.decode("utf-8", "replace"), keep_blank_values=True)
            self.form = {key: values[-1] for key, values in parsed.items()}

    def json_object(self) -> dict[str, Any]:
        """The body as a JSON object, whatever its content type.

        Raises:
            ApiError: 400 when it is not one.
        """
        try:
            value = json.loads(self.body or b"{}")
        except ValueError as error:
            raise ApiError(400, "bad_request", f"the body of {self.path} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise ApiError(400, "bad_request", f"the body of {self.path} must be a JSON object")
        return value

    def close(self) -> None:
        """Remove spooled files nobody moved away."""
        for upload in self.files.values():
            upload.path.unlink(missing_ok=True)


class BodyReader:
    """A body with `Content-Length` or chunked transfer coding, read as a stream."""

    def __init__(self, stream: IO[bytes], headers: Any) -> None:
        self._stream = stream
        self._chunked = "chunked" in headers.get("Transfer-Encoding", "").lower()
        length = headers.get("Content-Length", "0")
        if not length.isdigit():
            raise ApiError(400, "bad_request", f"Content-Length {length!r} is not a number")
        self._left = 0 if self._chunked else int(length)
        self._ended = not self._chunked

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; empty at the end. A connection cut short raises `ApiError` 400."""
        if self._left == 0 and not self._ended:
            self._next_chunk()
        if self._left == 0:
            return b""
        data = self._stream.read(min(size, self._left))
        if not data:
            raise ApiError(400, "body_cut_short", f"the connection ended {self._left} bytes before the body did")
        self._left -= len(data)
        if self._chunked and self._left == 0:
            self._stream.readline(8)
        return data

    def read_all(self, limit: int) -> bytes:
        """The rest of the body, at most `limit` bytes."""
        parts: list[bytes] = []
        total = 0
        while data := self.read(2**20):
            total += len(data)
            if total > limit:
                raise ApiError(413, "body_too_large", f"the body is larger than {limit} bytes")
            parts.append(data)
        return b"".join(parts)

    def _next_chunk(self) -> None:
        line = self._stream.readline(1024).split(b";")[0].strip()
        try:
            self._left = int(line, 16)
        except ValueError:
            raise ApiError(400, "bad_request", f"malformed chunk length {line!r}") from None
        if self._left == 0:
            self._ended = True
            while self._stream.readline(65536) not in {b"\r\n", b"\n", b""}:
                pass


class MultipartReader:
    """A streaming parser of multipart/form-data (RFC 7578): fields into memory, files onto disk."""

    def __init__(self, body: BodyReader, content_type: str, spool: Path) -> None:
        match = re.search(r'boundary="?([^";]+)"?', content_type)
        if match is None:
            raise ApiError(400, "bad_request", "multipart body without a boundary")
        self._body = body
        self._delimiter = b"\r\n--" + match.group(1).encode()
        self._buffer = b"\r\n"
        self._spool = spool

    def read(self, form: dict[str, str], files: dict[str, Upload]) -> None:
        """Fill `form` and `files`."""
        self._part(None)
        while not self._buffer.startswith(b"--"):
            headers = self._part_headers()
            name = _parameter(headers, "name")
            filename = _parameter(headers, "filename")
            if filename is None:
                with tempfile.SpooledTemporaryFile(MAX_MEMORY_BODY) as value:
                    self._part(value)
                    value.seek(0)
                    form[name or ""] = value.read().decode("utf-8", "replace")
            else:
                handle, path = tempfile.mkstemp(prefix="upload-", dir=self._spool)
                files[name or ""] = Upload(filename, Path(path), 0)
                with os.fdopen(handle, "wb") as target:
                    self._part(target)
                    files[name or ""].size = target.tell()
        self._body.read_all(MAX_MEMORY_BODY)

    def _fill(self) -> None:
        data = self._body.read(2**18)
        if not data:
            raise ApiError(400, "bad_request", "the multipart body ends before its closing boundary")
        self._buffer += data

    def _part_headers(self) -> str:
        while b"\r\n\r\n" not in self._buffer:
            if len(self._buffer) > 65536:
                raise ApiError(400, "bad_request", "multipart headers are longer than 64 KiB")
            self._fill()
        head, self._buffer = self._buffer.split(b"\r\n\r\n", 1)
        for line in head.decode("utf-8", "replace").split("\r\n"):
            if line.lower().startswith("content-disposition:"):
                return line
        return ""

    def _part(self, target: IO[bytes] | None) -> None:
        """Copy up to the next delimiter into `target` and leave the buffer after it, at least 2 bytes long."""
        keep = len(self._delimiter) - 1
        while (at := self._buffer.find(self._delimiter)) < 0:
            if len(self._buffer) > keep:
                if target is not None:
                    target.write(self._buffer[:-keep])
                self._buffer = self._buffer[-keep:]
            self._fill()
        if target is not None:
            target.write(self._buffer[:at])
        self._buffer = self._buffer[at + len(self._delimiter) :]
        while len(self._buffer) < 2:
            self._fill()


def _parameter(disposition: str, name: str) -> str | None:
    match = re.search(rf';\s*{name}="((?:[^"\\]|\\.)*)"', disposition)
    if match is None:
        match = re.search(rf";\s*{name}=([^;\s]+)", disposition)
    return None if match is None else re.sub(r"\\(.)", r"\1", match.group(1))


def move_into_place(source: Path, target: Path) -> None:
    """Move a spooled file to `target` so that readers see the old file or the whole new one.

    Keeps the mode of a file that is replaced; a new one gets 0644.

    Raises:
        ApiError: 400 when `target` is a folder.
        OSError: it cannot be written; the old file is untouched.
    """
    target = target.resolve()
    if target.is_dir():
        raise ApiError(400, "is_a_directory", f"{target} is a directory; give the path of a file")
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = target.stat().st_mode & 0o7777 if target.exists() else 0o644
    handle, name = tempfile.mkstemp(prefix=".incoming-", dir=target.parent)
    os.close(handle)
    near = Path(name)
    try:
        shutil.copyfile(source, near)
        near.chmod(mode)
        near.replace(target)
    except BaseException:
        near.unlink(missing_ok=True)
        raise
