"""Processes that `rollouts up` and `rollouts demo` start: found again after any death of the starter, and never confused with others.

Each has a state file in `<state_dir>/run` with pid, start time, boot and pid namespace. Only a process that matches all four is
ours; everything else is left alone, also when it has our pid or our name.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from osworld_rollouts.console import launch

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

_TAIL_BYTES = 8192


class ProcessError(RuntimeError):
    """A process did not start or could not be ended; the message says which, why and where its log is."""


class BusyError(ProcessError):
    """Another process of ours holds the lock; `pid` is who."""

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid


@dataclass(frozen=True)
class Process:
    """One process we started, dead or alive."""

    name: str
    pid: int
    started: int
    boot_id: str
    pid_namespace: str
    argv: tuple[str, ...]
    log: Path
    facts: dict[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def from_file(cls, path: Path) -> Self | None:
        """Read a state file; None when there is none or it is damaged."""
        try:
            record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                name=path.stem,
                pid=int(record["pid"]),
                started=int(record["started"]),
                boot_id=str(record["boot_id"]),
                pid_namespace=str(record["pid_namespace"]),
                argv=tuple(str(part) for part in record["argv"]),
                log=Path(record["log"]),
                facts=dict(record["facts"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def alive(self) -> bool:
        """Whether this very process still runs. A zombie does not."""
        try:
            now = launch.identity(self.pid)
            state = (
                Path(f"/proc/{self.pid}/stat")
                .read_text(encoding="utf-8", errors="replace")
                .rpartition(")")[2]
                .split()[0]
            )
        except (OSError, ValueError, IndexError):
            return False
        mine = {"pid": self.pid, "started": self.started, "boot_id": self.boot_id, "pid_namespace": self.pid_namespace}
        return now == mine and state not in "ZX"

    def uptime_s(self) -> float:
        """Seconds since it was started."""
        with Path("/proc/uptime").open(encoding="ascii") as file:
            return max(0.0, float(file.read().split()[0]) - self.started / os.sysconf("SC_CLK_TCK"))

    def stop(self, grace_s: float) -> bool:
        """Ask it to end, and end it after `grace_s` seconds; True when something had to be ended.

        Signals go through a pidfd taken before the identity was checked, so that a reused pid is never hit. Only the process itself
        is signalled: desktops it started outlive it on purpose.

        Raises:
            ProcessError: when it survives SIGKILL, for example in an uninterruptible disk wait.
        """
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive():
                return False
            for number, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10.0)):
                try:
                    signal.pidfd_send_signal(handle, number)
                except ProcessLookupError:
                    return True
                if select.select([handle], [], [], patience)[0]:
                    return True
        finally:
            os.close(handle)
        raise ProcessError(
            f"{self.name} (pid {self.pid}) does not end, not even by SIGKILL; look at `cat /proc/{self.pid}/wchan`"
        )

    def log_tail(self, lines: int = 5) -> str:
        """The last lines of its log, for an error message."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])


class Registry:
    """The state files in one directory."""

    def __init__(self, state_dir: Path) -> None:
        self.run_dir = state_dir / "run"
        self.log_dir = state_dir / "logs"

    def path(self, name: str) -> Path:
        """Where the state of one process is kept."""
        return self.run_dir / f"{name}.json"

    def find(self, name: str) -> Process | None:
        """The process if it is alive. A state file whose process is gone is removed."""
        path = self.path(name)
        process = Process.from_file(path)
        if process is not None and process.alive():
            return process
        path.unlink(missing_ok=True)
        return None

    def running(self) -> list[Process]:
        """Every process of ours that is alive, by name."""
        names = sorted(path.stem for path in self.run_dir.glob("[a-z]*.json")) if self.run_dir.is_dir() else []
        return [process for name in names if (process := self.find(name)) is not None]

    def start(
        self,
        name: str,
        argv: Sequence[str],
        *,
        facts: dict[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        dies_with_us: bool = False,
    ) -> Process:
        """Start a program in a session of its own, its output in `<state_dir>/logs/<name>.log`.

        `dies_with_us`: the kernel ends it (SIGTERM) when the calling process dies, however it dies.

        Raises:
            ProcessError: when it cannot be started.
        """
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.log_dir.mkdir(parents=True, exist_ok=True)
        log = self.log_dir / f"{name}.log"
        if log.exists():
            log.replace(log.with_suffix(".log.1"))
        path = self.path(name)
        path.unlink(missing_ok=True)
        launcher = [
            sys.executable,
            "-I",
            "-S",
            launch.__file__,
            str(path),
            str(log),
            str(os.getpid() if dies_with_us else 0),
        ]
        child = subprocess.Popen(
            [*launcher, json.dumps(facts or {}), "--", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            cwd=cwd,
            start_new_session=True,
        )
        deadline = time.monotonic() + 20
        while (process := Process.from_file(path)) is None or process.pid != child.pid:
            if child.poll() is not None or time.monotonic() > deadline:
                reason = (
                    child.stderr.read().decode(errors="replace").strip()
                    if child.poll() is not None and child.stderr
                    else "no sign of life"
                )
                raise ProcessError(
                    f"{name} did not start: {reason.splitlines()[-1] if reason else f'exit code {child.returncode}'}"
                )
            time.sleep(0.01)
        child.returncode = (
            0  # it is watched by its state file from here on, also by later processes; not waited for at exit
        )
        return process

    def note(self, process: Process, **facts: Any) -> Process:
        """Add facts (address, version, …) to a process's state file."""
        merged = {**process.facts, **facts}
        record = {name: getattr(process, name) for name in ("pid", "started", "boot_id", "pid_namespace", "argv")}
        launch.write_record(self.path(process.name), {**record, "log": str(process.log), "facts": merged})
        return Process.from_file(self.path(process.name)) or process

    def stop(self, name: str, grace_s: float = 15) -> bool:
        """End a process and forget it; True when it was alive."""
        process = self.find(name)
        ended = process.stop(grace_s) if process else False
        self.path(name).unlink(missing_ok=True)
        return ended

    @contextmanager
    def lock(self, name: str, *, wait_s: float = 0) -> Generator[None]:
        """Hold a named lock that ends with this process, whatever ends it.

        Raises:
            BusyError: when another process holds it for longer than `wait_s`.
        """
        self.run_dir.mkdir(parents=True, exist_ok=True)
        with (self.run_dir / f"{name}.lock").open("a+", encoding="ascii") as file:
            deadline = time.monotonic() + wait_s
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        file.seek(0)
                        holder = file.read().strip()
                        pid = int(holder) if holder.isdigit() else None
                        raise BusyError(
                            f"`rollouts {name}` is already running{f' (pid {pid})' if pid else ''}", pid
                        ) from None
                    time.sleep(0.1)
            file.seek(0)
            file.truncate()
            file.write(str(os.getpid()))
            file.flush()
            yield
