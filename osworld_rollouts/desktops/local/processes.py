"""Find a desktop's processes again, and end them and nothing else.

A desktop's first process carries its marker, a random word, in the settings it was started with. A process is ours if its arguments
have the exact form we start, with that marker; it is killed through a pidfd that was opened before the check, so that a reused
process id cannot be hit.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from osworld_rollouts.desktops._provider import DesktopError

PROC = Path("/proc")


@dataclass(frozen=True)
class Found:
    """A process of a desktop: host process id, start time (clock ticks since boot), whether it is the session itself."""

    pid: int
    started: int
    session: bool


def find(marker: str) -> list[Found]:
    """The session of this marker and the sandbox around it; empty when the desktop is not running."""
    return [process for pid in _pids() if (process := _inspect(pid, marker)) is not None]


def alive(marker: str) -> bool:
    """Whether the desktop's session is running."""
    return any(process.session for process in find(marker))


def end(marker: str, *, gently: bool, timeout: float = 10.0) -> None:
    """End every process of this desktop.

    In a sandbox the session is process 1 of its own process namespace: the kernel ends all others with it. `gently` is for the
    plain-process tier, where the session itself has to end its descendants first.

    Raises:
        DesktopError: something survived.
    """
    deadline = time.monotonic() + timeout
    descendants: dict[int, int] = {}
    if gently:
        for process in find(marker):
            descendants.update(_descendants(process.pid))
            _signal(process, marker, signal.SIGTERM)
        while find(marker) and time.monotonic() < deadline - timeout / 2:
            time.sleep(0.02)
    while processes := find(marker):
        for process in processes:
            if process.session or not any(other.session for other in processes):
                _signal(process, marker, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise DesktopError(f"processes {[process.pid for process in processes]} of desktop {marker} do not end")
        time.sleep(0.01)
    for pid, started in descendants.items():
        _kill_started_at(pid, started)


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
            return Found(pid, started, session=not words[0].endswith(b"bwrap"))
    return None


def _signal(process: Found, marker: str, number: signal.Signals) -> None:
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if _inspect(process.pid, marker) == process:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def _kill_started_at(pid: int, started: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with contextlib.suppress(OSError):
            if _start_time(pid) == started:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                select.select([handle], [], [], 2)
    finally:
        os.close(handle)


def _descendants(ancestor: int) -> dict[int, int]:
    parents: dict[int, int] = {}
    for pid in _pids():
        with contextlib.suppress(OSError):
            parents[pid] = int(_stat(pid)[1])
    found: list[int] = []
    layer = [ancestor]
    while layer:
        layer = [pid for pid, parent in parents.items() if parent in layer]
        found += layer
    result: dict[int, int] = {}
    for pid in found:
        with contextlib.suppress(OSError):
            result[pid] = _start_time(pid)
    return result


def _pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def _start_time(pid: int) -> int:
    return int(_stat(pid)[19])


def _stat(pid: int) -> list[str]:
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
