"""The pages in a real Chromium: nothing hostile runs, marks sit on their pixels, 500 turns stay light, live pages follow."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager

import pytest

from osworld_rollouts.console.links import Links
from osworld_rollouts.console.viewer.export import export_index, export_rollout
from osworld_rollouts.console.viewer.live import Known, LiveExecution
from osworld_rollouts.console.viewer.server import make_server
from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.store import open_store
from osworld_rollouts.settings import load_settings
from tests.console.samples import Sample, gallery, request

pytestmark = pytest.mark.browser
LINKS = Links(None, None, "default")


@pytest.fixture
def store(tmp_path):
    chain.forget_cached_records()
    return open_store(tmp_path / "state" / "evidence")


@contextmanager
def served(tmp_path):
    server = make_server(load_settings(state_dir=tmp_path / "state"), 0, live=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def complaints(page):
    """What the browser complains about: errors, policy violations, failed requests."""
    found: list[str] = []
    page.on("console", lambda message: found.append(message.text) if message.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("requestfailed", lambda failed: found.append(failed.url))
    yield found


async def test_hostile_text_does_nothing(browser, store, tmp_path):
    gallery(store)
    with served(tmp_path) as (_, url):
        page = await browser.new_page()
        with complaints(page) as found:
            for path in ("/", "/rollout/night-1/odd/0", "/?campaign=night-1"):
                await page.goto(url + path)
                await page.wait_for_load_state("networkidle")
                assert await page.evaluate("window.pwned") is None
                assert "<script>" in await page.inner_text("body") or path != "/rollout/night-1/odd/0"
        assert found == []


async def test_the_mark_is_where_the_click_was(browser, store, tmp_path):
    Sample(store, request()).begin().turns(1).score(1)
    with served(tmp_path) as (_, url):
        page = await browser.new_page(viewport={"width": 1500, "height": 1000})
        await page.goto(url + "/rollout/demo/calc-total-formula/0")
        image = await page.locator("#turn-1 img").bounding_box()
        dot = await page.locator("#turn-1 svg .dot").first.bounding_box()
        assert dot["x"] + dot["width"] / 2 == pytest.approx(image["x"] + 640 / 1920 * image["width"], abs=1.5)
        assert dot["y"] + dot["height"] / 2 == pytest.approx(image["y"] + 380 / 1080 * image["height"], abs=1.5)


async def test_five_hundred_turns_load_only_what_is_looked_at(browser, store, tmp_path):
    Sample(store, request(max_turns=500)).begin(size=(640, 360)).turns(500, size=(640, 360)).score(500)
    with served(tmp_path) as (_, url):
        page = await browser.new_page(viewport={"width": 1400, "height": 900})
        asked: list[str] = []
        page.on("request", lambda made: asked.append(made.url) if "/media/" in made.url else None)
        await page.goto(url + "/rollout/demo/calc-total-formula/0")
        await page.wait_for_load_state("networkidle")
        assert 1 <= len(asked) < 30
        await page.goto(url + "/rollout/demo/calc-total-formula/0#turn-400")
        await page.wait_for_timeout(500)
        top = (await page.locator("#turn-400").bounding_box())["y"]
        assert -50 < top < 900
        await page.keyboard.press("j")
        await page.wait_for_timeout(300)
        assert -50 < (await page.locator("#turn-401").bounding_box())["y"] < 200
        assert page.url.endswith("#turn-401")
        await page.keyboard.press("k")
        await page.wait_for_timeout(300)
        assert page.url.endswith("#turn-400")
        assert -50 < (await page.locator("#turn-400").bounding_box())["y"] < 200


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_is_readable_in_both_schemes(browser, store, tmp_path, scheme):
    gallery(store)
    contrast = """() => {
        const light = (c) => { const v = c.match(/[\\d.]+/g).slice(0, 3).map((x) => x / 255).map((x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4); return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
        const back = (e) => { while (e) { const c = getComputedStyle(e).backgroundColor; if (!c.endsWith(', 0)')) return c; e = e.parentElement; } return 'rgb(255, 255, 255)'; };
        const worst = [];
        for (const e of document.querySelectorAll('p, a, dt, dd, h1, h2, b, span, td, th, code, pre, summary, time')) {
            if (!e.textContent.trim() || !e.offsetParent || e.closest('svg')) continue;
            const a = light(getComputedStyle(e).color), b = light(back(e));
            const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            if (ratio < 4.5) worst.push([ratio.toFixed(2), e.className, e.textContent.slice(0, 40)]);
        }
        return worst;
    }"""
    with served(tmp_path) as (_, url):
        page = await (await browser.new_context(color_scheme=scheme)).new_page()
        for path in ("/", "/rollout/night-1/odd/0", "/rollout/night-1/files-rename/0?x=1"):
            await page.goto(url + path)
            await page.wait_for_load_state("networkidle")
            assert await page.evaluate(contrast) == [], path


async def test_a_narrow_window_does_not_scroll_sideways(browser, store, tmp_path):
    gallery(store)
    with served(tmp_path) as (_, url):
        page = await browser.new_page(viewport={"width": 420, "height": 800})
        for path in ("/", "/rollout/night-1/odd/0"):
            await page.goto(url + path)
            assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path


async def test_a_phone_shows_every_cell_with_its_name_and_whole_words(browser, store, tmp_path):
    gallery(store)
    with served(tmp_path) as (_, url):
        page = await browser.new_page(viewport={"width": 390, "height": 800})
        await page.goto(url)
        assert await page.evaluate("document.documentElement.scrollWidth") == 390
        row = page.locator("#rollouts tbody tr", has_text="night-1/lost/0")
        assert (await row.locator("td").first.bounding_box())["width"] > 300
        assert (await row.locator("td").first.bounding_box())["height"] < 30
        label = "(cell) => getComputedStyle(cell, '::before').content"
        assert "turns" in await row.locator("td").nth(3).evaluate(label)
        await page.fill("#filter", "qwen3 lost")
        assert await page.locator("#rollouts tbody tr:visible").count() == 1


async def test_a_page_opened_at_a_turn_goes_there_and_a_click_names_the_turn(browser, store, tmp_path):
    Sample(store, request()).begin().turns(7).score(7)
    with served(tmp_path) as (_, url):
        page = await browser.new_page(viewport={"width": 1400, "height": 900})
        await page.goto(url + "/rollout/demo/calc-total-formula/0#turn-5")
        await page.wait_for_timeout(500)
        assert -50 < (await page.locator("#turn-5").bounding_box())["y"] < 300
        await page.click("#turn-6 h2 a")
        assert page.url.endswith("#turn-6")


async def test_what_was_sent_opens_with_line_breaks(browser, store, tmp_path):
    Sample(store, request()).begin().turns(1).score(1)
    with served(tmp_path) as (_, url):
        page = await browser.new_page()
        await page.goto(url + "/rollout/demo/calc-total-formula/0")
        await page.locator("#turn-1 >> text=sent").click()
        assert '\n  "messages": [' in await page.inner_text("pre")
        await page.click("text=The bytes themselves")
        assert '{"model": "scripted-solver", "messages"' in await page.inner_text("body")


async def test_the_filter_hides_what_does_not_match(browser, store, tmp_path):
    gallery(store)
    with served(tmp_path) as (_, url):
        page = await browser.new_page()
        await page.goto(url)
        assert await page.locator("#rollouts tbody tr:visible").count() == 4
        await page.fill("#filter", "qwen3 lost")
        assert await page.locator("#rollouts tbody tr:visible").count() == 1


async def test_exported_files_work_without_a_server(browser, store, tmp_path):
    gallery(store)
    index = export_rollout(store, "night-1/files-rename/0", tmp_path / "out", LINKS)
    page = await browser.new_page()
    with complaints(page) as found:
        await page.goto(index.as_uri())
        await page.wait_for_load_state("networkidle")
        assert await page.evaluate(
            "[...document.images].filter((image) => image.loading !== 'lazy').every((image) => image.naturalWidth > 0)"
        )
        assert await page.evaluate("getComputedStyle(document.querySelector('.card')).borderRadius") == "10px"
        await page.click("text=attempt 1: desktop lost")
        await page.wait_for_load_state("networkidle")
        assert "no score" in await page.inner_text("body")
    assert found == []


async def test_an_exported_index_leads_to_its_pages(browser, store, tmp_path):
    gallery(store)
    name, directory = "night-1/lost/0", tmp_path / "pages" / "night-1"
    page_file = export_rollout(store, name, tmp_path / "pages" / name, LINKS)
    index = export_index(store, directory, {name: page_file}, LINKS, campaign="night-1", submitted=1)
    page = await browser.new_page()
    with complaints(page) as found:
        await page.goto(index.as_uri())
        await page.click(f"text={name}")
        await page.wait_for_load_state("networkidle")
        assert page.url == page_file.as_uri()
    assert found == []


async def test_a_live_page_grows_and_then_stops_asking(browser, store, tmp_path):
    made = request("demo/live/0", model="m")
    sample = Sample(store, made).begin(size=(640, 360)).turns(1, size=(640, 360))
    live = LiveExecution(sample.execution_id, made.rollout_id, 1, "acting", 1, 15, "click", sample.head)
    with served(tmp_path) as (server, url):
        pages = server.RequestHandlerClass.pages
        pages.known = lambda: Known(running=(live,) if live else ())
        page = await browser.new_page(viewport={"width": 1400, "height": 900})
        await page.goto(url + "/rollout/demo/live/0")
        assert await page.locator("article[id^=turn]").count() == 1
        assert "acting" in await page.inner_text(".verdict")
        await page.evaluate("window.kept = true")
        sample.turns(2, first=1, size=(640, 360))
        live = LiveExecution(sample.execution_id, made.rollout_id, 1, "acting", 3, 15, "click", sample.head)
        await page.wait_for_selector("#turn-3", timeout=10_000)
        sample.score(3)
        live = None
        await page.wait_for_selector("#evaluation", timeout=10_000)
        assert "score 1" in await page.inner_text(".verdict")
        assert await page.evaluate("window.kept") is True
        assert "so far" not in await page.inner_text(".facts")
        order = await page.evaluate("[...document.querySelectorAll('article.card')].map((card) => card.id)")
        assert order[:6] == ["setup", "turn-1", "turn-2", "turn-3", "turn-4", "evaluation"]
        asked: list[str] = []
        page.on("request", lambda made: asked.append(made.url))
        await asyncio.sleep(5)
        assert asked == []
