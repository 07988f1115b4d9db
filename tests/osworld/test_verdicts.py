import json

import pytest

from osworld_rollouts.osworld.exchanges import Exchange
from osworld_rollouts.osworld.job import FailureKind
from osworld_rollouts.osworld.verdicts import TOLERATED, Phase, Step, at_once, is_effect, of_step, waits_for_window


def exchange(path="/setup/execute", status=200, number=0, request=None, **reply) -> Exchange:
    made = Exchange(
        phase="setup", step=1, method="POST", path=path, request=json.dumps(request or {"command": ["do", "it"]}),
        request_sha256="", request_bytes=0, at=0, operation_id=f"x/o{number}", seq=number,
    )  # fmt: skip
    if status is not None:
        made.answer(status, "application/json", json.dumps(reply).encode())
    return made


def failing(phase, step, *exchanges):
    return [verdict.message for verdict in of_step(phase, step, list(exchanges)) if verdict.fails]


def noted(phase, step, *exchanges):
    return [verdict.message for verdict in of_step(phase, step, list(exchanges)) if not verdict.fails]


EXECUTE = Step(1, "execute", {"command": ["do", "it"]}, "a-task")


@pytest.mark.parametrize(
    ("method", "path", "effect"),
    [
        ("GET", "/screenshot", False), ("GET", "/accessibility", False), ("GET", "/terminal", False), ("GET", "/platform", False),
        ("POST", "/file", False), ("POST", "/screen_size", False), ("POST", "/window_size", False), ("POST", "/wallpaper", False),
        ("POST", "/desktop_path", False), ("POST", "/list_directory", False),
        ("POST", "/execute", True), ("POST", "/setup/execute", True), ("POST", "/setup/launch", True), ("POST", "/setup/upload", True),
        ("POST", "/setup/open_file", True), ("POST", "/setup/activate_window", True), ("POST", "/setup/close_window", True),
        ("POST", "/setup/change_wallpaper", True), ("POST", "/run_python", True), ("POST", "/run_bash_script", True),
        ("POST", "/start_recording", True), ("POST", "/end_recording", True), ("POST", "/something_new", True),
    ],
)  # fmt: skip
def test_what_is_an_effect(method, path, effect):
    assert is_effect(method, path) is effect


class TestSetup:
    def test_success(self):
        assert of_step(Phase.SETUP, EXECUTE, [exchange(returncode=0, output="fine")]) == []

    def test_a_return_code_fails_the_step_with_command_and_output(self):
        (message,) = failing(Phase.SETUP, EXECUTE, exchange(returncode=1, output="", error="no such thing"))
        assert "return code 1 of `do it`" in message
        assert "no such thing" in message

    @pytest.mark.parametrize("path", ["/setup/execute", "/setup/launch", "/setup/activate_window", "/setup/close_window", "/setup/open_file", "/setup/upload", "/setup/change_wallpaper"])  # fmt: skip
    @pytest.mark.parametrize("status", [404, 500])
    def test_an_http_error_of_any_effect_fails_the_step(self, path, status):
        (message,) = failing(Phase.SETUP, EXECUTE, exchange(path, status, message="missing binary"))
        assert f"{path} answered HTTP {status}" in message
        assert "missing binary" in message

    def test_a_repetition_counts_by_its_last_reply(self):
        assert not failing(Phase.SETUP, EXECUTE, exchange(status=500), exchange(returncode=0))

    def test_a_look_for_a_window_that_came_later_does_not_count(self):
        early = exchange("/setup/activate_window", 404, 0)
        early.superseded = True
        assert not failing(Phase.SETUP, EXECUTE, early, exchange("/setup/activate_window", 200, 1))

    def test_every_tolerated_step_says_why_and_only_that_step_is_tolerated(self):
        for (task_id, number), reason in TOLERATED.items():
            assert len(reason) > 20
            assert not failing(Phase.SETUP, Step(number, "execute", {}, task_id), exchange(returncode=1))
            assert noted(Phase.SETUP, Step(number, "execute", {}, task_id), exchange(returncode=1))
            assert failing(Phase.SETUP, Step(number + 1, "execute", {}, task_id), exchange(returncode=1))
            assert failing(Phase.SETUP, Step(number, "execute", {}, task_id), exchange(status=500))

    def test_chown_of_the_history_file_may_fail(self):
        history = Step(1, "update_browse_history", {}, "a-task")
        chown = {"command": ["sudo chown -R user:user /home/user/.config/google-chrome/Default/History"], "shell": True}
        assert not failing(Phase.SETUP, history, exchange(returncode=1, request=chown))
        assert failing(Phase.SETUP, history, exchange(returncode=1))

    @pytest.mark.parametrize(
        ("until", "reply"),
        [({"returncode": 1}, {"returncode": 1}), ({"stdout": "up"}, {"returncode": 3, "output": "is up"}), ({"stderr": "e"}, {"error": "e"})],
    )  # fmt: skip
    def test_until_is_judged_by_its_condition(self, until, reply):
        waiting = Step(1, "execute", {"until": until}, "a-task")
        assert not failing(
            Phase.SETUP,
            waiting,
            exchange(status=500),
            exchange(number=1, returncode=7, output="", error=""),
            exchange(number=2, **reply),
        )
        (message,) = failing(Phase.SETUP, waiting, exchange(returncode=7, output="", error=""))
        assert "gave up waiting" in message


class TestPostSteps:
    @pytest.mark.parametrize("path", ["/setup/activate_window", "/setup/close_window"])
    def test_a_window_the_agent_closed_is_noted(self, path):
        step = Step(1, "activate_window", {"window_name": "a.xlsx"}, "a-task")
        assert not failing(Phase.POST, step, exchange(path, 404))
        (note,) = noted(Phase.POST, step, exchange(path, 404))
        assert "a.xlsx" in note

    def test_a_return_code_may_be_what_the_agent_left(self):
        assert not failing(Phase.POST, EXECUTE, exchange(returncode=1, error="zip: nothing to do"))
        assert noted(Phase.POST, EXECUTE, exchange(returncode=1))

    @pytest.mark.parametrize("code", [126, 127])
    def test_a_command_the_guest_does_not_have_fails(self, code):
        (message,) = failing(Phase.POST, EXECUTE, exchange(returncode=code, error="zip: not found"))
        assert "does not have this command" in message

    @pytest.mark.parametrize(
        "command",
        [
            "echo password | sudo -S apt-get install -y expect",
            ["pip", "install", "/home/user/x.whl"],
            "sudo -S pip install pysrt",
        ],
    )
    def test_an_installation_that_fails_is_not_the_agents(self, command):
        assert failing(Phase.POST, EXECUTE, exchange(returncode=1, request={"command": command}))

    @pytest.mark.parametrize("path", ["/setup/execute", "/setup/launch", "/setup/open_file", "/setup/upload"])
    def test_an_http_error_fails(self, path):
        assert failing(Phase.POST, EXECUTE, exchange(path, 500))


class TestAtOnce:
    @pytest.mark.parametrize("status", [405, 413, 429, 500, 502, 503])
    def test_an_http_error_during_evaluation_is_infrastructure(self, status):
        for path in ("/execute", "/file", "/accessibility"):
            verdict = at_once(Phase.EVALUATE, exchange(path, status))
            assert verdict is not None
            assert verdict.kind is FailureKind.UNREACHABLE

    @pytest.mark.parametrize("status", [400, 403, 404])
    def test_what_the_guest_says_about_the_agents_files_is_not(self, status):
        assert at_once(Phase.EVALUATE, exchange("/file", status)) is None
        assert noted(Phase.EVALUATE, Step(), exchange("/file", status))
        assert at_once(Phase.EVALUATE, exchange("/execute", status)) is not None

    def test_a_getters_command_that_ran_too_long_is_no_verdict_and_not_asked_again(self):
        error = {"type": "command_timeout", "message": "the command ran longer than 120 s"}
        verdict = at_once(Phase.EVALUATE, exchange("/execute", 500, error=error))
        assert verdict is not None
        assert verdict.kind is FailureKind.TIMEOUT

    def test_a_server_error_in_setup_is_left_to_the_step(self):
        assert at_once(Phase.SETUP, exchange(status=500)) is None

    @pytest.mark.parametrize("phase", list(Phase))
    @pytest.mark.parametrize(
        ("status", "kind", "expected"),
        [
            (401, "unauthorized", FailureKind.REFUSED),
            (409, "stale_fence", FailureKind.REFUSED),
            (409, "stale_sequence", FailureKind.REFUSED),
            (409, "operation_mismatch", FailureKind.REFUSED),
            (409, "operation_interrupted", FailureKind.INDETERMINATE),
            (500, "operation_interrupted", FailureKind.INDETERMINATE),
            (409, "operation_running", FailureKind.TIMEOUT),
            (507, "ledger_unavailable", FailureKind.UNREACHABLE),
        ],
    )
    def test_what_the_ledger_says_ends_every_phase(self, phase, status, kind, expected):
        verdict = at_once(phase, exchange(status=status, error={"type": kind, "message": "why"}))
        assert verdict is not None
        assert verdict.kind is expected

    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            ("timeout", FailureKind.TIMEOUT),
            ("unreachable", FailureKind.UNREACHABLE),
            ("indeterminate", FailureKind.INDETERMINATE),
        ],
    )
    def test_no_reply_ends_every_phase(self, error, expected):
        lost = exchange(status=None)
        lost.error_type, lost.error = error, "why"
        for phase in Phase:
            verdict = at_once(phase, lost)
            assert verdict is not None
            assert verdict.kind is expected


def test_a_window_is_waited_for_while_it_is_not_there():
    assert waits_for_window(Phase.SETUP, exchange("/setup/activate_window", 404))
    assert not waits_for_window(Phase.SETUP, exchange("/setup/activate_window", 200))
    assert not waits_for_window(Phase.SETUP, exchange("/setup/launch", 404))
    assert not waits_for_window(Phase.EVALUATE, exchange("/setup/activate_window", 404))
