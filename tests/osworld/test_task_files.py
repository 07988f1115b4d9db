"""The store of downloaded task files: whole files only, offline when filled, hard links under the package's names."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid

import pytest
from aiohttp import web

from osworld_rollouts.osworld.task_files import TaskFile, TaskFiles, TaskFileUnavailable, task_files, unsafe_names
from tests.osworld.rig import step, task

CONTENT = b"the content of a spreadsheet" * 1000


class Files:
    """A file server that misbehaves on request: `plan` holds what to do with the next requests, then it answers well."""

    def __init__(self) -> None:
        self.plan: list[str] = []
        self.served = 0
        self.headers: dict[str, str] = {}
        self.seen: list[dict[str, str]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(dict(request.headers))
        self.served += 1
        what = self.plan.pop(0) if self.plan else "well"
        if what.isdigit():
            return web.Response(status=int(what), headers={"Retry-After": "0"})
        response = web.StreamResponse(headers=self.headers)
        response.content_length = len(CONTENT)
        await response.prepare(request)
        await response.write(CONTENT if what == "well" else CONTENT[:100])
        if what == "half":
            request.transport.close()
        return response


@pytest.fixture
async def server():
    found = Files()
    app = web.Application()
    app.router.add_get("/{name}", found.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/a.xlsx"
    yield found
    await runner.cleanup()


def wanted(url: str, name: str = "gold.xlsx", **more) -> TaskFile:
    return TaskFile(url, name, "evaluator", **more)


class TestNames:
    def test_setup_files_have_the_packages_name(self):
        url = "https://x.invalid/a b.xlsx"
        (file,) = task_files(task([step("download", files=[{"url": url, "path": "/home/user/c d.xlsx"}])]))
        assert file.name == f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}_c d.xlsx"
        assert file.used_by == "config"

    def test_each_part_by_itself(self):
        files = [{"url": "https://x.invalid/1", "path": "/1"}]
        document = task(
            [step("download", files=files)],
            func="compare_table",
            postconfig=[step("download", files=[{"url": "https://x.invalid/2", "path": "/2"}])],
            result={"type": "vm_file", "path": "/r", "dest": "r"},
            expected={
                "type": "cloud_file",
                "path": ["https://x.invalid/3", "https://x.invalid/4"],
                "dest": ["3", "4"],
                "multi": True,
            },
        )
        urls = {
            part: [file.url[-1] for file in task_files(document, [part])]
            for part in ("config", "postconfig", "evaluator")
        }
        assert urls == {"config": ["1"], "postconfig": ["2"], "evaluator": ["3", "4"]}

    def test_the_history_file_has_a_fixed_address(self):
        (file,) = task_files(task([step("update_browse_history", history=[])]))
        assert file.name == "history_new.sqlite"

    def test_a_name_that_is_also_written_to(self):
        gold = {"type": "cloud_file", "path": "https://x.invalid/a", "dest": "same"}
        document = task(func="compare_table", result={"type": "vm_file", "path": "/a", "dest": "same"}, expected=gold)
        (file,) = task_files(document)
        assert file.overwritten

    def test_unsafe_names(self):
        assert unsafe_names(task(func="x", result={"type": "cloud_file", "path": "u", "dest": "../x"})) == ["../x"]
        assert unsafe_names(task(func="x", result={"type": "cloud_file", "path": "u", "dest": "a/x"})) == []

    def test_all_canonical_tasks(self, shared):
        urls = set()
        for path in (shared / "data/osworld/examples").glob("*/*.json"):
            urls |= {file.url for file in task_files(json.loads(path.read_text()))}
        assert len(urls) == 661
        assert all(url.startswith("https://huggingface.co/datasets/xlangai/") for url in urls)


class TestPlace:
    async def test_a_file_is_downloaded_once_and_linked(self, server, tmp_path):
        files = TaskFiles(tmp_path / "store")
        for number in range(3):
            digests = await files.place([wanted(server.url)], tmp_path / f"cache{number}")
            assert digests == {"gold.xlsx": hashlib.sha256(CONTENT).hexdigest()}
        assert server.served == 1
        first, second = (tmp_path / f"cache{number}" / "gold.xlsx" for number in (0, 1))
        assert first.read_bytes() == CONTENT
        assert first.stat().st_ino == second.stat().st_ino

    async def test_many_at_once_download_once(self, server, tmp_path):
        files = TaskFiles(tmp_path / "store")
        await asyncio.gather(*(files.place([wanted(server.url)], tmp_path / str(number)) for number in range(20)))
        assert server.served == 1

    async def test_two_stores_of_one_folder_do_not_harm_each_other(self, server, tmp_path):
        stores = [TaskFiles(tmp_path / "store") for _ in range(5)]
        await asyncio.gather(*(store.place([wanted(server.url)], tmp_path / str(n)) for n, store in enumerate(stores)))
        assert {path.name for path in (tmp_path / "store/sha256").iterdir()} == {hashlib.sha256(CONTENT).hexdigest()}

    async def test_a_poisoned_cache_is_replaced(self, server, tmp_path):
        cache = tmp_path / "cache"
        cache.mkdir()
        (cache / "gold.xlsx").write_bytes(CONTENT[:77])
        await TaskFiles(tmp_path / "store").place([wanted(server.url)], cache)
        assert (cache / "gold.xlsx").read_bytes() == CONTENT
        assert [path.name for path in cache.iterdir()] == ["gold.xlsx"]

    async def test_placing_again_leaves_nothing_behind(self, server, tmp_path):
        files = TaskFiles(tmp_path / "store")
        for _ in range(2):
            await files.place([wanted(server.url)], tmp_path / "cache")
        assert [path.name for path in (tmp_path / "cache").iterdir()] == ["gold.xlsx"]

    async def test_a_name_that_is_written_to_gets_its_own_copy(self, server, tmp_path):
        files = TaskFiles(tmp_path / "store")
        await files.place([wanted(server.url, overwritten=True)], tmp_path / "cache")
        (tmp_path / "cache" / "gold.xlsx").write_bytes(b"the agent's")
        await files.place([wanted(server.url)], tmp_path / "other")
        assert (tmp_path / "other" / "gold.xlsx").read_bytes() == CONTENT
        assert server.served == 1

    async def test_a_file_that_a_metric_changed_is_fetched_anew(self, server, tmp_path):
        files = TaskFiles(tmp_path / "store")
        await files.place([wanted(server.url)], tmp_path / "cache")
        (tmp_path / "cache" / "gold.xlsx").chmod(0o644)
        (tmp_path / "cache" / "gold.xlsx").write_bytes(b"changed in place")
        await files.place([wanted(server.url)], tmp_path / "other")
        assert (tmp_path / "other" / "gold.xlsx").read_bytes() == CONTENT
        assert server.served == 2

    async def test_a_name_outside_the_folder(self, server, tmp_path):
        with pytest.raises(TaskFileUnavailable, match="outside"):
            await TaskFiles(tmp_path / "store").place([wanted(server.url, "../x")], tmp_path / "cache")
        assert not (tmp_path / "x").exists()


class TestDownload:
    @pytest.mark.parametrize("plan", [["half"], ["503"], ["429", "500", "half"]])
    async def test_hiccups_are_survived(self, server, tmp_path, plan, monkeypatch):
        monkeypatch.setattr("asyncio.sleep", _no_sleep)
        server.plan = list(plan)
        await TaskFiles(tmp_path / "store").place([wanted(server.url)], tmp_path / "cache")
        assert (tmp_path / "cache" / "gold.xlsx").read_bytes() == CONTENT
        assert server.served == len(plan) + 1

    @pytest.mark.parametrize(("plan", "served"), [(["404"], 1), (["403"], 1), (["half"] * 9, 4), (["503"] * 9, 4)])
    async def test_what_cannot_be_had_leaves_nothing(self, server, tmp_path, plan, served, monkeypatch):
        monkeypatch.setattr("asyncio.sleep", _no_sleep)
        server.plan = list(plan)
        with pytest.raises(TaskFileUnavailable, match=r"a\.xlsx cannot be downloaded"):
            await TaskFiles(tmp_path / "store").place([wanted(server.url)], tmp_path / "cache")
        assert server.served == served
        assert list((tmp_path / "store/sha256").iterdir()) == []
        assert not (tmp_path / "cache").exists() or list((tmp_path / "cache").iterdir()) == []

    async def test_a_stated_hash_is_checked(self, server, tmp_path, monkeypatch):
        monkeypatch.setattr("asyncio.sleep", _no_sleep)
        server.headers = {"X-Linked-ETag": '"' + "0" * 64 + '"'}
        with pytest.raises(TaskFileUnavailable, match="the server states 0000"):
            await TaskFiles(tmp_path / "store").fetch(server.url)
        server.headers = {"X-Linked-ETag": f'"{hashlib.sha256(CONTENT).hexdigest()}"'}
        assert await TaskFiles(tmp_path / "store").fetch(server.url) == hashlib.sha256(CONTENT).hexdigest()

    async def test_a_cancelled_download_leaves_nothing(self, tmp_path):
        async def never(_reader, _writer):
            await asyncio.sleep(3600)

        silent = await asyncio.start_server(never, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}/a"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(TaskFiles(tmp_path / "store").fetch(url), 0.3)
        assert list((tmp_path / "store/sha256").iterdir()) == []
        silent.close()

    async def test_the_hugging_face_token_goes_to_no_other_host(self, server, tmp_path):
        await TaskFiles(tmp_path / "store", token="hf_secret").fetch(server.url)
        assert not any("secret" in str(headers) for headers in server.seen)


class TestOffline:
    async def test_a_filled_store_needs_no_network(self, tmp_path):
        (tmp_path / "a").write_bytes(CONTENT)
        files = TaskFiles(tmp_path / "store", offline=True)
        files.add("https://x.invalid/a", tmp_path / "a")
        await files.place([wanted("https://x.invalid/a")], tmp_path / "cache")
        assert (tmp_path / "cache" / "gold.xlsx").read_bytes() == CONTENT

    async def test_what_is_missing_is_told_without_trying(self, tmp_path):
        files = TaskFiles(tmp_path / "store", offline=True)
        assert files.missing([wanted("https://x.invalid/a")]) == [wanted("https://x.invalid/a")]
        with pytest.raises(TaskFileUnavailable, match="downloads are off"):
            await files.fetch("https://x.invalid/a")

    async def test_a_torn_index_entry_is_not_trusted(self, server, tmp_path):
        files = TaskFiles(tmp_path / "store")
        await files.fetch(server.url)
        (entry,) = (tmp_path / "store/urls").iterdir()
        entry.write_text('{"url": "')
        await files.fetch(server.url)
        assert server.served == 2


_sleep = asyncio.sleep


async def _no_sleep(_seconds: float) -> None:
    await _sleep(0)
