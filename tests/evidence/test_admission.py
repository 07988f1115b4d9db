from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from osworld_rollouts.contracts.outcome import OutcomeKind
from osworld_rollouts.evidence import admission, chain
from osworld_rollouts.evidence.admission import Expected, admit_rollout
from osworld_rollouts.evidence.export.rows import call_rows, read_execution, rollout_row
from osworld_rollouts.evidence.index import read_pointer
from osworld_rollouts.evidence.store import blob_path, put_json
from tests.evidence.exact import END, IMAGE, exact_execution


def exported(store, execution_id="camp/task/0/x1"):
    execution = read_execution(store, read_pointer(store, execution_id))
    return rollout_row([execution]), list(call_rows(store, execution, final=True))


def judge(store, execution_id="camp/task/0/x1", **kwargs):
    rollout, calls = exported(store, execution_id)
    return admit_rollout(rollout, calls, store.get, **kwargs)


def reasons_of(report):
    return [reason for call in report.calls for reason in call.reasons]


def test_clean(store):
    exact_execution(store, turns=4, rewrite_at=2, rejected_at=1)
    report = judge(store)
    assert (report.intact, report.eligible, report.reasons) == (True, True, ())
    assert [call.eligible for call in report.calls] == [True] * 5, "a rejected call is a sample of the policy too"
    assert [call.extends_previous for call in report.calls] == [False, True, False, False, True]
    assert report.calls[0].span == (10, 13)
    assert report.calls[0].generated_ids == (20, 30, END)
    assert report.eligible_tokens == 15


def test_it_shares_no_code_with_the_recorder():
    tree = ast.parse(Path(admission.__file__).read_text())
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert not [name for name in names if name.startswith("osworld_rollouts")]
    assert set(names) <= {"__future__", "hashlib", "json", "math", "collections.abc", "dataclasses", "typing"}


def test_masked_and_unscored(store):
    exact_execution(store, score=None, kind=OutcomeKind.DESKTOP_LOST, eligible=False)
    report = judge(store)
    assert (report.intact, report.eligible) == (True, False)
    assert report.reasons == ("runtime admission: desktop_lost", "there is no score")
    assert report.eligible_tokens == 0
    assert all(call.reasons[0] == "the rollout is not admitted" for call in report.calls)


def test_semantic_evidence_gives_no_tokens(store):
    exact_execution(store, evidence="semantic")
    report = judge(store)
    assert report.intact
    assert report.eligible_tokens == 0
    assert "semantic" in reasons_of(report)[0]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda body: body["choices"][0].update(token_ids=None), "generated_token_ids: the server's reply has none"),
        (lambda body: body.update(prompt_token_ids=None), "prompt_token_ids: the server's reply has none"),
        (lambda body: body["choices"][0]["logprobs"]["content"].pop(), "ids, 2 log probabilities"),
        (
            lambda body: body["choices"][0]["logprobs"]["content"][0].update(logprob=-9999.0),
            "a log probability is impossible",
        ),
        (lambda body: body["choices"].append(body["choices"][0]), "several samples"),
        (lambda body: body["usage"].update(completion_tokens=9), "usage says 9"),
        (lambda body: body["choices"][0].update(token_ids=[5, IMAGE, END]), "a vision id was generated"),
        (
            lambda body: body.update(prompt_token_ids=[item for item in body["prompt_token_ids"] if item != IMAGE]),
            "image runs of []",
        ),
        (lambda body: body.update(model="other"), "violations: served_model_differs"),
    ],
)
def test_a_spoilt_call_is_refused_and_the_others_are_not(store, spoil, reason):
    def change(turn, raw):
        body = json.loads(raw)
        if turn == 1:
            spoil(body)
        return json.dumps(body).encode()

    exact_execution(store, change=change)
    report = judge(store)
    assert report.intact
    assert [call.eligible for call in report.calls] == [True, False, True]
    assert any(reason in item for item in report.calls[1].reasons), report.calls[1].reasons


def rows_changed(rollout, calls, what):
    if what == "id":
        calls[1]["generated_token_ids"][0] += 1
    elif what == "logprob":
        calls[1]["logprobs"][0] += 1e-9
    elif what == "prompt":
        calls[1]["prompt_token_ids"].insert(3, 5)
    elif what == "extends":
        calls[1]["extends_previous"] = False


@pytest.mark.parametrize("what", ["id", "logprob", "prompt", "extends"])
def test_a_row_that_differs_from_the_server_s_bytes(store, what):
    exact_execution(store)
    rollout, calls = exported(store)
    rows_changed(rollout, calls, what)
    report = admit_rollout(rollout, calls, store.get)
    assert [call.eligible for call in report.calls] == [True, False, True]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reward", 0.5),
        ("runtime_eligible", False),
        ("mask_sample", True),
        ("rollout_id", "x"),
        ("request_digest", "0" * 64),
        ("campaign_id", "x"),
    ],
)
def test_a_rollout_row_that_differs_from_the_evidence(store, field, value):
    exact_execution(store)
    rollout, calls = exported(store)
    report = admit_rollout({**rollout, field: value}, calls, store.get)
    assert not report.intact
    assert field in report.reasons[0]
    assert report.eligible_tokens == 0


def test_dropped_doubled_and_moved_rows(store):
    exact_execution(store)
    rollout, calls = exported(store)
    for rows in (calls[:-1], [calls[0], *calls], calls[::-1]):
        report = admit_rollout(rollout, rows, store.get)
        assert not report.intact
        assert "rows are not the 3 model calls" in report.reasons[0]


def test_records_that_are_gone_changed_or_of_another_execution(store):
    made, other = exact_execution(store), exact_execution(store, "camp/task/1/x1")
    rollout, calls = exported(store)
    head = rollout["head"]
    assert not admit_rollout({**rollout, "head": other.head}, calls, store.get).intact
    assert not admit_rollout({**rollout, "head": made.heads[-2]}, calls, store.get).intact

    def lying(sha256):
        data = store.get(sha256)
        return data.replace(b'"turn":1', b'"turn":2') if sha256 == made.heads[4] else data

    report = admit_rollout(rollout, calls, lying)
    assert not report.intact
    assert "other bytes" in report.reasons[-1]
    (store.path / blob_path(head)).unlink()
    assert "cannot be had" in admit_rollout(rollout, calls, store.get).reasons[-1]


def test_a_chain_that_was_rewritten_with_a_better_score(store):
    made = exact_execution(store, score=0.0)
    records = chain.walk(store, made.head)
    end = records[-1].model_copy(update={"outcome": records[-1].outcome.model_copy(update={"score": 1.0})})
    head = store.put(chain.encode_record(end))
    rollout, calls = exported(store)
    report = admit_rollout({**rollout, "head": head, "reward": 1.0}, calls, store.get)
    assert not report.intact
    assert "is not the evaluator's" in report.reasons[0]


def test_arrays_that_differ_from_the_raw_reply(store):
    made = exact_execution(store)
    head = None
    for record in chain.walk(store, made.head):
        update = {"previous": head}
        if record.kind == "model_call" and record.turn == 0:
            update["generated_token_ids"] = put_json(store, [99, 30, END])
        head = store.put(chain.encode_record(record.model_copy(update=update)))
    from osworld_rollouts.evidence.index import write_pointer

    write_pointer(store, read_pointer(store, "camp/task/0/x1").model_copy(update={"head": head}))
    report = judge(store)
    assert report.intact
    assert any("the record differs from the server's reply" in item for item in report.calls[0].reasons)


def test_what_the_consumer_expects(store):
    exact_execution(store)
    rollout, _ = exported(store)
    good = Expected(
        rollout_id="camp/task/0", execution_id="camp/task/0/x1", request_digest=rollout["request_digest"], model="m"
    )
    assert judge(store, expected=good).eligible
    for wrong in (
        Expected(rollout_id="x"),
        Expected(execution_id="x"),
        Expected(request_digest="x"),
        Expected(model="x"),
    ):
        report = judge(store, expected=wrong)
        assert not report.intact
        assert "expected 'x'" in report.reasons[0]
