from __future__ import annotations

import pytest

from osworld_rollouts.contracts.outcome import Outcome, OutcomeKind
from osworld_rollouts.evidence.errors import RecordUnreadable
from osworld_rollouts.evidence.index import ExecutionPointer, execution_key, list_pointers, read_pointer, write_pointer
from tests.evidence.builders import START, ZERO


def pointer(execution_id, campaign="camp"):
    rollout, _, number = execution_id.rpartition("/x")
    return ExecutionPointer(
        execution_id=execution_id, rollout_id=rollout, number=int(number), campaign_id=campaign, head=ZERO,
        outcome=Outcome(kind=OutcomeKind.AGENT_DONE), sealed_at=START,
    )  # fmt: skip


def test_found_by_execution_rollout_and_campaign(store):
    ids = ["camp/a/0/x1", "camp/a/0/x2", "camp/a/1/x1", "other/x1", "camp/a/x1"]
    for number, name in enumerate(ids):
        write_pointer(store, pointer(name, "other" if name.startswith("other") else "camp"))
        assert read_pointer(store, name).number == int(name[-1]), number
    assert {item.execution_id for item in list_pointers(store)} == set(ids)
    assert {item.execution_id for item in list_pointers(store, campaign_id="other")} == {"other/x1"}
    assert {item.execution_id for item in list_pointers(store, rollout_id="camp/a/0")} == {"camp/a/0/x1", "camp/a/0/x2"}
    assert {item.execution_id for item in list_pointers(store, rollout_id="camp/a")} == {"camp/a/x1"}
    assert read_pointer(store, "camp/z/x1") is None


def test_rollouts_named_to_clash(store):
    for name in ("a/x1", "a/x1/x1", "a/x1.json/x1", "a/_e/x1".replace("_", "u"), f"{'n' * 390}/x1"):
        write_pointer(store, pointer(name))
    assert len(list(list_pointers(store))) == 5


def test_not_a_pointer(store):
    store.put_named(execution_key("a/x1"), b"{}")
    with pytest.raises(RecordUnreadable, match="no execution pointer"):
        read_pointer(store, "a/x1")
    with pytest.raises(ValueError, match="not an execution id"):
        read_pointer(store, "a")
