"""The commands about evidence, as a person runs them."""

from __future__ import annotations

import json

import pytest

from osworld_rollouts.console.main import run
from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.store import blob_path
from tests.evidence.exact import exact_execution
from tests.serving.fault_proxy import SmallServer


@pytest.fixture
def cli(store, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("ROLLOUTS_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("ROLLOUTS_STORE__URL", str(store.path))

    def call(*arguments):
        code = run(list(arguments))
        shown = capsys.readouterr()
        value = json.loads(shown.out) if "--json" in arguments and shown.out.strip() else shown.out
        return code, value, shown.err

    return call


def test_store_verify(cli, store):
    made = exact_execution(store)
    exact_execution(store, "camp/task/1/x1")
    assert cli("store", "verify")[0] == 0
    assert "2 intact, 0 not" in cli("store", "verify")[1]
    assert cli("store", "verify", "--campaign", "nobody", "--json")[1]["executions"] == 0
    call = chain.walk(store, made.head)[2]
    (store.path / blob_path(call.received)).write_bytes(b"rotten")
    code, said, _ = cli("store", "verify", "--json")
    assert (code, len(said["not_intact"])) == (1, 2)
    assert said["not_intact"][0]["blob_problems"][0]["field"] == "received"


def test_store_stats_and_gc(cli, store):
    exact_execution(store)
    code, said, _ = cli("store", "stats", "--json")
    assert (code, said["executions"], said["turns"], said["campaigns"]) == (0, 1, 3, {"camp": 1})
    assert "screenshots" in cli("store", "stats")[1]
    before = len(list(store.blobs()))
    offline = ("store", "gc", "--offline", "--forget", "camp", "--days", "0")
    code, said, _ = cli(*offline, "--json")
    assert (code, said["dry_run"], said["temporal_asked"], said["removed_blobs"]) == (0, True, False, before)
    assert "nothing was removed; add --delete" in cli(*offline)[1]
    assert "Temporal was not asked" in cli(*offline)[1]
    assert len(list(store.blobs())) == before
    assert cli(*offline, "--delete")[0] == 0
    assert list(store.blobs()) == []


def test_gc_without_temporal_removes_nothing_unless_told_to_go_by_age(cli, store, monkeypatch):
    monkeypatch.setenv("ROLLOUTS_TEMPORAL__ADDRESS", "127.0.0.1:9")
    monkeypatch.setenv("ROLLOUTS_TEMPORAL__CONNECT_TIMEOUT_S", "1")
    store.put(b"orphan")
    for more in ((), ("--delete", "--days", "0")):
        code, shown, error = cli("store", "gc", *more)
        assert (code, shown) == (5, "")
        assert "127.0.0.1:9" in error
        assert "--offline" in error
        assert len(error.strip().splitlines()) == 1
    assert len(list(store.blobs())) == 1
    assert cli("store", "gc", "--offline", "--days", "-1")[0] == 2


def test_verify_offline(cli, store):
    exact_execution(store)
    exact_execution(store, "camp/task/0/x2")
    code, said, _ = cli("verify", "camp/task/0", "--offline", "--json")
    assert (code, said["intact"], [item["execution_id"] for item in said["executions"]]) == (
        0,
        True,
        ["camp/task/0/x1", "camp/task/0/x2"],
    )
    assert "not held against a history" in cli("verify", "camp/task/0/x2", "--offline")[1]
    code, _, error = cli("verify", "camp/nothing", "--offline")
    assert code == 4
    assert error.startswith("error: ")
    assert len(error.strip().splitlines()) == 1
    assert cli("verify", "--offline")[0] == 2


def test_export_and_its_verification(cli, store, tmp_path):
    exact_execution(store)
    out = str(tmp_path / "out")
    code, said, _ = cli("export", "camp", "--out", out, "--format", "parquet", "--json")
    assert (code, said["rollouts"], said["calls"]) == (0, 1, 3)
    code, said, _ = cli("verify", "--export", out, "--json")
    assert (code, said["rollouts"][0]["eligible_tokens"]) == (0, 9)
    assert "3/3 calls, 9 tokens eligible" in cli("verify", "--export", out)[1]
    assert "1 rollouts, 0 not intact, 1 admitted with 9 eligible tokens" in cli("verify", "--export", out)[1]
    code, _, error = cli("verify", "--export", str(tmp_path / "nowhere"))
    assert code == 2
    assert "rollouts export" in error
    code, _, error = cli("export", "camp", "--out", out)
    assert code == 2
    assert "not empty" in error
    code, _, error = cli("export", "nobody", "--out", str(tmp_path / "other"))
    assert code == 4
    assert "no sealed execution" in error
    code, said, _ = cli("export", "camp", "--out", str(tmp_path / "gym"), "--format", "nemo-gym")
    assert code == 0
    assert "left out:" in said


def test_a_spoilt_export_is_seen(cli, store, tmp_path):
    exact_execution(store)
    cli("export", "camp", "--out", str(tmp_path / "out"))
    path = tmp_path / "out" / "calls.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-1]) + "\n")
    code, said, _ = cli("verify", "--export", str(tmp_path / "out"))
    assert code == 1
    assert "NOT intact" in said


def test_probe_of_nobody_and_of_a_plain_server(cli):
    code, _, error = cli("probe", "--base-url", "http://127.0.0.1:9/v1", "--model", "m")
    assert code == 5
    assert "cannot be reached" in error
    assert len(error.strip().splitlines()) == 1
    for wrong in (("--size", "big"), ("--images", "0"), ("--base-url", "127.0.0.1:9/v1")):
        assert cli("probe", "--base-url", "http://127.0.0.1:9/v1", "--model", "m", *wrong)[0] == 2
    code, _, error = cli(
        "probe", "--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--api-key-env", "UNSET_KEY_OF_OURS"
    )
    assert code == 2
    assert "UNSET_KEY_OF_OURS" in error


async def test_probe_says_what_is_missing(cli):
    import asyncio

    body = {
        "id": "c",
        "model": "m",
        "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}],
        "usage": {},
    }
    async with SmallServer(json.dumps(body).encode()) as server:
        arguments = ("probe", "--base-url", server.base_url, "--model", "m", "--json", "--exact")
        code, said, _ = await asyncio.to_thread(cli, *arguments)
    assert code == 1
    assert (said["semantic"], said["exact"]) == (True, False)
    assert {item["name"] for item in said["refusals"]} == {"prompt_ids", "generated_ids", "logprobs"}
    assert all(item["remedy"] for item in said["refusals"])
