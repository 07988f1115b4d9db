from __future__ import annotations

import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osworld_rollouts.evidence.errors import BlobCorrupt, BlobMissing, EvidenceUnavailable
from osworld_rollouts.evidence.local_store import LocalStore
from osworld_rollouts.evidence.packing import ZSTD_MAGIC, pack, sha256_hex, unpack
from osworld_rollouts.evidence.store import blob_path, get_json, key_segments, named_path, open_store, put_json


@pytest.fixture(params=["directory", "bucket"])
def any_store(request, tmp_path):
    if request.param == "directory":
        return open_store(tmp_path / "evidence")
    pytest.importorskip("obstore", reason="the extra `s3` is not installed")
    from obstore.store import MemoryStore

    from osworld_rollouts.evidence.s3_store import BucketStore

    return BucketStore(MemoryStore(), "s3://memory")


def test_put_get_has(any_store):
    text = b"screenshots and prompts " * 100
    sha256 = any_store.put(text)
    assert sha256 == sha256_hex(text)
    assert any_store.put(text) == sha256
    assert any_store.get(sha256) == text
    assert any_store.has(sha256)
    assert not any_store.has("0" * 64)
    with pytest.raises(BlobMissing, match=r"0000.*missing"):
        any_store.get("0" * 64)
    assert [item.name for item in any_store.blobs()] == [sha256]


def test_named_things(any_store):
    assert any_store.get_named("executions/a/x1") is None
    assert any_store.put_named("executions/a/x1", b"one", exclusive=True)
    assert not any_store.put_named("executions/a/x1", b"two", exclusive=True)
    assert any_store.get_named("executions/a/x1") == b"one"
    assert any_store.put_named("executions/a/x1", b"three")
    any_store.put_named("executions/ab/x1", b"")
    any_store.put_named("journal/a", b"")
    assert any_store.get_named("executions/a/x1") == b"three"
    assert sorted(any_store.list_named("executions")) == ["executions/a/x1", "executions/ab/x1"]
    assert list(any_store.list_named("executions/a")) == ["executions/a/x1"]
    assert list(any_store.list_named("nothing")) == []
    assert len(list(any_store.list_named(""))) == 3
    any_store.delete_named("executions/a/x1")
    any_store.delete_named("executions/a/x1")
    assert any_store.get_named("executions/a/x1") is None


def test_json_keeps_the_order_of_keys_and_refuses_nan(any_store):
    value = {"b": 1, "a": [1.5, None, "ü"]}
    sha256 = put_json(any_store, value)
    assert any_store.get(sha256) == '{"b":1,"a":[1.5,null,"ü"]}'.encode()
    assert list(get_json(any_store, sha256)) == ["b", "a"]
    with pytest.raises(ValueError, match="not JSON compliant"):
        put_json(any_store, float("nan"))


def test_delete(any_store):
    sha256 = any_store.put(b"x")
    any_store.delete_blob(sha256)
    any_store.delete_blob(sha256)
    assert not any_store.has(sha256)


@given(st.binary(max_size=2000))
def test_any_content_survives_packing(data):
    assert unpack(pack(data), sha256_hex(data), "here") == data


def test_text_is_compressed_pictures_are_not(store):
    text, picture = b'{"role":"user"}' * 200, b"\x89PNG" + os.urandom(2000)
    stored = (store.path / blob_path(store.put(text))).read_bytes()
    assert stored.startswith(ZSTD_MAGIC)
    assert len(stored) < len(text) / 10
    assert (store.path / blob_path(store.put(picture))).read_bytes() == picture


def test_content_that_is_a_zstd_frame_itself_is_not_unpacked(store):
    frame = pack(b"a" * 1000)
    assert store.get(store.put(frame)) == frame


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-3], id="cut"),
        pytest.param(lambda data: b"", id="emptied"),
        pytest.param(lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:], id="one bit"),
        pytest.param(lambda data: pack(b"something else " * 50), id="replaced"),
    ],
)
def test_damage_is_found_and_putting_the_content_again_repairs_it(store, damage):
    text = b"what was sent to the model " * 50
    sha256 = store.put(text)
    path = store.path / blob_path(sha256)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BlobCorrupt, match=sha256):
        store.get(sha256)
    assert store.put(text) == sha256
    assert store.get(sha256) == text


def test_putting_content_again_marks_it_fresh_for_gc(store):
    sha256 = store.put(b"x")
    path = store.path / blob_path(sha256)
    old = (datetime.now(UTC) - timedelta(days=9)).timestamp()
    os.utime(path, (old, old))
    store.put(b"x")
    assert datetime.now(UTC) - next(store.blobs()).put_at < timedelta(minutes=1)


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../x", "a/../b", "a b", ".hidden", "a/\0", "x" * 300])
def test_names_that_could_escape_or_clash_are_refused(store, key):
    with pytest.raises(ValueError, match="not a usable name"):
        store.put_named(key, b"")
    with pytest.raises(ValueError, match="not a usable name"):
        named_path(key)


@pytest.mark.parametrize("sha256", ["", "0" * 63, "../" + "0" * 61, "A" * 64])
def test_what_is_no_sha256_reaches_no_file(store, sha256):
    with pytest.raises(ValueError, match="is not a sha256"):
        store.get(sha256)


def test_ids_longer_than_a_file_name(store):
    key = f"executions/{key_segments('a' * 390 + '/x1')}/_e"
    store.put_named(key, b"x")
    assert store.get_named(key) == b"x"
    assert key_segments("a" * 390) != key_segments("a" * 389 + "b")
    assert key_segments("camp/task/0/x1") == "camp/task/0/x1"


def test_writers_in_threads_and_processes_agree(tmp_path):
    code = (
        "import sys; from osworld_rollouts.evidence import open_store; s = open_store(sys.argv[1]);"
        "[s.put(bytes([i]) * 5000) for i in range(60)]; print(sum(s.put_named(f'k{i}', sys.argv[2].encode(), exclusive=True) for i in range(60)))"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(i)], stdout=subprocess.PIPE, text=True)
        for i in range(3)
    ]
    store = open_store(tmp_path)
    threads = [threading.Thread(target=lambda: [store.put(bytes([i]) * 5000) for i in range(60)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = [int(process.communicate()[0]) for process in running]
    assert sum(won) == 60
    blobs = list(store.blobs())
    assert len(blobs) == 60
    assert all(store.get(item.name) for item in blobs)
    assert list(store.leftovers()) == []


def test_a_writer_killed_in_the_middle_leaves_no_half_blob(tmp_path):
    code = (
        "import os, stat, sys; from osworld_rollouts.evidence import open_store; s = open_store(sys.argv[1]); real = os.fsync\n"
        "os.fsync = lambda fd: os._exit(9) if stat.S_ISREG(os.fstat(fd).st_mode) else real(fd)\n"
        "s.put(b'half' * 1000)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 9
    store = open_store(tmp_path)
    assert list(store.blobs()) == []
    (left,) = store.leftovers()
    store.delete_leftover(left)
    assert list(store.leftovers()) == []


def test_a_full_disk_is_one_clear_error(store, monkeypatch):
    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EvidenceUnavailable, match=r"ENOSPC.*free space") as caught:
        store.put(b"x" * 1000)
    assert caught.value.errno == 28
    monkeypatch.undo()
    assert list(store.blobs()) == []
    assert list(store.leftovers()) == []


def test_a_store_keeps_the_room_it_was_told_to(tmp_path):
    with pytest.raises(EvidenceUnavailable, match=r"ENOSPC.*must stay free"):
        LocalStore(tmp_path, min_free_bytes=1 << 60).put(b"x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_store_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(EvidenceUnavailable, match="EACCES"):
        open_store(tmp_path / "evidence")


def test_a_store_below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EvidenceUnavailable, match=r"ENOTDIR|EEXIST"):
        open_store(tmp_path / "file" / "evidence")


def test_a_store_whose_mount_has_gone_is_not_made_anew(store):
    sha256 = store.put(b"x")
    store.path.rename(store.path.with_name("elsewhere"))
    with pytest.raises(EvidenceUnavailable, match="gone"):
        store.get(sha256)
    with pytest.raises(EvidenceUnavailable, match="gone"):
        store.put(b"y" * 10)
    assert not store.path.exists()


def test_urls(tmp_path):
    assert open_store(f"file://{tmp_path}/with%20blank").path == tmp_path / "with blank"
    assert open_store(str(tmp_path / "p")).url == (tmp_path / "p").as_uri()
    with pytest.raises(ValueError, match="s3://bucket/prefix"):
        open_store("gs://x")
    with pytest.raises(ValueError, match="AWS_"):
        open_store("s3://key:secret@bucket/prefix")


def test_importing_the_package_is_light():
    code = (
        "import sys, osworld_rollouts.evidence as e; import osworld_rollouts.evidence.admission\n"
        "heavy = {'openai', 'aiohttp', 'PIL', 'pyarrow', 'numpy', 'temporalio', 'obstore', 'polars'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_local_store_whose_directory_is_gone_is_away_and_not_empty(tmp_path):
    """Else a paid reply in the journal would look as if it had never come."""
    store = LocalStore(tmp_path / "store")
    store.put_named("journal/a", b"reply")
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    for read in (lambda: store.get_named("journal/a"), lambda: list(store.list_named("journal"))):
        with pytest.raises(EvidenceUnavailable):
            read()
    (tmp_path / "elsewhere").rename(tmp_path / "store")
    assert store.get_named("journal/a") == b"reply"
