"""Run a command and collect what it prints, without ever waiting for a daemon it leaves behind.

A command is over when its own process has exited. Whoever still holds its output pipes then (a clipboard owner, a
program put in the background) has `GRACE_S` to say more; after that the pipes are drained to nowhere, so that such a program is neither
waited for nor killed by a broken pipe.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .wire import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable

GRACE_S = 0.15
MAX_OUTPUT = 32 * 2**20
"""Bytes kept of each stream; what follows is dropped and said so at its end."""


@dataclass
class Outcome:
    """How a command ended: text of both streams and the return code (negative: the signal that ended it)."""

    output: str
    error: str
    returncode: int


class CommandTimeout(Exception):
    """The command ran longer than it may and was killed with its process group."""

    def __init__(self, timeout: float, outcome: Outcome) -> None:
        super().__init__(f"the command ran longer than {timeout:g} s and was killed with its process group")
        self.outcome = outcome


def parse_command(data: dict[str, Any]) -> tuple[list[str] | str, bool]:
    """The `command` and `shell` of a request, as OSWorld's server reads them.

    A string without a shell is split like a shell would; a leading `~/` of an argument becomes the home folder.

    Raises:
        ApiError: 400 when there is no command.
    """
    shell = bool(data.get("shell", False))
    command = data.get("command")
    if isinstance(command, str) and not shell:
        try:
            command = shlex.split(command)
        except ValueError as error:
            raise ApiError(400, "bad_request", f"command cannot be split into words: {error}") from error
    if isinstance(command, list):
        command = [str(Path(word).expanduser()) if word.startswith("~/") else word for word in map(str, command)]
    if not command or not isinstance(command, (str, list)):
        raise ApiError(400, "bad_request", "command is required: a list of words, or a string")
    return command, shell


def run_command(
    command: list[str] | str, *, shell: bool = False, timeout: float, cwd: str | None = None, merge: bool = False
) -> Outcome:
    """Run `command` in its own session and wait for its exit, at most `timeout` seconds.

    `merge` sends standard error into the output.

    Raises:
        CommandTimeout: it was killed; carries what it printed until then.
        OSError: it could not be started.
    """
    process = subprocess.Popen(
        command,
        shell=shell,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merge else subprocess.PIPE,
        start_new_session=True,
    )
    pipes = [os.dup(stream.fileno()) for stream in (process.stdout, process.stderr) if stream is not None]
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    exited = os.pidfd_open(process.pid)

    def kill() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    try:
        texts, in_time = collect(pipes, exited, timeout, kill)
    finally:
        os.close(exited)
    outcome = Outcome(texts[0], texts[1] if len(texts) > 1 else "", process.wait())
    if not in_time:
        raise CommandTimeout(timeout, outcome)
    return outcome


def start_in_background(command: list[str] | str, *, shell: bool = False) -> None:
    """Start a program that goes on by itself; its output is dropped.

    Raises:
        OSError: it could not be started.
    """
    process = subprocess.Popen(
        command,
        shell=shell,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    threading.Thread(target=process.wait, name="background", daemon=True).start()


def collect(pipes: list[int], exited: int, timeout: float, kill: Callable[[], None]) -> tuple[list[str], bool]:
    """Read `pipes` until the descriptor `exited` becomes readable, then until their end or `GRACE_S` later.

    After `timeout` seconds `kill` is called once. Returns the text of each pipe and whether the exit came in time. The pipes are
    closed, or drained to nowhere while somebody still holds their other end.
    """
    kept: dict[int, list[bytes]] = {pipe: [] for pipe in pipes}
    sizes = dict.fromkeys(pipes, 0)
    deadline = time.monotonic() + timeout
    in_time = True
    over = False
    selector = selectors.DefaultSelector()
    selector.register(exited, selectors.EVENT_READ)
    for pipe in pipes:
        os.set_blocking(pipe, False)
        selector.register(pipe, selectors.EVENT_READ)
    open_pipes = set(pipes)
    while open_pipes or not over:
        left = deadline - time.monotonic()
        if left <= 0:
            if over:
                break
            if not in_time:
                left = None
            else:
                in_time = False
                kill()
                deadline = time.monotonic() + 5
                continue
        for key, _ in selector.select(left):
            if key.fd == exited:
                over = True
                selector.unregister(exited)
                deadline = time.monotonic() + GRACE_S
                continue
            data = _read(key.fd)
            if data is None:
                continue
            if not data:
                selector.unregister(key.fd)
                open_pipes.discard(key.fd)
                os.close(key.fd)
            elif sizes[key.fd] < MAX_OUTPUT:
                kept[key.fd].append(data)
                sizes[key.fd] += len(data)
                if sizes[key.fd] >= MAX_OUTPUT:
                    kept[key.fd].append(b"\n[the rest of this output was dropped]\n")
    selector.close()
    for pipe in open_pipes:
        DRAIN.add(pipe)
    return [_text(b"".join(kept[pipe])) for pipe in pipes], in_time


def _read(pipe: int) -> bytes | None:
    try:
        return os.read(pipe, 2**18)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")


class Drain:
    """Reads pipes that nobody listens to any more, in one thread, until their writers are gone."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake, self._waker = os.pipe()
        self._selector.register(self._wake, selectors.EVENT_READ)

    def add(self, pipe: int) -> None:
        """Take over `pipe` (non-blocking)."""
        with self._lock:
            self._selector.register(pipe, selectors.EVENT_READ)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="drain", daemon=True)
                self._thread.start()
        os.write(self._waker, b".")

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if _read(key.fd) == b"":
                    with self._lock:
                        self._selector.unregister(key.fd)
                    os.close(key.fd)


DRAIN = Drain()
