"""The store in a bucket, over real HTTP."""

from __future__ import annotations

import pytest

pytest.importorskip("obstore", reason="the extra `s3` is not installed")

from datetime import UTC, datetime, timedelta

from osworld_rollouts.evidence import chain, open_campaign, open_store
from osworld_rollouts.evidence.errors import BlobCorrupt, BlobMissing, EvidenceUnavailable
from osworld_rollouts.evidence.export.campaign import export_campaign
from osworld_rollouts.evidence.gc import collect
from osworld_rollouts.evidence.packing import ZSTD_MAGIC
from osworld_rollouts.evidence.store import blob_path
from osworld_rollouts.evidence.verify import verify_execution
from tests.evidence.exact import exact_execution
from tests.evidence.s3_server import S3Server


@pytest.fixture
def server(monkeypatch):
    chain.forget_cached_records()
    with S3Server("bucket") as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        yield running


def test_the_same_layout_as_in_a_directory(server, tmp_path):
    bucket, folder = open_store("s3://bucket/some/prefix"), open_store(tmp_path)
    text = b"the same content " * 50
    sha256 = bucket.put(text)
    assert folder.put(text) == sha256
    stored = server.objects[f"some/prefix/{blob_path(sha256)}"][0]
    assert stored == (tmp_path / blob_path(sha256)).read_bytes()
    assert stored.startswith(ZSTD_MAGIC)
    assert bucket.get(sha256) == text
    assert bucket.put_named("a/b", b"1", exclusive=True)
    assert not bucket.put_named("a/b", b"2", exclusive=True)
    assert server.objects["some/prefix/named/a/b"][0] == b"1"
    assert list(bucket.list_named("a")) == ["a/b"]
    assert [(item.name, item.stored_bytes) for item in bucket.blobs()] == [(sha256, len(stored))]
    assert bucket.url == "s3://bucket/some/prefix"


def test_missing_and_corrupt(server):
    store = open_store("s3://bucket")
    sha256 = store.put(b"x" * 100)
    server.objects[blob_path(sha256)] = (b"y" * 100, datetime.now(UTC))
    with pytest.raises(BlobCorrupt):
        store.get(sha256)
    with pytest.raises(BlobMissing):
        store.get("0" * 64)


def test_an_old_blob_is_written_again_so_that_gc_sees_it_in_use(server):
    store = open_store("s3://bucket")
    sha256 = store.put(b"x" * 100)
    data, _ = server.objects[blob_path(sha256)]
    server.objects[blob_path(sha256)] = (data, datetime.now(UTC) - timedelta(days=9))
    store.put(b"x" * 100)
    assert datetime.now(UTC) - next(store.blobs()).put_at < timedelta(minutes=1)


def test_a_whole_execution(server, tmp_path):
    store = open_store("s3://bucket/prefix")
    made = exact_execution(store)
    assert verify_execution(store, made.head, made.heads).intact
    export_campaign(store, "camp", tmp_path / "out")
    (rollout,) = open_campaign(tmp_path / "out")
    assert rollout.admission.eligible
    report = collect(store, forget=lambda _: True, now=datetime.now(UTC) + timedelta(days=30), dry_run=False)
    assert report.removed_blobs
    assert server.objects == {}


def test_a_store_that_is_down_says_so(server):
    store = open_store("s3://bucket")
    server.failing = True
    with pytest.raises(EvidenceUnavailable, match=r"s3://bucket.*AWS_"):
        store.put(b"x")
    server.failing = False
    with pytest.raises(EvidenceUnavailable, match=r"not found|404"):
        open_store("s3://other").put(b"x")
