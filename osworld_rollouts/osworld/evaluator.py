"""OSWorld's own setup and evaluation for activities: one warm process per worker, one killable job per call."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osworld_rollouts.desktops.guest_client import GuestClient
from osworld_rollouts.osworld.gateway import GatewayLimits
from osworld_rollouts.osworld.job import (
    EvaluationFailed,
    EvaluationReport,
    FailureKind,
    GuestEndpoint,
    OSWorldJob,
    PrepareFailed,
    PrepareReport,
    as_score,
)
from osworld_rollouts.osworld.package import package_identity
from osworld_rollouts.osworld.preflight import (
    DesktopFacts,
    EvaluatorFacts,
    Problem,
    check_task,
    desktop_probe,
    read_probe,
)
from osworld_rollouts.osworld.run import JobRun, Ran
from osworld_rollouts.osworld.task_files import TaskFiles
from osworld_rollouts.osworld.verdicts import Phase
from osworld_rollouts.osworld.zygote import EvaluatorUnavailable, Zygote

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EvaluatorUnavailable", "FailureKind", "OSWorldEvaluator"]

_SETUP_FILE = re.compile(r"^[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}_")


class OSWorldEvaluator:
    """OSWorld's code for one worker. `start` warms the process (2.5 to 13 s); each call then costs a fork.

    `state_dir` holds the task file store (shared by the host's workers), caches, and a directory of this worker's own that
    is removed with it. `offline` allows no downloads. `settings_root` is a folder with OSWorld's `evaluation_examples/settings` (the Google
    account that eight tasks work on). `upload_roots` are the folders from which a task's `upload_file` step may read.
    """

    def __init__(
        self,
        *,
        state_dir: Path,
        offline: bool = False,
        limits: GatewayLimits | None = None,
        heartbeat_every_s: float = 2.0,
        start_timeout_s: float = 120,
        hugging_face_token: str | None = None,
        settings_root: Path | None = None,
        upload_roots: tuple[Path, ...] = (),
    ) -> None:
        self._base = state_dir / "evaluator"
        self._base.mkdir(parents=True, exist_ok=True)
        self.files = TaskFiles(self._base / "files", offline=offline, token=hugging_face_token)
        self._limits = limits or GatewayLimits()
        self._heartbeat_every_s = heartbeat_every_s
        self._start_timeout_s = start_timeout_s
        self._facts = EvaluatorFacts.here(settings_root=settings_root, upload_roots=upload_roots)
        self._run_dir: Path | None = None
        self._lock: int | None = None
        self._zygote: Zygote | None = None

    @property
    def process_facts(self) -> dict[str, Any]:
        """What the warm process said of itself: `import_s`, `rss_mb`, `modules`; empty while it does not run."""
        return dict(self._zygote.facts) if self._zygote else {}

    async def start(self) -> None:
        """Start the process with the package imported. Remove what dead workers left.

        Raises:
            EvaluatorUnavailable: the package is missing or broken.
        """
        await self._warm()[0].start()

    async def close(self) -> None:
        """End the process and its jobs, and remove this worker's directory."""
        zygote, self._zygote = self._zygote, None
        if zygote is not None:
            await zygote.close()
        run_dir, self._run_dir = self._run_dir, None
        if run_dir is not None:
            shutil.rmtree(run_dir, ignore_errors=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    async def prepare(self, job: OSWorldJob, *, heartbeat: Callable[[str], None]) -> PrepareReport:
        """Run the task's setup steps.

        Raises:
            PrepareFailed: a step failed, or the guest, the deadline or the process did.
        """
        ran = await self._run(job, Phase.SETUP, heartbeat)
        return _prepared(ran, len(job.task_document.get("config") or []))

    async def post_steps(self, job: OSWorldJob, *, heartbeat: Callable[[str], None]) -> PrepareReport:
        """Run the evaluator's post-steps.

        Raises:
            PrepareFailed: as `prepare`.
        """
        ran = await self._run(job, Phase.POST, heartbeat)
        return _prepared(ran, len(job.task_document["evaluator"].get("postconfig") or []))

    async def evaluate(
        self, job: OSWorldJob, last_action: str | None, *, heartbeat: Callable[[str], None]
    ) -> EvaluationReport:
        """Ask OSWorld's evaluator for its number. Post-steps are not run again.

        The package asks only whether `last_action` is the text `FAIL`.

        Raises:
            EvaluationFailed: there is no verdict.
        """
        ran = await self._run(job, Phase.EVALUATE, heartbeat, last_action)
        return EvaluationReport(
            score=as_score(ran.score),
            next_seq=ran.next_seq,
            exchanges=ran.exchanges,
            log=ran.log,
            files=evaluator_files(job.cache_dir / job.task_id),
            notes=ran.notes,
            duration_ms=ran.duration_ms,
        )

    def identity(self) -> dict[str, Any]:
        """Which evaluator this is: `desktop-env` version and content hash, Python, package versions.

        Raises:
            PackageMissing: it is not installed.
        """
        return package_identity()

    async def inspect(self, guest: GuestEndpoint, *, network: bool) -> DesktopFacts:
        """Ask a desktop what it has, for `check`: one command that changes nothing. Whether it has a network, its specification says.

        Raises:
            GuestError: the guest does not answer.
        """
        base_url = "http://guest" if guest.host is None else f"http://{guest.host}:{guest.server_port}"
        async with GuestClient(socket=guest.server_socket, base_url=base_url, token=guest.token or None) as client:
            result = await client.execute(["sh", "-c", desktop_probe()])
        return read_probe(result.output, network=network)

    def check(self, task_document: dict[str, Any], desktop: DesktopFacts | None = None) -> list[Problem]:
        """What keeps this evaluator, or the desktop, from running the task truthfully. Empty when nothing is known to.

        `preflight.check_task` also tells what is merely worth knowing.
        """
        missing = self.files.missing if self.files.offline else None
        found = check_task(task_document, self._facts, desktop or DesktopFacts(), missing_files=missing)
        return [problem for problem in found if problem.fatal]

    async def _run(
        self, job: OSWorldJob, phase: Phase, heartbeat: Callable[[str], None], last_action: str | None = None
    ) -> Ran:
        try:
            zygote, run_dir = self._warm()
            work_dir = self._work_dir(run_dir, phase)
        except OSError as error:
            failed = EvaluationFailed if phase is Phase.EVALUATE else PrepareFailed
            raise failed(FailureKind.UNREACHABLE, f"the worker has no place for a job: {error}") from error
        try:
            return await JobRun(
                zygote=zygote,
                files=self.files,
                job=job,
                phase=phase,
                limits=self._limits,
                work_dir=work_dir,
                heartbeat=heartbeat,
                heartbeat_every_s=self._heartbeat_every_s,
                last_action=last_action,
            ).execute()
        finally:
            shutil.rmtree(work_dir, ignore_errors=True)

    def _work_dir(self, run_dir: Path, phase: Phase) -> Path:
        work_dir = Path(tempfile.mkdtemp(prefix=f"{phase}-", dir=run_dir))
        if self._facts.settings_root is not None:
            # Tasks name their account settings relative to an OSWorld checkout.
            (work_dir / "evaluation_examples").symlink_to(self._facts.settings_root.absolute() / "evaluation_examples")
        return work_dir

    def _warm(self) -> tuple[Zygote, Path]:
        if self._zygote is None or self._run_dir is None:
            self._run_dir, self._lock = _own_directory(self._base / "workers")
            self._zygote = Zygote(self._run_dir, self._base / "caches", start_timeout_s=self._start_timeout_s)
        return self._zygote, self._run_dir


def evaluator_files(folder: Path) -> dict[str, Path]:
    """What the evaluator had in the task's cache folder, by name relative to it; setup's own downloads are left out."""
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and not _SETUP_FILE.match(path.name):
            found[path.relative_to(folder).as_posix()] = path
    return found


def _prepared(ran: Ran, steps: int) -> PrepareReport:
    return PrepareReport(
        steps=steps,
        next_seq=ran.next_seq,
        exchanges=ran.exchanges,
        log=ran.log,
        notes=ran.notes,
        duration_ms=ran.duration_ms,
    )


def _own_directory(workers: Path) -> tuple[Path, int]:
    """A new directory for this worker, with its lock held; removes those of workers that died, whose lock nobody holds."""
    workers.mkdir(exist_ok=True)
    sweeping = os.open(workers, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(sweeping, fcntl.LOCK_EX)
        for folder in workers.glob("worker-*"):
            handle = _try_lock(folder)
            if handle is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(handle)
        folder = Path(tempfile.mkdtemp(prefix="worker-", dir=workers))
        handle = _try_lock(folder)
        if handle is None:
            raise EvaluatorUnavailable(
                f"the lock in {folder} cannot be taken; check that the file system supports flock"
            )
        return folder, handle
    finally:
        os.close(sweeping)


def _try_lock(folder: Path) -> int | None:
    """Hold `folder`'s lock until the returned descriptor is closed; None when a living worker holds it, or it is gone."""
    try:
        handle = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle
