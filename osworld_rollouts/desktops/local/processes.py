"""Find a desktop's processes again, and end them and nothing else.

Whatever starts a desktop, from the first shell to its session, carries the session's settings as its last argument, and in
them a random marker. A process is ours if its arguments have exactly that form; it is killed through a pidfd that was opened before the
check, so that a reused process id cannot be hit. Plain processes without a sandbox around them can outlive their session: they are
told by the marker in their environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from osworld_rollouts.desktops._provider import DesktopError
from osworld_rollouts.desktops.local.sandbox import PYTHON

PROC = Path("/proc")
VARIABLE = "OSWORLD_DESKTOP"
"""Set by the session for every program of a desktop (`guest/session.py`)."""


@dataclass(frozen=True)
class Found:
    """A process of a desktop: host process id, start time (clock ticks since boot), whether it is the session itself."""

    pid: int
    started: int
    session: bool


def find(marker: str) -> list[Found]:
    """The session of this marker and what starts or surrounds it; empty when the desktop is not running."""
    return [process for pid in _pids() if (process := _inspect(pid, marker)) is not None]


def alive(marker: str) -> bool:
    """Whether the desktop is running or about to."""
    return bool(find(marker))


def tree(marker: str) -> list[int]:
    """Process ids of everything that runs in this desktop, as the host counts them."""
    parents: dict[int, int] = {}
    for pid in _pids():
        with contextlib.suppress(OSError):
            parents[pid] = int(_stat(pid)[1])
    everything = layer = {process.pid for process in find(marker)}
    while layer := {pid for pid, parent in parents.items() if parent in layer} - everything:
        everything = everything | layer
    return sorted(everything)


def end(marker: str, *, sandboxed: bool, timeout: float = 10.0) -> None:
    """End every process of this desktop.

    In a sandbox the session is process 1 of its own process namespace: the kernel ends all others with it. Otherwise the session is
    asked first, because it knows its descendants, and what outlived it is looked for.

    Raises:
        DesktopError: something survived.
    """
    deadline = time.monotonic() + timeout
    if not sandboxed:
        for process in find(marker):
            if process.session:
                _signal(process, signal.SIGTERM)
        while find(marker) and time.monotonic() < deadline - timeout / 2:
            time.sleep(0.02)
    while left := [*find(marker), *([] if sandboxed else _outliving(marker))]:
        for process in left:
            _signal(process, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise DesktopError(f"processes {[process.pid for process in left]} of desktop {marker} do not end")
        time.sleep(0.01)


def _inspect(pid: int, marker: str) -> Found | None:
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
        started = _start_time(pid)
    except OSError:
        return None
    while words and not words[-1]:
        words.pop()
    if len(words) < 3 or words[-2] != b"session" or marker.encode() not in words[-1]:
        return None
    with contextlib.suppress(ValueError):
        settings = json.loads(words[-1])
        if isinstance(settings, dict) and settings.get("marker") == marker:
            return Found(pid, started, session=len(words) == 4 and words[0] == PYTHON.encode())
    return None


def _outliving(marker: str) -> list[Found]:
    """Processes with the marker in their environment, and what is below them."""
    parents: dict[int, int] = {}
    marked: set[int] = set()
    wanted = f"{VARIABLE}={marker}".encode()
    for pid in _pids():
        with contextlib.suppress(OSError):
            parents[pid] = int(_stat(pid)[1])
            if wanted in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                marked.add(pid)
    layer = marked
    while layer := {pid for pid, parent in parents.items() if parent in layer} - marked:
        marked |= layer
    found: list[Found] = []
    for pid in marked:
        with contextlib.suppress(OSError):
            if _stat(pid)[0] != "Z":
                found.append(Found(pid, _start_time(pid), session=False))
    return found


def _signal(process: Found, number: signal.Signals) -> None:
    """Signal exactly this process: the descriptor is opened first, then it is checked that it is still the one that was found."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        with contextlib.suppress(OSError):
            if _start_time(process.pid) == process.started:
                signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def _pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def _start_time(pid: int) -> int:
    return int(_stat(pid)[19])


def _stat(pid: int) -> list[str]:
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
