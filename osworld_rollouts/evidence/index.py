"""Finding executions without Temporal: one named pointer for each, written when it is sealed."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field, ValidationError

from osworld_rollouts.contracts._base import Contract, canonical_json
from osworld_rollouts.contracts.identity import Sha256, split_execution_id
from osworld_rollouts.contracts.outcome import Outcome
from osworld_rollouts.evidence.errors import RecordUnreadable
from osworld_rollouts.evidence.store import EvidenceStore, key_segments

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT: Final = "executions"
_LEAF: Final = (
    "_execution.json"  # no part of an id starts with an underscore, so a pointer never stands where a folder must
)


class ExecutionPointer(Contract):
    """Where a sealed execution's evidence begins, and what a list of executions shows."""

    schema_version: Literal[1] = 1
    execution_id: str
    rollout_id: str
    number: int
    campaign_id: str
    task_id: str = ""
    request_digest: str = ""
    workflow_id: str = ""
    run_id: str = ""
    head: Sha256
    outcome: Outcome
    sealed_at: datetime = Field(description="when the pointer was last written")


def execution_key(execution_id: str) -> str:
    """The pointer's key. Raises ValueError for what is no execution id."""
    split_execution_id(execution_id)
    return f"{_ROOT}/{key_segments(execution_id)}/{_LEAF}"


def write_pointer(store: EvidenceStore, pointer: ExecutionPointer) -> None:
    """Write (or replace) an execution's pointer."""
    store.put_named(execution_key(pointer.execution_id), canonical_json(pointer.model_dump(mode="json")))


def read_pointer(store: EvidenceStore, execution_id: str) -> ExecutionPointer | None:
    """An execution's pointer, or None when it was not sealed into this store.

    Raises:
        RecordUnreadable: what stands there is no pointer.
    """
    return _decode(execution_key(execution_id), store.get_named(execution_key(execution_id)))


def list_pointers(
    store: EvidenceStore, *, campaign_id: str | None = None, rollout_id: str | None = None
) -> Iterator[ExecutionPointer]:
    """Pointers of all sealed executions, or of one campaign or rollout, in no particular order."""
    prefix = f"{_ROOT}/{key_segments(rollout_id)}" if rollout_id else _ROOT
    for key in store.list_named(prefix):
        if not key.endswith(f"/{_LEAF}"):
            continue
        pointer = _decode(key, store.get_named(key))
        if pointer is None or (campaign_id is not None and pointer.campaign_id != campaign_id):
            continue
        if rollout_id is None or pointer.rollout_id == rollout_id:
            yield pointer


def _decode(key: str, data: bytes | None) -> ExecutionPointer | None:
    if data is None:
        return None
    try:
        return ExecutionPointer.model_validate_json(data)
    except ValidationError as error:
        raise RecordUnreadable(key, f"no execution pointer: {error.errors(include_url=False)[0]['msg']}") from error
