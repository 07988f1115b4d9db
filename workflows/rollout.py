"""RolloutWorkflow: a logical rollout; starts executions one after another until one counts or the budget is spent."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeUpdate, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, ChildWorkflowError, FailureError, WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from osworld_rollouts import outcomes, temporal
    from osworld_rollouts.contracts.execution import ExecutionStart, RolloutStart, RolloutView
    from osworld_rollouts.contracts.identity import execution_id, execution_workflow_id
    from osworld_rollouts.contracts.outcome import Cause, ExecutionResult, Outcome, OutcomeKind, RolloutResult

from workflows._details import rollout_details
from workflows._failures import cause_of


@workflow.defn(name=temporal.ROLLOUT_WORKFLOW)
class RolloutWorkflow:
    """One identity, one result; every execution is kept and listed."""

    @workflow.init
    def __init__(self, start: RolloutStart) -> None:
        self._start = start
        self._request = start.request
        self._digest = start.request.request_digest()
        self._executions: list[ExecutionResult] = []
        self._running: str | None = None
        self._shows_phase = False

    @workflow.run
    async def run(self, start: RolloutStart) -> RolloutResult:
        """Run executions until one is final.

        Raises:
            ApplicationError: typed by the last execution's outcome kind, with the RolloutResult as its detail.
        """
        size = len(self._request.model_dump_json().encode())
        if size > temporal.MAX_REQUEST_BYTES:  # from a client that did not look; further on it would not fit a command
            raise ApplicationError(
                f"the request has {size:,} bytes, limit {temporal.MAX_REQUEST_BYTES:,}: "
                "a task document this large should fetch its files in a setup step",
                type=OutcomeKind.REQUEST_INVALID,
                non_retryable=True,
            )
        limits = self._request.limits
        self._shows_phase = workflow.patched("rollout-phase")
        for number in range(1, limits.max_executions + 1):
            result = await self._execute(number)
            self._executions.append(result)
            self._refresh()
            if not outcomes.retry_allowed(result.outcome.kind, number, limits.max_executions):
                break
            if workflow.cancellation_reason() is not None and workflow.patched("cancel-while-tidying-up"):
                # It came when the execution had failed by itself and only tidied up.
                return self._finish(self._cancelled(asyncio.CancelledError()))
            pause = start.timing.retry_pause_s * 2 ** (number - 1)
            self._enter(f"waiting for execution {number + 1}")
            try:
                await workflow.sleep(
                    timedelta(seconds=min(pause, 300)), summary=f"before execution {number + 1}: {result.outcome.kind}"
                )
            except asyncio.CancelledError as error:
                return self._finish(self._cancelled(error))
        return self._finish(self._executions[-1].outcome)

    def _cancelled(self, error: BaseException) -> Outcome:
        """The outcome of a rollout that was cancelled while none of its executions ran."""
        cause = cause_of(error, "between executions")
        return Outcome(
            kind=cause.kind, cause=cause, admission_reason=str(cause.kind), admission_policy=outcomes.ADMISSION_POLICY
        )

    def _enter(self, phase: str, *more: SearchAttributeUpdate[Any]) -> None:
        if self._shows_phase:
            workflow.upsert_search_attributes([temporal.PHASE.value_set(phase), *more])

    async def _execute(self, number: int) -> ExecutionResult:
        request = self._request
        execution = execution_id(request.rollout_id, number)
        self._running = execution
        self._enter(f"execution {number}", temporal.EXECUTION.value_set(number))
        self._refresh()
        rollout = request.rollout
        try:
            return await workflow.execute_child_workflow(
                temporal.EXECUTION_WORKFLOW,
                ExecutionStart(rollout=self._start, execution_id=execution, number=number),
                id=execution_workflow_id(execution),
                result_type=ExecutionResult,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
                cancellation_type=workflow.ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
                search_attributes=temporal.start_attributes(request, execution=number),
                static_summary=f"{rollout.task.domain}/{rollout.task.task_id} · {rollout.model.name} · execution {number}",
                static_details=rollout.task.instruction,
            )
        except ChildWorkflowError as error:
            return _result_of(error, execution, number)
        except WorkflowAlreadyStartedError:
            cause = Cause(
                kind=OutcomeKind.REQUEST_INVALID,
                message=f"execution {execution} is there from before: its rollout was deleted or reset in Temporal",
                phase="starting",
                remedy="submit it under another campaign, sample index or rollout id; no execution runs twice",
            )
            return _without_result(cause, execution, number)
        finally:
            self._running = None

    def _finish(self, outcome: Outcome) -> RolloutResult:
        last = self._executions[-1]
        result = RolloutResult(
            rollout_id=self._request.rollout_id,
            request_digest=self._digest,
            outcome=outcome,
            executions=(*map(_without_details, self._executions[:-1]), last),
        )
        updates: list[SearchAttributeUpdate[Any]] = [
            temporal.OUTCOME.value_set(str(outcome.kind)),
            temporal.ELIGIBLE.value_set(outcome.eligible),
            temporal.PHASE.value_set("closed"),
        ]
        if outcome.score is not None:
            updates.append(temporal.SCORE.value_set(outcome.score))
        workflow.upsert_search_attributes(updates)
        if outcomes.RULES[outcome.kind].scored:
            return result
        message = outcome.cause.message if outcome.cause else str(outcome.kind)
        remedy = f" — {outcome.cause.remedy}" if outcome.cause and outcome.cause.remedy else ""
        spent = f" (execution {last.number} of at most {self._request.limits.max_executions})"
        raise ApplicationError(f"{message}{remedy}{spent}", result, type=str(outcome.kind), non_retryable=True)

    def _refresh(self) -> None:
        done = (
            RolloutResult(
                rollout_id=self._request.rollout_id,
                request_digest=self._digest,
                outcome=self._executions[-1].outcome,
                executions=tuple(self._executions),
            )
            if self._executions
            else None
        )
        workflow.set_current_details(rollout_details(self._request.rollout.task.instruction, done, self._running))

    @workflow.query
    def state(self) -> RolloutView:
        """Which executions there were and which one runs."""
        return RolloutView(
            rollout_id=self._request.rollout_id,
            request_digest=self._digest,
            running=self._running,
            executions=tuple(self._executions),
        )

    async def _pass_on(self, command: str) -> str:
        if self._running is None:
            raise ApplicationError("no execution is running at this moment; try again shortly")
        await workflow.get_external_workflow_handle(execution_workflow_id(self._running)).signal("control", command)
        return f"{command} sent to {self._running}"

    @workflow.update
    async def pause(self) -> str:
        """Pause the running execution after its current turn."""
        return await self._pass_on("pause")

    @workflow.update
    async def resume(self) -> str:
        """Let the running execution go on."""
        return await self._pass_on("resume")

    @workflow.update
    async def stop_after_turn(self) -> str:
        """Let the running execution finish its turn, then evaluate."""
        return await self._pass_on("stop")

    @pause.validator
    def _may_pause(self) -> None:
        self._needs_running()

    @resume.validator
    def _may_resume(self) -> None:
        self._needs_running()

    @stop_after_turn.validator
    def _may_stop(self) -> None:
        self._needs_running()

    def _needs_running(self) -> None:
        if self._running is None:
            raise ApplicationError("no execution is running; wait for the next one or look at `rollouts show`")


def _without_details(result: ExecutionResult) -> ExecutionResult:
    """An earlier execution in a list of many: its own failure and its evidence hold the details, and a payload has a limit."""
    if result.outcome.cause is None:
        return result
    cause = result.outcome.cause.model_copy(update={"details": {}})
    return result.model_copy(update={"outcome": result.outcome.model_copy(update={"cause": cause})})


def _result_of(error: ChildWorkflowError, execution: str, number: int) -> ExecutionResult:
    """The result a failed execution left in its failure's details; or, where it left none (terminated), its cause alone."""
    inner: BaseException | None = error.cause
    if isinstance(inner, ApplicationError):
        for detail in inner.details:
            if isinstance(detail, dict) and "execution_id" in detail:
                return ExecutionResult.model_validate(detail)
    return _without_result(
        cause_of(inner if isinstance(inner, FailureError) else error, "execution"), execution, number
    )


def _without_result(cause: Cause, execution: str, number: int) -> ExecutionResult:
    """What is known of an execution that left nothing of its own."""
    return ExecutionResult(
        execution_id=execution,
        number=number,
        workflow_id=execution_workflow_id(execution),
        outcome=Outcome(
            kind=cause.kind, cause=cause, admission_reason=str(cause.kind), admission_policy=outcomes.ADMISSION_POLICY
        ),
    )
