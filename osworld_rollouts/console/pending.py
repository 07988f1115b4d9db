"""What a running execution waits for, as the Temporal server describes it. Needs no worker: it is there when none answers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from osworld_rollouts import temporal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.message import Message
    from temporalio.api.failure.v1 import Failure
    from temporalio.api.workflow.v1 import PendingActivityInfo
    from temporalio.client import Client, WorkflowExecutionDescription

_AT_ONCE = 10
_UNDECIDED_S = 10.0
"""A workflow task that nobody takes for so long waits for a worker."""
_UPKEEP = "renew_lease"
"""Goes on beside the work, and during a pause."""

_ACTIVITIES = {
    "open_execution": "opening of the evidence",
    "provision_desktop": "desktop",
    "prepare_task": "task setup",
    "call_model": "model call",
    "perform_operation": "actions",
    "recover_operation": "question to the guest what landed",
    "prepare_evaluation": "post-steps",
    "evaluate": "evaluation",
    _UPKEEP: "renewal of the desktop's lease",
    "teardown_desktop": "removal of the desktop",
    "seal_execution": "sealing of the evidence",
}


@dataclass(frozen=True)
class PendingActivity:
    """An activity that has not ended. `state` is scheduled (nobody has taken this attempt), started or cancelling."""

    activity: str
    words: str
    state: str
    attempt: int
    max_attempts: int | None
    last_failure: str | None
    since: datetime | None
    next_at: datetime | None
    gives_up_at: datetime | None


@dataclass(frozen=True)
class Doing:
    """A running execution at this moment. `deciding` means that a workflow task is under way, so it goes on at once."""

    execution_workflow_id: str
    phase: str
    deciding: bool
    waits_for_worker: bool
    activities: tuple[PendingActivity, ...]

    @property
    def paused(self) -> bool:
        """Whether it waits between two turns: then, and only then, turns have nothing under way."""
        return self.phase == "turns" and not self.deciding and all(item.activity == _UPKEEP for item in self.activities)

    @property
    def waits_for_desktop(self) -> bool:
        """Whether no host has taken the request for a desktop."""
        return any(item.activity == "provision_desktop" and item.state == "scheduled" for item in self.activities)


async def doing(client: Client, workflow_id: str) -> Doing | None:
    """What an execution does; None when it does not run."""
    try:
        description = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    return _doing(description) if description.status is WorkflowExecutionStatus.RUNNING else None


async def doing_of(client: Client, workflow_ids: Iterable[str]) -> dict[str, Doing]:
    """The same for several, a few at a time."""
    names, slots = list(workflow_ids), asyncio.Semaphore(_AT_ONCE)

    async def one(name: str) -> Doing | None:
        async with slots:
            return await doing(client, name)

    found = await asyncio.gather(*map(one, names))
    return {name: item for name, item in zip(names, found, strict=True) if item is not None}


def running_child(description: WorkflowExecutionDescription) -> str | None:
    """Workflow id of the execution that a rollout waits for; None between two."""
    children = description.raw_description.pending_children
    return children[0].workflow_id if children else None


def _doing(description: WorkflowExecutionDescription) -> Doing:
    raw = description.raw_description
    deciding = raw.HasField("pending_workflow_task")
    since = _time(raw.pending_workflow_task, "original_scheduled_time") if deciding else None
    return Doing(
        execution_workflow_id=description.id,
        phase=description.typed_search_attributes.get(temporal.PHASE) or "",
        deciding=deciding,
        waits_for_worker=since is not None and (datetime.now(UTC) - since).total_seconds() > _UNDECIDED_S,
        activities=tuple(map(pending_activity, raw.pending_activities)),
    )


def pending_activity(raw: PendingActivityInfo) -> PendingActivity:
    """From the server's record of it."""
    name = raw.activity_type.name
    scheduled = raw.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    since, next_at = _time(raw, "scheduled_time"), _time(raw, "next_attempt_schedule_time")
    ends = [_time(raw, "expiration_time")]
    patience = raw.activity_options.schedule_to_start_timeout.ToTimedelta()
    if scheduled and since and patience:
        ends.append((next_at or since) + patience)
    state = PendingActivityState.Name(raw.state).removeprefix("PENDING_ACTIVITY_STATE_").lower()
    return PendingActivity(
        activity=name,
        words=_ACTIVITIES.get(name, name),
        state="cancelling" if state == "cancel_requested" else state,
        attempt=max(raw.attempt, 1),
        max_attempts=raw.maximum_attempts or None,
        last_failure=_failure(raw.last_failure) if raw.HasField("last_failure") else None,
        since=since if scheduled else _time(raw, "last_started_time"),
        next_at=next_at if scheduled else None,
        gives_up_at=min((end for end in ends if end), default=None),
    )


def _failure(failure: Failure) -> str:
    """The innermost message: outer ones only say that an activity failed."""
    words = failure.message
    while failure.HasField("cause"):
        failure = failure.cause
        words = failure.message or words
    kind = failure.application_failure_info.type
    return f"{kind}: {words}" if kind else words


def _time(message: Message, field: str) -> datetime | None:
    if not message.HasField(field):
        return None
    stamp: Any = getattr(message, field)
    moment: datetime = stamp.ToDatetime(UTC)
    return moment if moment > datetime(2000, 1, 1, tzinfo=UTC) else None


def until(moment: datetime) -> timedelta:
    """Time from now, never negative."""
    return max(moment - datetime.now(UTC), timedelta())
