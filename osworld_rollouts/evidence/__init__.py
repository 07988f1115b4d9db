"""The exact record of an execution: content addressed, hash chained, provable by whoever holds the Temporal history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from osworld_rollouts.evidence.store import EvidenceStore, open_store

if TYPE_CHECKING:
    from pathlib import Path

    from osworld_rollouts.evidence.loader import Campaign

__all__ = ["EvidenceStore", "open_campaign", "open_store"]


def open_campaign(path: Path | str) -> Campaign:
    """An export made by `rollouts export`: iterates verified rollouts. See `osworld_rollouts.evidence.loader`."""
    from osworld_rollouts.evidence.loader import open_campaign as open_it  # noqa: PLC0415 - keeps this package light to import

    return open_it(path)
