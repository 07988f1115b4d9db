"""The worker's side of the evaluator's process: start it warm, fork jobs, kill them, notice its death."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from pathlib import Path

log = structlog.get_logger()

_PACKET = 65536
_PASSED_ON = frozenset({
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
})  # fmt: skip
"""What the process inherits of the worker's environment. Keys and tokens stay out: the package logs its environment."""


class EvaluatorUnavailable(Exception):
    """The evaluator's process cannot be started; the message says why and what to do."""


@dataclass(eq=False)
class JobProcess:
    """One forked job: its channel, and a future with its exit code (negative: the signal that killed it)."""

    job_id: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    exited: asyncio.Future[int]

    async def read(self) -> dict[str, Any] | None:
        """The job's next message, always with an `event`; None when it said nothing more."""
        try:
            line = await self.reader.readline()
        except (ConnectionError, ValueError):
            return None
        if not line.endswith(b"\n"):
            return None
        # Metrics run what the agent wrote in that process, and it may write anything anywhere.
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        return message if isinstance(message, dict) and "event" in message else {"event": "unreadable"}

    async def send(self, message: dict[str, Any]) -> None:
        """Send the job a message. A job that is gone is noticed by `read`."""
        with contextlib.suppress(ConnectionError):
            self.writer.write(json.dumps(message).encode() + b"\n")
            await self.writer.drain()

    def close(self) -> None:
        """Close our end of the channel."""
        self.writer.close()


class Zygote:
    """A process with `desktop_env` imported, from which jobs are forked. Started when needed, and again when it died."""

    def __init__(self, run_dir: Path, caches: Path, *, start_timeout_s: float = 120) -> None:
        self._dir = run_dir
        self._caches = caches
        self._start_timeout_s = start_timeout_s
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._jobs: dict[str, JobProcess] = {}
        self._count = 0
        self._ready: asyncio.Future[dict[str, Any]] | None = None
        self.facts: dict[str, Any] = {}

    @property
    def alive(self) -> bool:
        """Whether the process runs and has said that it is ready."""
        return self._control is not None and bool(self.facts)

    @property
    def pid(self) -> int | None:
        """Process id, for people and tests."""
        return self._process.pid if self._process else None

    @property
    def log_path(self) -> Path:
        """Where the process writes what it prints outside jobs."""
        return self._dir / "zygote.log"

    async def start(self) -> None:
        """Start the process unless it runs; returns when the package is imported.

        Raises:
            EvaluatorUnavailable: the package is missing or broken, or the import takes too long.
        """
        async with self._starting:
            if self.alive:
                return
            await self._stop()
            await self._launch()

    async def close(self) -> None:
        """End the process and every job."""
        async with self._starting:
            await self._stop()

    async def fork(self, log_file: Path) -> JobProcess:
        """A new job process; `log_file` takes what it prints.

        Raises:
            EvaluatorUnavailable: as `start`.
        """
        await self.start()
        control = self._control
        if control is None:
            raise EvaluatorUnavailable(
                f"the evaluator's process ended while it was asked for a job; see {self.log_path}"
            )
        self._count += 1
        job_id = str(self._count)
        ours, theirs = socket.socketpair()
        log_fd = os.open(log_file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        job: JobProcess | None = None
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=64 * 2**20)
            job = JobProcess(job_id, reader, writer, asyncio.get_running_loop().create_future())
            self._jobs[job_id] = job
            socket.send_fds(control, [json.dumps({"op": "fork", "id": job_id}).encode()], [theirs.fileno(), log_fd])
        except OSError as error:
            self._jobs.pop(job_id, None)
            if job is not None:
                job.close()
            raise EvaluatorUnavailable(f"the evaluator's process takes no job: {error}; see {self.log_path}") from error
        finally:
            theirs.close()
            os.close(log_fd)
        return job

    async def kill(self, job: JobProcess, *, patience_s: float = 5) -> None:
        """Kill a job with its process group, and the zygote too if it does not obey."""
        if not job.exited.done() and self._control is not None:
            with contextlib.suppress(OSError):
                self._control.send(json.dumps({"op": "kill", "id": job.job_id}).encode())
            await asyncio.wait([job.exited], timeout=patience_s)
        if not job.exited.done() and self._process is not None:
            log.warning("evaluator process does not obey and is killed", pid=self._process.pid)
            await self._stop()
        job.close()

    async def _launch(self) -> None:
        home = self._dir / "cwd"
        home.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        with theirs, self.log_path.open("wb") as output:
            # An empty directory of its own: the package reads .env and a proxy file from the current one.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "osworld_rollouts.osworld.child",
                str(theirs.fileno()),
                str(os.getpid()),
                cwd=home,
                env=self._environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._control = ours
        loop.add_reader(ours, self._on_control)
        try:
            self.facts = await asyncio.wait_for(self._ready, self._start_timeout_s)
        except TimeoutError:
            await self._stop()
            raise EvaluatorUnavailable(
                f"importing desktop_env took more than {self._start_timeout_s:g} s; see {self.log_path}"
            ) from None
        except EvaluatorUnavailable:
            await self._stop()
            raise
        log.info("evaluator ready", pid=self._process.pid, **self.facts)

    async def _stop(self) -> None:
        self._disconnect("the evaluator was stopped")
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        try:
            # It ends by itself, killing its jobs, when its control socket closes.
            await asyncio.wait_for(process.wait(), 5)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _on_control(self) -> None:
        control = self._control
        if control is None:
            return
        try:
            data = control.recv(_PACKET)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._disconnect("the evaluator's process died")
            return
        message = json.loads(data)
        match message["op"]:
            case "ready" if self._ready is not None and not self._ready.done():
                self._ready.set_result({name: value for name, value in message.items() if name != "op"})
            case "broken" if self._ready is not None and not self._ready.done():
                self._ready.set_exception(EvaluatorUnavailable(_broken(message["message"], self.log_path)))
            case "exited":
                self._end(message["id"], message["code"])
            case _:
                pass

    def _disconnect(self, why: str) -> None:
        control, self._control = self._control, None
        self.facts = {}
        if control is None:
            return
        asyncio.get_running_loop().remove_reader(control)
        control.close()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(EvaluatorUnavailable(_broken(why, self.log_path)))
        for job_id in list(self._jobs):
            self._end(job_id, -9)

    def _end(self, job_id: str, code: int) -> None:
        job = self._jobs.pop(job_id, None)
        if job is not None and not job.exited.done():
            job.exited.set_result(code)

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name in _PASSED_ON}
        return {
            "LANG": "C.UTF-8",
            **inherited,
            **dict.fromkeys(("NO_PROXY", "no_proxy"), ",".join(filter(None, ("127.0.0.1,localhost", _no_proxy())))),
            "PYTHONUNBUFFERED": "1",
            "PYTHONSAFEPATH": "1",
            # No thread before the fork, and the same arithmetic whatever the machine.
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "ARROW_DEFAULT_MEMORY_POOL": "system",
            # tldextract keeps the public suffix list, numba compiled code: both outlive the process.
            "TLDEXTRACT_CACHE": str(self._caches / "tldextract"),
            "NUMBA_CACHE_DIR": str(self._caches / "numba"),
            "MPLCONFIGDIR": str(self._caches / "matplotlib"),
            "SCREEN_WIDTH": "1920",
            "SCREEN_HEIGHT": "1080",
        }


def _no_proxy() -> str:
    return os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""


def _broken(message: str, log_path: Path) -> str:
    remedy = (
        "install the evaluator from the lock (`make setup`)" if "ModuleNotFoundError" in message else f"see {log_path}"
    )
    return f"the evaluator cannot start: {message}; {remedy}"
