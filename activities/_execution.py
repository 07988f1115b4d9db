"""What an activity needs to know of its execution, read from the chain: request, adapter's needs, place of the next record."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from osworld_rollouts.adapters.registry import load_adapter
from osworld_rollouts.contracts.request import RolloutRequest
from osworld_rollouts.evidence import chain, transcript

if TYPE_CHECKING:
    from osworld_rollouts.contracts.evidence import ExecutionStarted
    from osworld_rollouts.contracts.model import ObservationNeeds
    from osworld_rollouts.evidence.store import EvidenceStore


@dataclass(frozen=True)
class ExecutionFacts:
    """One execution, seen from the head of its chain."""

    started: ExecutionStarted
    request: RolloutRequest
    needs: ObservationNeeds
    head: str
    next_index: int

    def place(self, execution_id: str) -> dict[str, Any]:
        """Fields that put a record at the end of the chain."""
        return {"execution_id": execution_id, "index": self.next_index, "previous": self.head}


class Executions:
    """Reads execution facts. Blocks; run it in a thread."""

    def __init__(self, store: EvidenceStore) -> None:
        self._store = store
        self._request = functools.lru_cache(maxsize=256)(self._read)

    def at(self, head: str) -> ExecutionFacts:
        """Facts of the execution whose chain ends in `head`. Raises EvidenceError."""
        records = chain.walk(self._store, head)
        started = transcript.started(records)
        request = self._request(started.request)
        adapter = load_adapter(request.rollout.adapter.name, dict(request.rollout.adapter.options))
        return ExecutionFacts(started, request, adapter.needs(), head, records[-1].index + 1)

    def _read(self, sha256: str) -> RolloutRequest:
        return RolloutRequest.model_validate_json(self._store.get(sha256))
