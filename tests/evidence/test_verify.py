from __future__ import annotations

import json

import pytest

from osworld_rollouts.contracts.evidence import EvaluationRecord
from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.index import read_pointer, write_pointer
from osworld_rollouts.evidence.store import blob_path, put_json
from osworld_rollouts.evidence.verify import heads_of_payloads, verify_execution, verify_sealed
from tests.evidence.exact import exact_execution
from tests.evidence.test_gc import sealed


def test_intact(store):
    made = sealed(store, "camp/a/0/x1")
    report = verify_execution(store, made.head, made.heads)
    assert report.intact, report.problem
    assert (report.execution_id, report.records, report.witnessed, report.ended) == ("camp/a/0/x1", 8, 8, True)
    assert report.history_checked
    assert not verify_execution(store, made.head).history_checked
    assert json.dumps(report.as_json())


@pytest.mark.parametrize("harm", ["gone", "changed"])
def test_a_blob_that_a_record_names(store, harm):
    made = sealed(store, "camp/a/0/x1")
    call = chain.walk(store, made.head)[2]
    path = store.path / blob_path(call.sent)
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[::-1])
    report = verify_execution(store, made.head, made.heads)
    assert not report.intact
    assert (report.problem_index, report.blob_problems[0].field, report.blob_problems[0].sha256) == (
        2,
        "sent",
        call.sent,
    )
    assert ("missing" if harm == "gone" else "corrupt") in report.problem


def test_a_record_that_differs_comes_first(store):
    made = sealed(store, "camp/a/0/x1")
    store.delete_blob(made.heads[3])
    report = verify_execution(store, made.head, made.heads)
    assert (report.intact, report.problem_index) == (False, 3)


def test_every_kind_of_reference_is_looked_at(store):
    made = sealed(store, "camp/a/0/x1")
    names = ("prompt_token_ids", "generated_token_ids", "logprobs", "parsed", "output", "received")
    for name in names:
        other = sealed(store, f"camp/{name.replace('_', '-')}/0/x1")
        assert other
    records = chain.walk(store, made.head)
    from osworld_rollouts.evidence.references import named_blobs

    fields = {field for record in records for field, _ in named_blobs(record)}
    assert fields == {"request", "exchanges", "observation.screenshot", "sent", "media[0]", "received", "log"}
    call = records[2].model_copy(update={name: put_json(store, [name]) for name in names})
    assert {field for field, _ in named_blobs(call)} == {"sent", "media[0]", *names}


def test_heads_of_payloads():
    one, two = "1" * 64, "2" * 64
    payloads = [b'{"head":"%s","x":1}' % one.encode(), b"null", b"not json", b'{"head":"%s"}' % one.encode(), b'[{"head":"x"}]',
                b'{"head":null}', b'{"head":"%s"}' % two.encode()]  # fmt: skip
    assert heads_of_payloads(payloads) == [one, two]


def relinked(store, records):
    """The pointer leads to these records, made to follow each other: what somebody with write access to a store can do."""
    pointer, head = read_pointer(store, "camp/task/0/x1"), None
    for index, record in enumerate(records):
        head = store.put(chain.encode_record(record.model_copy(update={"index": index, "previous": head})))
    write_pointer(store, pointer.model_copy(update={"head": head}))


def scored(record, score):
    return record.model_copy(update={"score": score}) if isinstance(record, EvaluationRecord) else record


@pytest.mark.parametrize("originals", ["there", "gone"])
@pytest.mark.parametrize(
    ("change", "index", "how"),
    [
        (lambda records: records[:4] + records[5:], 4, "model_call"),
        (lambda records: records[:5] + records[4:], 5, "operations"),
        (lambda records: [*records[:4], records[5], records[4], *records[6:]], 4, "model_call"),
        (lambda records: records[:-1], 9, "terminated"),
        (lambda records: [scored(record, 0.0) for record in records], 8, "evaluation"),
    ],
    ids=["dropped", "duplicated", "moved", "end-dropped", "score-changed"],
)
def test_a_chain_that_was_rewritten_and_linked_again(store, change, index, how, originals):
    made = exact_execution(store)
    records = chain.walk(store, made.head)
    assert [record.kind for record in records[2:]] == ["model_call", "operations"] * 3 + ["evaluation", "terminated"]
    assert verify_sealed(store, read_pointer(store, "camp/task/0/x1"), made.heads).intact
    relinked(store, change(records))
    if originals == "gone":
        kept = {name for name, _ in chain.walk_named(store, read_pointer(store, "camp/task/0/x1").head)}
        for head in made.heads:
            if head not in kept:
                store.delete_blob(head)
    chain.forget_cached_records()
    report = verify_sealed(store, read_pointer(store, "camp/task/0/x1"), made.heads)
    assert not report.intact
    if originals == "there":
        assert report.problem_index == index
        assert report.problem.startswith(f"record {index}: ")
        assert f"the history has {how} {made.heads[index]}" in report.problem
        assert (", differing in score" in report.problem) == (how == "evaluation")
    else:
        assert "is missing" in report.problem
        assert f"record {index}: the store's pointer leads to" in report.problem


def test_a_pointer_says_what_its_chain_ends_with(store):
    exact_execution(store)
    exact_execution(store, "camp/task/1/x1", score=0.0)
    pointer = read_pointer(store, "camp/task/0/x1")
    assert verify_sealed(store, pointer).intact
    better = pointer.model_copy(update={"outcome": pointer.outcome.model_copy(update={"score": 0.5})})
    report = verify_sealed(store, better)
    assert "says agent_done, score 0.5; record 9 says agent_done, score 1.0" in report.problem
    other = pointer.model_copy(update={"head": read_pointer(store, "camp/task/1/x1").head})
    assert "leads to the evidence of camp/task/1/x1" in verify_sealed(store, other).problem
    before = chain.read_record(store, pointer.head).previous
    assert "the end was dropped" in verify_sealed(store, pointer.model_copy(update={"head": before})).problem


def test_a_history_that_does_not_know_of_the_sealing_yet_vouches_for_what_it_has(store):
    made = exact_execution(store)
    report = verify_sealed(store, read_pointer(store, "camp/task/0/x1"), made.heads[:-1])
    assert (report.intact, report.ended, report.witnessed) == (True, True, len(made.heads) - 1)
