"""The evaluator's own process: a zygote that imports `desktop_env` once and forks one job process for each call.

Run as `python -m osworld_rollouts.osworld.child <control fd> <worker pid>` by `zygote.Zygote`; never imported by the worker. Control messages are JSON,
one a packet: `fork` (with the job's socket and log as file descriptors) and `kill` come in; `ready`, `forked` and `exited` go out. A
job speaks lines of JSON on its own socket: it reads its specification, asks at the beginning and the end of each step, and ends with one
`result` or `error`. It inherits the imported package and nothing else: its state is built from the specification.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import logging
import os
import random
import resource
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from osworld_rollouts.osworld.environment import LeasedDesktopEnv, StepFailed

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PACKET = 65536
_LARGEST_FILE = 4 * 2**30
"""Bytes a job may write into one file, its log among them: what the agent left must not fill the worker's disk."""


class OcrUnavailable(BaseException):
    """A metric asked for OCR and easyocr is not installed.

    Not an `Exception`: `compare_image_text` turns those into a score of 0.
    """


def stand_in_for_easyocr() -> bool:
    """Let `desktop_env` be imported without easyocr (and its 5 GB); returns whether that was needed.

    Only one task reads text from images, and `preflight` refuses it; should a metric still ask, the job fails.
    """
    if importlib.util.find_spec("easyocr") is not None:
        return False

    class Reader:
        def __init__(self, *_args: object, **_options: object) -> None:
            raise OcrUnavailable(
                "this evaluator has no OCR: install the package easyocr to run tasks that read text from images"
            )

    module = types.ModuleType("easyocr")
    module.Reader = Reader  # pyright: ignore[reportAttributeAccessIssue] - a stand-in with the one name that is used
    sys.modules["easyocr"] = module
    return True


class ZygoteLoop:
    """Forks jobs on request and says when they end. Ends, with every job, when its worker does."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._jobs: dict[int, str] = {}
        self._wakeup, wakeup_in = os.pipe()
        os.set_blocking(wakeup_in, False)
        os.set_blocking(self._wakeup, False)
        signal.set_wakeup_fd(wakeup_in)
        signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)

    def run(self) -> None:
        """Serve until the control socket is closed."""
        while True:
            ready, _, _ = select.select([self._control, self._wakeup], [], [])
            if self._wakeup in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wakeup, 4096)
                self._reap()
            if self._control in ready and not self._serve():
                for pid in self._jobs:
                    _kill_group(pid)
                return

    def _serve(self) -> bool:
        data, fds, _flags, _address = socket.recv_fds(self._control, _PACKET, 2)
        if not data:
            return False
        message = json.loads(data)
        if message["op"] == "fork":
            self._fork(message["id"], fds)
        elif message["op"] == "kill":
            for pid, job in self._jobs.items():
                if job == message["id"]:
                    _kill_group(pid)
        return True

    def _fork(self, job: str, fds: list[int]) -> None:
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            job_main(zygote, socket.socket(fileno=fds[0]), fds[1])
        for fd in fds:
            os.close(fd)
        self._jobs[pid] = job
        self._say(op="forked", id=job, pid=pid)

    def _reap(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            job = self._jobs.pop(ended.si_pid, None)
            if job is not None:
                # Whatever the job started and left (a browser driver) is in its group. Until the job is reaped, its
                # number cannot be anybody else's.
                _kill_group(ended.si_pid)
            _, status = os.waitpid(ended.si_pid, 0)
            if job is not None:
                self._say(op="exited", id=job, pid=ended.si_pid, code=os.waitstatus_to_exitcode(status))

    def _say(self, **message: Any) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._control.send(json.dumps(message).encode())


def job_main(zygote: int, channel: socket.socket, log_fd: int) -> NoReturn:
    """The life of a job process, from fork to exit."""
    code = 70
    try:
        os.setsid()
        _die_with_parent(zygote)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        os.close(log_fd)
        logging.basicConfig(
            level=logging.INFO, stream=sys.stderr, force=True, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )
        Job(channel).run()
        code = 0
    except BaseException:  # noqa: BLE001 - the last frame of a process: into the log, and out
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


class Job:
    """One run of OSWorld's code: `setup`, `post` or `evaluate`."""

    def __init__(self, channel: socket.socket) -> None:
        self._lines = channel.makefile("rwb")
        self._spec: dict[str, Any] = self._read()

    def run(self) -> None:
        """Run it and say how it ended."""
        work = self._spec["work_dir"]
        os.chdir(work)  # metrics write temporary files into the current directory
        os.environ["TMPDIR"] = tempfile.tempdir = work
        random.seed()
        started = time.monotonic()
        try:
            env = self._environment()
            if self._spec["phase"] == "evaluate":
                result: dict[str, Any] = {"score": _score(env.evaluate())}
            else:
                env.setup_controller.setup(self._spec["steps"])
                result = {}
            self._say(event="result", duration_ms=round((time.monotonic() - started) * 1000), **result)
        except BaseException as error:  # noqa: BLE001 - metrics may raise anything; it is told, not swallowed
            traceback.print_exc()
            self._say(event="error", duration_ms=round((time.monotonic() - started) * 1000), **_describe(error))

    def _environment(self) -> LeasedDesktopEnv:
        from osworld_rollouts.osworld.environment import LeasedDesktopEnv  # noqa: PLC0415 - imports desktop_env

        spec = self._spec
        env = LeasedDesktopEnv(
            ports=spec["ports"],
            cache_dir=spec["cache_dir"],
            screen_size=(spec["screen_width"], spec["screen_height"]),
            client_password=spec["client_password"],
            last_action=spec["last_action"],
        )
        env.attach(spec["task"], self._announce, self._judge)
        return env

    def _announce(self, number: int, step: dict[str, Any]) -> None:
        self._ask(event="begin", number=number, type=step["type"])

    def _judge(self, number: int) -> dict[str, Any] | None:
        return self._ask(event="end", number=number)["failure"]

    def _ask(self, **message: Any) -> dict[str, Any]:
        self._say(**message)
        return self._read()

    def _say(self, **message: Any) -> None:
        self._lines.write(json.dumps(message).encode() + b"\n")
        self._lines.flush()

    def _read(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise EOFError("the worker is gone")
        return json.loads(line)


def _score(value: object) -> float:
    from osworld_rollouts.osworld.job import as_score  # noqa: PLC0415 - pydantic-free, but keep the zygote small

    return as_score(value)


def _describe(error: BaseException) -> dict[str, Any]:
    """An exception as the worker needs it: type, message, end of the traceback, step, and whether a download failed."""
    step: StepFailed | None = error if type(error).__name__ == "StepFailed" else None  # pyright: ignore[reportAssignmentType] - by name, imported late
    cause = (step.cause or error) if step else error
    return {
        "type": type(cause).__name__,
        "message": f"{type(cause).__name__}: {cause}" if step is None or step.failure is None else str(step),
        "traceback": "".join(traceback.format_exception(error))[-8000:],
        "download": _failed_download(error),
        "step": step.number if step else 0,
        "step_type": step.step_type if step else "",
        "failure": step.failure if step else None,
    }


def _failed_download(error: BaseException | None) -> str:
    """The address outside this machine that a request of the package failed on, if that is what ended it."""
    import requests  # noqa: PLC0415 - already imported by the package

    while error is not None:
        if isinstance(error, requests.RequestException):
            url = getattr(getattr(error, "request", None), "url", "") or ""
            if "//127.0.0.1" not in url:
                return url or str(error)
        error = error.__cause__ or error.__context__
    return ""


def _kill_group(pid: int) -> None:
    # Before the job has called setsid its group is still the zygote's own.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(70)


def main() -> int:
    """Import the package, say so, and serve."""
    control = socket.socket(fileno=int(sys.argv[1]))
    _die_with_parent(int(sys.argv[2]))
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    started = time.monotonic()
    stand_in = stand_in_for_easyocr()
    try:
        importlib.import_module("osworld_rollouts.osworld.environment")
    except Exception as error:  # noqa: BLE001 - told to the worker, which cannot evaluate without it
        traceback.print_exc()
        control.send(json.dumps({"op": "broken", "message": f"{type(error).__name__}: {error}"}).encode())
        return 1
    gc.collect()
    gc.freeze()  # what was imported is shared with every job; collecting it there would copy its pages
    ready = {
        "op": "ready",
        "import_s": round(time.monotonic() - started, 2),
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "modules": len(sys.modules),
        "ocr": not stand_in,
    }
    control.send(json.dumps(ready).encode())
    ZygoteLoop(control).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
