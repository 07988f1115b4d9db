"""Names of things: campaigns, rollouts, executions, operations (DESIGN.md section 5).

A rollout is logical, an execution physical. The rollout's workflow id is `rollout/<rollout_id>`, an execution's is
`rollout/<rollout_id>/x<n>`, and an operation on the desktop is `<execution_id>/t<turn>/o<index>`,
`<execution_id>/setup/o<index>` or `<execution_id>/post/o<index>`.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import StringConstraints

CAMPAIGN_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"
ROLLOUT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)*$"
TASK_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"

CampaignId = Annotated[str, StringConstraints(pattern=CAMPAIGN_PATTERN)]
RolloutId = Annotated[str, StringConstraints(pattern=ROLLOUT_PATTERN, max_length=400)]
TaskId = Annotated[str, StringConstraints(pattern=TASK_PATTERN)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

_EXECUTION = re.compile(r"^(?P<rollout>.+)/x(?P<number>[1-9]\d*)$")


def default_rollout_id(campaign_id: str, task_id: str, sample_index: int) -> str:
    """`campaign/task/sample`, the id of a rollout whose caller named none."""
    return f"{campaign_id}/{task_id}/{sample_index}"


def rollout_workflow_id(rollout_id: str) -> str:
    """Temporal workflow id of a logical rollout."""
    return f"rollout/{rollout_id}"


def execution_id(rollout_id: str, number: int) -> str:
    """Id of the n-th physical attempt, n from 1."""
    return f"{rollout_id}/x{number}"


def execution_workflow_id(execution: str) -> str:
    """Temporal workflow id of an execution."""
    return f"rollout/{execution}"


def split_execution_id(execution: str) -> tuple[str, int]:
    """(rollout id, number) of an execution id.

    Raises:
        ValueError: when the text is not `<rollout_id>/x<n>`.
    """
    found = _EXECUTION.match(execution)
    if not found:
        raise ValueError(
            f"{execution!r} is not an execution id; expected <rollout_id>/x<n>, for example demo/task/0/x1"
        )
    return found["rollout"], int(found["number"])


def turn_operation_id(execution: str, turn: int, index: int) -> str:
    """Id of the index-th operation of a turn; turn and index count from 0."""
    return f"{execution}/t{turn}/o{index}"


def setup_operation_id(execution: str, index: int) -> str:
    """Id of the index-th effect of the task's setup."""
    return f"{execution}/setup/o{index}"


def post_operation_id(execution: str, index: int) -> str:
    """Id of the index-th effect of the evaluator's post-steps."""
    return f"{execution}/post/o{index}"
