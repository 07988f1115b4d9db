from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osworld_rollouts.contracts.evidence import ModelCallRecord, Terminated
from osworld_rollouts.contracts.outcome import Outcome, OutcomeKind
from osworld_rollouts.contracts.steps import HistoryWindow
from osworld_rollouts.evidence import chain, open_store
from osworld_rollouts.evidence.errors import BlobCorrupt, BlobMissing, ChainBroken, RecordUnreadable
from osworld_rollouts.evidence.packing import pack
from osworld_rollouts.evidence.store import blob_path
from tests.evidence.builders import EXECUTION, START, ZERO, Chain


def built(store, turns=4) -> Chain:
    made = Chain(store)
    made.start()
    made.prepare()
    for turn in range(turns):
        made.call(turn)
        made.operate(turn)
    made.evaluate()
    made.end()
    return made


def call(index, previous, execution=EXECUTION):
    return ModelCallRecord(
        execution_id=execution, index=index, previous=previous, recorded_at=START, turn=0, call=0, activity_attempt=1, request_id="r",
        window=HistoryWindow(), sent=ZERO, received=None,
    )  # fmt: skip


def test_walk_is_oldest_first_and_the_same_from_memory_and_disk(store):
    made = built(store)
    warm = chain.walk(store, made.head)
    chain.forget_cached_records()
    cold = chain.walk(store, made.head)
    assert warm == cold
    assert [record.index for record in cold] == list(range(12))
    assert [name for name, _ in chain.walk_named(store, made.head)] == made.heads
    assert chain.next_index(store, made.head) == 12
    assert chain.next_index(store, None) == 0


def test_appending_again_gives_the_same_head(store):
    made = Chain(store)
    made.start()
    record = call(1, made.head)
    assert chain.append(store, made.head, record) == chain.append(store, made.head, record)


def test_what_does_not_fit_is_refused(store):
    made = Chain(store)
    made.start()
    for record, message in (
        (call(1, ZERO), "names 0000"),
        (call(2, made.head), "expected index 1"),
        (call(1, made.head, "camp/task/0/x2"), "of execution camp/task/0/x2"),
    ):
        with pytest.raises(ChainBroken, match=message):
            chain.append(store, made.head, record)
    with pytest.raises(ChainBroken, match="starts with record 0"):
        chain.append(store, None, call(0, None))
    made.end()
    with pytest.raises(ChainBroken, match="after the end"):
        chain.append(store, made.head, call(2, made.head))


def test_intact(store):
    made = built(store)
    report = chain.verify_chain(store, made.head, made.heads)
    assert report.intact, report.problem
    assert report.witnessed == 12
    assert report.records == tuple(made.heads)
    assert report.kinds["model_call"] == 4


def test_heads_of_a_history_may_repeat_and_may_skip(store):
    made = built(store)
    assert chain.verify_chain(store, made.head, [made.heads[0], made.heads[0], made.heads[5], made.head]).intact


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changed_byte_of_any_record_is_found(tmp_path_factory, data):
    store = open_store(tmp_path_factory.mktemp("chain"))
    made = built(store, turns=2)
    victim = data.draw(st.sampled_from(made.heads))
    path = store.path / blob_path(victim)
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(raw))
    report = chain.verify_chain(store, made.head, made.heads)
    content = chain.encode_record(chain.walk(store, made.head)[made.heads.index(victim)])  # from memory: what it was
    try:
        unharmed = store.get(victim) == content
    except BlobCorrupt:
        unharmed = False
    assert report.intact is unharmed
    if not unharmed:
        assert report.problem_sha256 == victim
        assert report.problem_index in {made.heads.index(victim), None}


def rewrite(store, made, order):
    """A chain rewritten by somebody clever: the given records, indices and hashes put right."""
    records = chain.walk(store, made.head)
    head = None
    for index, at in enumerate(order):
        record = records[at].model_copy(update={"index": index, "previous": head})
        head = store.put(chain.encode_record(record))
    return head


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_dropped_duplicated_and_moved_records_are_found_by_the_history(tmp_path_factory, data):
    store = open_store(tmp_path_factory.mktemp("chain"))
    made = built(store, turns=3)
    size = len(made.heads)
    kind = data.draw(st.sampled_from(["drop", "duplicate", "swap", "truncate"]))
    order = list(range(size))
    at = data.draw(st.integers(1, size - 2))
    if kind == "drop":
        del order[at]
    elif kind == "duplicate":
        order.insert(at, order[at])
    elif kind == "swap":
        other = data.draw(st.integers(1, size - 2).filter(lambda value: value != at))
        order[at], order[other] = order[other], order[at]
    else:
        del order[at:]
    head = rewrite(store, made, order)
    report = chain.verify_chain(store, head, made.heads)
    assert not report.intact
    assert "Temporal history" in report.problem
    # and with the head the history names, the rewritten records are not even looked at
    assert chain.verify_chain(store, made.head, made.heads).intact


def test_links_that_were_not_put_right_are_found_without_a_history(store):
    made = built(store)
    records = chain.walk(store, made.head)
    forged = records[-1].model_copy(update={"previous": made.heads[4]})
    head = store.put(chain.encode_record(forged))
    report = chain.verify_chain(store, head)
    assert not report.intact
    assert "expected index" in report.problem


def test_a_record_that_is_gone(store):
    made = built(store)
    store.delete_blob(made.heads[3])
    chain.forget_cached_records()
    report = chain.verify_chain(store, made.head)
    assert (report.intact, report.problem_index, report.problem_sha256) == (False, 3, made.heads[3])
    assert "missing" in report.problem
    with pytest.raises(BlobMissing):
        chain.walk(store, made.head)


def test_the_history_of_another_execution(store):
    made = built(store)
    other = Chain(store, "camp/task/1/x1")
    other.start()
    report = chain.verify_chain(store, made.head, [*made.heads, other.head])
    assert not report.intact
    assert other.head in report.problem


def test_a_history_in_another_order(store):
    made = built(store)
    report = chain.verify_chain(store, made.head, [made.heads[3], made.heads[2]])
    assert not report.intact
    assert "moved" in report.problem


def test_a_record_of_a_schema_nobody_knows(store):
    made = built(store)
    value = json.loads(store.get(made.head))
    sha256 = store.put(json.dumps({**value, "schema_version": 99}).encode())
    with pytest.raises(RecordUnreadable, match="schema_version"):
        chain.read_record(store, sha256)
    assert "not a record" in chain.verify_chain(store, sha256).problem


def test_a_blob_replaced_by_another_valid_one(store):
    made = built(store)
    (store.path / blob_path(made.heads[2])).write_bytes(pack(store.get(made.heads[3])))
    assert not chain.verify_chain(store, made.head).intact


def test_last(store):
    made = built(store)
    records = chain.walk(store, made.head)
    assert chain.last(records, ModelCallRecord).turn == 3
    assert isinstance(chain.last(records, Terminated), Terminated)
    assert chain.last(records[:2], ModelCallRecord) is None


def test_outcome_round_trips(store):
    made = Chain(store)
    made.start()
    record = made.add(Terminated, outcome=Outcome(kind=OutcomeKind.DESKTOP_LOST))
    chain.forget_cached_records()
    assert chain.read_record(store, made.head) == record
