"""The ledger by itself: what is admitted, what is refused, what survives a restart."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from osworld_rollouts.guest.ledger import Ledger
from osworld_rollouts.guest.wire import ApiError


@pytest.fixture
def ledger(tmp_path):
    opened = Ledger(tmp_path)
    yield opened
    opened.close()


def admit(ledger, name="a", seq=0, fence=1, request="POST /execute", digest="d"):
    return ledger.admit(name, seq, fence, request, digest)


def restart(ledger, path):
    ledger.close()
    return Ledger(path)


def test_first_is_new_and_repeat_is_not(ledger):
    operation, fresh = admit(ledger)
    assert fresh
    again, fresh = admit(ledger)
    assert not fresh
    assert again is operation


def test_result_is_kept_over_a_restart(ledger, tmp_path):
    operation, _ = admit(ledger)
    ledger.finish(operation, 200, "application/json", b'{"output": "caf\\u00e9\\n\\n"}')
    reopened = restart(ledger, tmp_path)
    again, fresh = admit(reopened)
    assert not fresh
    assert (again.state, again.status) == ("finished", 200)
    assert reopened.body(again) == b'{"output": "caf\\u00e9\\n\\n"}'


def test_begun_and_not_ended_is_interrupted_after_a_restart(ledger, tmp_path):
    admit(ledger)
    reopened = restart(ledger, tmp_path)
    again, fresh = admit(reopened)
    assert not fresh
    assert again.state == "interrupted"


@pytest.mark.parametrize("seq", [3, 4, 5])
def test_older_or_equal_sequence_is_refused(ledger, tmp_path, seq):
    admit(ledger, "a", 5)
    reopened = restart(ledger, tmp_path)
    with pytest.raises(ApiError) as refused:
        admit(reopened, "b", seq)
    assert (refused.value.status, refused.value.kind) == (409, "stale_sequence")
    assert reopened.get("b") is None


def test_older_fence_is_refused_even_for_a_known_operation(ledger, tmp_path):
    admit(ledger, "a", 0, fence=2)
    reopened = restart(ledger, tmp_path)
    for name in ("a", "b"):
        with pytest.raises(ApiError) as refused:
            admit(reopened, name, 1, fence=1)
        assert refused.value.kind == "stale_fence"


def test_newer_fence_takes_over(ledger, tmp_path):
    admit(ledger, "a", 0, fence=1)
    admit(ledger, "b", 1, fence=7)
    assert restart(ledger, tmp_path).fence == 7


def test_an_id_belongs_to_one_request(ledger):
    admit(ledger, digest="click")
    for change in ({"digest": "type"}, {"request": "POST /setup/launch"}):
        with pytest.raises(ApiError) as refused:
            admit(ledger, **change)
        assert refused.value.kind == "operation_mismatch"


def test_nothing_is_admitted_when_the_entry_cannot_be_kept(ledger, monkeypatch, tmp_path):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ApiError) as refused:
        admit(ledger)
    assert (refused.value.status, refused.value.kind) == (507, "ledger_unavailable")
    monkeypatch.undo()
    assert ledger.get("a") is None
    assert admit(ledger)[1]


def test_a_result_that_cannot_be_kept_is_not_called_finished(ledger, monkeypatch):
    operation, _ = admit(ledger)

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ApiError):
        ledger.finish(operation, 200, "text/plain", b"done")
    assert operation.state == "interrupted"


def test_torn_entry_stays_taken(ledger, tmp_path):
    operation, _ = admit(ledger, "a", 3)
    path = tmp_path / "ops" / f"{operation.file_name}.json"
    path.write_bytes(path.read_bytes()[:20])
    reopened = restart(ledger, tmp_path)
    with pytest.raises(ApiError) as refused:
        admit(reopened, "a", 4)
    assert refused.value.kind == "operation_interrupted"


def test_two_at_once_are_performed_once(ledger):
    start = threading.Barrier(8)
    fresh = []

    def attempt():
        start.wait()
        fresh.append(admit(ledger)[1])

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(fresh) == [False] * 7 + [True]


def test_one_server_at_a_time(ledger, tmp_path):
    with pytest.raises(BlockingIOError):
        Ledger(tmp_path)
