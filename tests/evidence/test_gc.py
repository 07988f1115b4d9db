from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import pytest

from osworld_rollouts.contracts.outcome import Outcome, OutcomeKind
from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.gc import UnsafeToCollect, collect, stats
from osworld_rollouts.evidence.index import ExecutionPointer, read_pointer, write_pointer
from osworld_rollouts.evidence.media import put_screenshot
from osworld_rollouts.evidence.store import blob_path
from osworld_rollouts.evidence.verify import verify_execution
from osworld_rollouts.serving.client import RawReply
from osworld_rollouts.serving.journal import CallKey, Journal
from tests.evidence.builders import START, Chain, png

LATER = datetime.now(UTC) + timedelta(days=30)


def sealed(store, execution_id, campaign="camp", mark=1):
    made = Chain(store, execution_id)
    made.start(campaign_id=campaign)
    shot = put_screenshot(store, png(mark=mark))
    made.prepare(shot)
    for turn in range(2):
        made.call(turn, media=(shot,), sent=store.put(f'{{"turn":{turn},"of":"{execution_id}"}}'.encode()))
        made.operate(turn, shot)
    made.evaluate()
    made.end()
    rollout, _, number = execution_id.rpartition("/x")
    write_pointer(
        store,
        ExecutionPointer(
            execution_id=execution_id, rollout_id=rollout, number=int(number), campaign_id=campaign, head=made.head,
            outcome=Outcome(kind=OutcomeKind.AGENT_DONE), sealed_at=START,
        ),
    )  # fmt: skip
    return made


def test_only_what_no_kept_execution_reaches_goes_and_only_when_asked(store):
    kept, dropped = sealed(store, "camp/a/0/x1"), sealed(store, "old/a/0/x1", "old", mark=20)
    orphan = store.put(b"nobody names this")
    before = {item.name for item in store.blobs()}

    def forget(pointer):
        return pointer.campaign_id == "old"

    said = collect(store, forget=forget, now=LATER)
    assert said.dry_run
    assert said.forgotten_executions == ["old/a/0/x1"]
    assert {item.name for item in store.blobs()} == before
    did = collect(store, forget=forget, now=LATER, dry_run=False)
    assert (did.removed_blobs, did.removed_bytes) == (said.removed_blobs, said.removed_bytes)
    chain.forget_cached_records()
    assert verify_execution(store, kept.head, kept.heads).intact
    assert not store.has(orphan)
    assert not store.has(dropped.head)
    assert read_pointer(store, "old/a/0/x1") is None
    again = collect(store, now=LATER, dry_run=False)
    assert again.removed_blobs == 0


def test_what_is_young_stays_whatever_reaches_it(store):
    store.put(b"a running execution's evidence")
    report = collect(store, dry_run=False)
    assert (report.removed_blobs, report.young_blobs) == (0, 1)


def test_an_old_blob_that_was_put_again_is_young(store):
    sha256 = store.put(b"an old wallpaper")
    os.utime(store.path / blob_path(sha256), (0, 0))
    store.put(b"an old wallpaper")
    assert collect(store, dry_run=False).removed_blobs == 0


def test_heads_without_a_pointer_can_be_named(store):
    made = Chain(store)
    made.start()
    made.prepare(put_screenshot(store, png()))
    assert collect(store, now=LATER).removed_blobs == 5
    assert collect(store, now=LATER, extra_heads=[made.head]).removed_blobs == 0


def test_a_kept_chain_that_cannot_be_read_stops_everything(store):
    made = sealed(store, "camp/a/0/x1")
    store.put(b"orphan")
    store.delete_blob(made.heads[2])
    before = len(list(store.blobs()))
    with pytest.raises(UnsafeToCollect, match="Nothing was removed"):
        collect(store, now=LATER, dry_run=False)
    assert len(list(store.blobs())) == before


def test_blobs_named_inside_recorded_exchanges_stay(store):
    inner = store.put(b"a file that the setup uploaded")
    made = Chain(store)
    made.start()
    from osworld_rollouts.contracts.evidence import DesktopPrepared
    from tests.evidence.builders import lease, observation

    exchanges = store.put(f'[{{"path":"/setup/upload","body":"{inner}"}}]'.encode())
    made.add(
        DesktopPrepared,
        lease=lease(),
        exchanges=exchanges,
        steps=1,
        observation=observation(put_screenshot(store, png())),
    )
    assert collect(store, now=LATER, extra_heads=[made.head], dry_run=False).removed_blobs == 0
    assert store.has(inner)


def test_the_journal_of_an_unsealed_execution_stays(store):
    sealed(store, "camp/a/0/x1")
    bodies = {}
    for execution in ("camp/a/0/x1", "camp/b/0/x1"):
        key = CallKey(execution, 0, 0)
        Journal(store).begin(key, attempt=1, request_id="r1", sent="0" * 64)
        bodies[execution] = Journal(store).received(key, RawReply(200, execution.encode(), request_id="r1"))
    report = collect(store, now=LATER, dry_run=False)
    assert report.removed_journal_entries == 2
    assert store.has(bodies["camp/b/0/x1"])
    assert not store.has(bodies["camp/a/0/x1"])
    assert Journal(store).attempts(CallKey("camp/a/0/x1", 0, 0)) == []
    assert len(Journal(store).attempts(CallKey("camp/b/0/x1", 0, 0))) == 1


def test_files_of_dead_writers(store):
    (store.path / "blobs" / ".tmp-dead").write_bytes(b"half")
    assert collect(store, dry_run=False).removed_leftovers == 0
    assert collect(store, now=LATER, dry_run=False).removed_leftovers == 1
    assert list(store.leftovers()) == []


def test_stats(store):
    sealed(store, "camp/a/0/x1")
    sealed(store, "camp/a/1/x1")
    found = stats(store)
    assert found.executions == 2
    assert found.campaigns == {"camp": 2}
    assert found.records["model_call"] == found.turns == 4
    assert (found.screenshots, found.screenshots_sent) == (1, 4)
    assert found.bytes_per_turn == round(found.stored_bytes / 4, 1)
    assert stats(store, walk=False).records == {}
