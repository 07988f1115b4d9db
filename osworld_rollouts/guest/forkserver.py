"""Run `python -c CODE` by forking a process in which pyautogui is imported already.

A cold `python -c "import pyautogui; ..."` takes about half a second, most of it imports. The zygote (`zygote.py`) has made
them once; each operation is a fresh fork of it, so nothing one operation does is seen by the next.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from .execute import CommandTimeout, Outcome, collect

START_TIMEOUT_S = 20.0
BEGUN = b"b"
"""What a fork sends before it runs its code."""


class ForkServerUnavailable(Exception):
    """No zygote could be started; nothing was run, and a cold process may be used instead."""


class ForkServerDied(Exception):
    """The zygote died while the code ran; whether the code ended is unknown."""


def python_code(command: list[str] | str, shell: bool) -> list[str] | None:
    """The words after `python -c` if this command is exactly that, else None."""
    if shell or isinstance(command, str) or len(command) < 3:
        return None
    if command[0] not in {"python", "python3"} or command[1] != "-c" or "\0" in command[2]:
        return None
    return command[2:]


class ForkServer:
    """The server's end of the zygote. Starts it when first needed and again when it has died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Start the zygote and wait until it has made its imports.

        Raises:
            ForkServerUnavailable: it did not come up; the message carries what it printed.
        """
        with self._lock:
            self._ensure()

    def run(self, code: list[str], timeout: float) -> Outcome:
        """Run `code[0]` as `__main__` with the arguments `code[1:]`, at most `timeout` seconds.

        Raises:
            ForkServerUnavailable: nothing was run.
            ForkServerDied: it was begun and its end is unknown.
            CommandTimeout: it was killed with its process group.
        """
        for _ in range(2):
            outcome = self._run(code, timeout)
            if outcome is not None:
                return outcome
        raise ForkServerUnavailable("the fork server died twice before it began to run the code")

    def _run(self, code: list[str], timeout: float) -> Outcome | None:
        """Like `run`; None when the code was certainly not begun."""
        ours, theirs = socket.socketpair()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        request = os.memfd_create("request", os.MFD_CLOEXEC)
        order = memoryview(json.dumps({"code": code[0], "argv": code[1:], "cwd": str(Path.cwd())}).encode())
        begun = False
        try:
            try:
                while order:
                    order = order[os.write(request, order) :]
                self._send([theirs.fileno(), request, out_write, err_write])
            finally:
                theirs.close()
                for descriptor in (request, out_write, err_write):
                    os.close(descriptor)
            # The fork says that it begins before it begins. Without that, and with the link closed, nobody is left who could.
            ours.settimeout(timeout)
            try:
                begun = ours.recv(1) == BEGUN
            except TimeoutError:
                raise ForkServerDied(
                    f"the fork server did not say within {timeout:g} s whether it runs the code"
                ) from None
        finally:
            if not begun:
                ours.close()
                os.close(out_read)
                os.close(err_read)
        if not begun:
            return None

        def kill() -> None:
            with contextlib.suppress(OSError):
                ours.send(b"k")

        with ours:
            texts, in_time = collect([out_read, err_read], ours.fileno(), timeout, kill)
            status = ours.recv(16)
        if not status:
            raise ForkServerDied("the fork server died while the code ran")
        outcome = Outcome(texts[0], texts[1], int(status))
        if not in_time:
            raise CommandTimeout(timeout, outcome)
        return outcome

    def stop(self) -> None:
        """End the zygote; code that still runs goes on."""
        with self._lock:
            self._discard()

    def _send(self, descriptors: list[int]) -> None:
        message = array.array("i", descriptors)
        with self._lock:
            for attempt in (1, 2):
                control = self._ensure()
                try:
                    control.sendmsg([b"r"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, message)])
                    return
                except OSError as error:
                    # The message did not leave, so nothing was run and a second zygote may be asked.
                    self._discard()
                    if attempt == 2:
                        raise ForkServerUnavailable(f"the fork server does not take work: {error}") from error

    def _ensure(self) -> socket.socket:
        if self._control is not None and self._process is not None and self._process.poll() is None:
            return self._control
        self._discard()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).parent), "zygote", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._control = ours
        ours.settimeout(START_TIMEOUT_S)
        try:
            hello = ours.recv(16384)
        except OSError as error:
            hello = str(error).encode()
        if hello != b"ready":
            self._discard()
            raise ForkServerUnavailable(
                f"the fork server did not start: {hello.decode('utf-8', 'replace') or 'it exited'}"
            )
        ours.settimeout(None)
        return ours

    def _discard(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
