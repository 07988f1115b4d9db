"""Facts about this software, sealed with every execution: version, source revision, Python, packages."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import JsonValue

_PACKAGES = ("temporalio", "pydantic", "openai", "aiohttp", "pillow", "numpy", "desktop-env")


@functools.cache
def provenance() -> dict[str, JsonValue]:
    """Version and revision of the installed software; a fact that cannot be had is None.

    `source_dirty` is true when tracked files differ from the revision, or untracked ones lie beside them.
    """
    revision, dirty = _revision()
    return {
        "software": "osworld-rollouts",
        "version": version(),
        "source_revision": revision,
        "source_dirty": dirty,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _installed(name) for name in _PACKAGES},
    }


def version() -> str:
    """Our own version, as installed."""
    return _installed("osworld-rollouts") or "0+unknown"


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _revision() -> tuple[str | None, bool | None]:
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None, None
    try:
        head = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True
        )
        status = subprocess.run(
            ["git", "-C", str(root), "status", "--porcelain"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None, None
    return head.stdout.strip(), bool(status.stdout.strip())
