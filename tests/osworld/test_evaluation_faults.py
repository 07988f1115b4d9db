"""Every way an evaluation can go wrong: none ends as a score, and a score is only ever the package's own."""

from __future__ import annotations

import asyncio

import pytest

from osworld_rollouts.osworld.job import EvaluationFailed, FailureKind
from tests.osworld.fault_server import command_result
from tests.osworld.processes import gone
from tests.osworld.rig import EXECUTION, Rig, command_task, step, task


async def fails(rig: Rig, document, last_action=None, **how) -> EvaluationFailed:
    with pytest.raises(EvaluationFailed) as caught:
        await rig.evaluate(document, last_action, **how)
    return caught.value


def file_task(func="compare_text_file", path="/home/user/a.txt", dest="a.txt", gold="yes\n", **more):
    result = {"type": "vm_file", "path": path, "dest": dest}
    return task(
        func=func, result=result, expected=more.pop("expected", {"type": "rule", "rules": {"expected": gold}}), **more
    )


def python_file_task(server, code: str):
    """A task whose metric runs `code`, a file of the guest, in the evaluator's process, as upstream does with the agent's files."""
    server.answer("/file", lambda _: (200, "application/octet-stream", code.encode()))
    result = {"type": "vm_file", "path": "/home/user/test.py", "dest": "test.py"}
    return task(func="check_python_file_by_test_suite", result=result, expected=result)


class TestVerdicts:
    async def test_the_score_is_the_packages_own(self, rig, server):
        server.says("yes\n")
        assert (await rig.evaluate(command_task())).score == 1.0
        server.says("no\n")
        report = await rig.evaluate(command_task(), first_seq=server.last_seq + 1)
        assert report.score == 0.0
        assert report.exchanges[0]["path"] == "/execute"

    @pytest.mark.parametrize(
        ("document", "last_action", "score"),
        [
            (task(), "FAIL", 1.0),
            (task(), "DONE", 0.0),
            (task(), "fail", 0.0),
            (task(), None, 0.0),
            (command_task(), "FAIL", 0.0),
            (command_task(), "DONE", 1.0),
            (command_task(), None, 1.0),
        ],
    )
    async def test_fail_counts_only_as_the_text_fail(self, rig, server, document, last_action, score):
        server.says("yes\n")
        assert (await rig.evaluate(document, last_action)).score == score

    async def test_a_return_code_is_the_getters_business(self, rig, server):
        server.says("yes\n", returncode=3)
        assert (await rig.evaluate(command_task())).score == 1.0

    async def test_a_file_the_agent_did_not_make_is_the_evaluators_zero(self, rig):
        report = await rig.evaluate(file_task())
        assert report.score == 0.0
        assert [entry["status"] for entry in report.exchanges] == [404, 404, 404]

    async def test_what_the_evaluator_saw_is_kept(self, rig, server):
        server.answer("/file", lambda _: (200, "application/octet-stream", b"content"))
        same = {"type": "vm_file", "path": "/home/user/b.txt", "dest": "b.txt"}
        report = await rig.evaluate(file_task(expected=same))
        assert report.score == 1.0
        assert {name: path.read_bytes() for name, path in report.files.items()} == {
            "a.txt": b"content",
            "b.txt": b"content",
        }

    async def test_evaluations_in_a_row_share_no_operation(self, rig, server):
        server.says("yes\n")
        first = await rig.evaluate(command_task())
        second = await rig.evaluate(command_task())
        assert [first.score, second.score] == [1.0, 1.0]
        assert len({request.operation_id for request in server.requests if request.operation_id}) == 2
        assert first.exchanges[0]["operation_id"] == f"{EXECUTION}/evaluate/o0"

    async def test_and_of_two_metrics(self, rig, server):
        server.says("yes\n")
        one = command_task()["evaluator"]
        both = task(func=["exact_match"] * 2, result=[one["result"]] * 2, expected=[one["expected"]] * 2, conj="and")
        assert (await rig.evaluate(both)).score == 1.0


class TestInfrastructure:
    @pytest.mark.parametrize("fault", ["status", "drop_before", "drop_after", "cut", "hang"])
    @pytest.mark.parametrize(("path", "document"), [("/execute", command_task()), ("/file", file_task())])
    async def test_a_guest_that_fails_is_no_zero(self, rig, server, path, document, fault):
        server.fail(path, fault, value=500)
        error = await fails(rig, document)
        assert error.kind is (FailureKind.TIMEOUT if fault == "hang" else FailureKind.UNREACHABLE)
        assert path in error.message
        assert len(server.effects) <= 1

    async def test_a_hiccup_is_survived(self, rig, server):
        server.says("yes\n")
        server.fail("/execute", "drop_after", times=1)
        report = await rig.evaluate(command_task())
        assert report.score == 1.0
        assert len(server.effects) == 1

    @pytest.mark.parametrize("document", [task(), command_task(), file_task()])
    async def test_a_guest_that_is_gone_is_no_zero_even_if_nobody_asks_it(self, rig, server, document):
        await server.stop()
        error = await fails(rig, document, "FAIL")
        assert error.kind is FailureKind.UNREACHABLE

    @pytest.mark.parametrize("path", ["/accessibility", "/wallpaper", "/screen_size", "/list_directory", "/terminal"])
    async def test_every_read_counts(self, rig, server, path):
        getter = {
            "/accessibility": {"type": "accessibility_tree"},
            "/wallpaper": {"type": "vm_wallpaper", "dest": "w.png"},
            "/screen_size": {"type": "vm_screen_size"},
            "/list_directory": {"type": "list_directory", "path": "/"},
            "/terminal": {"type": "vm_terminal_output"},
        }[path]
        server.fail(path, "status", value=500)
        error = await fails(
            rig, task(func="exact_match", result=getter, expected={"type": "rule", "rules": {"expected": "x"}})
        )
        assert error.kind is FailureKind.UNREACHABLE
        assert path in error.message

    async def test_a_failure_the_package_swallowed_still_counts(self, rig, server):
        getter = {"type": "enable_do_not_track"}  # turns every exception into "false"
        server.fail("/file", "status", value=500)
        error = await fails(
            rig, task(func="exact_match", result=getter, expected={"type": "rule", "rules": {"expected": "false"}})
        )
        assert error.kind is FailureKind.UNREACHABLE

    async def test_a_gold_file_that_cannot_be_had(self, rig, server):
        server.answer("/file", lambda _: (200, "application/octet-stream", b"content"))
        rig.evaluator.files.offline = True
        gold = {"type": "cloud_file", "path": "https://files.invalid/gold.txt", "dest": "gold.txt"}
        try:
            error = await fails(rig, file_task(expected=gold))
        finally:
            rig.evaluator.files.offline = False
        assert error.kind is FailureKind.UNREACHABLE
        assert "gold.txt" in error.message

    async def test_a_download_of_the_package_itself(self, rig, server, unused_tcp_port):
        """A getter that goes to the network by itself, past our store."""
        server.says("yes\n")
        getter = {"type": "vlc_playing_info", "dest": "status.xml"}
        error = await fails(rig, task(func="is_vlc_playing", result=getter, expected={"type": "rule", "rules": {}}))
        assert error.kind is FailureKind.EXCEPTION, "VLC's port is the desktop's: closed by the agent, perhaps"


class TestNoVerdict:
    async def test_an_exception(self, rig, server):
        error = await fails(
            rig,
            task(
                func="check_qt_bgcone",
                result={"type": "vlc_config", "dest": "vlcrc"},
                expected={"type": "rule", "rules": {}},
            ),
        )
        assert error.kind is FailureKind.EXCEPTION
        assert "TypeError" in error.message
        assert "get_vlc_config" in error.traceback

    async def test_an_assertion_under_or(self, rig, server):
        server.says("yes\n")
        good = command_task()["evaluator"]
        missing = {"type": "cache_file", "path": "none.out"}
        either = task(
            func=["exact_match"] * 2, result=[missing, good["result"]], expected=[good["expected"]] * 2, conj="or"
        )
        error = await fails(rig, either)
        assert "AssertionError" in error.message

    async def test_none_is_no_score(self, rig, server):
        server.answer("/file", lambda _: (200, "application/octet-stream", b"x = 1"))
        error = await fails(rig, file_task(func="check_python_file_by_gold_file", path="/a.py", dest="a.py"))
        assert error.kind is FailureKind.EXCEPTION
        assert "None" in error.message

    async def test_text_from_an_image_without_ocr(self, rig, server):
        if rig.evaluator.process_facts["ocr"]:
            pytest.skip("easyocr is installed here")
        server.answer("/file", lambda _: (200, "image/png", b"\x89PNG"))
        document = file_task(
            func="compare_image_text",
            path="/a.png",
            dest="a.png",
            expected={"type": "rule", "rules": {"type": "text", "text": "x"}},
        )
        error = await fails(rig, document)
        assert "OcrUnavailable" in error.message
        assert "easyocr" in error.message

    async def test_a_metric_that_hangs(self, rig, server):
        error = await fails(rig, python_file_task(server, "import time\ntime.sleep(600)\n"), timeout_s=2)
        assert error.kind is FailureKind.TIMEOUT

    async def test_a_metric_that_dies(self, rig, server):
        error = await fails(rig, python_file_task(server, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"))
        assert error.kind is FailureKind.CRASH
        assert "-9" in error.message

    @pytest.mark.parametrize(
        "said", ["no json", '{"event": "result", "score": 7}', '{"event": "result", "score": "1"}', "[1]", "{}"]
    )
    async def test_a_forged_message_that_is_no_score(self, rig, server, said):
        """The agent's code runs in the evaluator's process and may write to its channel; what makes no sense is no verdict."""
        find = "import glob, os, socket\nfor fd in glob.glob('/proc/self/fd/*'):\n"
        forge = f"    if os.path.exists(fd) and 'socket' in os.readlink(fd):\n        os.write(int(fd.rsplit('/', 1)[1]), {(said + chr(10)).encode()!r})\n"
        error = await fails(rig, python_file_task(server, find + forge + "def test(): return True\n"))
        assert error.kind in {FailureKind.CRASH, FailureKind.EXCEPTION}

    async def test_a_worker_without_room(self, rig, monkeypatch):
        def full(*_args, **_how):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("tempfile.mkdtemp", full)
        error = await fails(rig, task())
        assert error.kind is FailureKind.UNREACHABLE
        assert "No space left" in error.message

    async def test_a_metric_that_leaves_a_process_behind(self, rig, server, tmp_path):
        mark = tmp_path / "pid"
        code = f"import subprocess\np = subprocess.Popen(['sleep', '300'])\nopen({str(mark)!r}, 'w').write(str(p.pid))\ndef test(): return True\n"
        await rig.evaluate(python_file_task(server, code))
        pid = int(mark.read_text())
        for _ in range(50):
            if gone(pid):
                break
            await asyncio.sleep(0.1)
        else:
            pytest.fail("the process lives on")

    async def test_what_was_printed_is_kept(self, rig, server):
        report = await rig.evaluate(
            python_file_task(server, "print('hello from the agent')\ndef test(): return True\n")
        )
        assert report.score == 1.0
        assert b"hello from the agent" in report.log


class TestIsolation:
    async def test_nothing_is_kept_between_jobs(self, rig, server):
        await rig.evaluate(python_file_task(server, "import builtins\nbuiltins.left = 1\ndef test(): return True\n"))
        code = "import builtins\ndef test(): return not hasattr(builtins, 'left')\n"
        assert (await rig.evaluate(python_file_task(server, code))).score == 1.0

    async def test_the_worker_s_secrets_are_not_in_its_environment(self, rig, server, monkeypatch, tmp_path):
        code = "import os\ndef test(): return not [n for n in os.environ if 'KEY' in n or 'TOKEN' in n]\n"
        assert (await rig.evaluate(python_file_task(server, code))).score == 1.0

    async def test_it_works_in_an_empty_directory_of_its_own(self, rig, server):
        code = "import os, tempfile\nhere = os.environ['TMPDIR']\ndef test(): return tempfile.gettempdir() == here and sorted(os.listdir(here)) == ['job.log']\n"
        assert (await rig.evaluate(python_file_task(server, code))).score == 1.0

    async def test_jobs_run_beside_each_other(self, rig, server):
        server.says("yes\n")
        server.answer("/setup/execute", lambda _: command_result())
        sleeping = [rig.prepare(task([step("sleep", seconds=1)])) for _ in range(4)]
        started = asyncio.get_running_loop().time()
        await asyncio.gather(*sleeping)
        assert asyncio.get_running_loop().time() - started < 3
