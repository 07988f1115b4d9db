"""Rollouts as the Temporal server knows them: rows for lists and live displays, details for one."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.service import RPCError, RPCStatusCode

from osworld_rollouts import temporal
from osworld_rollouts.console.errors import ConsoleError, ExitCode
from osworld_rollouts.console.pending import Doing, doing, doing_of, running_child
from osworld_rollouts.console.phases import state_words
from osworld_rollouts.contracts.execution import ExecutionView, RolloutView
from osworld_rollouts.contracts.identity import execution_id, execution_workflow_id, rollout_workflow_id
from osworld_rollouts.contracts.outcome import ExecutionResult, RolloutResult
from osworld_rollouts.submit import result_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from temporalio.client import Client, WorkflowExecution, WorkflowExecutionDescription
    from temporalio.common import SearchAttributeKey

_QUERY_TIMEOUT_S = 3.0
_AWAY = {RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.UNKNOWN, RPCStatusCode.CANCELLED}
"""What a client sees of a server that is being restarted."""
_ANSWERED_S = 60.0
"""A wait that lasted longer was being answered: what ends it is a new outage, with patience of its own."""


@dataclass(frozen=True)
class Filter:
    """Which rollouts; None does not restrict. `raw` is a visibility query of Temporal's own."""

    campaign: str | None = None
    task: str | None = None
    domain: str | None = None
    model: str | None = None
    outcome: str | None = None
    purpose: str | None = None
    running: bool = False
    failed: bool = False
    raw: str | None = None

    def query(self, workflow_type: str) -> str:
        """As a visibility query.

        Raises:
            ConsoleError: for a value that cannot stand in one.
        """
        parts = [f"WorkflowType = {_quoted(workflow_type)}"]
        names: tuple[tuple[SearchAttributeKey[Any], str | None], ...] = (
            (temporal.CAMPAIGN, self.campaign), (temporal.TASK, self.task), (temporal.DOMAIN, self.domain), (temporal.MODEL, self.model),
            (temporal.OUTCOME, self.outcome), (temporal.PURPOSE, self.purpose),
        )  # fmt: skip
        parts += [f"{key.name} = {_quoted(value)}" for key, value in names if value is not None]
        if self.running:
            parts.append("ExecutionStatus = 'Running'")
        if self.failed:
            parts.append("ExecutionStatus IN ('Failed', 'Terminated', 'TimedOut', 'Canceled')")
        if self.raw:
            parts.append(f"({self.raw})")
        return " AND ".join(parts)


@dataclass(frozen=True)
class RolloutRow:
    """One rollout in a list. `phase`, `turn` and `doing` are of its running execution."""

    rollout_id: str
    workflow_id: str
    run_id: str
    status: str
    campaign: str
    task: str
    domain: str
    model: str
    phase: str
    execution: int | None
    turn: int | None
    outcome: str | None
    score: float | None
    eligible: bool | None
    started_at: datetime
    closed_at: datetime | None
    doing: Doing | None = None

    @property
    def state(self) -> str:
        """What it does now, in words, or how its workflow ended."""
        return state_words(self.phase, self.doing) if self.status == "running" else self.status

    @property
    def elapsed_s(self) -> float:
        """Seconds from submission to the end, or to now."""
        return ((self.closed_at or datetime.now(UTC)) - self.started_at).total_seconds()

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "state": self.state, "elapsed_s": round(self.elapsed_s, 3)}


@dataclass(frozen=True)
class RolloutDetails:
    """One rollout with everything Temporal has about it."""

    row: RolloutRow
    instruction: str
    labels: dict[str, str]
    executions: tuple[ExecutionResult, ...]
    running: ExecutionView | None
    failure: str | None
    note: str = ""

    @property
    def state(self) -> str:
        """As `RolloutRow.state`, with what a person has asked of the running execution."""
        if self.row.status != "running":
            return self.row.status
        return state_words(self.row.phase, self.row.doing, self.running)


async def find_rollouts(client: Client, chosen: Filter, limit: int) -> list[RolloutRow]:
    """Newest first, at most `limit`; running ones with the phase and turn of their running execution."""
    rows = [
        _row(item)
        async for item in _up_to(
            client.list_workflows(chosen.query(temporal.ROLLOUT_WORKFLOW), page_size=min(limit, 1000)), limit
        )
    ]
    if any(row.status == "running" for row in rows):
        only = Filter(
            campaign=chosen.campaign, task=chosen.task, domain=chosen.domain, model=chosen.model, running=True
        )
        executions = client.list_workflows(only.query(temporal.EXECUTION_WORKFLOW))
        live = {_attribute(item, temporal.ROLLOUT): item async for item in _up_to(executions, 2000)}
        rows = [
            _with_execution(row, live[row.rollout_id]) if row.status == "running" and row.rollout_id in live else row
            for row in rows
        ]
    return rows


async def with_doing(client: Client, rows: list[RolloutRow], limit: int = 50) -> list[RolloutRow]:
    """The same rows; the first `limit` running ones with what their executions wait for."""
    names = {
        row.rollout_id: execution_workflow_id(execution_id(row.rollout_id, row.execution))
        for row in rows
        if row.status == "running" and row.execution
    }
    found = await doing_of(client, list(names.values())[:limit])
    return [replace(row, doing=found.get(names.get(row.rollout_id, ""))) for row in rows]


async def check_campaign(client: Client, campaign: str) -> None:
    """Say so when there is no such campaign.

    Raises:
        ConsoleError: it has no rollout, neither a running one nor one that ended.
    """
    if not await count_rollouts(client, Filter(campaign=campaign)):
        raise ConsoleError(
            f"no rollout of campaign {campaign!r} on this Temporal server",
            remedy="`rollouts list` shows what there is",
            code=ExitCode.NOT_FOUND,
        )


async def how_it_ended(client: Client, rollout_id: str) -> str | None:
    """The end of a rollout in a few words; None while it runs.

    Raises:
        ConsoleError: there is no such rollout.
    """
    description = await _description(client, rollout_id)
    if description.status is WorkflowExecutionStatus.RUNNING:
        return None
    row = _row(description)
    if row.outcome is None:
        return row.status
    return row.outcome if row.score is None else f"{row.outcome}, score {row.score:g}"


async def count_rollouts(client: Client, chosen: Filter) -> int:
    """How many there are."""
    return (await client.count_workflows(chosen.query(temporal.ROLLOUT_WORKFLOW))).count


async def describe_rollout(client: Client, rollout_id: str) -> RolloutDetails:
    """Everything about one rollout; what only a worker could answer is left out, with a note, when none does.

    Raises:
        ConsoleError: there is no such rollout.
    """
    description = await _description(client, rollout_id)
    row = _row(description)
    instruction = await description.static_details() or ""
    labels = {
        name.removeprefix("label."): str(value)
        for name, value in (await description.memo()).items()
        if name.startswith("label.")
    }
    if description.status is not WorkflowExecutionStatus.RUNNING:
        result, failure = await outcome_of(client, rollout_id)
        return RolloutDetails(row, instruction, labels, result.executions if result else (), None, failure)
    child = running_child(description)
    row = replace(row, doing=await doing(client, child) if child else None)
    state = await _query(client, description.id, RolloutView)
    if state is None:
        return RolloutDetails(
            row, instruction, labels, (), None, None, note="no worker answers: is one running? (`rollouts status`)"
        )
    view = await execution_view(client, state.running) if state.running else None
    return RolloutDetails(_with_view(row, view), instruction, labels, state.executions, view, None)


async def _description(client: Client, rollout_id: str) -> WorkflowExecutionDescription:
    try:
        return await client.get_workflow_handle(rollout_workflow_id(rollout_id)).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise ConsoleError(
                f"no rollout {rollout_id!r} on this Temporal server",
                remedy="`rollouts list` shows what there is",
                code=ExitCode.NOT_FOUND,
            ) from error
        raise


async def outcome_of(
    client: Client, rollout_id: str, *, patience_s: float = 0
) -> tuple[RolloutResult | None, str | None]:
    """(result, failure message) of a rollout, waiting for its end. A failed one carries its result in the failure.

    A server that does not answer is asked again for `patience_s` seconds: it may be restarting, and nothing is lost meanwhile.
    """
    handle = client.get_workflow_handle(rollout_workflow_id(rollout_id), result_type=RolloutResult)
    loop = asyncio.get_running_loop()
    silent_since: float | None = None
    while True:
        asked_at = loop.time()
        try:
            return await handle.result(), None
        except WorkflowFailureError as error:
            return _from_failure(error)
        except RPCError as error:
            if error.status not in _AWAY:
                raise
            if silent_since is None or loop.time() - asked_at > _ANSWERED_S:
                silent_since = loop.time()
            if loop.time() - silent_since >= patience_s:
                raise
            await asyncio.sleep(1)


def _from_failure(error: WorkflowFailureError) -> tuple[RolloutResult | None, str | None]:
    return result_in(error), str(getattr(error.cause, "message", None) or error.cause)


async def execution_view(client: Client, execution_id: str) -> ExecutionView | None:
    """What a running execution says of itself; None when no worker answers in time."""
    return await _query(client, execution_workflow_id(execution_id), ExecutionView)


async def execution_views(client: Client, execution_ids: Iterable[str]) -> dict[str, ExecutionView]:
    """The same for several at once."""
    ids = list(execution_ids)
    views = await asyncio.gather(*(execution_view(client, name) for name in ids))
    return {name: view for name, view in zip(ids, views, strict=True) if view is not None}


async def _query(client: Client, workflow_id: str, kind: type[Any]) -> Any:
    try:
        async with asyncio.timeout(_QUERY_TIMEOUT_S):
            return await client.get_workflow_handle(workflow_id).query("state", result_type=kind)
    except (TimeoutError, RPCError, WorkflowQueryFailedError, WorkflowQueryRejectedError):
        return None


async def _up_to(items: AsyncIterator[WorkflowExecution], limit: int) -> AsyncIterator[WorkflowExecution]:
    count = 0
    async for item in items:
        if count >= limit:
            return
        count += 1
        yield item


def _row(item: WorkflowExecution | WorkflowExecutionDescription) -> RolloutRow:
    status = item.status.name.lower().replace("_", " ") if item.status else "unknown"
    return RolloutRow(
        rollout_id=_attribute(item, temporal.ROLLOUT) or item.id.removeprefix("rollout/"),
        workflow_id=item.id,
        run_id=item.run_id,
        status=status,
        campaign=_attribute(item, temporal.CAMPAIGN) or "",
        task=_attribute(item, temporal.TASK) or "",
        domain=_attribute(item, temporal.DOMAIN) or "",
        model=_attribute(item, temporal.MODEL) or "",
        phase=_attribute(item, temporal.PHASE) or "",
        execution=_attribute(item, temporal.EXECUTION),
        turn=_attribute(item, temporal.TURN),
        outcome=_attribute(item, temporal.OUTCOME),
        score=_attribute(item, temporal.SCORE),
        eligible=_attribute(item, temporal.ELIGIBLE),
        started_at=item.start_time,
        closed_at=item.close_time,
    )


def _with_execution(row: RolloutRow, execution: WorkflowExecution) -> RolloutRow:
    live = _row(execution)
    return replace(row, phase=live.phase, turn=live.turn, execution=live.execution)


def _with_view(row: RolloutRow, view: ExecutionView | None) -> RolloutRow:
    if view is None:
        return row
    number = int(view.execution_id.rpartition("/x")[2])
    return replace(row, phase=view.phase, turn=view.turn, execution=number)


def _attribute(item: WorkflowExecution, key: SearchAttributeKey[Any]) -> Any:
    return item.typed_search_attributes.get(key)


def _quoted(value: str) -> str:
    if any(letter in value for letter in "'\"\\\n"):
        raise ConsoleError(f"{value!r} cannot stand in a query: quotes and backslashes are not allowed")
    return f"'{value}'"
