"""One function per activity: which queue, how many attempts, which timeouts, in words what it does (DESIGN.md section 4)."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from osworld_rollouts.contracts import steps
    from osworld_rollouts.contracts.desktop import Lease
    from osworld_rollouts.contracts.timing import Timing

from workflows._failures import PAYLOAD_TOO_LARGE

_ONCE = RetryPolicy(maximum_attempts=1)
_FINAL = [PAYLOAD_TOO_LARGE]  # the same step gives the same answer


def _s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


class Steps:
    """The activities of one execution, with the timeouts its request came with.

    Desktop, model and evaluator are given up by the activities themselves, each in its own time. Start-to-close is longer by what an
    evidence store may be away: effects that landed wait for it.
    """

    def __init__(self, timing: Timing, pool_queue: str) -> None:
        self._timing = timing
        self._pool = pool_queue

    @property
    def _patient(self) -> RetryPolicy:
        return RetryPolicy(initial_interval=_s(1), maximum_interval=_s(30), non_retryable_error_types=_FINAL)

    async def open_execution(self, step: steps.OpenExecution) -> steps.Opened:
        """Begin the evidence chain; for exact evidence the model's server is probed first. Idempotent."""
        probing_s = self._timing.model_s if step.request.rollout.evidence == "exact" else 0
        return await workflow.execute_activity(
            "open_execution",
            step,
            result_type=steps.Opened,
            summary=f"begin evidence of {step.execution_id}",
            schedule_to_start_timeout=_s(self._timing.evidence_total_s),
            start_to_close_timeout=_s(self._timing.evidence_s + probing_s),
            schedule_to_close_timeout=_s(self._timing.evidence_total_s),
            heartbeat_timeout=_s(self._timing.heartbeat_s),
            retry_policy=self._patient,
        )

    async def provision(self, step: steps.ProvisionDesktop, *, to_the_end: bool = True) -> Lease:
        """Make a desktop; a second attempt adopts what the first made.

        Cancelled, it waits until the host has removed what it began; it may also turn out that the desktop was ready.
        """
        return await workflow.execute_activity(
            "provision_desktop",
            step,
            result_type=Lease,
            task_queue=self._pool,
            summary=f"provision a {step.spec.provider} desktop {step.spec.width}x{step.spec.height}",
            schedule_to_start_timeout=_s(self._timing.pool_wait_s),
            start_to_close_timeout=_s(self._timing.provision_s),
            heartbeat_timeout=_s(self._timing.heartbeat_s),
            retry_policy=RetryPolicy(
                initial_interval=_s(2), maximum_interval=_s(20), maximum_attempts=5, non_retryable_error_types=_FINAL
            ),
            cancellation_type=(
                workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
                if to_the_end
                else workflow.ActivityCancellationType.TRY_CANCEL
            ),
        )

    async def prepare(self, lease: Lease, step: steps.PrepareTask, task_id: str) -> steps.Prepared:
        """Run the task's setup, once."""
        return await workflow.execute_activity(
            "prepare_task",
            step,
            result_type=steps.Prepared,
            task_queue=lease.task_queue,
            summary=f"set up task {task_id}",
            schedule_to_start_timeout=_s(self._timing.host_grace_s),
            start_to_close_timeout=_s(step.timeout_s + self._timing.observe_s + self._timing.evidence_total_s),
            heartbeat_timeout=_s(self._timing.heartbeat_s),
            retry_policy=_ONCE,
        )

    async def call_model(self, step: steps.CallModel, within_s: float) -> steps.ModelReply:
        """Call the policy model; only transient errors are attempted again, and a received reply is never bought twice."""
        again = f", call {step.call + 1}" if step.call else ""
        total = _s(min(self._timing.model_total_s, within_s))
        return await workflow.execute_activity(
            "call_model",
            step,
            result_type=steps.ModelReply,
            summary=f"turn {step.turn + 1}: call the model{again}",
            schedule_to_start_timeout=total,
            start_to_close_timeout=_s(self._timing.model_s),
            schedule_to_close_timeout=total,
            heartbeat_timeout=_s(self._timing.heartbeat_s),
            retry_policy=RetryPolicy(initial_interval=_s(1), maximum_interval=_s(60), non_retryable_error_types=_FINAL),
        )

    async def perform(self, lease: Lease, step: steps.PerformOperation, waits_s: float) -> steps.Performed:
        """Execute one turn's operations, once, and observe."""
        words = "; ".join(operation.action.summary for operation in step.operations) or "look again"
        effects = len(step.operations) * step.timeout_s
        return await workflow.execute_activity(
            "perform_operation",
            step,
            result_type=steps.Performed,
            task_queue=lease.task_queue,
            summary=f"turn {step.turn + 1}: {words}"[:200],
            schedule_to_start_timeout=_s(self._timing.host_grace_s),
            start_to_close_timeout=_s(effects + waits_s + self._timing.observe_s + self._timing.evidence_total_s),
            heartbeat_timeout=_s(self._timing.heartbeat_s),
            retry_policy=_ONCE,
        )

    async def recover(self, lease: Lease, step: steps.RecoverOperation) -> steps.Recovered:
        """Ask the guest what became of operations. Asking is harmless, so it may be repeated."""
        return await workflow.execute_activity(
            "recover_operation",
            step,
            result_type=steps.Recovered,
            task_queue=lease.task_queue,
            summary=f"turn {step.turn + 1}: ask the guest what landed",
            schedule_to_start_timeout=_s(self._timing.host_grace_s),
            start_to_close_timeout=_s(self._timing.operation_s + self._timing.observe_s),
            heartbeat_timeout=_s(self._timing.heartbeat_s),
            # A stopped worker's open polls each take one attempt along.
            retry_policy=RetryPolicy(
                initial_interval=_s(1), maximum_interval=_s(10), maximum_attempts=10, non_retryable_error_types=_FINAL
            ),
        )

    async def post_steps(self, lease: Lease, step: steps.PrepareEvaluation) -> steps.EvaluationPrepared:
        """Run the evaluator's post-steps, once."""
        return await workflow.execute_activity(
            "prepare_evaluation",
            step,
            result_type=steps.EvaluationPrepared,
            task_queue=lease.task_queue,
            summary="run the evaluator's post-steps",
            schedule_to_start_timeout=_s(self._timing.host_grace_s),
            start_to_close_timeout=_s(step.timeout_s + self._timing.observe_s + self._timing.evidence_total_s),
            heartbeat_timeout=_s(self._timing.heartbeat_s),
            retry_policy=_ONCE,
        )

    async def evaluate(self, lease: Lease, step: steps.Evaluate, within_s: float) -> steps.Evaluated:
        """Ask OSWorld's evaluator; repeated only when it gave no verdict, all attempts within `within_s`."""
        beside = self._timing.observe_s + self._timing.evidence_total_s
        return await workflow.execute_activity(
            "evaluate",
            step,
            result_type=steps.Evaluated,
            task_queue=lease.task_queue,
            summary="ask OSWorld's evaluator",
            schedule_to_start_timeout=_s(self._timing.host_grace_s),
            start_to_close_timeout=_s(step.timeout_s + beside),
            schedule_to_close_timeout=_s(max(within_s, step.timeout_s) + beside),
            heartbeat_timeout=_s(self._timing.heartbeat_s),
            retry_policy=RetryPolicy(
                initial_interval=_s(2), maximum_interval=_s(10), maximum_attempts=3, non_retryable_error_types=_FINAL
            ),
        )

    async def renew(self, lease: Lease) -> None:
        """Keep the desktop alive while nothing that renews its lease by itself happens on it: a long wait for the model, a pause."""
        await workflow.execute_activity(
            "renew_lease",
            lease.lease_id,
            task_queue=lease.task_queue,
            summary="keep the desktop: renew its lease",
            schedule_to_start_timeout=_s(self._timing.host_grace_s),
            start_to_close_timeout=_s(self._timing.teardown_s),
            heartbeat_timeout=_s(self._timing.heartbeat_s),
            retry_policy=RetryPolicy(maximum_attempts=3),
        )

    async def teardown(self, lease: Lease, step: steps.TeardownDesktop) -> None:
        """Remove the desktop."""
        await workflow.execute_activity(
            "teardown_desktop",
            step,
            task_queue=lease.task_queue,
            summary=f"remove the desktop: {step.reason}"[:200],
            start_to_close_timeout=_s(self._timing.teardown_s),
            schedule_to_close_timeout=_s(self._timing.teardown_total_s),
            schedule_to_start_timeout=_s(self._timing.host_grace_s),
            heartbeat_timeout=_s(self._timing.heartbeat_s),
            retry_policy=self._patient,
        )

    async def seal(self, step: steps.SealExecution) -> steps.Sealed:
        """Write the last record."""
        return await workflow.execute_activity(
            "seal_execution",
            step,
            result_type=steps.Sealed,
            summary=f"seal the evidence: {step.outcome.kind}",
            schedule_to_start_timeout=_s(self._timing.evidence_total_s),
            start_to_close_timeout=_s(self._timing.evidence_s),
            schedule_to_close_timeout=_s(self._timing.evidence_total_s),
            heartbeat_timeout=_s(self._timing.heartbeat_s),
            retry_policy=self._patient,
        )
