"""The turn loop: call the model, perform what it asked for, recover what was lost, until something ends the episode."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from osworld_rollouts import history as policies
    from osworld_rollouts import outcomes, temporal
    from osworld_rollouts.contracts import steps
    from osworld_rollouts.contracts.action import TERMINAL_KINDS
    from osworld_rollouts.contracts.desktop import Lease
    from osworld_rollouts.contracts.execution import ExecutionState, OperationTrace, TurnSummary
    from osworld_rollouts.contracts.identity import turn_operation_id
    from osworld_rollouts.contracts.outcome import Cause, OutcomeKind
    from osworld_rollouts.contracts.request import History, ParsePolicy

from workflows._failures import ExecutionFailed, needs_recovery, observation_failed, out_of_time

if TYPE_CHECKING:
    from workflows.execution import ExecutionWorkflow

_MAX_RECOVERIES = 5  # lost replies in one turn before it is called indeterminate


@dataclass
class Turns:
    """State of the loop. Everything here is rebuilt by replay, or carried by `state()` into the next run."""

    execution: ExecutionWorkflow
    lease: Lease
    head: str
    next_seq: int
    history: History
    parse_policy: ParsePolicy
    window: steps.HistoryWindow
    deadline_at: datetime
    turn: int = 0
    failed_turns: int = 0
    violations: int = 0
    recent: tuple[TurnSummary, ...] = ()
    phase: str = "turns"
    last_action: str | None = None
    ledger: list[OperationTrace] = field(default_factory=list)

    @classmethod
    def first(
        cls,
        execution: ExecutionWorkflow,
        lease: Lease,
        opened: steps.Opened,
        prepared: steps.Prepared,
        deadline: datetime,
    ) -> Turns:
        """Before turn 0."""
        history = History(name=opened.history_name, params=opened.history_params)
        return cls(
            execution=execution,
            lease=lease,
            head=prepared.head,
            next_seq=prepared.next_seq,
            history=history,
            parse_policy=_parse_policy(execution, opened.parse_policy),
            window=policies.initial_window(history),
            deadline_at=deadline,
        )

    @classmethod
    def resumed(cls, execution: ExecutionWorkflow, state: ExecutionState) -> Turns:
        """After continue-as-new, at the turn it stopped at."""
        return cls(
            execution=execution,
            lease=state.lease,
            head=state.head,
            next_seq=state.next_seq,
            history=state.history,
            parse_policy=_parse_policy(execution, state.parse_policy),
            window=state.window,
            deadline_at=state.deadline_at,
            turn=state.turn,
            failed_turns=state.failed_turns,
            violations=state.violations,
            recent=state.recent,
            last_action=state.last_action,
        )

    def state(self, *, paused: bool, stop_requested: bool, store: str | None) -> ExecutionState:
        """What the next run needs."""
        return ExecutionState(
            head=self.head,
            lease=self.lease,
            next_seq=self.next_seq,
            turn=self.turn,
            window=self.window,
            history=self.history,
            parse_policy=self.parse_policy,
            failed_turns=self.failed_turns,
            violations=self.violations,
            deadline_at=self.deadline_at,
            recent=self.recent,
            last_action=self.last_action,
            store=store,
            paused=paused,
            stop_requested=stop_requested,
        )

    async def run(self) -> OutcomeKind:
        """Turns until the episode ends; which of the scored outcomes it is.

        Raises:
            ExecutionFailed: when the infrastructure, not the episode, ended it.
        """
        rollout = self.execution.start.rollout.request.rollout
        while True:
            await self._gate()
            facts = outcomes.EpisodeFacts(
                turns_used_up=self.turn >= rollout.max_turns,
                invalid_replies=self.failed_turns >= self.parse_policy.max_failed_turns,
                deadline=workflow.now() >= self.deadline_at,
                operator_stop=self.execution.stop_requested,
            )
            if facts != outcomes.EpisodeFacts():
                return self._ended(facts)
            await self.execution.continue_if_long(self)
            ended = await self._one_turn()
            if ended is not None:
                return self._ended(ended)

    def _ended(self, facts: outcomes.EpisodeFacts) -> OutcomeKind:
        kind = outcomes.episode_outcome(facts)
        if kind is OutcomeKind.DEADLINE_REACHED and self.turn == 0 and workflow.patched("deadline-without-turns"):
            limit_s = self.execution.start.rollout.request.limits.execution_s
            raise ExecutionFailed(
                Cause(
                    kind=OutcomeKind.DEADLINE_EXCEEDED,
                    phase=self.phase,
                    message=f"the {limit_s:g} s of this execution were over before its first turn",
                    remedy="raise limits.execution_s, or look at what took so long in the execution's history",
                )
            )
        return kind

    async def _gate(self) -> None:
        """Wait here while paused; the deadline waits too, and the desktop is kept alive."""
        if not self.execution.paused:
            return
        since = workflow.now()
        self.execution.refresh()
        self.phase = "paused"
        await self.execution.while_paused()
        self.deadline_at += workflow.now() - since

    async def _one_turn(self) -> outcomes.EpisodeFacts | None:
        self.window = policies.advance(self.history, self.window, self.turn)
        self.phase = "model"
        try:
            reply = await self._ask()
        except ActivityError as error:
            # A reply that did not come within the execution's time: what stands there is evaluated.
            if out_of_time(error) and workflow.now() >= self.deadline_at and workflow.patched("deadline-during-call"):
                return outcomes.EpisodeFacts(deadline=True)
            raise
        self.phase = "acting"
        if reply is None:
            return outcomes.EpisodeFacts(overflow=True)
        if reply.failure is not None:
            self.failed_turns += 1
            if self.parse_policy.on_failure == "stop":
                self._note(reply)
                self.turn += 1
                return outcomes.EpisodeFacts(invalid_replies=True)
        else:
            self.failed_turns = 0
        terminal = next((action for action in reply.actions if action.kind in TERMINAL_KINDS), None)
        effects = reply.actions if terminal is None else reply.actions[: reply.actions.index(terminal)]
        if terminal is None or effects:
            await self._act(effects)
        self._note(reply)
        self.turn += 1
        self.last_action = reply.actions[-1].kind if reply.actions else None
        if terminal is not None:
            self.last_action = terminal.kind
            return outcomes.EpisodeFacts(terminal_action=terminal.kind)
        return None

    async def _ask(self) -> steps.ModelReply | None:
        """Model calls of this turn: the first, resamples, and with fewer images after an overflow. None: it never fits."""
        start = self.execution.start
        policy = self.parse_policy
        resamples = policy.resamples if policy.on_failure in {"resample", "feedback"} else 0
        call, resampled = 0, 0
        while True:
            reply = await self.execution.steps.call_model(
                steps.CallModel(
                    execution_id=start.execution_id,
                    head=self.head,
                    turn=self.turn,
                    call=call,
                    window=self.window,
                    temperature=policy.resample_temperature if resampled else None,
                    feedback=policy.on_failure == "feedback" and resampled > 0,
                ),
                within_s=self.execution.left_s(self.deadline_at),
            )
            self.head = reply.head
            self.violations += len(reply.exact_violations)
            call += 1
            if reply.overflow:
                smaller = policies.shrink(self.history, self.window, self.turn)
                if smaller is None:
                    return None
                self.window = smaller
            elif reply.failure is not None and resampled < resamples:
                resampled += 1
            else:
                return reply

    async def _act(self, actions: tuple[steps.PlannedAction, ...]) -> None:
        start = self.execution.start
        operations = tuple(
            steps.Operation(
                operation_id=turn_operation_id(start.execution_id, self.turn, index),
                seq=self.next_seq + index,
                action=action,
            )
            for index, action in enumerate(actions)
        )
        self.next_seq += len(operations)
        traces = [
            OperationTrace(operation_id=item.operation_id, seq=item.seq, action=item.action.summary, state="intended")
            for item in operations
        ]
        self.ledger.extend(traces)
        performed = await self._perform(operations, self.head)
        self.head = performed.head
        codes = {item.operation_id: item.returncode for item in performed.outcomes}
        for trace in traces:
            self._mark(trace.operation_id, "observed", codes.get(trace.operation_id))

    async def _perform(self, operations: tuple[steps.Operation, ...], record: str) -> steps.Performed:
        """Dispatch once; when the reply is lost, ask the guest, and dispatch again only what never arrived."""
        rollout, timing = self.execution.start.rollout.request.rollout, self.execution.start.rollout.timing
        waits = sum(
            item.action.seconds if item.action.seconds is not None else rollout.settle.wait_action_s
            for item in operations
            if item.action.kind == "wait"
        )
        known: tuple[str, ...] = ()
        for _ in range(_MAX_RECOVERIES):
            step = steps.PerformOperation(
                execution_id=self.execution.start.execution_id,
                head=self.head,
                lease_id=self.lease.lease_id,
                fence=self.lease.fence,
                turn=self.turn,
                record=record,
                operations=operations,
                timeout_s=timing.operation_s,
                known=known,
            )
            for item in operations:
                if item.operation_id not in known:
                    self._mark(item.operation_id, "dispatched")
            try:
                return await self.execution.steps.perform(self.lease, step, waits + rollout.settle.max_s)
            except ActivityError as error:
                if observation_failed(error) and len(known) < len(operations):
                    known = tuple(item.operation_id for item in operations)
                elif needs_recovery(error):
                    known = await self._recover(operations)
                else:
                    raise
        raise ExecutionFailed(
            Cause(
                kind=OutcomeKind.OPERATION_INDETERMINATE,
                phase="acting",
                message=f"turn {self.turn + 1}: replies of the desktop were lost {_MAX_RECOVERIES} times in a row",
                remedy="look at the desktop host's worker log",
            )
        )

    async def _recover(self, operations: tuple[steps.Operation, ...]) -> tuple[str, ...]:
        start = self.execution.start
        self.phase = "recovering"
        # Whoever dispatched before is a stranger from here on: the guest refuses an older fence once it has seen the new one.
        self.lease = self.lease.model_copy(update={"fence": self.lease.fence + 1})
        recovered = await self.execution.steps.recover(
            self.lease,
            steps.RecoverOperation(
                execution_id=start.execution_id,
                head=self.head,
                lease_id=self.lease.lease_id,
                fence=self.lease.fence,
                turn=self.turn,
                operation_ids=tuple(item.operation_id for item in operations),
            ),
        )
        self.head = recovered.head
        self.phase = "acting"
        for item in recovered.operations:
            if item.state in {"unknown", "running"}:
                raise ExecutionFailed(
                    Cause(
                        kind=OutcomeKind.OPERATION_INDETERMINATE,
                        phase="recovering",
                        message=f"turn {self.turn + 1}: it cannot be known whether {item.operation_id} landed: {item.detail or item.state}",
                        remedy="nothing to mend; a new execution starts on a fresh desktop if the retry budget allows",
                    )
                )
        finished = tuple(item.operation_id for item in recovered.operations if item.state == "finished")
        for operation_id in finished:
            self._mark(operation_id, "landed")
        return finished

    def _mark(self, operation_id: str, state: str, returncode: int | None = None) -> None:
        for place in range(len(self.ledger) - 1, -1, -1):
            if self.ledger[place].operation_id == operation_id:
                self.ledger[place] = self.ledger[place].model_copy(update={"state": state, "returncode": returncode})
                return

    def _note(self, reply: steps.ModelReply) -> None:
        words = "; ".join(action.summary for action in reply.actions) or "no action"
        note = reply.failure.kind if reply.failure else reply.thought[:80]
        self.recent = (*self.recent[-2:], TurnSummary(turn=self.turn, actions=words[:160], note=note))
        workflow.upsert_search_attributes([temporal.TURN.value_set(self.turn + 1)])
        self.execution.refresh()


def _parse_policy(execution: ExecutionWorkflow, resolved: ParsePolicy | None) -> ParsePolicy:
    """What was resolved when the execution was opened; in executions from before that was carried, what the request says."""
    return resolved or execution.start.rollout.request.rollout.parse_policy or ParsePolicy()
