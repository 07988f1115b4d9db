"""The exact record of an execution: content addressed, hash chained, provable by whoever holds the Temporal history."""

from __future__ import annotations

from osworld_rollouts.evidence.store import EvidenceStore, open_store

__all__ = ["EvidenceStore", "open_store"]
