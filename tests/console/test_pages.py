"""Pages: what they show, what they survive, and that nothing in a rollout can act on the reader."""

from __future__ import annotations

import http.client
import re
import threading
import time
from datetime import timedelta
from html.parser import HTMLParser

import pytest

from osworld_rollouts.console.errors import ConsoleError, ExitCode
from osworld_rollouts.console.links import Links
from osworld_rollouts.console.viewer.export import export_rollout
from osworld_rollouts.console.viewer.pages import CSP_SERVED, ServedUrls, render_rollout
from osworld_rollouts.console.viewer.server import make_server
from osworld_rollouts.console.viewer.trace import read_trace
from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.store import blob_path, open_store
from osworld_rollouts.settings import load_settings
from tests.console.samples import HOSTILE, START, Sample, gallery, request

LINKS = Links("http://127.0.0.1:8233", "http://127.0.0.1:8320", "default")
SMALL = (640, 360)


@pytest.fixture
def store(tmp_path):
    chain.forget_cached_records()
    return open_store(tmp_path / "state" / "evidence")


@pytest.fixture
def serve(tmp_path, store):
    """Serve the store; gives a function (path, headers) -> (status, headers, body)."""
    server = make_server(load_settings(state_dir=tmp_path / "state"), 0, live=False)
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
    assert "<b>4</b> rollouts" in page
    assert "<b>3</b> scored" in page
    assert "mean over those <b>0.5</b>" in page
    assert "<b>1</b> without a score" in page
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
