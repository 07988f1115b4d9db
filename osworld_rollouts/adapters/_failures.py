"""Why a reply without an action has none, in the words every adapter uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from osworld_rollouts.adapters._contract import FailureKind
from osworld_rollouts.contracts.steps import ParseFailure

if TYPE_CHECKING:
    from osworld_rollouts.contracts.model import Reply


def no_action(reply: Reply, visible: str, missing: str) -> ParseFailure:
    """The failure of a reply in which nothing was found. `visible` is its text without thinking, `missing` what was looked for."""
    if reply.truncated:
        return ParseFailure(
            kind=FailureKind.TRUNCATED, message="the reply was cut by the token limit before its action was complete"
        )
    if visible.strip():
        return ParseFailure(kind=FailureKind.NO_ACTION, message=missing)
    if reply.text.strip():
        return ParseFailure(kind=FailureKind.NO_ACTION, message="the reply is thinking and nothing else")
    where = "; everything the model said is in the server's reasoning field" if reply.reasoning else ""
    return ParseFailure(kind=FailureKind.EMPTY, message=f"the reply is empty{where}")
