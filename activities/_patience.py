"""An evidence store that is away: what is in hand (a paid reply, effects that landed) waits for it instead of being thrown away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import ParamSpec, TypeVar

import structlog
from temporalio import activity

from osworld_rollouts.evidence.errors import EvidenceUnavailable

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger()

_FIRST_S, _LONGEST_S = 0.5, 15.0
_MARGIN = timedelta(seconds=5)  # to fail with the store's own words, not by a timeout that names nothing


async def patiently(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Make a blocking call to the evidence store in a thread; while the store is away, again and again within this attempt's time.

    Raises:
        EvidenceUnavailable: the time is over.
    """
    info = activity.info()
    over = info.started_time + (info.start_to_close_timeout or timedelta(0)) - _MARGIN
    pause = _FIRST_S
    while True:
        try:
            return await asyncio.to_thread(call, *args, **kwargs)
        except EvidenceUnavailable as error:
            if datetime.now(UTC) + timedelta(seconds=pause) > over:
                raise
            log.warning("evidence store is away", problem=str(error), again_in_s=pause)
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_S)
