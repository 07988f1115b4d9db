"""What goes into and comes out of each activity: references and a few facts, never images or prompts.

Every step takes the head of the evidence chain and returns the new one, so that Temporal's history proves the evidence.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from osworld_rollouts.contracts._base import Contract
from osworld_rollouts.contracts.desktop import DesktopSpec, Lease, LeaseOwner
from osworld_rollouts.contracts.identity import Sha256
from osworld_rollouts.contracts.outcome import Outcome
from osworld_rollouts.contracts.request import ParsePolicy, RolloutRequest


class OpenExecution(Contract):
    """Start the evidence of an execution."""

    request: RolloutRequest
    execution_id: str
    number: int
    workflow_id: str
    run_id: str


class Opened(Contract):
    """The chain begins, in the evidence store `store`. History and parse policy are the adapter's defaults where the request named none."""

    head: Sha256
    history_name: str
    history_params: dict[str, JsonValue]
    store: str | None = None
    parse_policy: ParsePolicy | None = Field(
        default=None, description="None: opened before it was resolved here; what the request says holds"
    )


class ProvisionDesktop(Contract):
    """Make (or, on a second attempt, adopt) the desktop of `lease_id`."""

    spec: DesktopSpec
    lease_id: str
    owner: LeaseOwner
    expires_after_s: float = Field(gt=0)


class OnDesktop(Contract):
    """What every step on a desktop needs: which execution, which chain, which desktop."""

    execution_id: str
    head: Sha256
    lease_id: str
    fence: int


class PrepareTask(OnDesktop):
    """Run the task's setup steps, each an operation."""

    first_seq: int
    timeout_s: float


class Prepared(Contract):
    """The desktop is set up. What it showed is in the record that `head` names, as after every step."""

    head: Sha256
    next_seq: int
    steps: int


class HistoryWindow(Contract):
    """State of a history policy: screenshots of turns >= `image_start` are live, and the first `sink` turns always."""

    image_start: int = 0
    sink: int = 0
    epoch: int = 0
    limit: int | None = Field(default=None, description="most screenshots that fit, learnt from a refused prompt")


class CallModel(Contract):
    """One call of the policy model."""

    execution_id: str
    head: Sha256
    turn: int
    call: int = Field(description="0 for the first call of a turn, then 1, 2, … for resamples and shrinks")
    window: HistoryWindow
    temperature: float | None = Field(default=None, description="overrides the request's, for resampling")
    feedback: bool = Field(default=False, description="show the model why its last reply could not be used")


class PlannedAction(Contract):
    """The index-th action of a model call record, in words; `seconds` for a wait. The action itself is in the record."""

    index: int
    kind: str
    summary: str
    seconds: float | None = None


class ParseFailure(Contract):
    """Why a reply holds no usable action. Kinds are listed in osworld_rollouts/adapters/_contract.py."""

    kind: str
    message: str


class ModelReply(Contract):
    """What came back, as far as a decision needs it."""

    head: Sha256
    actions: tuple[PlannedAction, ...] = ()
    failure: ParseFailure | None = None
    overflow: bool = Field(
        default=False, description="the server refused the prompt as too long; nothing was generated"
    )
    images: int = 0
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    latency_ms: int = 0
    reused: bool = Field(default=False, description="the journalled reply of an earlier attempt was used")
    exact_violations: tuple[str, ...] = ()
    thought: str = Field(default="", description="first words of the reply, for people")


class Operation(Contract):
    """One effect: the planned action with its id and place in the desktop's order."""

    operation_id: str
    seq: int
    action: PlannedAction


class PerformOperation(OnDesktop):
    """Execute one turn's operations in order, then observe."""

    turn: int
    record: Sha256 = Field(description="the model call record that holds the actions")
    operations: tuple[Operation, ...]
    timeout_s: float = Field(description="for each operation")
    known: tuple[str, ...] = Field(default=(), description="operation ids already finished: take the recorded result")


class OperationOutcome(Contract):
    """How an operation ended in the guest. A non-zero return code of the model's own Python is a fact, not a failure."""

    operation_id: str
    returncode: int | None
    error: str = ""
    replayed: bool = False
    duration_ms: int = 0


class Performed(Contract):
    """The turn's effects are on the desktop and were looked at."""

    head: Sha256
    outcomes: tuple[OperationOutcome, ...] = ()


class RecoverOperation(OnDesktop):
    """Ask the guest what became of operations whose reply was lost."""

    turn: int
    operation_ids: tuple[str, ...]


OperationState = Literal["finished", "absent", "running", "unknown"]


class RecoveredOperation(Contract):
    """The guest's answer for one operation."""

    operation_id: str
    state: OperationState
    detail: str = ""


class Recovered(Contract):
    """The guest's answers, in the order asked, recorded as evidence."""

    head: Sha256
    operations: tuple[RecoveredOperation, ...]


class PrepareEvaluation(OnDesktop):
    """Run the evaluator's post-steps, each an operation."""

    first_seq: int
    timeout_s: float


class EvaluationPrepared(Contract):
    """The post-steps are done."""

    head: Sha256
    next_seq: int
    steps: int


class Evaluate(OnDesktop):
    """Ask OSWorld's evaluator. `last_action` is what its rules look at: FAIL, DONE or another action's kind."""

    last_action: str | None
    timeout_s: float


class Evaluated(Contract):
    """The evaluator's own number."""

    head: Sha256
    score: float
    duration_ms: int


class TeardownDesktop(Contract):
    """Remove the desktop. Removing what is gone is a success."""

    lease_id: str
    reason: str


class SealExecution(Contract):
    """Write the last record and the pointer by which exporters and viewers find the execution."""

    execution_id: str
    head: Sha256
    outcome: Outcome
    lease: Lease | None = None


class Sealed(Contract):
    """The head of the finished chain, and what its model calls leave open."""

    head: Sha256
    unanswered_calls: int = Field(default=0, description="model calls of which no reply was used")
    unseen_samples: int = Field(
        default=0, description="attempts at model calls that may have left a sample nobody saw, each perhaps paid for"
    )
