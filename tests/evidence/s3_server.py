"""A small S3 over real HTTP: PUT (with If-None-Match), GET, HEAD, DELETE, DeleteObjects and ListObjectsV2 of one bucket, in memory.

It does not imitate signatures (any are taken), multipart uploads, versions or paging. The same tests were run against moto.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from email.utils import format_datetime
from threading import Thread
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, make_server

if TYPE_CHECKING:
    from collections.abc import Callable
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape, unescape


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


class S3Server:
    """`with S3Server("bucket") as server: server.endpoint`. `failing` makes every request end with 503."""

    def __init__(self, bucket: str):
        self.bucket, self.objects, self.failing = bucket, {}, False

    def __enter__(self):
        self.httpd = make_server("127.0.0.1", 0, self._answer, handler_class=_Quiet)
        self.endpoint = f"http://127.0.0.1:{self.httpd.server_port}"
        Thread(target=self.httpd.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.httpd.shutdown()
        self.httpd.server_close()

    def _answer(self, environ: dict, start: Callable):
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        bucket, _, key = unquote(environ["PATH_INFO"]).lstrip("/").partition("/")
        status, headers, content = self._act(environ, bucket, key, body)
        head = environ["REQUEST_METHOD"] == "HEAD"
        start(status, [("Content-Length", str(len(content))), *headers])
        return [] if head else [content]

    def _act(self, environ: dict, bucket: str, key: str, body: bytes):
        method = environ["REQUEST_METHOD"]
        if self.failing:
            return "503 Slow Down", [], b""
        if bucket != self.bucket:
            return "404 Not Found", [], b"<Error><Code>NoSuchBucket</Code></Error>"
        if method == "PUT":
            if environ.get("HTTP_IF_NONE_MATCH") == "*" and key in self.objects:
                return "412 Precondition Failed", [], b"<Error><Code>PreconditionFailed</Code></Error>"
            self.objects[key] = (body, datetime.now(UTC))
            return "200 OK", [("ETag", _tag(body))], b""
        if method == "DELETE":
            self.objects.pop(key, None)
            return "204 No Content", [], b""
        if method == "POST" and environ["QUERY_STRING"].startswith("delete"):
            keys = [unescape(name) for name in re.findall(r"<Key>(.*?)</Key>", body.decode())]
            for name in keys:
                self.objects.pop(name, None)
            gone = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in keys)
            return "200 OK", [("Content-Type", "application/xml")], f"<DeleteResult>{gone}</DeleteResult>".encode()
        if method == "GET" and not key:
            return "200 OK", [("Content-Type", "application/xml")], self._listing(parse_qs(environ["QUERY_STRING"]))
        if key not in self.objects:
            return "404 Not Found", [], b"<Error><Code>NoSuchKey</Code></Error>"
        data, when = self.objects[key]
        return "200 OK", [("ETag", _tag(data)), ("Last-Modified", format_datetime(when, usegmt=True))], data

    def _listing(self, query: dict) -> bytes:
        prefix = query.get("prefix", [""])[0]
        items = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{when:%Y-%m-%dT%H:%M:%S.000Z}</LastModified><ETag>{escape(_tag(data))}</ETag>"
            f"<Size>{len(data)}</Size></Contents>"
            for key, (data, when) in sorted(self.objects.items())
            if key.startswith(prefix)
        )
        return f'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>{items}</ListBucketResult>'.encode()


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'
