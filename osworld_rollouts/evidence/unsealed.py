"""Executions whose evidence only Temporal points to: those that run, and those that ended without being sealed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from osworld_rollouts.evidence.verify import history_heads
from osworld_rollouts.temporal import CAMPAIGN, EXECUTION_WORKFLOW

if TYPE_CHECKING:
    from collections.abc import Container

    from temporalio.client import Client

_PREFIX = "rollout/"


@dataclass(frozen=True)
class Unsealed:
    """An execution that Temporal knows and the store has no pointer to. `head` is None before its evidence begins."""

    execution_id: str
    campaign_id: str
    running: bool
    head: str | None


async def unsealed_executions(client: Client, sealed: Container[str]) -> list[Unsealed]:
    """Every execution that Temporal knows and that is not among `sealed` (execution ids), with the newest head of its history."""
    found: dict[str, tuple[str, bool]] = {}
    async for item in client.list_workflows(f"WorkflowType = '{EXECUTION_WORKFLOW}'"):
        running = item.status is WorkflowExecutionStatus.RUNNING
        campaign, before = item.typed_search_attributes.get(CAMPAIGN) or "", found.get(item.id)
        found[item.id] = (campaign, running or (before is not None and before[1]))
    unsealed: list[Unsealed] = []
    for workflow_id, (campaign, running) in found.items():
        name = workflow_id.removeprefix(_PREFIX)
        if name not in sealed:
            heads = await _heads(client, workflow_id)
            unsealed.append(Unsealed(name, campaign, running, heads[-1] if heads else None))
    return unsealed


async def _heads(client: Client, workflow_id: str) -> list[str]:
    try:
        return await history_heads(client, workflow_id)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:  # its history was removed since it was listed
            return []
        raise
