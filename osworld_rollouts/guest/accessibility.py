"""Reading the accessibility tree, in a process of its own: a toolkit that hangs would hang its caller.

`TreeReader` starts the process when first asked, kills it when it is late, and lets it go after a while. The tree itself is `atspi.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

from .atspi import NAMESPACES, read_tree
from .wire import ApiError

TIMEOUT_S = 60.0
IDLE_S = 60.0
TERMINALS = ("gnome-terminal-server", "xfce4-terminal", "mate-terminal", "xterm")


class TreeReader:
    """Asks the reader process; one question at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._used = 0.0
        self._reaper: threading.Thread | None = None

    def ask(self, question: str, timeout: float = TIMEOUT_S) -> str | None:
        """`tree` or `terminal`: the XML, or the text of the focused terminal (None when there is none).

        Raises:
            ApiError: 500 `accessibility_failed`, 504 `accessibility_timeout`.
        """
        with self._lock:
            process = self._start()
            expired = threading.Event()

            def expire() -> None:
                expired.set()
                process.kill()

            timer = threading.Timer(timeout, expire)
            timer.start()
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(question.encode() + b"\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except OSError:
                line = b""
            finally:
                timer.cancel()
            self._used = time.monotonic()
            if line:
                answer = json.loads(line)
                if "error" in answer:
                    raise ApiError(500, "accessibility_failed", answer["error"])
                return answer["value"]
            self._stop()
            if expired.is_set():
                raise ApiError(504, "accessibility_timeout", f"the accessibility tree took longer than {timeout:g} s")
            raise ApiError(500, "accessibility_failed", "the accessibility reader died")

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).parent), "accessibility"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            if self._reaper is None or not self._reaper.is_alive():
                self._reaper = threading.Thread(target=self._let_go, name="accessibility", daemon=True)
                self._reaper.start()
        return self._process

    def _let_go(self) -> None:
        while True:
            time.sleep(IDLE_S / 4)
            with self._lock:
                if self._process is None or time.monotonic() - self._used > IDLE_S:
                    self._stop()
                    return

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def read_terminal() -> str | None:
    """Text of the focused terminal in the active window, or None."""
    root = read_tree()
    for application in root:
        if application.get("name") not in TERMINALS:
            continue
        found = application.xpath('./frame[@st:active="true"]//terminal[@st:focused="true"]', namespaces=NAMESPACES)
        if len(found) == 1:
            return (found[0].text or "").rstrip()
    return None


def main() -> int:
    """Answer `tree` and `terminal`, one JSON line each, until standard input ends."""
    from lxml import etree

    for line in sys.stdin:
        try:
            terminal = line.strip() == "terminal"
            answer = {"value": read_terminal() if terminal else etree.tostring(read_tree(), encoding="unicode")}
        except Exception as error:  # noqa: BLE001 - told to the asker
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return 0
