"""The X authority file (format: Xau library, `Xauth.h`).

A real cookie, not `-ac`: without a matching entry python-xlib prints a warning on standard output at every start, which ends up in the
output of every action.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FAMILY_LOCAL = 256
FAMILY_WILD = 65535
PROTOCOL = b"MIT-MAGIC-COOKIE-1"


def write_cookie(path: Path, cookie: bytes, hostname: str, display: str | None) -> None:
    """Replace the file by entries for `display` (":0") on this host and for any display."""
    entries = _entry(FAMILY_WILD, b"", b"", cookie)
    if display is not None:
        entries = _entry(FAMILY_LOCAL, hostname.encode(), display.removeprefix(":").encode(), cookie) + entries
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(entries)
    temporary.replace(path)


def _entry(family: int, address: bytes, number: bytes, cookie: bytes) -> bytes:
    parts = b"".join(struct.pack(">H", len(part)) + part for part in (address, number, PROTOCOL, cookie))
    return struct.pack(">H", family) + parts
