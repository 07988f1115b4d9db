"""Every way a guest can fail under OSWorld's setup and post-steps: none ends as success, and nothing happens twice."""

from __future__ import annotations

import json

import pytest

from osworld_rollouts.osworld.job import FailureKind, PrepareFailed
from tests.osworld.fault_server import command_result
from tests.osworld.rig import EXECUTION, Rig, step, task


async def fails(rig: Rig, document, **how) -> PrepareFailed:
    with pytest.raises(PrepareFailed) as caught:
        await rig.prepare(document, **how)
    return caught.value


DO = step("execute", command=["do", "it"])


class TestSuccess:
    async def test_each_step_is_one_operation(self, rig, server):
        report = await rig.prepare(task([DO, step("launch", command=["gimp"]), DO]), first_seq=3)
        assert report.steps == 3
        assert report.next_seq == 6
        assert server.effects == ["/setup/execute do it", "/setup/launch gimp", "/setup/execute do it"]
        assert [entry["operation_id"] for entry in report.exchanges] == [f"{EXECUTION}/setup/o{n}" for n in range(3)]
        assert [(entry["step"], entry["seq"], entry["status"]) for entry in report.exchanges] == [
            (1, 3, 200),
            (2, 4, 200),
            (3, 5, 200),
        ]
        assert b"Command executed successfully" in report.log

    async def test_a_task_without_setup_asks_nothing_of_the_guest(self, rig, server):
        report = await rig.prepare(task())
        assert (report.steps, report.next_seq, report.exchanges) == (0, 0, [])
        assert server.requests == []

    async def test_the_token_is_sent_and_appears_nowhere(self, rig, server):
        report = await rig.prepare(task([DO]))
        assert server.requests[0].headers["authorization"] == f"Bearer {server.token}"
        assert server.token not in json.dumps(report.exchanges) + report.log.decode()

    async def test_heartbeats_say_what_is_waited_for(self, rig):
        await rig.prepare(task([step("sleep", seconds=0.6)]))
        assert any("step 1 sleep" in beat for beat in rig.beats), rig.beats

    async def test_placeholders_of_the_task_are_filled_in_by_the_package(self, rig, server):
        await rig.prepare(task([step("execute", command="echo {CLIENT_PASSWORD} {SCREEN_WIDTH_HALF}", shell=True)]))
        assert server.effects == ["/setup/execute echo password 960"]


class TestStepFails:
    @pytest.mark.parametrize(
        ("path", "failing"),
        [
            ("/setup/launch", step("launch", command=["no-such-program"])),
            ("/setup/execute", DO),
            ("/setup/activate_window", step("activate_window", window_name="Calc")),
            ("/setup/close_window", step("close_window", window_name="Calc")),
            ("/setup/change_wallpaper", step("change_wallpaper", path="/a.png")),
            ("/setup/open_file", step("open", path="/a.xlsx")),
        ],
    )
    async def test_http_500_of_any_step(self, rig, server, path, failing):
        server.fail(path, "status", value=500)
        error = await fails(rig, task([DO if path != "/setup/execute" else step("sleep", seconds=0), failing, DO]))
        assert error.kind is FailureKind.STEP_FAILED
        assert error.step == 2
        assert error.step_type == failing["type"]
        assert "HTTP 500" in error.message
        assert "told to fail" in error.output
        assert not server.effects[1:], "a step after the failed one ran"

    async def test_a_return_code(self, rig, server):
        server.says(returncode=1, error="mkdir: File exists")
        error = await fails(rig, task([DO]))
        assert (error.step, error.step_type, error.command) == (1, "execute", "do it")
        assert error.output == "mkdir: File exists"
        assert "return code 1" in error.message
        assert error.exchanges[0]["returncode"] == 1
        assert server.effects == ["/setup/execute do it"]

    async def test_open_of_a_file_that_is_not_there(self, rig, server):
        server.fail("/setup/open_file", "status", value=404)
        error = await fails(rig, task([step("open", path="/home/user/none.xlsx")]))
        assert error.kind is FailureKind.STEP_FAILED
        assert "/home/user/none.xlsx" in error.command

    @pytest.mark.parametrize(
        ("document", "names"),
        [
            (task([step("no_such_step")]), "no_such_step"),
            (task(func="no_such_metric", result={"type": "rule", "rules": {}}), "no_such_metric"),
            (task(func="exact_match", result={"type": "no_such_getter"}), "no_such_getter"),
            (task([step("replay", trajectory="x")]), "NotImplementedError"),
        ],
    )
    async def test_names_the_package_does_not_have(self, rig, server, document, names):
        error = await fails(rig, document)
        assert names in error.message
        assert error.traceback
        assert server.effects == []

    async def test_a_window_that_never_appears(self, rig, server):
        server.answer("/setup/activate_window", lambda _: (404, "text/html", b"no window"))
        error = await fails(rig, task([step("activate_window", window_name="Calc")]))
        assert error.step_type == "activate_window"
        assert len(server.effects) > 1, "it was not waited for"
        assert len({request.operation_id for request in server.requests}) == len(server.requests), (
            "an answer from the ledger would never change"
        )

    async def test_a_window_that_appears_in_time(self, rig, server):
        looks = iter([404, 404, 200])
        server.answer("/setup/activate_window", lambda _: (next(looks), "text/html", b""))
        report = await rig.prepare(task([step("activate_window", window_name="Calc"), DO]))
        assert [entry.get("superseded", False) for entry in report.exchanges] == [True, True, False, False]
        assert report.next_seq == 4

    async def test_until_goes_on_until_its_condition_holds(self, rig, server):
        codes = iter([1, 1, 0])
        server.answer("/setup/execute", lambda _: command_result(returncode=next(codes)))
        report = await rig.prepare(task([step("execute", command=["poll"], until={"returncode": 0})]))
        assert len(server.effects) == 3
        assert len({entry["operation_id"] for entry in report.exchanges}) == 3

    async def test_until_that_only_meets_errors(self, rig, server):
        server.fail("/setup/execute", "status", value=500)
        error = await fails(rig, task([step("execute", command=["poll"], until={"returncode": 0})]))
        assert "gave up waiting" in error.message


class TestLostReplies:
    @pytest.mark.parametrize("kind", ["drop_after", "cut"])
    async def test_the_ledger_answers_and_nothing_happens_twice(self, rig, server, kind):
        server.fail("/setup/execute", kind, times=2)
        report = await rig.prepare(task([DO, DO]))
        assert server.effects == ["/setup/execute do it"] * 2
        assert report.exchanges[0]["replayed"] is True
        assert report.exchanges[0]["attempts"] == 3
        assert report.next_seq == 2

    async def test_a_request_lost_on_the_way_is_sent_again(self, rig, server):
        server.fail("/setup/launch", "drop_before", times=1)
        report = await rig.prepare(task([step("launch", command=["gimp"])]))
        assert server.effects == ["/setup/launch gimp"]
        assert "replayed" not in report.exchanges[0]

    async def test_an_upload_whose_reply_was_lost_is_not_repeated(self, rig, server, tmp_path):
        url = "https://files.invalid/a.xlsx"
        (tmp_path / "a").write_bytes(b"content")
        rig.evaluator.files.add(url, tmp_path / "a")
        server.fail("/setup/upload", "drop_after", times=1)
        await rig.prepare(task([step("download", files=[{"url": url, "path": "/home/user/a.xlsx"}])]))
        assert len(server.effects) == 1

    async def test_http_500_after_the_effect_fails_and_does_not_repeat(self, rig, server):
        server.fail("/setup/execute", "error_after")
        error = await fails(rig, task([DO]))
        assert error.kind is FailureKind.STEP_FAILED
        assert server.effects == ["/setup/execute do it"]

    async def test_a_guest_server_that_restarts_in_the_middle(self, rig, server):
        server.answer("/setup/execute", lambda _: command_result())
        server.fail("/setup/execute", "drop_before", times=1)
        import asyncio

        async def restart() -> None:
            while not server.requests:
                await asyncio.sleep(0.01)
            await server.stop()
            await asyncio.sleep(0.7)
            await server.restart()

        restarting = asyncio.ensure_future(restart())
        report = await rig.prepare(task([DO]))
        await restarting
        assert server.effects == ["/setup/execute do it"]
        assert report.exchanges[0]["attempts"] >= 2

    async def test_without_a_ledger_a_lost_reply_is_indeterminate(self, rig, server):
        import dataclasses

        server.ledger = False
        rig.guest = dataclasses.replace(rig.guest, ledger=False)
        server.fail("/setup/execute", "drop_after", times=1)
        error = await fails(rig, task([DO]))
        assert error.kind is FailureKind.INDETERMINATE
        assert server.effects == ["/setup/execute do it"]


class TestGuestGone:
    async def test_refused_connections(self, rig, server):
        await server.stop()
        error = await fails(rig, task([DO]))
        assert error.kind is FailureKind.UNREACHABLE
        assert "refuses connections" in error.message
        assert error.step == 1

    async def test_a_guest_that_never_answers(self, rig, server):
        server.fail("/setup/execute", "hang_after")
        error = await fails(rig, task([DO]))
        assert error.kind is FailureKind.TIMEOUT
        assert "did not answer within 3 s" in error.message
        assert server.effects == ["/setup/execute do it"]

    async def test_the_deadline_of_the_whole_job(self, rig):
        error = await fails(rig, task([step("sleep", seconds=600)]), timeout_s=1)
        assert error.kind is FailureKind.TIMEOUT
        assert "not done within 1 s" in error.message
        assert (error.step, error.step_type) == (1, "sleep")

    @pytest.mark.parametrize(("fence", "last_seq", "why"), [(9, -1, "stale_fence"), (0, 50, "stale_sequence")])
    async def test_a_refused_operation(self, rig, server, fence, last_seq, why):
        server.fence, server.last_seq = fence, last_seq
        error = await fails(rig, task([DO]))
        assert error.kind is FailureKind.REFUSED
        assert why in error.message
        assert server.effects == []

    async def test_a_wrong_token(self, rig, server):
        server.token = "another"
        error = await fails(rig, task([DO]))
        assert error.kind is FailureKind.REFUSED

    async def test_a_file_that_cannot_be_downloaded(self, rig, server, unused_tcp_port):
        url = f"http://127.0.0.1:{unused_tcp_port}/a.xlsx"
        rig.evaluator.files.offline = True
        try:
            error = await fails(rig, task([step("download", files=[{"url": url, "path": "/a.xlsx"}])]))
        finally:
            rig.evaluator.files.offline = False
        assert error.kind is FailureKind.UNREACHABLE
        assert url in error.message
        assert server.effects == []

    async def test_a_gold_file_that_cannot_be_had_is_known_before_the_agent_starts(self, rig, server):
        gold = {"type": "cloud_file", "path": "https://files.invalid/gold.xlsx", "dest": "gold.xlsx"}
        rig.evaluator.files.offline = True
        try:
            error = await fails(rig, task([DO], func="compare_table", result=gold, expected=gold))
        finally:
            rig.evaluator.files.offline = False
        assert error.kind is FailureKind.UNREACHABLE
        assert server.effects == []


class TestPostSteps:
    def document(self, *steps):
        return task([DO], func="infeasible", postconfig=list(steps))

    async def test_they_run_once_and_only_they(self, rig, server):
        report = await rig.post_steps(self.document(step("execute", command=["save"])), first_seq=4)
        assert server.effects == ["/setup/execute save"]
        assert report.exchanges[0]["operation_id"] == f"{EXECUTION}/post/o0"
        assert report.next_seq == 5
        await rig.evaluate(self.document(step("execute", command=["save"])), first_seq=5)
        assert server.effects == ["/setup/execute save"]

    async def test_what_the_agent_left_is_a_note(self, rig, server):
        server.says(returncode=1, error="zip error: nothing to do")
        server.answer("/setup/activate_window", lambda _: (404, "text/html", b"none"))
        document = self.document(
            step("activate_window", window_name="a.xlsx", strict=True), step("execute", command=["zip"])
        )
        report = await rig.post_steps(document)
        assert len(report.notes) == 2
        assert "a.xlsx" in report.notes[0]
        assert "nothing to do" in report.notes[1]

    async def test_what_the_guest_lacks_fails(self, rig, server):
        server.says(returncode=127, error="zip: command not found")
        with pytest.raises(PrepareFailed, match="does not have this command"):
            await rig.post_steps(self.document(step("execute", command="zip a b", shell=True)))

    async def test_output_is_kept_for_the_evaluator(self, rig, server):
        server.says("files differ\n", returncode=1)
        await rig.post_steps(self.document(step("execute", command=["diff", "a", "b"], stdout="diff.out")))
        document = task(
            func="check_include_exclude",
            result={"type": "cache_file", "path": "diff.out"},
            expected={"type": "rule", "rules": {"include": ["x"], "exclude": []}},
        )
        assert (rig.cache / "a-task" / "diff.out").read_text() == "files differ\n"
        report = await rig.evaluate(document)
        assert report.files.keys() == {"diff.out"}
