"""The client that fits a desktop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from osworld_rollouts.desktops.guest_client import GuestClient
from osworld_rollouts.desktops.stock_guest import StockGuestClient

if TYPE_CHECKING:
    from osworld_rollouts.desktops._provider import DesktopRecord


def guest_client(record: DesktopRecord) -> GuestClient:
    """A client of the desktop in `record`, whose effects happen at most once by whichever ledger it has."""
    return (StockGuestClient if record.endpoints.ledger == "stock" else GuestClient).of(record)
