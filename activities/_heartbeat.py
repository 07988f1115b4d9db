"""Heartbeats at a third of the activity's own timeout, while it works."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from temporalio import activity


@asynccontextmanager
async def heartbeating(*details: str) -> AsyncGenerator[None]:
    """Beat in the background until the block ends. The event loop must stay free: blocking work belongs in a thread."""
    timeout = activity.info().heartbeat_timeout
    if timeout is None:
        yield
        return
    beat = asyncio.create_task(_beat(timeout.total_seconds() / 3, details))
    try:
        yield
    finally:
        beat.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beat


async def _beat(every_s: float, details: tuple[str, ...]) -> None:
    while True:
        activity.heartbeat(*details)
        await asyncio.sleep(every_s)
