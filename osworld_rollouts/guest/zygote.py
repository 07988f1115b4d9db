"""The process that has pyautogui imported and forks once per operation.

Protocol, with `forkserver.py`: one message on the control socket carries four descriptors (link, request, stdout, stderr). The
fork reads its request (a memory file with JSON: `code`, `argv`, `cwd`), says on the link that it begins, runs it and exits; the
zygote writes the return code to the link and closes it. A byte from the other side of the link means: kill it.

What the code sees equals a cold `python -c CODE`: its own `__main__`, argv, streams, exit codes and tracebacks.
"""

from __future__ import annotations

import array
import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import sys
import threading
import traceback
from types import ModuleType
from typing import Any

from .forkserver import BEGUN


class Zygote:
    """Accepts operations on `control` until its other end is closed."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, socket.socket] = {}

    def run(self) -> None:
        """Serve until the server is gone. Children go on; they have their own sessions."""
        wake, waker = socket.socketpair()
        for end in (wake, waker):
            end.setblocking(False)
        signal.set_wakeup_fd(waker.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(wake, selectors.EVENT_READ, self._reap)
        self._selector.register(self._control, selectors.EVENT_READ, self._accept)
        self._control.send(b"ready")
        gc.collect()
        gc.freeze()
        while self._control.fileno() >= 0:
            for key, _ in self._selector.select():
                key.data(key.fileobj)

    def _accept(self, _: Any) -> None:
        message, ancillary, _, _ = self._control.recvmsg(16, socket.CMSG_SPACE(4 * 4))
        if not message:
            self._selector.unregister(self._control)
            self._control.close()
            return
        descriptors = array.array("i")
        for _, _, data in ancillary:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        link_fd, request, out, err = descriptors
        pid = os.fork()
        if pid == 0:
            become_operation(link_fd, request, out, err)
        for descriptor in (request, out, err):
            os.close(descriptor)
        link = socket.socket(fileno=link_fd)
        self._children[pid] = link
        self._selector.register(link, selectors.EVENT_READ, lambda link, pid=pid: self._kill(pid, link))

    def _kill(self, pid: int, link: socket.socket) -> None:
        self._selector.unregister(link)
        if link.recv(1):
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError):
                    kill(pid, signal.SIGKILL)

    def _reap(self, wake: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            wake.recv(4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            link = self._children.pop(pid, None)
            if link is None:
                continue
            with contextlib.suppress(KeyError):
                self._selector.unregister(link)
            with contextlib.suppress(OSError):
                link.send(str(os.waitstatus_to_exitcode(status)).encode())
            link.close()


def become_operation(link: int, request: int, out: int, err: int) -> None:
    """Turn this fresh fork into `python -c CODE`; never returns."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.dup2(out, 1)
        os.dup2(err, 2)
        order = json.loads(os.pread(request, os.fstat(request).st_size, 0))
        os.chdir(order["cwd"])
        os.write(link, BEGUN)
        os.closerange(3, 1024)
        status = run_code(order["code"], order["argv"])
    except BaseException:  # noqa: BLE001 - the last thing this process can do is say so
        traceback.print_exc()
    finally:
        os._exit(status)


def run_code(code: str, argv: list[str]) -> int:
    """Run `code` as `__main__` and return the exit status, having done what interpreter shutdown does for a program."""
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
    sys.modules["__main__"] = main
    sys.argv = ["-c", *argv]
    sys.path[0] = ""
    connect_display()
    status = _status_of(code, main)
    # Shutdown in the interpreter's order: threads, exit functions, then the program's globals, so that files it left open
    # are written. The garbage collector looks only at what was made after the fork.
    threading._shutdown()  # noqa: SLF001
    import atexit

    atexit._run_exitfuncs()  # noqa: SLF001
    release_globals(main.__dict__)
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            status = status or 120
    return status


def release_globals(names: dict[str, Any]) -> None:
    """Drop a program's globals like the interpreter does at its end: private names first, then the rest."""
    for private in (True, False):
        for name in list(names):
            if name != "__builtins__" and (name.startswith("_") and not name.startswith("__")) is private:
                names[name] = None


def _status_of(code: str, main: ModuleType) -> int:
    try:
        exec(compile(code, "<string>", "exec", dont_inherit=True), main.__dict__)
    except SystemExit as stop:
        if stop.code is None:
            return 0
        if isinstance(stop.code, int):
            return stop.code & 0xFF
        sys.stderr.write(f"{stop.code}\n")
        return 1
    except KeyboardInterrupt:
        _print_exception()
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - the program's own failure, reported like the interpreter does
        _print_exception()
        return 1
    return 0


def _print_exception() -> None:
    kind, value, trace = sys.exc_info()
    # Without the frames of this file: the first belongs to `_status_of`.
    trace = trace.tb_next if trace is not None else None
    if value is not None:
        value.__traceback__ = trace
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    sys.excepthook(kind, value, trace)  # type: ignore[arg-type]
    sys.last_type, sys.last_value, sys.last_traceback = kind, value, trace


def prepare() -> None:
    """Make the imports every operation wants, and let go of the display: each fork opens its own connection."""
    import pyautogui
    from mouseinfo import _display as mouse_display
    from pyautogui import _pyautogui_x11

    from .keyboard import fix_keyboard

    fix_keyboard(pyautogui, _pyautogui_x11)
    _pyautogui_x11._display.close()  # noqa: SLF001
    mouse_display.close()


def connect_display() -> None:
    """Give pyautogui a connection of this process's own; without a display, forget it, so that its import fails as it should."""
    import mouseinfo
    from pyautogui import _pyautogui_x11
    from Xlib.display import Display
    from Xlib.error import DisplayError

    try:
        _pyautogui_x11._display = mouseinfo._display = Display(os.environ["DISPLAY"])  # noqa: SLF001
    except (DisplayError, OSError):
        for name in [name for name in sys.modules if name.partition(".")[0] in {"pyautogui", "mouseinfo"}]:
            del sys.modules[name]


def main() -> int:
    """Run the zygote on the control socket whose descriptor is the first argument."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    sys.argv = ["-c"]
    try:
        prepare()
    except BaseException:  # noqa: BLE001 - reported to the server, which decides
        control.send(traceback.format_exc()[-8000:].encode())
        return 1
    Zygote(control).run()
    return 0
