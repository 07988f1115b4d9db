"""Records of an execution, one per boundary, each naming the sha256 of the one before it (DESIGN.md section 7).

A record is stored as canonical JSON under its own sha256. Anything large in it (screenshots, prompts, replies, token arrays,
files) is the sha256 of a blob. A fact that could not be had is listed in `missing` with the reason, never filled in.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from osworld_rollouts.contracts._base import Contract
from osworld_rollouts.contracts.action import Action
from osworld_rollouts.contracts.desktop import Lease, MediaRef, Observation
from osworld_rollouts.contracts.identity import Sha256
from osworld_rollouts.contracts.outcome import Outcome
from osworld_rollouts.contracts.request import ParsePolicy
from osworld_rollouts.contracts.steps import HistoryWindow, OperationOutcome, ParseFailure, RecoveredOperation

SCHEMA_VERSION = 1


class _Record(Contract):
    schema_version: Literal[1] = 1
    execution_id: str
    index: int = Field(ge=0, description="place in the chain, 0 for the first")
    previous: Sha256 | None = Field(description="sha256 of the record before; None only for the first")
    recorded_at: datetime


class ExecutionStarted(_Record):
    """What is run, by what."""

    kind: Literal["execution_started"] = "execution_started"
    rollout_id: str
    number: int
    campaign_id: str
    purpose: str | None
    request_digest: Sha256
    request: Sha256 = Field(description="blob: canonical JSON of the RolloutRequest")
    workflow_id: str
    run_id: str
    adapter: str
    adapter_version: str
    history: str
    history_params: dict[str, JsonValue]
    parse_policy: ParsePolicy | None = Field(
        default=None,
        description="as resolved, with the temperature of resamples; None: the record is older than this field",
    )
    provenance: dict[str, JsonValue]


class DesktopPrepared(_Record):
    """The task's setup ran on this desktop."""

    kind: Literal["prepared"] = "prepared"
    lease: Lease
    exchanges: Sha256 = Field(description="blob: JSON list of every exchange between desktop-env and the guest")
    steps: int
    observation: Observation
    evaluator: dict[str, JsonValue] = Field(
        default_factory=dict, description="desktop-env version, content hash, preflight notes"
    )


class ModelCallRecord(_Record):
    """One call that reached (or may have reached) the model's server, whether or not its reply could be used."""

    kind: Literal["model_call"] = "model_call"
    turn: int
    call: int
    activity_attempt: int
    request_id: str = Field(description="ours, fresh for each attempt; sent as X-Request-Id")
    api: str = "chat_completions"
    evidence: Literal["semantic", "exact"] = "semantic"
    started_at: datetime | None = Field(default=None, description="when the attempt that was answered was sent")
    window: HistoryWindow
    sent: Sha256 = Field(description="blob: JSON of the request as sent, keys in order, images as media://<sha256>")
    media: tuple[MediaRef, ...] = Field(default=(), description="images in the order sent")
    sampling: dict[str, JsonValue] = Field(
        default_factory=dict, description="every sampling parameter as sent; one that was not sent is in `missing`"
    )
    received: Sha256 | None = Field(description="blob: the reply's bytes as received; None when no reply was used")
    status: int | None = None
    text: str = ""
    reasoning: str | None = None
    output: Sha256 | None = Field(
        default=None,
        description="blob: JSON list of the reply's items as received: tool calls, or items of Responses and Messages",
    )
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    truncated: bool | None = Field(default=None, description="cut by the token limit, from ids where there are ids")
    served_model: str | None = None
    response_id: str | None = None
    system_fingerprint: str | None = None
    weight_version: str | None = None
    usage: dict[str, JsonValue] | None = None
    cached_tokens: int | None = Field(default=None, description="prompt tokens the server took from its prefix cache")
    prompt_token_ids: Sha256 | None = Field(
        default=None, description="blob: JSON list of ids, image placeholders expanded"
    )
    generated_token_ids: Sha256 | None = Field(default=None, description="blob: JSON list of ids")
    logprobs: Sha256 | None = Field(
        default=None, description="blob: JSON list of the sampled tokens' log probabilities"
    )
    prompt_tokens: int | None = Field(default=None, description="number of prompt ids, else the server's count")
    generated_tokens: int | None = None
    image_runs: tuple[tuple[int, int], ...] | None = Field(
        default=None, description="(first position, length) of each image's placeholders among the prompt ids"
    )
    latency_ms: int = 0
    earlier_attempts: tuple[dict[str, JsonValue], ...] = Field(
        default=(),
        description="attempts at this call before the one that was answered and what is known of each; all of them when none was",
    )
    actions: tuple[Action, ...] = ()
    parsed: Sha256 | None = Field(
        default=None, description="blob: which part of the text became which action, what was dropped and why"
    )
    failure: ParseFailure | None = None
    overflow: bool = False
    error: str | None = Field(default=None, description="what the server refused or how the call failed, keys redacted")
    segment: int = Field(default=0, description="number of the stretch of calls in which each extends the one before")
    extends_previous: bool | None = Field(
        default=None, description="computed from ids and media; None where there is nothing to compute it from"
    )
    boundary: dict[str, JsonValue] | None = Field(
        default=None, description="why a new segment starts here: reason, position of the first divergence"
    )
    violations: tuple[str, ...] = Field(
        default=(), description="names of the exact checks that failed, from evidence/checks.py"
    )
    violation_details: dict[str, str] = Field(default_factory=dict, description="name of a failed check -> what it saw")
    missing: tuple[str, ...] = ()


class OperationsRecord(_Record):
    """One turn's effects and what the desktop showed after them."""

    kind: Literal["operations"] = "operations"
    turn: int
    operations: tuple[dict[str, JsonValue], ...] = Field(
        description="operation id, seq, fence, command blob, result blob, return code, times"
    )
    outcomes: tuple[OperationOutcome, ...]
    observation: Observation


class RecoveryRecord(_Record):
    """What the guest said about operations whose reply was lost."""

    kind: Literal["recovery"] = "recovery"
    turn: int
    operations: tuple[RecoveredOperation, ...]
    answers: Sha256 | None = None


class PostStepsRecord(_Record):
    """The evaluator's post-steps ran."""

    kind: Literal["post_steps"] = "post_steps"
    exchanges: Sha256
    steps: int


class EvaluationRecord(_Record):
    """What OSWorld's evaluator said."""

    kind: Literal["evaluation"] = "evaluation"
    score: float
    last_action: str | None
    exchanges: Sha256
    log: Sha256 = Field(description="blob: the evaluator's stdout, stderr and log")
    files: dict[str, Sha256] = Field(
        default_factory=dict, description="files the evaluator looked at, by name in its cache directory"
    )
    duration_ms: int
    evaluator: dict[str, JsonValue] = Field(default_factory=dict)


class Terminated(_Record):
    """The end, whatever it was."""

    kind: Literal["terminated"] = "terminated"
    outcome: Outcome


Record = Annotated[
    ExecutionStarted
    | DesktopPrepared
    | ModelCallRecord
    | OperationsRecord
    | RecoveryRecord
    | PostStepsRecord
    | EvaluationRecord
    | Terminated,
    Field(discriminator="kind"),
]
"""Any record."""


def record_summary(record: Record) -> str:
    """A line for lists: index and kind."""
    return f"{record.index} {record.kind}"
