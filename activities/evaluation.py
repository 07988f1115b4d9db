"""Everything that runs OSWorld's own code: the task's setup, the evaluator's post-steps, and the evaluation."""

from __future__ import annotations

import asyncio
import shutil
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import structlog
from temporalio import activity

from activities._boundary import boundary
from activities._execution import ExecutionFacts, Executions
from activities._failures import failure
from activities._observe import observe
from activities._patience import patiently
from activities.desktop import on_desktop
from osworld_rollouts.contracts import steps
from osworld_rollouts.contracts.desktop import Lease
from osworld_rollouts.contracts.evidence import DesktopPrepared, EvaluationRecord, PostStepsRecord
from osworld_rollouts.contracts.outcome import OutcomeKind
from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.store import put_json
from osworld_rollouts.failpoints import reach
from osworld_rollouts.osworld.job import (
    EvaluationFailed,
    FailureKind,
    GuestEndpoint,
    JobFailed,
    OSWorldJob,
    PrepareFailed,
)

if TYPE_CHECKING:
    from pathlib import Path

    from osworld_rollouts.desktops._provider import DesktopRecord
    from osworld_rollouts.desktops.host import DesktopHost
    from osworld_rollouts.evidence.store import EvidenceStore
    from osworld_rollouts.osworld.evaluator import OSWorldEvaluator

log = structlog.get_logger()

_LARGEST_FILE = 64 * 1024 * 1024  # a file the evaluator looked at that is larger is named in the record, not kept


class EvaluationActivities:
    """OSWorld's setup, post-steps and evaluation, each as one job of the evaluator's process."""

    def __init__(self, host: DesktopHost, store: EvidenceStore, evaluator: OSWorldEvaluator, *, work_dir: Path) -> None:
        self._host = host
        self._store = store
        self._evaluator = evaluator
        self._work_dir = work_dir
        self._executions = Executions(store)

    @activity.defn(name="prepare_task")
    async def prepare_task(self, step: steps.PrepareTask) -> steps.Prepared:
        """Run the task's setup, once, and look at the desktop when it has settled.

        Raises:
            ApplicationError: task_unsupported, prepare_failed, operation_indeterminate, operation_refused, desktop_lost,
                desktop_unresponsive, observation_failed.
        """
        async with (
            boundary("preparing", execution_id=step.execution_id, lease_id=step.lease_id),
            on_desktop(self._host, step, "preparing") as (record, client),
        ):
            facts = await patiently(self._executions.at, step.head)
            await self._check(facts, record)
            job = self._job(step, record, facts, "setup", step.first_seq, step.timeout_s)
            reach("prepare-started", step.execution_id)
            try:
                report = await self._evaluator.prepare(job, heartbeat=activity.heartbeat)
            except PrepareFailed as error:
                raise await self._prepare_failure(error, step, "preparing") from error
            reach("prepare-after-setup", step.execution_id)
            rollout = facts.request.rollout
            observation = await observe(
                client,
                self._store,
                (record.width, record.height),
                rollout.settle,
                facts.needs,
                first_s=rollout.settle.min_s,
                limit_s=rollout.settle.after_setup_s,
            )
            reach("prepare-after-observation", step.execution_id)
            lease = Lease(
                lease_id=record.lease_id,
                provider=record.provider,
                host_id=record.host_id,
                task_queue=activity.info().task_queue,
                fence=record.fence,
                width=record.width,
                height=record.height,
                image_identity=record.image_identity,
                tier=record.tier,
                created_at=record.created_at,
                expires_at=record.expires_at,
            )
            written = DesktopPrepared(
                **facts.place(step.execution_id),
                recorded_at=datetime.now(UTC),
                lease=lease,
                exchanges=await self._keep(report.exchanges, report.log, report.notes),
                steps=report.steps,
                observation=observation,
                evaluator=self._evaluator.identity(),
            )
            head = await patiently(chain.append, self._store, step.head, written)
            reach("prepare-after-record", step.execution_id)
            log.info("task prepared", steps=report.steps, seconds=report.duration_ms / 1000)
            return steps.Prepared(head=head, next_seq=report.next_seq, steps=report.steps)

    @activity.defn(name="prepare_evaluation")
    async def prepare_evaluation(self, step: steps.PrepareEvaluation) -> steps.EvaluationPrepared:
        """Run the evaluator's post-steps, once.

        Raises:
            ApplicationError: evaluation_failed, operation_indeterminate, operation_refused, desktop_lost, desktop_unresponsive.
        """
        async with (
            boundary("post-steps", execution_id=step.execution_id, lease_id=step.lease_id),
            on_desktop(self._host, step, "post-steps") as (record, _),
        ):
            facts = await patiently(self._executions.at, step.head)
            await asyncio.sleep(facts.request.rollout.settle.before_evaluation_s)
            job = self._job(step, record, facts, "post", step.first_seq, step.timeout_s)
            reach("post-started", step.execution_id)
            try:
                report = await self._evaluator.post_steps(job, heartbeat=activity.heartbeat)
            except PrepareFailed as error:
                raise await self._prepare_failure(error, step, "post-steps") from error
            reach("post-after-steps", step.execution_id)
            written = PostStepsRecord(
                **facts.place(step.execution_id),
                recorded_at=datetime.now(UTC),
                steps=report.steps,
                exchanges=await self._keep(report.exchanges, report.log, report.notes),
            )
            head = await patiently(chain.append, self._store, step.head, written)
            reach("post-after-record", step.execution_id)
            return steps.EvaluationPrepared(head=head, next_seq=report.next_seq, steps=report.steps)

    @activity.defn(name="evaluate")
    async def evaluate(self, step: steps.Evaluate) -> steps.Evaluated:
        """Ask OSWorld's evaluator. What it returns is the score; when it gives no verdict there is none.

        Raises:
            ApplicationError: evaluation_failed (retried), desktop_lost, desktop_unresponsive.
        """
        async with (
            boundary("evaluating", execution_id=step.execution_id, lease_id=step.lease_id),
            on_desktop(self._host, step, "evaluating") as (record, _),
        ):
            facts = await patiently(self._executions.at, step.head)
            job = self._job(step, record, facts, "evaluate", 0, step.timeout_s)
            last_action = {"fail": "FAIL", "done": "DONE"}.get(step.last_action or "", step.last_action)
            reach("evaluate-started", step.execution_id)
            try:
                report = await self._evaluator.evaluate(job, last_action, heartbeat=activity.heartbeat)
            except EvaluationFailed as error:
                raise await self._evaluation_failure(error, step) from error
            reach("evaluate-after-verdict", step.execution_id)
            files, left = await patiently(self._files, report.files)
            written = EvaluationRecord(
                **facts.place(step.execution_id),
                recorded_at=datetime.now(UTC),
                score=report.score,
                last_action=last_action,
                exchanges=await self._keep(report.exchanges, report.log, (*report.notes, *left)),
                log=await patiently(self._store.put, report.log),
                files=files,
                duration_ms=report.duration_ms,
                evaluator=self._evaluator.identity(),
            )
            head = await patiently(chain.append, self._store, step.head, written)
            reach("evaluate-after-record", step.execution_id)
            log.info("evaluated", score=report.score, seconds=report.duration_ms / 1000)
            return steps.Evaluated(head=head, score=report.score, duration_ms=report.duration_ms)

    # --- shared ---

    async def _check(self, facts: ExecutionFacts, record: DesktopRecord) -> None:
        """Refuse a task that this evaluator on this desktop would score falsely, before anything is done."""
        rollout = facts.request.rollout
        desktop = await self._evaluator.inspect(GuestEndpoint.of(record), network=record.spec.network != "none")
        problems = self._evaluator.check(dict(rollout.task.document), desktop)
        if problems:
            first = problems[0]
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise failure(
                OutcomeKind.TASK_UNSUPPORTED,
                f"task {rollout.task.task_id}: {first.message}{more}",
                phase="preparing",
                remedy=first.remedy,
                details={str(number): item.message for number, item in enumerate(problems)},
            )

    def _job(
        self,
        step: steps.OnDesktop,
        record: DesktopRecord,
        facts: ExecutionFacts,
        part: str,
        first_seq: int,
        timeout_s: float,
    ) -> OSWorldJob:
        cache = work_dir(self._work_dir, record.lease_id) / "cache"
        cache.mkdir(parents=True, exist_ok=True)
        return OSWorldJob(
            execution_id=step.execution_id,
            task_document=dict(facts.request.rollout.task.document),
            cache_dir=cache,
            guest=GuestEndpoint.of(record),
            fence=step.fence,
            first_seq=first_seq,
            operation_prefix=f"{step.execution_id}/{part}",
            timeout_s=timeout_s,
            screen_width=record.width,
            screen_height=record.height,
        )

    async def _keep(self, exchanges: list[dict[str, Any]], logged: bytes, notes: tuple[str, ...]) -> str:
        log_blob = await patiently(self._store.put, logged)
        return await patiently(put_json, self._store, {"exchanges": exchanges, "log": log_blob, "notes": list(notes)})

    def _files(self, found: dict[str, Path]) -> tuple[dict[str, str], tuple[str, ...]]:
        kept: dict[str, str] = {}
        left: list[str] = []
        for name, path in sorted(found.items()):
            size = path.stat().st_size
            if size > _LARGEST_FILE:
                left.append(f"file {name} not kept: {size} bytes")
                continue
            kept[name] = self._store.put(path.read_bytes())
        return kept, tuple(left)

    async def _prepare_failure(self, error: PrepareFailed, step: steps.OnDesktop, phase: str) -> Exception:
        default = OutcomeKind.PREPARE_FAILED if phase == "preparing" else OutcomeKind.EVALUATION_FAILED
        kind, message = await self._kind(error, step, default)
        where = f"step {error.step} ({error.step_type}): " if error.step else ""
        details = {"command": error.command, "output": error.output, "traceback": error.traceback}
        return failure(kind, f"{phase}: {where}{message}", phase=phase, details=await self._details(error, details))

    async def _evaluation_failure(self, error: EvaluationFailed, step: steps.OnDesktop) -> Exception:
        kind, message = await self._kind(error, step, OutcomeKind.EVALUATION_FAILED)
        again = kind is OutcomeKind.EVALUATION_FAILED and error.kind in {FailureKind.UNREACHABLE, FailureKind.CRASH}
        return failure(
            kind,
            f"no verdict: {message}",
            phase="evaluating",
            retry=again,
            details=await self._details(error, {"traceback": error.traceback}),
        )

    async def _kind(self, error: JobFailed, step: steps.OnDesktop, default: OutcomeKind) -> tuple[OutcomeKind, str]:
        if error.kind is FailureKind.INDETERMINATE:
            return OutcomeKind.OPERATION_INDETERMINATE, error.message
        if error.kind is FailureKind.REFUSED:
            return OutcomeKind.OPERATION_REFUSED, error.message
        if error.kind in {FailureKind.UNREACHABLE, FailureKind.TIMEOUT}:
            kind, why = await self._host.diagnose(step.lease_id, healthy=default)
            return kind, error.message if kind is default else f"{why}; {error.message}"
        return default, error.message

    async def _details(self, error: JobFailed, details: dict[str, str]) -> dict[str, str]:
        kept = await self._keep(error.exchanges, error.log, error.notes)
        return {**{key: value for key, value in details.items() if value}, "exchanges": kept, "kind": str(error.kind)}


def work_dir(root: Path, lease_id: str) -> Path:
    """Directory of one lease for OSWorld's files: nothing is shared between executions."""
    return root / sha256(lease_id.encode()).hexdigest()[:24]


def remove_work_dir(root: Path, lease_id: str) -> None:
    """Delete the directory of a lease that is torn down."""
    shutil.rmtree(work_dir(root, lease_id), ignore_errors=True)
