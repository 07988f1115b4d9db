from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from osworld_rollouts.contracts.outcome import OutcomeKind
from osworld_rollouts.evidence import chain, open_campaign, open_store
from osworld_rollouts.evidence.export.campaign import export_campaign
from osworld_rollouts.evidence.export.files import ExportError
from osworld_rollouts.evidence.index import read_pointer, write_pointer
from osworld_rollouts.evidence.loader import NotAnExport
from tests.evidence import bench_export
from tests.evidence.exact import END, exact_execution

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def campaign(store):
    """Four rollouts: plain, a compaction and a rejected call, one whose first execution failed, one that failed."""
    exact_execution(store, "camp/a/0/x1")
    exact_execution(store, "camp/b/0/x1", turns=4, rewrite_at=2, rejected_at=1)
    exact_execution(store, "camp/c/0/x1", score=None, kind=OutcomeKind.DESKTOP_LOST, eligible=False)
    exact_execution(store, "camp/c/0/x2", score=0.0)
    exact_execution(store, "camp/d/0/x1", score=None, kind=OutcomeKind.DESKTOP_LOST, eligible=False)
    exact_execution(store, "other/a/0/x1", campaign="other")
    return store


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_read_back(campaign, tmp_path, kind):
    report = export_campaign(campaign, "camp", tmp_path / "out", format=kind)
    assert (report.rollouts, report.executions, report.calls, report.problems) == (4, 5, 17, [])
    loaded = open_campaign(tmp_path / "out")
    rollouts = {item.row["rollout_id"]: item for item in loaded}
    assert list(rollouts) == ["camp/a/0", "camp/b/0", "camp/c/0", "camp/d/0"]
    assert loaded.broken == []
    first = rollouts["camp/a/0"]
    assert first.row["reward"] == 1.0
    assert [call.row["extends_previous"] for call in first.calls] == [None, True, True]
    assert first.admission.eligible
    assert first.admission.eligible_tokens == 9
    assert first.calls[1].row["generated_token_ids"] == [21, 30, END]
    assert first.calls[1].row["logprobs"] == [-0.125, -0.25, -0.375]
    assert first.calls[1].row["policy_spans"] == [{"start": 22, "end": 25}]
    assert [item["run_start"] for item in first.calls[1].row["media"]] == [2, 14]
    assert [image.size for image in first.calls[1].images()] == [(64, 48), (64, 48)]
    assert first.calls[1].messages()["body"]["messages"][0]["content"] == "turn 1"
    second = rollouts["camp/b/0"]
    assert [(call.row["turn"], call.row["call"], call.row["accepted"], call.row["segment"]) for call in second.calls] == [
        (0, 0, True, 0), (1, 0, False, 0), (1, 1, True, 1), (2, 0, True, 2), (3, 0, True, 2),
    ]  # fmt: skip
    assert json.loads(second.calls[3].row["boundary"])["reason"] == "media_changed"
    third = rollouts["camp/c/0"]
    assert [item["outcome"] for item in third.row["executions"]] == ["desktop_lost", "agent_done"]
    assert (third.row["reward"], third.row["execution_number"], len(third.rows), len(third.calls)) == (0.0, 2, 6, 3)
    fourth = rollouts["camp/d/0"]
    assert (fourth.row["reward"], fourth.row["mask_sample"], fourth.admission.eligible) == (None, True, False)
    assert [item.row["rollout_id"] for item in loaded.rollouts(only_eligible=True)] == [
        "camp/a/0",
        "camp/b/0",
        "camp/c/0",
    ]


def test_jsonl_and_parquet_say_the_same(campaign, tmp_path):
    for kind in ("jsonl", "parquet"):
        export_campaign(campaign, "camp", tmp_path / kind, format=kind)
    for name in ("calls", "rollouts"):
        one, two = (list(open_campaign(tmp_path / kind)._rows(name)) for kind in ("jsonl", "parquet"))
        assert one == two


def test_polars_and_pandas_read_it(campaign, tmp_path):
    import pandas as pd
    import polars as pl

    export_campaign(campaign, "camp", tmp_path / "out", format="parquet")
    frame = pl.read_parquet(tmp_path / "out" / "calls.parquet")
    assert frame.filter(pl.col("final_execution")).group_by("rollout_id").len().sort("rollout_id")["len"].to_list() == [
        3,
        5,
        3,
        3,
    ]
    assert frame["generated_token_ids"].list.len().to_list() == [3] * 17
    assert pd.read_parquet(tmp_path / "out" / "rollouts.parquet")["reward"].tolist()[:3] == [1.0, 1.0, 0.0]


def test_only_eligible(campaign, tmp_path):
    report = export_campaign(campaign, "camp", tmp_path / "out", only_eligible=True)
    assert (report.rollouts, report.executions, report.left_out) == (3, 3, 1)
    assert all(
        row["final_execution"] and row["runtime_eligible"]
        for item in open_campaign(tmp_path / "out")
        for row in item.rows
    )


def test_without_blobs_the_store_is_asked(campaign, tmp_path):
    export_campaign(campaign, "camp", tmp_path / "out", blobs="none")
    assert not (tmp_path / "out" / "evidence").exists()
    assert len(list(open_campaign(tmp_path / "out"))) == 4
    campaign.path.rename(campaign.path.with_name("gone"))
    assert len(list(open_campaign(tmp_path / "out"))) == 0


def test_the_manifest_vouches_for_the_files(campaign, tmp_path):
    from osworld_rollouts.evidence.export.files import sha256_of

    export_campaign(campaign, "camp", tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["rollouts"] == 4
    assert {item["name"]: item["rows"] for item in manifest["files"]} == {"calls.jsonl": 17, "rollouts.jsonl": 4}
    assert all(item["sha256"] == sha256_of(tmp_path / "out" / item["name"]) for item in manifest["files"])


def test_an_execution_that_is_not_intact_is_named_and_left_out(campaign, tmp_path):
    made = exact_execution(campaign, "camp/e/0/x1")
    campaign.delete_blob(made.heads[2])
    broken = exact_execution(
        campaign, "camp/f/0/x1", turns=2, change=lambda _, raw: raw.replace(b"chatcmpl-x", b"chatcmpl-of-this-one")
    )
    campaign.delete_blob(chain.walk(campaign, broken.head)[2].received)
    chain.forget_cached_records()
    report = export_campaign(campaign, "camp", tmp_path / "out")
    assert report.rollouts == 4
    assert [item.split(":")[0] for item in report.problems] == ["camp/e/0/x1", "camp/f/0/x1"]
    assert len(list(open_campaign(tmp_path / "out"))) == 4


def test_a_row_that_was_changed_is_not_given(campaign, tmp_path):
    export_campaign(campaign, "camp", tmp_path / "out")
    path = tmp_path / "out" / "rollouts.jsonl"
    path.write_text(path.read_text().replace('"reward":0.0', '"reward":1.0'))
    loaded = open_campaign(tmp_path / "out")
    assert [item.row["rollout_id"] for item in loaded] == ["camp/a/0", "camp/b/0", "camp/d/0"]
    assert "reward" in loaded.broken[0]
    assert len(list(loaded.rollouts(keep_broken=True))) == 4


def test_nemo_gym(campaign, tmp_path):
    report = export_campaign(campaign, "camp", tmp_path / "out", format="nemo-gym")
    assert (report.rollouts, report.unscored) == (4, 1)
    assert report.fields_left_out
    rows = [json.loads(line) for line in (tmp_path / "out" / "rollouts.jsonl").read_text().splitlines()]
    assert [row["reward"] for row in rows] == [1.0, 1.0, 0.0]
    two = rows[1]
    assert two["mask_sample"] is False
    item = two["response"]["output"][1]
    assert item["generation_token_ids"] == [21, 31, END]
    assert len(item["generation_log_probs"]) == 3
    assert item["prompt_token_ids"][0] == 7
    evidence = two["response"]["completion_evidence"]
    assert [entry["accepted"] for entry in evidence] == [True, False, True, True, True]
    assert [entry["expected_append_compatible"] for entry in evidence] == [None, True, False, False, True]
    assert [event["segment_index"] for event in two["response"]["boundary_events"]] == [1, 2]
    assert two["response"]["trajectory_contract"]["model_call_count"] == 5
    assert two["verifier_metadata"]["osworld_score"] == 1.0
    assert two["verifier_metadata"]["osworld_steps"][0]["actions"] == ["click(1, 2)"]
    calls = {entry["model_call_id"] for entry in evidence}
    assert {
        name for step in two["response"]["trajectory_transitions"] for name in step["state"]["model_call_ids"]
    } == calls
    with pytest.raises(NotAnExport, match="nemo-gym"):
        open_campaign(tmp_path / "out")
    (unscored,) = (tmp_path / "out" / "unscored.jsonl").read_text().splitlines()
    assert json.loads(unscored)["outcome"] == "desktop_lost"


def test_a_pointer_with_another_score_than_its_evidence_is_not_exported(campaign, tmp_path):
    pointer = read_pointer(campaign, "camp/a/0/x1")
    write_pointer(campaign, pointer.model_copy(update={"outcome": pointer.outcome.model_copy(update={"score": 0.25})}))
    report = export_campaign(campaign, "camp", tmp_path / "out")
    assert report.rollouts == 3
    assert "is not the end that the pointer of camp/a/0/x1 names" in report.problems[0]


@pytest.fixture(scope="module")
def forty(tmp_path_factory):
    """Forty rollouts of twenty exact calls, as tests/evidence/bench_export.py makes them by the thousand."""
    path = tmp_path_factory.mktemp("forty") / "evidence"
    bench_export.record(str(path), 0, 40)
    return open_store(str(path))


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "nemo-gym"])
def test_memory_does_not_grow_with_the_campaign(forty, tmp_path, kind):
    """In a process of its own, where nothing else is held."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.evidence.bench_export", "trace", str(forty.path), str(tmp_path / "out"), kind],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    used = json.loads(ran.stdout)
    assert len(used) == 40
    # One step is allowed: Python's own table of names doubles when it is full, which takes 2 MB at some moment or other.
    steps = [after - before for before, after in itertools.pairwise(used)]
    first, last = max(used[:20]), max(used[20:]) - max(steps[19:])
    assert last < first * 1.1 + 100_000, f"{first:,} bytes in the first half, {last:,} in the second"


def test_places_that_cannot_be_used(campaign, tmp_path):
    with pytest.raises(ExportError, match="no sealed execution"):
        export_campaign(campaign, "nobody", tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    with pytest.raises(ExportError, match="not empty"):
        export_campaign(campaign, "camp", tmp_path / "full")
    with pytest.raises(NotAnExport, match="rollouts export"):
        open_campaign(tmp_path / "nothing")
    (tmp_path / "full" / "manifest.json").write_text("{")
    with pytest.raises(NotAnExport, match="not readable"):
        open_campaign(tmp_path / "full")


def test_without_pyarrow_the_error_says_what_to_install(campaign, tmp_path):
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from osworld_rollouts.evidence import open_store\nfrom osworld_rollouts.evidence.export.campaign import export_campaign\n"
        "from osworld_rollouts.evidence.export.files import ExportError\n"
        "try:\n    export_campaign(open_store(sys.argv[1]), 'camp', sys.argv[2], format='parquet')\n"
        "except ExportError as error:\n    print(error)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code, str(campaign.path), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "osworld-rollouts[export]" in shown.stdout


def test_every_column_is_explained():
    from osworld_rollouts.evidence.export import schema

    text = (ROOT / "docs" / "evidence.md").read_text()
    assert [field.name for field in (*schema.CALLS, *schema.ROLLOUTS) if f"`{field.name}`" not in text] == []
