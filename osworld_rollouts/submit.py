"""Submit rollouts through the Temporal client. Light: needs no worker package.

The same rollout id with the same request returns the running or finished rollout; with a different request it is refused, and the
refusal names the fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from temporalio.client import WorkflowFailureError
from temporalio.common import Priority, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError

from osworld_rollouts import temporal
from osworld_rollouts.contracts.execution import RolloutStart
from osworld_rollouts.contracts.identity import rollout_workflow_id
from osworld_rollouts.contracts.outcome import RolloutResult
from osworld_rollouts.contracts.request import RolloutRequest, differing_fields
from osworld_rollouts.contracts.timing import Timing
from osworld_rollouts.temporal import MAX_REQUEST_BYTES

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowHandle


class RequestConflictError(ValueError):
    """Another request already runs under this rollout id."""

    def __init__(self, rollout_id: str, fields: list[str]) -> None:
        super().__init__(
            f"rollout {rollout_id!r} exists with a different request; differing: {', '.join(fields)}. "
            "Choose another campaign, sample index or rollout id."
        )
        self.rollout_id = rollout_id
        self.fields = fields


class RequestTooLargeError(ValueError):
    """The request would not fit into Temporal's payloads."""


@dataclass(frozen=True)
class Submitted:
    """A rollout that runs or has run. `existed` is true when this call did not start it."""

    handle: WorkflowHandle[Any, RolloutResult]
    rollout_id: str
    existed: bool

    async def result(self) -> RolloutResult:
        """Its end. A rollout without a score is a failed workflow with its result inside; here it is a result like any other.

        Raises:
            WorkflowFailureError: it left no result, because it was terminated.
        """
        try:
            return await self.handle.result()
        except WorkflowFailureError as error:
            found = result_in(error)
            if found is None:
                raise
            return found


def result_in(error: WorkflowFailureError) -> RolloutResult | None:
    """The result that a failed rollout carries in its failure, if it left one."""
    if isinstance(error.cause, ApplicationError):
        for detail in error.cause.details:
            if isinstance(detail, dict) and "executions" in detail:
                return RolloutResult.model_validate(detail)
    return None


async def submit(
    client: Client,
    request: RolloutRequest,
    *,
    timing: Timing | None = None,
    task_queue: str = "rollouts",
    pool_queue: str = "desktops",
) -> Submitted:
    """Start a rollout, or find the one that has the same id and the same request.

    Raises:
        RequestConflictError: same id, different request.
        RequestTooLargeError: the request is above MAX_REQUEST_BYTES.
    """
    size = len(request.model_dump_json().encode())
    if size > MAX_REQUEST_BYTES:
        raise RequestTooLargeError(
            f"rollout {request.rollout_id!r}: the request has {size:,} bytes, limit {MAX_REQUEST_BYTES:,}; "
            "a task document this large should fetch its files in a setup step"
        )
    workflow_id = rollout_workflow_id(request.rollout_id)
    task = request.rollout.task
    try:
        handle = await client.start_workflow(
            temporal.ROLLOUT_WORKFLOW,
            RolloutStart(request=request, timing=timing or Timing(), task_queue=task_queue, pool_queue=pool_queue),
            id=workflow_id,
            task_queue=task_queue,
            result_type=RolloutResult,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            memo={
                "request_digest": request.request_digest(),
                **{f"label.{key}": value for key, value in request.labels.items()},
            },
            search_attributes=temporal.start_attributes(request),
            priority=Priority(priority_key=request.priority, fairness_key=request.campaign_id[:64]),
            static_summary=f"{task.domain}/{task.task_id} · {request.rollout.model.name}",
            static_details=task.instruction,
        )
    except WorkflowAlreadyStartedError:
        existing = await read_request(client, request.rollout_id)
        fields = differing_fields(existing.rollout, request.rollout)
        if fields:
            raise RequestConflictError(request.rollout_id, fields) from None
        return Submitted(
            client.get_workflow_handle(workflow_id, result_type=RolloutResult), request.rollout_id, existed=True
        )
    return Submitted(handle, request.rollout_id, existed=False)


async def read_request(client: Client, rollout_id: str) -> RolloutRequest:
    """The request a rollout was started with, from its history; works without any worker.

    Raises:
        LookupError: when the rollout's history cannot be read back as one.
    """
    handle = client.get_workflow_handle(rollout_workflow_id(rollout_id))
    async for event in handle.fetch_history_events(page_size=1):
        payloads = event.workflow_execution_started_event_attributes.input.payloads
        (start,) = await client.data_converter.decode(payloads, [RolloutStart])
        return start.request
    raise LookupError(f"rollout {rollout_id!r} has no history on this server")
