"""The page server: loopback only, reading only, standard library only (viewing must not need a worker's packages)."""

from __future__ import annotations

import mimetypes
import re
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import structlog

from osworld_rollouts.console.links import Links
from osworld_rollouts.console.viewer.catalog import ModelNames, Sealed, list_page
from osworld_rollouts.console.viewer.live import Known, LiveExecutions
from osworld_rollouts.console.viewer.pages import (
    CSP_SERVED,
    ServedUrls,
    render_blob,
    render_message,
    render_overview,
    render_rollout,
    render_unsealed,
)
from osworld_rollouts.console.viewer.trace import read_trace
from osworld_rollouts.evidence.errors import BlobMissing, EvidenceError
from osworld_rollouts.evidence.index import list_pointers
from osworld_rollouts.evidence.store import open_store

if TYPE_CHECKING:
    from osworld_rollouts.console.rollouts import RolloutDetails
    from osworld_rollouts.console.viewer.live import LiveExecution
    from osworld_rollouts.evidence.index import ExecutionPointer
    from osworld_rollouts.settings import Settings

log = structlog.get_logger(__name__)

_IMAGES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}
_STATIC = {"style.css", "viewer.js", "icon.svg"}
_TEXT_LIMIT = 4 * 1024 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FOR_EVER = "private, max-age=31536000, immutable"


class Pages:
    """What the server answers from."""

    def __init__(self, settings: Settings, *, live: bool = True) -> None:
        self.settings = settings
        self.store = open_store(settings.store.url)
        self.sealed = Sealed(self.store)
        self.models = ModelNames()
        self.live = LiveExecutions(settings) if live else None
        self.urls = ServedUrls()

    def known(self) -> Known:
        """What the Temporal server knows."""
        return self.live.now() if self.live else Known()

    def details(self, rollout_id: str) -> tuple[RolloutDetails, LiveExecution | None] | None:
        """One rollout as the Temporal server has it."""
        return self.live.details(rollout_id) if self.live else None

    def links(self) -> Links:
        """Links to the Temporal UI, looked up each time because the server may come and go."""
        return Links.of(self.settings)

    def overview(self, campaign: str | None, page: int) -> str:
        """The list."""
        found = self.sealed.by_rollout()
        listing = list_page(found, self.store, self.known(), campaign=campaign, page=page, models=self.models)
        return render_overview(listing, self.urls, self.links(), csp=CSP_SERVED)

    def rollout(self, rollout_id: str, number: int | None) -> str | None:
        """One execution: the asked one, else the running one, else the last; None for a rollout that nobody knows."""
        sealed = sorted(list_pointers(self.store, rollout_id=rollout_id), key=lambda pointer: pointer.number)
        running = self.known().live(rollout_id)
        if running and any(pointer.number == running.number for pointer in sealed):
            running = None
        if running and running.head and number in {None, running.number}:
            return self._render(running.execution_id, running.head, sealed, running)
        chosen = next(
            (pointer for pointer in sealed if pointer.number == number),
            None if number else sealed[-1] if sealed else None,
        )
        if chosen and (number or not running):
            return self._render(chosen.execution_id, chosen.head, sealed, None)
        found = self.details(rollout_id)
        if found is None:
            return self._render(chosen.execution_id, chosen.head, sealed, None) if chosen else None
        details, view = found
        if number and all(execution.number != number for execution in details.executions) and not view:
            return None
        return render_unsealed(details, view, sealed, self.urls, self.links(), csp=CSP_SERVED)

    def blob(self, sha256: str) -> str:
        """A blob in a form to read, with the way to its bytes."""
        return render_blob(sha256, self.store.get(sha256), self.urls, csp=CSP_SERVED)

    def _render(self, execution: str, head: str, sealed: list[ExecutionPointer], live: LiveExecution | None) -> str:
        return render_rollout(
            read_trace(self.store, execution, head), sealed, self.urls, self.links(), live=live, csp=CSP_SERVED
        )


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD. Knows no other method, so that nothing can be changed from a page."""

    server_version = "osworld-rollouts"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30
    pages: Pages

    def do_GET(self) -> None:
        """Answer one request."""
        if not self._is_local_host():
            self._send(HTTPStatus.FORBIDDEN, b"only for names of this machine\n", "text/plain")
            return
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        try:
            self._route(unquote(parts.path), query)
        except BlobMissing as error:
            self._page(
                HTTPStatus.NOT_FOUND,
                render_message("Not in the evidence store", str(error), self.pages.urls, csp=CSP_SERVED),
            )
        except EvidenceError as error:
            self._page(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                render_message("The evidence cannot be read", str(error), self.pages.urls, csp=CSP_SERVED),
            )

    def do_HEAD(self) -> None:
        """The same without the body."""
        self.do_GET()

    def _route(self, path: str, query: dict[str, list[str]]) -> None:
        pages = self.pages
        if path == "/":
            self._page(HTTPStatus.OK, pages.overview(_first(query, "campaign"), _number(query, "page") or 1))
        elif path == "/healthz":
            self._send(HTTPStatus.OK, b"ok\n", "text/plain")
        elif path.startswith("/rollout/"):
            name = path.removeprefix("/rollout/")
            page = pages.rollout(name, _number(query, "x")) if _is_id(name) else None
            missing = render_message(
                "No such rollout",
                f"The evidence store holds nothing of {name!r}, and Temporal knows no such rollout or does not answer.",
                pages.urls,
                csp=CSP_SERVED,
            )
            self._page(HTTPStatus.OK if page else HTTPStatus.NOT_FOUND, page or missing)
        elif path.startswith("/static/") and path.removeprefix("/static/") in _STATIC:
            self._static(path.removeprefix("/static/"))
        elif _SHA256.fullmatch(path.removeprefix("/media/")):
            self._media(path.removeprefix("/media/"))
        elif _SHA256.fullmatch(path.removeprefix("/blob/")):
            self._blob(path.removeprefix("/blob/"))
        elif path.startswith("/read/") and _SHA256.fullmatch(path.removeprefix("/read/")):
            self._page(HTTPStatus.OK, pages.blob(path.removeprefix("/read/")))
        else:
            self._page(
                HTTPStatus.NOT_FOUND,
                render_message("Nothing here", "This address leads nowhere.", pages.urls, csp=CSP_SERVED),
            )

    def _media(self, sha256: str) -> None:
        data = self.pages.store.get(sha256)
        kind = next((mime for magic, mime in _IMAGES.items() if data.startswith(magic)), None)
        if kind is None:
            self._send(HTTPStatus.NOT_FOUND, b"not an image\n", "text/plain")
            return
        self._send(HTTPStatus.OK, data, kind, cache=_FOR_EVER)

    def _blob(self, sha256: str) -> None:
        """Untrusted content: shown as plain text when it is text, otherwise downloaded; a browser must never interpret it."""
        data = self.pages.store.get(sha256)
        text = _is_text(data)
        more = {"Content-Security-Policy": "sandbox; default-src 'none'"}
        if not text:
            more["Content-Disposition"] = f'attachment; filename="{sha256[:16]}.bin"'
        self._send(
            HTTPStatus.OK,
            data,
            "text/plain; charset=utf-8" if text else "application/octet-stream",
            cache=_FOR_EVER,
            more=more,
        )

    def _static(self, name: str) -> None:
        data = resources.files("osworld_rollouts.console.viewer").joinpath("static", name).read_bytes()
        self._send(HTTPStatus.OK, data, mimetypes.guess_type(name)[0] or "application/octet-stream", cache="no-cache")

    def _page(self, status: HTTPStatus, html: str) -> None:
        self._send(
            status,
            html.encode(),
            "text/html; charset=utf-8",
            more={"Content-Security-Policy": CSP_SERVED + "; frame-ancestors 'none'"},
        )

    def _send(
        self, status: HTTPStatus, body: bytes, kind: str, *, cache: str = "no-store", more: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": cache,
            "X-Content-Type-Options": "nosniff",
        }
        headers |= {"Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin", **(more or {})}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _is_local_host(self) -> bool:
        """Refuse foreign names in the Host header: a web page elsewhere may point its own name at 127.0.0.1 to read our answers."""
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0].strip("[]").lower()
        return host in {"127.0.0.1", "localhost", "::1"}

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the standard library's name)
        """Into our log instead of standard error."""
        log.debug("page request", client=self.client_address[0], request=format % args)


class PageServer(ThreadingHTTPServer):
    """One thread a request; broken connections of impatient browsers are no errors."""

    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log what is a defect, ignore what is a closed tab."""
        import sys  # noqa: PLC0415

        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            log.error("page request failed", exc_info=error)


def make_server(settings: Settings, port: int, *, live: bool = True) -> PageServer:
    """A server bound to 127.0.0.1; call `serve_forever`. Port 0 takes a free one.

    Raises:
        OSError: the port is taken; EvidenceError: the store cannot be opened.
    """
    handler = type("BoundHandler", (Handler,), {"pages": Pages(settings, live=live)})
    return PageServer(("127.0.0.1", port), handler)


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return len(data) <= _TEXT_LIMIT


def _first(query: dict[str, list[str]], name: str) -> str | None:
    return next(iter(query.get(name, [])), None)


def _number(query: dict[str, list[str]], name: str) -> int | None:
    text = _first(query, name)
    return int(text) if text and text.isdigit() and len(text) < 9 else None


def _is_id(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.\-]*(/[A-Za-z0-9][A-Za-z0-9_.\-]*)*", name) is not None
