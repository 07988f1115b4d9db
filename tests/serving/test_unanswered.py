"""Calls that no reply was used of get their record before the end: unit level. With a real system: tests/e2e."""

from __future__ import annotations

import json

import pytest
from pydantic_core import to_jsonable_python

from osworld_rollouts.contracts.evidence import ModelCallRecord
from osworld_rollouts.contracts.model import ModelRequest
from osworld_rollouts.contracts.steps import HistoryWindow
from osworld_rollouts.evidence import chain, transcript
from osworld_rollouts.evidence.export.rows import call_rows, read_execution, rollout_row
from osworld_rollouts.evidence.index import read_pointer
from osworld_rollouts.evidence.media import put_screenshot
from osworld_rollouts.evidence.verify import verify_execution
from osworld_rollouts.serving.client import RawReply
from osworld_rollouts.serving.errors import ModelCallError
from osworld_rollouts.serving.journal import CallKey, Journal, put_request
from osworld_rollouts.serving.unanswered import NOT_WRITTEN_DOWN, record_unanswered
from tests.evidence.builders import Chain, png
from tests.evidence.exact import exact_execution

EXECUTION = "camp/task/0/x1"


@pytest.fixture
def made(store):
    begun = Chain(store, EXECUTION)
    begun.start()
    begun.prepare(put_screenshot(store, png()))
    begun.call(0)
    Journal(store).begin(CallKey(EXECUTION, 0, 0), attempt=1, request_id="r0-0", sent="0" * 64)
    Journal(store).received(CallKey(EXECUTION, 0, 0), RawReply(200, b'{"a":1}', request_id="r0-0"))
    begun.operate(0, put_screenshot(store, png()))
    return begun


def begin(store, *, attempt, request_id, known=True):
    shot = put_screenshot(store, png())
    request = ModelRequest(api="chat_completions", body={"model": "m", "messages": [], "top_p": 0.5}, media=(shot,))
    facts = {
        "api": "responses", "evidence": "exact", "window": HistoryWindow(epoch=2), "media": (shot,), "sampling": {"top_p": 0.5},
        "missing": ("sampling.seed: not sent",),
    }  # fmt: skip
    Journal(store).begin(
        CallKey(EXECUTION, 1, 0), attempt=attempt, request_id=request_id, sent=put_request(store, request),
        call=to_jsonable_python(facts) if known else None,
    )  # fmt: skip


def test_nothing_is_added_where_every_call_has_its_record(store, made):
    assert record_unanswered(store, chain.walk(store, made.head), made.head) == made.head


def test_every_attempt_of_a_call_that_failed_for_good_is_told(store, made):
    key, journal = CallKey(EXECUTION, 1, 0), Journal(store)
    begin(store, attempt=1, request_id="a1")
    journal.failed(key, "a1", ModelCallError("timeout", "no whole reply", sample_may_exist=True, body=b'{"cho'))
    begin(store, attempt=2, request_id="a2")
    begin(store, attempt=3, request_id="a3")
    journal.failed(key, "a3", ModelCallError("server_error", "it answered 503", status=503, sample_may_exist=True))
    begin(store, attempt=4, request_id="a4")
    journal.failed(key, "a4", ModelCallError("unreachable", "nobody there"))
    head = record_unanswered(store, chain.walk(store, made.head), made.head, "whatever")
    record = chain.read_record(store, head)
    assert isinstance(record, ModelCallRecord)
    assert (record.turn, record.call, record.previous, record.index) == (1, 0, made.head, 4)
    assert (record.request_id, record.activity_attempt, record.received) == ("a4", 4, None)
    assert (record.error, record.status) == ("nobody there", None)
    assert (record.api, record.evidence, record.window.epoch, record.sampling) == (
        "responses",
        "exact",
        2,
        {"top_p": 0.5},
    )
    assert (len(record.media), record.missing) == (1, ("sampling.seed: not sent",))
    told = [
        (item["request_id"], item["state"], item["kind"], item["sample_may_exist"]) for item in record.earlier_attempts
    ]
    assert told == [
        ("a1", "failed", "timeout", True), ("a2", "open", "", True), ("a3", "failed", "server_error", True),
        ("a4", "failed", "unreachable", False),
    ]  # fmt: skip
    records = chain.walk(store, head)
    assert transcript.unseen_samples(records) == 3
    assert transcript.is_unanswered(record)
    report = verify_execution(store, head, [*made.heads, head])
    assert (report.intact, report.unanswered_calls, report.unseen_samples) == (True, 1, 3)
    store.delete_blob(str(record.earlier_attempts[0]["received"]))
    assert not verify_execution(store, head).intact


def test_a_reply_that_came_and_was_not_used_is_kept_and_told(store, made):
    begin(store, attempt=1, request_id="a1")
    sha256 = Journal(store).received(CallKey(EXECUTION, 1, 0), RawReply(200, b'{"no":"reply"}', request_id="a1"))
    head = record_unanswered(store, chain.walk(store, made.head), made.head, "no choices in it")
    record = chain.read_record(store, head)
    assert isinstance(record, ModelCallRecord)
    assert record.error == "reply received, and it was not used; the execution ended: no choices in it"
    assert record.earlier_attempts[0]["received"] == sha256
    assert transcript.unseen_samples([record]) == 0


def test_a_call_that_was_cut_off_may_have_left_a_sample(store, made):
    begin(store, attempt=1, request_id="a1", known=False)
    head = record_unanswered(store, chain.walk(store, made.head), made.head, "cancelled on request")
    record = chain.read_record(store, head)
    assert isinstance(record, ModelCallRecord)
    assert record.error == "no reply recorded: a sample may exist; the execution ended: cancelled on request"
    assert record.missing == (NOT_WRITTEN_DOWN,)
    assert transcript.unseen_samples([record]) == 1


def test_an_export_tells_it(store, tmp_path):
    exact_execution(store, EXECUTION, turns=1, score=None, eligible=False)
    records = chain.walk(store, read_pointer(store, EXECUTION).head)[:-1]
    begin(store, attempt=1, request_id="a1")
    Journal(store).failed(
        CallKey(EXECUTION, 1, 0), "a1", ModelCallError("timeout", "no whole reply", sample_may_exist=True)
    )
    pointer = read_pointer(store, EXECUTION)
    ended = chain.read_record(store, pointer.head)
    last = record_unanswered(store, records, str(ended.previous))
    head = chain.append(store, last, ended.model_copy(update={"previous": last, "index": ended.index + 1}))
    execution = read_execution(store, pointer.model_copy(update={"head": head}))
    answered, unanswered = call_rows(store, execution, final=True)
    assert (answered["error"], answered["unseen_samples"], answered["attempts"]) == (None, 0, "[]")
    assert (unanswered["received_sha256"], unanswered["error"]) == (None, "no whole reply")
    assert (unanswered["earlier_attempts"], unanswered["unseen_samples"], unanswered["accepted"]) == (1, 1, False)
    assert json.loads(unanswered["attempts"])[0]["request_id"] == "a1"
    row = rollout_row([execution])
    assert (row["turns"], row["model_calls"], row["unanswered_calls"], row["unseen_samples"]) == (1, 2, 1, 1)
