"""Submit many rollouts with a bound on how many are unfinished, and follow them to their ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from osworld_rollouts.console.rollouts import outcome_of
from osworld_rollouts.submit import Submitted, submit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from temporalio.client import Client

    from osworld_rollouts.contracts.outcome import RolloutResult
    from osworld_rollouts.contracts.request import RolloutRequest
    from osworld_rollouts.settings import Settings

_STARTS_AT_ONCE = 16
_PATIENCE_S = 600.0
"""How long a server may be away while rollouts are waited for; they go on when it is back."""


@dataclass
class Progress:
    """Where a submission stands. `ended` has each rollout's result, or None with the failure's words when it left none."""

    total: int
    submitted: dict[str, Submitted] = field(default_factory=dict[str, Submitted])
    ended: dict[str, tuple[RolloutResult | None, str | None]] = field(
        default_factory=dict[str, "tuple[RolloutResult | None, str | None]"]
    )

    @property
    def scored(self) -> int:
        """Rollouts that ended with a score."""
        return sum(1 for result, _ in self.ended.values() if result is not None and result.outcome.score is not None)


async def submit_all(
    client: Client,
    settings: Settings,
    requests: Sequence[RolloutRequest],
    *,
    wait: bool,
    in_flight: int | None = None,
    on_change: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Submit every request; with `wait`, also follow each to its end.

    A failed submission ends the whole call at once; what was submitted stays, and submitting again finds it.

    Args:
        client: a connected client.
        settings: step timeouts and queue names the rollouts carry.
        requests: what to run.
        wait: return only when all have ended.
        in_flight: at most so many unfinished at any time (with `wait`); None submits all at once.
        on_change: called after every start and every end.
    """
    progress = Progress(len(requests))
    starting = asyncio.Semaphore(_STARTS_AT_ONCE)
    unfinished = asyncio.Semaphore(in_flight or max(1, len(requests)))

    async def one(request: RolloutRequest) -> None:
        try:
            async with starting:
                handle = await submit(
                    client,
                    request,
                    timing=settings.timeouts,
                    task_queue=settings.temporal.workflow_queue,
                    pool_queue=settings.temporal.pool_queue,
                )
            progress.submitted[request.rollout_id] = handle
            on_change(progress)
            if wait:
                progress.ended[request.rollout_id] = await outcome_of(
                    client, request.rollout_id, patience_s=_PATIENCE_S
                )
                on_change(progress)
        finally:
            unfinished.release()

    try:
        async with asyncio.TaskGroup() as group:
            for request in requests:
                await unfinished.acquire()
                group.create_task(one(request))
    except ExceptionGroup as error:
        raise error.exceptions[0] from error
    return progress
