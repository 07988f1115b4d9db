"""Pages: what they show, what they survive, and that nothing in a rollout can act on the reader."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest

from osworld_rollouts.console.errors import ConsoleError, ExitCode
from osworld_rollouts.console.links import Links
from osworld_rollouts.console.main import run
from osworld_rollouts.console.pending import PendingActivity
from osworld_rollouts.console.processes import Registry
from osworld_rollouts.console.rollouts import RolloutDetails, RolloutRow
from osworld_rollouts.console.viewer.catalog import ModelNames, last_executions, list_page
from osworld_rollouts.console.viewer.export import export_index, export_rollout
from osworld_rollouts.console.viewer.live import Known, LiveExecution
from osworld_rollouts.console.viewer.pages import (
    CSP_SERVED,
    ServedUrls,
    render_overview,
    render_rollout,
    render_unsealed,
)
from osworld_rollouts.console.viewer.server import make_server
from osworld_rollouts.console.viewer.trace import read_trace
from osworld_rollouts.contracts.evidence import ModelCallRecord
from osworld_rollouts.contracts.outcome import Cause, ExecutionResult, Outcome, OutcomeKind
from osworld_rollouts.contracts.steps import HistoryWindow
from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.store import blob_path, open_store
from osworld_rollouts.settings import load_settings
from osworld_rollouts.submit import submit
from tests.console.samples import HOSTILE, START, Sample, gallery, request

LINKS = Links("http://127.0.0.1:8233", "http://127.0.0.1:8320", "default")
SMALL = (640, 360)


@pytest.fixture
def store(tmp_path):
    chain.forget_cached_records()
    return open_store(tmp_path / "state" / "evidence")


@contextmanager
def serving(settings, *, live):
    """Serve the settings' store; gives a function (path, headers) -> (status, headers, body)."""
    server = make_server(settings, 0, live=live)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    port = server.server_address[1]

    def get(path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request(method, path, headers={"Host": f"127.0.0.1:{port}", **headers})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, answer.headers, body

    yield get
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def serve(tmp_path, store):
    """Serve the store, without a Temporal server."""
    with serving(load_settings(state_dir=tmp_path / "state"), live=False) as get:
        yield get


def known_row(rollout_id, status, outcome=None, score=None, execution=1, domain="os"):
    """A rollout as Temporal lists it."""
    campaign, task, _ = rollout_id.split("/")
    return RolloutRow(
        rollout_id, f"rollout/{rollout_id}", "run-1", status, campaign, task, domain, "qwen3-vl-32b", "turns", execution, 0, outcome, score,
        None if outcome is None else score is not None, START, None if status == "running" else START + timedelta(minutes=9),
    )  # fmt: skip


def listing_of(store, known, **more):
    return list_page(
        last_executions(store), store, known, **{"campaign": None, "page": 1, "models": ModelNames(), **more}
    )


def page_of(store, sample) -> str:
    return render_rollout(
        read_trace(store, sample.execution_id, sample.head), (), ServedUrls(), LINKS, live=None, csp=CSP_SERVED
    )


class Tags(HTMLParser):
    """Every element and attribute of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def test_every_turn_is_shown_with_screenshot_mark_text_and_timing(store):
    sample = Sample(store, request()).begin().turns(7).score(7)
    page = page_of(store, sample)
    tags = Tags(page).tags
    assert [attributes["id"] for tag, attributes in tags if tag == "article" and "id" in attributes] == [
        "setup",
        *(f"turn-{n}" for n in range(1, 9)),
        "evaluation",
    ]
    images = [attributes for tag, attributes in tags if tag == "img"]
    assert len(images) == 8
    assert all(image["src"].startswith("/media/") and image["width"] == "1920" for image in images)
    circles = [(attributes["cx"], attributes["cy"]) for tag, attributes in tags if tag == "circle"]
    assert ("640", "380") in circles
    assert any(tag == "polyline" for tag, _ in tags)
    assert "↓5" in page
    for words in (
        "The spreadsheet is open.",
        "1.2 s",
        "34 ms",
        "score 1",
        "scripted policy, not a model",
        "The evaluator returned <b>1</b>",
        "ctrl + s",
    ):
        assert words in page, words


def test_a_failed_execution_says_its_cause_and_remedy_and_no_score(store):
    page = page_of(store, Sample(store, request(model="m")).begin(size=SMALL).turns(1, size=SMALL).fail(turns=1))
    assert "the desktop&#39;s guest server is gone" in page
    assert "look at the host&#39;s log" in page
    assert "no score" in page
    assert "scripted policy" not in page


def test_odd_things_are_shown(store):
    page = page_of(store, Sample(store, request()).begin(size=SMALL).odd_turns(0).score(2))
    for words in (
        "reply 1 not usable: no action",
        "I am not sure what to do.",
        "First I considered the menu.",
        "reply lost, the guest was asked: o0: finished",
    ):
        assert words in page, words


def test_nothing_hostile_gets_through(store):
    made = request("night/odd/0", model=HOSTILE[:60], instruction=HOSTILE)
    page = page_of(store, Sample(store, made).begin(size=SMALL).odd_turns(0).score(2, 1.0, log=HOSTILE))
    assert "&lt;script&gt;" in page
    for tag, attributes in Tags(page).tags:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        assert "style" not in attributes
        if tag == "script":
            assert attributes == {"src": "/static/viewer.js", "defer": None}
        assert not str(attributes.get("href", "")).lower().startswith("javascript:")
    assert not re.search("[\u202e\x1b\x07]", page)
    assert "unsafe" not in CSP_SERVED


def test_five_hundred_turns_are_lazy_and_quick(store):
    sample = Sample(store, request(max_turns=500)).begin(size=SMALL).turns(500, size=SMALL).score(500)
    chain.forget_cached_records()
    begun = time.monotonic()
    page = page_of(store, sample)
    assert time.monotonic() - begun < 10
    images = [attributes for tag, attributes in Tags(page).tags if tag == "img"]
    assert len(images) == 501
    assert sum(1 for image in images if image.get("loading") != "lazy") == 1
    assert len(page) < 2_000_000


def test_damaged_evidence_is_said_and_the_rest_is_shown(store, tmp_path):
    sample = Sample(store, request()).begin(size=SMALL).turns(3, size=SMALL).score(3)
    (tmp_path / "state" / "evidence" / blob_path(sample.heads[3])).unlink()
    chain.forget_cached_records()
    page = page_of(store, sample)
    assert "the evidence before this point cannot be read" in page
    assert "Turn 3" in page
    assert "The evaluator returned" in page


def test_the_overview_counts_and_labels(serve, store):
    gallery(store)
    status, headers, body = serve("/")
    page = body.decode()
    assert status == 200
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert "<b>4</b> finished" in page
    assert "<b>3</b> with a score" in page
    assert "mean score <b>0.5</b> over 3 of 4 rollouts; over all of them it lies between 0.375 and 0.625" in page
    assert "<b>1</b> ended without a score: 1 desktop lost" in page
    assert "counts are of the evidence store only" in page
    assert page.count("scripted policy, not a model") == 1
    assert "desktop lost" in page
    only = serve("/?campaign=night-1")[2].decode()
    assert "night-1/lost/0" in only
    assert "demo/calc-total-formula/0" not in only


def test_an_empty_store_says_what_to_do(serve):
    status, _, body = serve("/")
    assert status == 200
    assert b"rollouts demo" in body


def test_every_attempt_has_its_page(serve, store):
    gallery(store)
    last, first = (
        serve("/rollout/night-1/files-rename/0")[2].decode(),
        serve("/rollout/night-1/files-rename/0?x=1")[2].decode(),
    )
    assert "score 0" in last
    assert "attempt 1: desktop lost" in last
    assert "no score" in first
    assert "attempt 2" in first
    assert serve("/rollout/night-1/files-rename/0?x=9")[0] == 404


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/rollout/none/such/0",
        "/rollout/",
        "/rollout/../../etc/passwd",
        "/rollout/%2e%2e/x",
        "/static/../server.py",
        "/static/%2e%2e%2fserver.py",
        "/media/" + "0" * 64,
        "/blob/x",
        "/rollout/<script>",
    ],
)
def test_what_is_not_there_is_a_page_that_says_so(serve, path):
    status, headers, body = serve(path)
    assert status == 404
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert b"<script>" not in body.replace(b'<script src="/static/viewer.js" defer></script>', b"")


def test_foreign_host_names_are_refused(serve):
    assert serve("/", Host="evil.example")[0] == 403
    assert serve("/", Host="evil.example:80")[0] == 403
    assert serve("/", Host="localhost:1234")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_changed(serve, method):
    assert serve("/", method=method)[0] == 501


def test_untrusted_blobs_are_never_interpreted(serve, store):
    html, binary = store.put(b"<script>alert(1)</script>"), store.put(b"PK\x03\x04\xff\xfe")
    status, headers, body = serve(f"/blob/{html}")
    assert (status, headers["Content-Type"], body) == (200, "text/plain; charset=utf-8", b"<script>alert(1)</script>")
    assert "sandbox" in headers["Content-Security-Policy"]
    _, headers, _ = serve(f"/blob/{binary}")
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["Content-Disposition"].startswith("attachment")
    assert serve(f"/media/{html}")[0] == 404


def test_head_answers_without_a_body(serve):
    status, headers, body = serve("/healthz", method="HEAD")
    assert (status, headers["Content-Length"], body) == (200, "3", b"")


def test_export_writes_pages_that_need_no_server(store, tmp_path):
    gallery(store)
    directory = tmp_path / "out" / "page"
    index = export_rollout(store, "night-1/files-rename/0", directory, LINKS)
    assert index == directory / "index.html"
    assert {path.name for path in directory.iterdir()} == {
        "index.html",
        "x1.html",
        "media",
        "style.css",
        "viewer.js",
        "icon.svg",
    }
    for page in ("index.html", "x1.html"):
        for tag, attributes in Tags((directory / page).read_text(encoding="utf-8")).tags:
            target = attributes.get("src") or (attributes.get("href") if tag == "link" else None)
            if target:
                assert (directory / target).is_file(), target
    again = export_rollout(store, "night-1/files-rename/0", directory, LINKS)
    assert again.is_file()
    assert [path.name for path in directory.parent.iterdir()] == ["page"]


def test_export_never_replaces_what_is_not_ours(store, tmp_path):
    gallery(store)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x", encoding="utf-8")
    with pytest.raises(ConsoleError, match="no exported rollout"):
        export_rollout(store, "night-1/lost/0", tmp_path / "mine", LINKS)
    assert (tmp_path / "mine" / "thesis.txt").read_text(encoding="utf-8") == "x"
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "state"}


def test_export_of_nothing_is_one_clear_error(store, tmp_path):
    with pytest.raises(ConsoleError, match="no finished execution") as caught:
        export_rollout(store, "none/such/0", tmp_path / "out", LINKS)
    assert caught.value.code is ExitCode.NOT_FOUND
    assert not (tmp_path / "out").exists()


def test_a_running_execution_is_shown_as_far_as_it_is(store):
    sample = Sample(store, request(), start=START - timedelta(days=1)).begin(size=SMALL).turns(2, size=SMALL)
    page = page_of(store, sample)
    assert "not finished" in page
    assert "Now</h2>" in page


def test_every_rollout_temporal_knows_is_counted(store):
    Sample(store, request("mix/solved/0")).begin(size=SMALL).turns(1, size=SMALL).score(1)
    Sample(store, request("mix/again/0")).begin(size=SMALL).fail()
    Sample(store, request("mix/forgotten/0")).begin(size=SMALL).fail()
    rows = [
        known_row("mix/solved/0", "completed", "agent_done", 1.0, domain="libreoffice_calc"),
        known_row("mix/again/0", "running", execution=2),
        known_row("mix/fresh/0", "running", execution=None),
        known_row("mix/wrong/0", "failed", "request_invalid"),
        known_row("mix/ended/0", "terminated"),
        known_row("other/wrong/0", "failed", "request_invalid"),
    ]
    known = Known(answers=True, rollouts={row.rollout_id: row for row in rows})
    listing = listing_of(store, known, campaign="mix")
    counted = listing.counted
    assert (counted.total, counted.scored, counted.running, counted.missing) == (6, 1, 2, 0)
    assert counted.outcomes == {"desktop_lost": 1, "request_invalid": 1, "terminated": 1}
    assert {row.rollout_id: (row.kind, row.turns) for row in listing.rows} == {
        "mix/solved/0": ("agent_done", 2),
        "mix/forgotten/0": ("desktop_lost", 0),
        "mix/wrong/0": ("request_invalid", None),
        "mix/ended/0": ("terminated", None),
    }
    page = render_overview(listing, ServedUrls(), LINKS, csp=CSP_SERVED)
    assert "<b>4</b> finished" in page
    assert "<b>2</b> running" in page
    assert "<b>3</b> ended without a score: 1 desktop lost, 1 request invalid, 1 terminated" in page
    assert "mean score <b>1</b> over 1 of 6 rollouts" in page
    assert "evidence store only" not in page
    assert set(listing.domains) == {"libreoffice_calc", "os", "domain not known"}


def test_an_attempt_that_could_not_be_sealed_does_not_leave_the_one_before_as_the_end(store):
    Sample(store, request("mix/a/0")).begin(size=SMALL).fail()
    known = Known(
        answers=True, rollouts={"mix/a/0": known_row("mix/a/0", "failed", "evidence_unavailable", execution=2)}
    )
    (row,) = listing_of(store, known).rows
    assert (row.kind, row.turns, row.attempts) == ("evidence_unavailable", None, 2)


def test_a_rollout_that_made_no_call_still_has_its_model(store):
    Sample(store, request("mix/a/0", model="qwen3-vl-32b")).begin(size=SMALL).fail(OutcomeKind.TASK_UNSUPPORTED)
    (row,) = listing_of(store, Known()).rows
    assert (row.model, row.scripted) == ("qwen3-vl-32b", False)


def test_a_running_page_says_what_is_tried_again_and_how_long_it_has_run(store):
    sample = Sample(store, request(), start=datetime.now(UTC) - timedelta(minutes=5)).begin(size=SMALL)
    step = PendingActivity(
        "call_model", "model call", "scheduled", 7, None, "ModelCallError: nobody listens\nthere", None,
        datetime.now(UTC) + timedelta(seconds=20.4), None,
    )  # fmt: skip
    live = LiveExecution(
        sample.execution_id, "demo/calc-total-formula/0", 1, "working, model call attempt 7", 0, 15, "", sample.head, (step,)
    )  # fmt: skip
    trace = read_trace(store, sample.execution_id, sample.head)
    page = render_rollout(trace, (), ServedUrls(), LINKS, live=live, csp=CSP_SERVED)
    assert '<span class="badge trouble">working, model call attempt 7</span>' in page
    assert "<b>model call</b>, attempt 7, next try in 20 s" in page
    assert "last failure: ModelCallError: nobody listens there" in page
    assert "min 00 s so far" in page
    assert "<dd>0 of at most 15</dd>" in page
    assert sum(tag == "img" for tag, _ in Tags(page).tags) == 1
    listing = list_page(
        {},
        store,
        Known(True, {live.rollout_id: known_row(live.rollout_id, "running")}, (live,)),
        campaign=None,
        page=1,
        models=ModelNames(),
    )
    assert "nobody listens there" in render_overview(listing, ServedUrls(), LINKS, csp=CSP_SERVED)


def test_a_rollout_without_evidence_has_a_page_with_cause_and_remedy():
    cause = Cause(
        kind=OutcomeKind.REQUEST_INVALID, message=f"no such adapter {HOSTILE}", remedy="see `rollouts adapters`"
    )
    ended = ExecutionResult(
        execution_id="mix/wrong/0/x1",
        number=1,
        outcome=Outcome(kind=OutcomeKind.REQUEST_INVALID, cause=cause),
        run_id="r1",
    )
    details = RolloutDetails(
        known_row("mix/wrong/0", "failed", "request_invalid"), "Do it", {}, (ended,), None, "no such adapter"
    )
    page = render_unsealed(details, None, (), ServedUrls(), LINKS, csp=CSP_SERVED)
    for words in ("no score", "request invalid", "no such adapter", "see `rollouts adapters`", "left no evidence"):
        assert words in page, words
    targets = [str(attributes.get("href")) for tag, attributes in Tags(page).tags if tag == "a"]
    assert LINKS.workflow("rollout/mix/wrong/0", "run-1") in targets
    assert LINKS.workflow("rollout/mix/wrong/0/x1", "r1") in targets
    assert "<script>alert" not in page


async def test_what_temporal_knows_is_shown_when_no_worker_answers(temporal_env, make_request, tmp_path, store):
    made = make_request({"campaign_id": "viewed"})
    await submit(temporal_env.client, made, task_queue="nobody polls this")
    address = temporal_env.client.service_client.config.target_host
    settings = load_settings(state_dir=tmp_path / "state", temporal={"address": address})
    handle = temporal_env.client.get_workflow_handle(f"rollout/{made.rollout_id}")
    with serving(settings, live=True) as get:

        async def until(path, words):
            async with asyncio.timeout(30):
                while True:
                    status, _, body = await asyncio.to_thread(get, path)
                    if words in body.decode():
                        return status, body.decode()
                    await asyncio.sleep(0.2)

        _, page = await until("/?campaign=viewed", "<b>1</b> running")
        assert "waiting for a worker" in page
        status, page = await until(f"/rollout/{made.rollout_id}", "no worker answers")
        assert (status, 'data-live="2"' in page) == (200, True)
        await handle.terminate("enough")
        status, page = await until(f"/rollout/{made.rollout_id}", "left no evidence")
        assert (status, "terminated" in page, "no score" in page) == (200, True, True)
        await until("/?campaign=viewed", "<b>1</b> ended without a score: 1 terminated")
        assert (await asyncio.to_thread(get, "/rollout/viewed/none/0"))[0] == 404


def test_a_refused_call_is_told_in_one_line_and_is_no_turn(store):
    sample = Sample(store, request()).begin(size=SMALL)
    sample.add(
        ModelCallRecord, 0.2, turn=0, call=0, activity_attempt=1, request_id="r", window=HistoryWindow(), sent=store.put(b"{}"), received=None,
        status=404, error="no such model", earlier_attempts=({"attempt": 1},),
    )  # fmt: skip
    page = page_of(store, sample.fail(OutcomeKind.MODEL_REJECTED, turns=0))
    assert '<p class="raw dim">1 attempt · <a' in page
    assert "<dd>0 of at most 15</dd>" in page


def test_json_is_shown_with_line_breaks_beside_its_bytes(serve, store):
    blob = store.put(json.dumps({"model": "m", "text": HOSTILE}).encode())
    status, headers, body = serve(f"/read/{blob}")
    page = body.decode()
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "{\n  &#34;model&#34;: &#34;m&#34;," in page
    assert "<script>alert" not in page
    assert f'href="/blob/{blob}"' in page
    assert "not text" in serve(f"/read/{store.put(bytes([0x89, 0xFF, 0xFE]))}")[2].decode()
    assert "It goes on" in serve(f"/read/{store.put(b'x' * 2_000_001)}")[2].decode()
    assert serve("/read/" + "0" * 64)[0] == 404


def test_an_index_leads_to_the_exported_pages_and_counts_all(store, tmp_path):
    gallery(store)
    names, directory = ("night-1/files-rename/0", "night-1/lost/0"), tmp_path / "pages" / "night-1"
    pages = {name: export_rollout(store, name, tmp_path / "pages" / name, LINKS) for name in names}
    for _ in range(2):
        index = export_index(store, directory, pages, LINKS, campaign="night-1", submitted=3)
    text = index.read_text(encoding="utf-8")
    assert index == directory / "index.html"
    assert "<b>1</b> left no evidence" in text
    assert "over 1 of 3 rollouts" in text
    targets = [attributes["href"] for tag, attributes in Tags(text).tags if tag in {"a", "link"}]
    assert {"files-rename/0/index.html", "lost/0/index.html"} <= set(targets)
    assert all((directory / target).is_file() for target in targets if "://" not in target)
    assert not list(directory.glob(".*"))


def test_view_prints_the_address_of_the_page_that_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ROLLOUTS_STATE_DIR", str(tmp_path / "state"))
    settings = load_settings()
    registry = Registry(settings.state_dir)
    facts = {"url": "http://127.0.0.1:8320", "store": settings.store.url}
    registry.start("viewer", [sys.executable, "-c", "import time; time.sleep(60)"], facts=facts)
    try:
        assert run(["view", "rollout/mix/solved/0", "--json"]) == ExitCode.OK
        assert json.loads(capsys.readouterr().out) == {
            "url": "http://127.0.0.1:8320/rollout/mix/solved/0",
            "served": False,
        }
    finally:
        registry.stop("viewer")


def test_a_process_with_a_page_ends(tmp_path):
    """Whatever watches the server for the page does not keep the interpreter from ending."""
    code = (
        "from osworld_rollouts.console.viewer.live import LiveExecutions\n"
        "from osworld_rollouts.settings import load_settings\n"
        "live = LiveExecutions(load_settings())\n"
        "import time; time.sleep(0.5)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, timeout=30, check=False)
    assert done.returncode == 0
