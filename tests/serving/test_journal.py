from __future__ import annotations

from datetime import UTC, datetime

import pytest

from osworld_rollouts.contracts.model import ModelRequest
from osworld_rollouts.evidence.store import blob_path
from osworld_rollouts.serving.client import RawReply
from osworld_rollouts.serving.errors import ModelCallError
from osworld_rollouts.serving.journal import NO_REPLY, CallKey, Journal, put_request

KEY = CallKey("camp/task/0/x1", 37, 0)


def reply(request_id, body=b'{"choices":[]}'):
    return RawReply(200, body, {"x-request-id": "s"}, 1234, datetime.now(UTC), request_id)


@pytest.fixture
def sent(store):
    return put_request(store, ModelRequest(api="chat_completions", body={"model": "m", "messages": []}))


def test_nothing_known(store, sent):
    found = Journal(store).lookup(KEY, sent)
    assert (found.reply, found.earlier) == (None, ())


def test_a_received_reply_is_used_by_the_next_attempt(store, sent):
    Journal(store).begin(KEY, attempt=1, request_id="a1", sent=sent)
    answered = reply("a1")
    sha256 = Journal(store).received(KEY, answered)
    found = Journal(store).lookup(KEY, sent)
    assert found.reply == answered
    assert found.replied.received == sha256
    assert found.earlier == ()


def test_a_worker_that_died_waiting_may_have_left_a_sample(store, sent):
    journal = Journal(store)
    journal.begin(KEY, attempt=1, request_id="a1", sent=sent)
    (open_attempt,) = journal.lookup(KEY, sent).earlier
    assert (open_attempt.state, open_attempt.note, open_attempt.sample_may_exist) == ("open", NO_REPLY, True)
    journal.begin(KEY, attempt=2, request_id="a2", sent=sent)
    journal.failed(KEY, "a2", ModelCallError("cut", "it broke", sample_may_exist=True, body=b'{"cho'))
    journal.begin(KEY, attempt=3, request_id="a3", sent=sent)
    journal.failed(KEY, "a3", ModelCallError("rate_limited", "slow down", status=429))
    journal.begin(KEY, attempt=4, request_id="a4", sent=sent)
    journal.received(KEY, reply("a4"))
    found = journal.lookup(KEY, sent)
    assert found.reply.request_id == "a4"
    told = [item.as_json() for item in found.earlier]
    assert [(item["activity_attempt"], item["state"], item["sample_may_exist"]) for item in told] == [
        (1, "open", True), (2, "failed", True), (3, "failed", False),
    ]  # fmt: skip
    assert store.get(told[1]["received"]) == b'{"cho'


def test_a_reply_to_another_prompt_is_not_an_answer(store, sent):
    journal = Journal(store)
    journal.begin(KEY, attempt=1, request_id="a1", sent=sent)
    journal.received(KEY, reply("a1"))
    other = put_request(store, ModelRequest(api="chat_completions", body={"model": "m", "messages": [{}]}))
    found = journal.lookup(KEY, other)
    assert found.reply is None
    assert [item.state for item in found.earlier] == ["replied"]


def test_a_reply_whose_bytes_are_gone_is_not_an_answer(store, sent):
    journal = Journal(store)
    journal.begin(KEY, attempt=1, request_id="a1", sent=sent)
    sha256 = journal.received(KEY, reply("a1", b'{"choices":[1]}'))
    (store.path / blob_path(sha256)).write_bytes(b"rotten")
    assert journal.lookup(KEY, sent).reply is None
    store.delete_blob(sha256)
    assert journal.lookup(KEY, sent).reply is None


def test_a_request_id_is_used_once(store, sent):
    Journal(store).begin(KEY, attempt=1, request_id="a1", sent=sent)
    with pytest.raises(ValueError, match="fresh"):
        Journal(store).begin(KEY, attempt=2, request_id="a1", sent=sent)


def test_calls_do_not_mix(store, sent):
    journal = Journal(store)
    for key in (
        CallKey("camp/task/0/x1", 3, 7),
        CallKey("camp/task/0/x1", 37, 1),
        CallKey("camp/task/0/x10", 37, 0),
        CallKey("camp/task/0", 37, 0),
    ):
        journal.begin(key, attempt=1, request_id="a1", sent=sent)
    assert journal.attempts(KEY) == []
    assert len(list(journal.keys("camp/task/0/x1"))) == 2


def test_the_order_of_keys_is_part_of_what_was_sent(store):
    one = put_request(store, ModelRequest(api="chat_completions", body={"tools": {"b": 1, "a": 2}}))
    two = put_request(store, ModelRequest(api="chat_completions", body={"tools": {"a": 2, "b": 1}}))
    assert one != two
