"""The HTTP server: OSWorld's endpoints, the lease token, and the operation ledger in front of every effect."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import hmac
import json
import logging
import os
import shutil
import socketserver
import sys
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from . import VERSION
from .endpoints import Endpoints
from .hardening import hide_from_same_user
from .ledger import Ledger, Operation
from .relay import start_relays
from .screenshot import keep_frame_memory
from .wire import ApiError, Reply, Request

log = logging.getLogger("guest")

DEFAULT_TIMEOUT_S = 120.0
OPERATION_HEADERS = ("X-Operation-Id", "X-Operation-Seq", "X-Lease-Fence")
RELAYS = {"9222.sock": 9222, "8080.sock": 8080}


class Guest:
    """Everything behind the sockets: authorization, ledger, endpoints."""

    def __init__(self, ledger: Ledger, token: str | None, spool: Path) -> None:
        self._ledger = ledger
        self._token = token
        self.endpoints = Endpoints()
        self._spool = spool

    def handle(self, request: Request, stream: Any) -> Reply:
        """Answer one request; an error becomes its structured reply."""
        try:
            self._authorize(request)
            request.read_body(stream, self._spool)
            if request.path == "/operations" and request.method == "GET":
                return Reply.json({"operations": [self._public(op) for op in self._ledger.all()]})
            if request.path.startswith("/operations/") and request.method == "GET":
                return self._operation(urllib.parse.unquote(request.path.removeprefix("/operations/")))
            if request.path == "/health" and request.method == "GET":
                return Reply.json({
                    **self.endpoints.health(), "version": VERSION, "fence": self._ledger.fence, "last_seq": self._ledger.last_seq,
                })  # fmt: skip
            route = self.endpoints.route(request.method, request.path)
            if route.effect and any(request.headers.get(name) for name in OPERATION_HEADERS):
                return self._as_operation(request, route.answer)
            return route.answer(request, _timeout(request))
        except ApiError as error:
            return error.reply()
        except Exception as error:
            log.exception("%s %s failed", request.method, request.path)
            return ApiError(500, "internal", f"{type(error).__name__}: {error}").reply()
        finally:
            request.close()

    def _authorize(self, request: Request) -> None:
        if self._token is None:
            return
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            raise ApiError(401, "unauthorized", "this desktop is leased; send its token as 'Authorization: Bearer ...'")

    def _as_operation(self, request: Request, answer: Any) -> Reply:
        operation_id, seq, fence = _operation_headers(request)
        timeout = _timeout(request)
        operation, fresh = self._ledger.admit(
            operation_id, seq, fence, f"{request.method} {request.path}", _digest(request)
        )
        if not fresh:
            return self._replay(operation, timeout)
        try:
            reply = answer(request, timeout)
        except ApiError as error:
            if error.kind == "operation_interrupted":
                self._ledger.interrupt(operation)
                return error.reply()
            reply = error.reply()
        except Exception as error:
            log.exception("operation %s failed", operation_id)
            reply = ApiError(500, "internal", f"{type(error).__name__}: {error}").reply()
        if reply.file is not None:
            reply.body, reply.file = reply.file.read_bytes(), None
        self._ledger.finish(operation, reply.status, reply.content_type, reply.body)
        return reply

    def _replay(self, operation: Operation, timeout: float) -> Reply:
        if operation.state == "running" and not operation.done.wait(timeout):
            raise ApiError(409, "operation_running", f"operation {operation.operation_id} is still running")
        if operation.state == "interrupted":
            raise ApiError(
                409,
                "operation_interrupted",
                f"operation {operation.operation_id} was begun and its end is unknown; it is never run again",
            )
        body = self._ledger.body(operation)
        return Reply(operation.status or 500, body, operation.content_type, {"X-Operation-Replayed": "1"})

    def _operation(self, operation_id: str) -> Reply:
        operation = self._ledger.get(operation_id)
        if operation is None:
            raise ApiError(404, "operation_absent", f"operation {operation_id} never arrived here")
        public = self._public(operation)
        if operation.state == "finished":
            body = self._ledger.body(operation)
            try:
                public["body"] = body.decode()
            except UnicodeDecodeError:
                public["body_bytes"] = len(body)
            if operation.content_type == "application/json":
                value = json.loads(body)
                public["returncode"] = value.get("returncode", value.get("return_code"))
        return Reply.json(public)

    @staticmethod
    def _public(operation: Operation) -> dict[str, Any]:
        return {
            "operation_id": operation.operation_id,
            "seq": operation.seq,
            "fence": operation.fence,
            "request": operation.request,
            "state": operation.state,
            "started_at": operation.started_at,
            "finished_at": operation.finished_at,
            "status": operation.status,
            "body": None,
            "returncode": None,
        }


def _operation_headers(request: Request) -> tuple[str, int, int]:
    # http.server reads header bytes as Latin-1; ids are UTF-8.
    given = (request.headers.get(name, "") for name in OPERATION_HEADERS)
    operation_id, seq, fence = (value.encode("latin-1").decode("utf-8", "replace") for value in given)
    if operation_id and seq.isdecimal() and fence.isdecimal():
        return operation_id, int(seq), int(fence)
    raise ApiError(
        400, "operation_headers", "an operation needs X-Operation-Id, and X-Operation-Seq and X-Lease-Fence as numbers"
    )


def _timeout(request: Request) -> float:
    given = request.headers.get("X-Operation-Timeout", "")
    try:
        timeout = float(given) if given else DEFAULT_TIMEOUT_S
    except ValueError:
        timeout = 0
    if not 0 < timeout <= 86400:
        raise ApiError(
            400, "operation_headers", f"X-Operation-Timeout {given!r} is not a number of seconds up to 86400"
        )
    return timeout


def _digest(request: Request) -> str:
    # A multipart body has a new boundary in every attempt: its fields and file contents are what counts.
    digest = hashlib.sha256(request.body)
    for name, value in sorted(request.form.items()):
        digest.update(f"\0{name}\0{value}".encode())
    for name, upload in sorted(request.files.items()):
        digest.update(f"\0{name}\0".encode())
        with upload.path.open("rb") as file:
            while data := file.read(2**20):
                digest.update(data)
    return digest.hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Carries one connection's requests to the `Guest` of its server."""

    protocol_version = "HTTP/1.1"
    server_version = f"osworld-guest/{VERSION}"
    sys_version = ""
    wbufsize = 65536

    def _serve(self) -> None:
        if "100-continue" in self.headers.get("Expect", "").lower():
            self.send_response_only(100)
            self.end_headers()
            self.wfile.flush()
        request = Request(self.command, self.path, self.headers)
        reply = self.server.guest.handle(request, self.rfile)  # type: ignore[attr-defined]
        if reply.status >= 400:
            # The body may not have been read to its end, so the connection cannot carry another request.
            self.close_connection = True
        self._send(reply)

    do_GET = do_POST = do_HEAD = _serve  # noqa: N815 - names of the base class

    def _send(self, reply: Reply) -> None:
        file = None
        length = len(reply.body)
        if reply.file is not None:
            file = reply.file.open("rb")
            length = os.fstat(file.fileno()).st_size
        with file or contextlib.nullcontext():
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.content_type)
            self.send_header("Content-Length", str(length))
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            if self.command == "HEAD":
                return
            if file is not None:
                # Exactly the announced length, also of a file that grows or shrinks meanwhile.
                left = length
                while left and (data := file.read(min(left, 2**18))):
                    self.wfile.write(data)
                    left -= len(data)
                self.close_connection = self.close_connection or bool(left)
            else:
                self.wfile.write(reply.body)
            self.wfile.flush()

    def address_string(self) -> str:
        """Peers of a unix socket have no address."""
        return "-"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - signature of the base class
        """One line for each request goes to the log file."""
        log.info(format, *args)


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """HTTP over a unix socket, one thread for each connection."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - signature of the base class
        """A client that went away is not an error."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            log.exception("connection failed")  # noqa: LOG004 - called while handling it


class TcpServer(ThreadingHTTPServer):
    """HTTP over TCP, for guests that are reached by address."""

    daemon_threads = True
    request_queue_size = 128
    handle_error = UnixServer.handle_error


def main() -> int:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(prog="server")
    parser.add_argument("--ledger", type=Path, required=True, help="folder that outlives this process")
    parser.add_argument("--sockets", type=Path, help="folder for server.sock and the relays")
    parser.add_argument("--tcp", help="address:port to listen on as well")
    parser.add_argument("--relay", action="append", default=[], help="name.sock:port to carry to 127.0.0.1:port")
    parser.add_argument(
        "--token-stdin", action="store_true", help="the lease token is the first line of standard input"
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    token = sys.stdin.readline().strip() or None if options.token_stdin else None
    hide_from_same_user()
    keep_frame_memory()
    ledger = Ledger(options.ledger)
    spool = options.ledger / "spool"
    shutil.rmtree(spool, ignore_errors=True)
    spool.mkdir()
    guest = Guest(ledger, token, spool)
    servers: list[Any] = []
    if options.sockets is not None:
        path = options.sockets / "server.sock"
        path.unlink(missing_ok=True)
        servers.append(UnixServer(str(path), Handler))
        relays = dict(relay.rsplit(":", 1) for relay in options.relay) or RELAYS
        start_relays(options.sockets, {name: int(port) for name, port in relays.items()})
    if options.tcp:
        host, _, port = options.tcp.rpartition(":")
        servers.append(TcpServer((host or "127.0.0.1", int(port)), Handler))
    for server in servers:
        server.guest = guest
        threading.Thread(target=server.serve_forever, name="accept", daemon=True).start()
    guest.endpoints.warm_up()
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
    return 0
