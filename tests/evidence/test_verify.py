from __future__ import annotations

import json

import pytest

from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.store import blob_path, put_json
from osworld_rollouts.evidence.verify import heads_of_payloads, verify_execution
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
