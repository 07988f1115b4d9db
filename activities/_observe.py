"""Look at the desktop once it has settled. Looking is harmless and is repeated until a limit."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from activities._patience import patiently
from osworld_rollouts.contracts.desktop import Observation
from osworld_rollouts.desktops.guest_client import GuestError
from osworld_rollouts.evidence.errors import UnusableImage
from osworld_rollouts.evidence.media import put_screenshot

if TYPE_CHECKING:
    from osworld_rollouts.contracts.model import ObservationNeeds
    from osworld_rollouts.contracts.request import Settle
    from osworld_rollouts.desktops.guest_client import GuestClient
    from osworld_rollouts.evidence.store import EvidenceStore

_PATIENCE_S = (
    20.0  # for a screenshot that does not come or does not decode; the guest's own server restarts within this
)


class ObservationError(Exception):
    """The desktop gave no usable screenshot within the limit. The message names the last problem."""


async def observe(
    client: GuestClient,
    store: EvidenceStore,
    size: tuple[int, int],
    settle: Settle,
    needs: ObservationNeeds,
    *,
    first_s: float,
    limit_s: float,
) -> Observation:
    """Wait `first_s`, then until two frames in a row are equal or `limit_s` has passed; store what is seen.

    Raises:
        ObservationError: no usable screenshot.
        EvidenceUnavailable: the store cannot be written.
    """
    started = time.monotonic()
    await asyncio.sleep(first_s)
    frame = await _frame(client, started)
    stable = False
    while not stable and time.monotonic() - started < limit_s:
        await asyncio.sleep(settle.poll_s)
        following = await _frame(client, started)
        stable, frame = following == frame, following
    captured = datetime.now(UTC)
    settled_ms = round((time.monotonic() - started) * 1000)
    while True:
        try:
            media = await patiently(put_screenshot, store, frame, size=size)
            break
        except UnusableImage as error:
            if time.monotonic() - started > limit_s + _PATIENCE_S:
                raise ObservationError(str(error)) from error
            await asyncio.sleep(0.5)
            frame, captured, stable = await _frame(client, started), datetime.now(UTC), False
    tree, missing = None, ()
    if needs.accessibility_tree or needs.set_of_marks:
        try:
            text = await client.accessibility_tree()
            tree = await patiently(store.put, text.encode())
        except (GuestError, KeyError, ValueError) as error:
            missing = (f"accessibility_tree: {error}",)
    return Observation(
        screenshot=media,
        accessibility_tree=tree,
        missing=missing,
        captured_at=captured,
        stable=stable,
        settle_ms=settled_ms,
    )


async def _frame(client: GuestClient, started: float) -> bytes:
    while True:
        try:
            return await client.screenshot()
        except GuestError as error:
            if time.monotonic() - started > _PATIENCE_S:
                raise ObservationError(f"no screenshot: {error}") from error
            await asyncio.sleep(0.5)
