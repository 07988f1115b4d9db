"""Inputs and carried state of the workflows."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from osworld_rollouts.contracts._base import Contract
from osworld_rollouts.contracts.desktop import Lease
from osworld_rollouts.contracts.outcome import ExecutionResult
from osworld_rollouts.contracts.request import History, ParsePolicy, RolloutRequest
from osworld_rollouts.contracts.steps import HistoryWindow
from osworld_rollouts.contracts.timing import Timing


class RolloutStart(Contract):
    """Input of RolloutWorkflow."""

    request: RolloutRequest
    timing: Timing = Timing()
    task_queue: str = Field(default="rollouts", description="workflows, model calls, evidence")
    pool_queue: str = Field(default="desktops", description="provisioning; hosts poll it while they have room")


class TurnSummary(Contract):
    """A turn in one line, for people."""

    turn: int
    actions: str
    note: str = ""


class ExecutionState(Contract):
    """What continue-as-new carries: enough to go on at the next turn on the same desktop."""

    head: str
    lease: Lease
    next_seq: int
    turn: int
    window: HistoryWindow
    history: History
    parse_policy: ParsePolicy | None = None
    failed_turns: int = 0
    violations: int = 0
    deadline_at: datetime
    recent: tuple[TurnSummary, ...] = ()
    last_action: str | None = None
    store: str | None = None
    stop_requested: bool = False
    paused: bool = False


class ExecutionStart(Contract):
    """Input of ExecutionWorkflow."""

    rollout: RolloutStart
    execution_id: str
    number: int
    resume: ExecutionState | None = None
    continue_after_events: int = Field(
        default=8000, ge=50, description="continue-as-new at a turn boundary beyond this history length"
    )


class OperationTrace(Contract):
    """One operation in the ledger query: intended, dispatched, landed or observed."""

    operation_id: str
    seq: int
    action: str
    state: str
    returncode: int | None = None


class ExecutionView(Contract):
    """Answer of the `state` query."""

    execution_id: str
    phase: str
    turn: int
    max_turns: int
    paused: bool
    stop_requested: bool
    head: str | None
    lease_id: str | None
    host_id: str | None
    score: float | None
    outcome: str | None
    recent: tuple[TurnSummary, ...]


class RolloutView(Contract):
    """Answer of RolloutWorkflow's `state` query."""

    rollout_id: str
    request_digest: str
    running: str | None
    executions: tuple[ExecutionResult, ...]
