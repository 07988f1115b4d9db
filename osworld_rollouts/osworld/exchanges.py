"""The record of every request that `desktop-env` made of a guest, for evidence and for the verdicts.

Bodies are kept short: enough to read what was asked and answered, with the sha256 of the whole. Secrets are redacted before anything
is kept; the lease token is added behind this record and never in it.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from osworld_rollouts.logs import REDACTED, redacted

REQUEST_TEXT = 2000
"""Characters kept of a request's body."""
REPLY_TEXT = 2000
"""Characters kept of a textual reply's body."""

_PIPED_PASSWORD = re.compile(r"(echo\s+['\"]?)[^\s'\"|]+(['\"]?\s*\|\s*sudo\b)")
_FORM_FIELD = re.compile(rb'name="file_path"\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]+)')


@dataclass(slots=True)
class Exchange:
    """One request and what came of it. Times in milliseconds; `at` is Unix seconds; `step` counts from 1, 0 is outside any.

    `status` None means that no reply came, `error` says why. `attempts` counts how often the gateway had to send it.
    `superseded` marks a look for a window that was not there yet and was asked for again.
    """

    phase: str
    step: int
    method: str
    path: str
    request: str
    request_sha256: str
    request_bytes: int
    at: float
    operation_id: str | None = None
    seq: int | None = None
    status: int | None = None
    returncode: int | None = None
    reply: str = ""
    reply_sha256: str = ""
    reply_bytes: int = 0
    error_type: str = ""
    error: str = ""
    attempts: int = 0
    replayed: bool = False
    delivered: bool = False
    superseded: bool = False
    ms: int = 0
    note: str = ""
    _json: dict[str, Any] | None = field(default=None, repr=False)

    def answer(self, status: int, content_type: str, body: bytes) -> None:
        """Keep what the guest replied."""
        self.status = status
        self.reply_bytes = len(body)
        self.reply_sha256 = hashlib.sha256(body).hexdigest()
        if not _is_text(content_type):
            return
        text = body.decode("utf-8", "replace")
        self.reply = _short(text, REPLY_TEXT)
        try:
            value = json.loads(text)
        except ValueError:
            return
        if isinstance(value, dict):
            self._json = value
            code = value.get("returncode")
            self.returncode = code if isinstance(code, int) and not isinstance(code, bool) else None
            error = value.get("error")
            if isinstance(error, dict) and isinstance(error.get("type"), str):
                self.error_type = error["type"]

    @property
    def json(self) -> dict[str, Any]:
        """The reply's JSON object; empty when it was none."""
        return self._json or {}

    @property
    def output(self) -> str:
        """What a person wants to read of a failed command: both streams, or the server's message."""
        reply = self.json
        error = reply.get("error")
        parts = [reply.get("output"), error if isinstance(error, str) else None, reply.get("message")]
        text = "\n".join(part.strip() for part in parts if isinstance(part, str) and part.strip())
        return _short(text or self.reply or self.error, REPLY_TEXT)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, without what is empty."""
        record = {name: value for name, value in asdict(self).items() if name != "_json"}
        return {
            name: value for name, value in record.items() if value is not None and value is not False and value != ""
        }


def request_text(content_type: str, body: bytes) -> str:
    """A request's body as short redacted text; of an upload only where it goes and how large it is."""
    if content_type.lower().startswith("multipart/"):
        target = _FORM_FIELD.search(body[:4096])
        return f"upload of {len(body)} bytes to {target.group(1).decode('utf-8', 'replace') if target else '?'}"
    return _short(body.decode("utf-8", "replace"), REQUEST_TEXT)


def command_text(exchange: Exchange) -> str:
    """The command of a request as a person would write it, else its body."""
    try:
        command = json.loads(exchange.request).get("command")
    except (ValueError, AttributeError):
        return exchange.request
    if isinstance(command, list):
        return " ".join(str(word) for word in command)
    return str(command) if command is not None else exchange.request


def redact_text(text: str) -> str:
    """Text without keys, tokens and passwords piped into sudo."""
    return _PIPED_PASSWORD.sub(rf"\1{REDACTED}\2", redacted(text))


def _short(text: str, limit: int) -> str:
    text = redact_text(text)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def _is_text(content_type: str) -> bool:
    kind = content_type.lower()
    return kind.startswith("text/") or "json" in kind or "xml" in kind
