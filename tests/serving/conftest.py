from __future__ import annotations

from tests.evidence.conftest import store, tiny, wire

__all__ = ["store", "tiny", "wire"]
