"""API keys: named in a request, resolved on the worker, never in a payload, a record, a log or a message."""

from __future__ import annotations

import os
from typing import Final

_SHOWN: Final = "[redacted]"
_SHORTEST: Final = 8  # a shorter key is a placeholder such as "EMPTY"; replacing it would garble messages
_PRIVATE_HEADERS: Final = frozenset(
    {"set-cookie", "authorization", "x-api-key", "proxy-authenticate", "www-authenticate"}
)


class KeyMissing(LookupError):
    """The environment variable that should hold the key is not set on this worker."""

    def __init__(self, variable: str) -> None:
        self.variable = variable
        super().__init__(
            f"environment variable {variable} is not set on this worker; set it, or set model.api_key_env to the variable "
            "that holds the key (null for a server that needs none)"
        )


def resolve_key(variable: str | None, *, required: bool = False) -> str | None:
    """The key in an environment variable of this process; None when no variable is named, or it is unset and not required.

    Raises:
        KeyMissing: it is unset or empty and `required`.
    """
    if variable is None:
        return None
    value = os.environ.get(variable) or None
    if value is None and required:
        raise KeyMissing(variable)
    return value


def redact(text: str, *keys: str | None) -> str:
    """The text without any of these keys. A server's own shortened form (`sk-ab***yz`) is left: it is no secret."""
    for key in keys:
        if key and len(key) >= _SHORTEST:
            text = text.replace(key, _SHOWN)
    return text


def public_headers(headers: dict[str, str]) -> dict[str, str]:
    """Response headers that may be recorded."""
    return {name.lower(): value for name, value in headers.items() if name.lower() not in _PRIVATE_HEADERS}
