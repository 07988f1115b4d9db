"""ExecutionWorkflow: one attempt at a rollout, on one desktop, from provision to teardown."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any, NoReturn

from temporalio import workflow
from temporalio.common import SearchAttributeUpdate
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from osworld_rollouts import outcomes, temporal
    from osworld_rollouts.contracts import steps
    from osworld_rollouts.contracts.desktop import Lease, LeaseOwner
    from osworld_rollouts.contracts.execution import (
        ExecutionStart,
        ExecutionState,
        ExecutionView,
        OperationTrace,
    )
    from osworld_rollouts.contracts.outcome import Cause, ExecutionResult, Outcome, OutcomeKind

from workflows._control import Control
from workflows._details import execution_details
from workflows._failures import ExecutionFailed, cause_of
from workflows._steps import Steps
from workflows._turn import Turns


@workflow.defn(name=temporal.EXECUTION_WORKFLOW)
class ExecutionWorkflow(Control):
    """One attempt. Fails with the outcome kind as failure type; completes when the evaluator has scored."""

    @workflow.init
    def __init__(self, start: ExecutionStart) -> None:
        super().__init__()
        self._start = start
        self._request = start.rollout.request
        self._timing = start.rollout.timing
        self._steps = Steps(self._timing, start.rollout.pool_queue)
        self._phase = "starting"
        self._head: str | None = None
        self._store: str | None = None
        self._lease: Lease | None = None
        self._turns: Turns | None = None
        self._score: float | None = None
        self._outcome: Outcome | None = None
        self._also: list[Cause] = []
        self._episode: OutcomeKind | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._not_renewed: ActivityError | None = None
        if start.resume:
            self.paused, self.stop_requested = start.resume.paused, start.resume.stop_requested

    @workflow.run
    async def run(self, start: ExecutionStart) -> ExecutionResult:
        """Run the attempt to its end.

        Raises:
            ApplicationError: typed by outcome kind, with the ExecutionResult as its detail, when there is nothing to score.
        """
        cause: Cause | None = None
        try:
            turns = await (self._resume(start.resume) if start.resume else self._begin())
            self._episode = await turns.run()
            await self._evaluate(turns)
        except (ExecutionFailed, ActivityError, asyncio.CancelledError, ValueError) as error:
            cause = cause_of(error, self._phase_of_work())
        finally:
            if self._keeper is not None:
                self._keeper.cancel()
        result = await self._close(cause)
        if cause is not None:
            self._fail(cause, result)
        return result

    # --- the steps, in order ---

    async def _begin(self) -> Turns:
        info, start, began = workflow.info(), self._start, workflow.now()
        self._enter("opening")
        opened = await self._steps.open_execution(
            steps.OpenExecution(
                request=self._request,
                execution_id=start.execution_id,
                number=start.number,
                workflow_id=info.workflow_id,
                run_id=info.run_id,
            )
        )
        self._head, self._store = opened.head, opened.store
        self._enter("provisioning")
        waits = workflow.patched("provision-cancelled-to-the-end")
        lease = self._lease = await self._steps.provision(
            steps.ProvisionDesktop(
                spec=self._request.rollout.desktop,
                lease_id=f"{start.execution_id}#{info.first_execution_run_id[:8]}",
                owner=LeaseOwner(workflow_id=info.workflow_id, run_id=info.run_id, execution_id=start.execution_id),
                expires_after_s=self._timing.lease_ttl_s,
            ),
            to_the_end=waits,
        )
        if waits and workflow.cancellation_reason() is not None:  # the desktop was ready before the host heard of it
            raise asyncio.CancelledError
        self._keep(lease)
        # The clock starts with the desktop: waiting for a free one has its own limit and is no part of the episode. Clocks of hosts may differ.
        deadline = min(max(lease.created_at, began), workflow.now()) + timedelta(
            seconds=self._request.limits.execution_s
        )
        self._enter("preparing")
        task = self._request.rollout.task
        prepared = await self._steps.prepare(
            lease,
            steps.PrepareTask(
                execution_id=start.execution_id,
                head=self._head,
                lease_id=lease.lease_id,
                fence=lease.fence,
                first_seq=1,
                timeout_s=min(self._timing.prepare_s, self.left_s(deadline)),
            ),
            task.task_id,
        )
        self._head = prepared.head
        return self._take_turns(Turns.first(self, lease, opened, prepared, deadline))

    async def _resume(self, state: ExecutionState) -> Turns:
        self._head, self._lease, self._store = state.head, state.lease, state.store
        self._keep(state.lease)
        return self._take_turns(Turns.resumed(self, state))

    def _take_turns(self, turns: Turns) -> Turns:
        self._turns = turns
        self._enter("turns")
        return turns

    async def _evaluate(self, turns: Turns) -> None:
        lease, until = turns.lease, workflow.now() + timedelta(seconds=self._request.limits.scoring_s)
        self._head = turns.head
        self._enter("post-steps")
        prepared = await self._steps.post_steps(
            lease,
            steps.PrepareEvaluation(
                execution_id=self._start.execution_id,
                head=turns.head,
                lease_id=lease.lease_id,
                fence=lease.fence,
                first_seq=turns.next_seq,
                timeout_s=min(self._timing.post_steps_s, self.left_s(until)),
            ),
        )
        self._head = prepared.head
        self._enter("evaluating")
        evaluated = await self._steps.evaluate(
            lease,
            steps.Evaluate(
                execution_id=self._start.execution_id,
                head=prepared.head,
                lease_id=lease.lease_id,
                fence=lease.fence,
                last_action=turns.last_action,
                timeout_s=min(self._timing.evaluate_s, self.left_s(until)),
            ),
            within_s=self.left_s(until),
        )
        self._head, self._score = evaluated.head, evaluated.score

    # --- the lease, while the execution lives ---

    def _keep(self, lease: Lease) -> None:
        if workflow.patched("lease-keeper"):
            self._keeper = asyncio.create_task(self._renew(lease))

    async def _renew(self, lease: Lease) -> None:
        """Renew at a third of the lease's time. A model, a setup or an evidence store may take longer than a lease lasts; a pause does."""
        every_s = min(self._timing.lease_ttl_s, max((lease.expires_at - lease.created_at).total_seconds(), 1.0)) / 3
        while True:
            await workflow.sleep(every_s, summary="until the desktop's lease is renewed")
            try:
                await self._steps.renew(lease)
                self._not_renewed = None
            except ActivityError as error:
                if is_cancelled_exception(error):
                    return
                # The step that is under way finds out by itself what became of the desktop. In a pause there is none.
                self._not_renewed = error

    async def while_paused(self) -> None:
        """Wait until a person resumes or stops. Raises ActivityError when the desktop cannot be kept."""
        if self._keeper is None:  # an execution from before the keeper
            await self._paused_without_keeper()
            return
        await workflow.wait_condition(lambda: not self.paused or self._not_renewed is not None)
        if self.paused and self._not_renewed is not None:
            raise self._not_renewed

    async def _paused_without_keeper(self) -> None:
        every = timedelta(seconds=self._timing.lease_ttl_s / 3)
        while self.paused:
            try:
                await workflow.wait_condition(
                    lambda: not self.paused, timeout=every, timeout_summary="paused by a person"
                )
            except TimeoutError:
                if self._turns is not None:
                    await self._steps.renew(self._turns.lease)

    def left_s(self, until: datetime) -> float:
        """Seconds until then; a step always gets one."""
        return max((until - workflow.now()).total_seconds(), 1.0)

    # --- the end ---

    async def _close(self, cause: Cause | None) -> ExecutionResult:
        """Teardown and seal in a scope that no cancellation reaches: a desktop is never left because somebody was impatient."""
        closing = asyncio.create_task(self._teardown_and_seal(cause))
        while True:
            try:
                return await asyncio.shield(closing)
            except asyncio.CancelledError:
                if closing.done():
                    return closing.result()

    async def _teardown_and_seal(self, cause: Cause | None) -> ExecutionResult:
        # The recorded head is the one the last finished step returned.
        if self._turns is not None and self._score is None and self._phase == "turns":
            self._head = self._turns.head
        kind = cause.kind if cause else self._scored_kind()
        admission = outcomes.admit(
            kind,
            self._score,
            exact=self._request.rollout.evidence == "exact",
            violations=self._turns.violations if self._turns else 0,
        )
        if self._lease is not None and kind is OutcomeKind.HOST_LOST:
            self._also.append(Cause(kind=kind, phase="teardown", message="desktop left to its host's reaper"))
        elif self._lease is not None:
            self._enter("teardown")
            try:
                await self._steps.teardown(
                    self._lease, steps.TeardownDesktop(lease_id=self._lease.lease_id, reason=str(kind))
                )
            except ActivityError as error:
                late = cause_of(error, "teardown")
                self._also.append(
                    late.model_copy(update={"message": f"desktop left to its host's reaper: {late.message}"})
                )
        outcome = Outcome(
            kind=kind,
            score=self._score,
            eligible=admission.eligible,
            admission_reason=admission.reason,
            admission_policy=admission.policy,
            turns=self._turns.turn if self._turns else 0,
            cause=cause,
            also=tuple(self._also),
        )
        self._enter("sealing")
        sealed: steps.Sealed | None = None
        if self._head is not None:
            try:
                sealed = await self._steps.seal(
                    steps.SealExecution(
                        execution_id=self._start.execution_id, head=self._head, outcome=outcome, lease=self._lease
                    )
                )
                self._head = sealed.head
            except ActivityError as error:
                outcome = outcome.model_copy(update={"also": (*outcome.also, cause_of(error, "sealing"))})
        self._outcome = outcome
        self._enter("closed")
        info = workflow.info()
        return ExecutionResult(
            execution_id=self._start.execution_id,
            number=self._start.number,
            outcome=outcome,
            evidence_head=self._head,
            lease_id=self._lease.lease_id if self._lease else None,
            host_id=self._lease.host_id if self._lease else None,
            workflow_id=info.workflow_id,
            run_id=info.run_id,
            unanswered_calls=sealed.unanswered_calls if sealed else 0,
            unseen_samples=sealed.unseen_samples if sealed else 0,
        )

    def _scored_kind(self) -> OutcomeKind:
        if self._episode is None:
            raise ApplicationError("the episode has no outcome", type=OutcomeKind.INTERNAL_ERROR, non_retryable=True)
        return self._episode

    def _fail(self, cause: Cause, result: ExecutionResult) -> NoReturn:
        remedy = f" — {cause.remedy}" if cause.remedy else ""
        raise ApplicationError(f"{cause.message}{remedy}", result, type=str(cause.kind), non_retryable=True)

    # --- continue-as-new, called by the turn loop at a turn boundary ---

    async def continue_if_long(self, turns: Turns) -> None:
        """Start a fresh history when this one is long, carrying lease, head and counters."""
        info = workflow.info()
        long = info.get_current_history_length() >= self._start.continue_after_events
        if not (long or info.is_continue_as_new_suggested()):
            return
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(
            ExecutionStart(
                rollout=self._start.rollout,
                execution_id=self._start.execution_id,
                number=self._start.number,
                resume=turns.state(paused=self.paused, stop_requested=self.stop_requested, store=self._store),
                continue_after_events=self._start.continue_after_events,
            )
        )

    # --- what a person sees ---

    @property
    def start(self) -> ExecutionStart:
        """The input, for the turn loop."""
        return self._start

    @property
    def steps(self) -> Steps:
        """The activities, for the turn loop."""
        return self._steps

    def _phase_of_work(self) -> str:
        return self._turns.phase if self._phase == "turns" and self._turns else self._phase

    def _enter(self, phase: str) -> None:
        self._phase = phase
        updates: list[SearchAttributeUpdate[Any]] = [temporal.PHASE.value_set(phase)]
        if self._score is not None:
            updates.append(temporal.SCORE.value_set(self._score))
        if self._outcome is not None:
            updates.append(temporal.OUTCOME.value_set(str(self._outcome.kind)))
            updates.append(temporal.ELIGIBLE.value_set(self._outcome.eligible))
        workflow.upsert_search_attributes(updates)
        self.refresh()

    def refresh(self) -> None:
        """Rewrite the Markdown that the Temporal UI shows for this execution."""
        workflow.set_current_details(execution_details(self._start, self.state(), self._outcome, self._store))

    @workflow.query
    def state(self) -> ExecutionView:
        """Where the execution is."""
        turns = self._turns
        return ExecutionView(
            execution_id=self._start.execution_id,
            phase=self._phase,
            turn=turns.turn if turns else 0,
            max_turns=self._request.rollout.max_turns,
            paused=self.paused,
            stop_requested=self.stop_requested,
            head=turns.head if turns and self._phase == "turns" else self._head,
            lease_id=self._lease.lease_id if self._lease else None,
            host_id=self._lease.host_id if self._lease else None,
            score=self._score,
            outcome=str(self._outcome.kind) if self._outcome else None,
            recent=turns.recent if turns else (),
        )

    @workflow.query
    def ledger(self) -> list[OperationTrace]:
        """Operations of this run of the workflow with their state: intended, dispatched, landed, observed."""
        return list(self._turns.ledger) if self._turns else []

    def now(self) -> datetime:
        """Workflow time."""
        return workflow.now()
