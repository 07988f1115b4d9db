"""Every command ends well: one line with the remedy, a documented code, JSON where asked, no traceback."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from osworld_rollouts.console import main as module
from osworld_rollouts.console import services
from osworld_rollouts.console.errors import MEANINGS, ConsoleError, ExitCode, as_console_error
from osworld_rollouts.console.output import clean, one_line

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "127.0.0.1:9"
SUBMIT = ("submit", "text-edit-save", "--model", "m", "--base-url", "http://x/v1")


@pytest.fixture(autouse=True)
def _own_state(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith(("ROLLOUTS_", "TEMPORAL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ROLLOUTS_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("ROLLOUTS_TEMPORAL__ADDRESS", NOWHERE)
    monkeypatch.setenv("ROLLOUTS_TEMPORAL__CONNECT_TIMEOUT_S", "2")
    monkeypatch.chdir(tmp_path)


def run(capsys, *arguments):
    code = module.run(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["nonsense"], ExitCode.USAGE, "nonsense"),
        (["tasks", "--foo"], ExitCode.USAGE, "--foo"),
        (["list", "--limit", "many"], ExitCode.USAGE, "many"),
        (["list", "--limit", "0"], ExitCode.USAGE, "at least 1"),
        (["list", "--outcome", "nonsense"], ExitCode.USAGE, "desktop_lost"),
        (["list", "--outcome", "desktop_los"], ExitCode.USAGE, "did you mean desktop_lost"),
        (["config", "nope"], ExitCode.USAGE, "no setting has 'nope' in its name"),
        (["config", "temporal.adress"], ExitCode.USAGE, "did you mean temporal.address"),
        (["config", "adress"], ExitCode.USAGE, "did you mean temporal.address"),
        (["machines", "--clear", "unknown"], ExitCode.NOT_FOUND, "there is no machine 'unknown'"),
        (["list"], ExitCode.UNREACHABLE, "; start one with `rollouts up`"),
        (["show"], ExitCode.USAGE, "ROLLOUT"),
        (["submit"], ExitCode.USAGE, "no task named"),
        (["submit", "no-such-task", "--model", "m", "--base-url", "http://x/v1"], ExitCode.USAGE, "unknown task"),
        (["submit", "text-edit-save"], ExitCode.USAGE, "--model and --base-url missing"),
        (["submit", "text-edit-save", "--model", "m", "--base-url", "x"], ExitCode.USAGE, "http://"),
        (
            ["submit", "text-edit-save", "--model", "m", "--base-url", "http://x", "--temperature", "9"],
            ExitCode.USAGE,
            "temperature",
        ),
        (
            ["submit", "text-edit-save", "--model", "m", "--base-url", "http://x", "--campaign", "../x"],
            ExitCode.USAGE,
            "campaign_id: must begin with a letter or digit",
        ),
        (
            ["submit", "text-edit-save", "--model", "m", "--base-url", "http://x", "--samples", "0"],
            ExitCode.USAGE,
            "--samples",
        ),
        (
            ["submit", "text-edit-save", "--model", "m", "--base-url", "http://x", "--in-flight", "0"],
            ExitCode.USAGE,
            "--in-flight",
        ),
        (
            ["submit", "text-edit-save", "--model", "m", "--base-url", "http://x", "--label", "x"],
            ExitCode.USAGE,
            "--label wants name=value",
        ),
        ([*SUBMIT, "--adapter", "pyautogu"], ExitCode.USAGE, "did you mean pyautogui?"),
        ([*SUBMIT, "--adapter", "x"], ExitCode.USAGE, "there are: "),
        ([*SUBMIT, "--provider", "locl"], ExitCode.USAGE, "did you mean local?"),
        ([*SUBMIT, "--history", "x"], ExitCode.USAGE, "--history 'x' is unknown"),
        ([*SUBMIT, "--history", "hysteresis", "--history-option", "low=3"], ExitCode.USAGE, "high_water"),
        ([*SUBMIT, "--history-option", "keep_images=0"], ExitCode.USAGE, "keep_images"),
        ([*SUBMIT, "--adapter-option", "nonsense=1"], ExitCode.USAGE, "nonsense"),
        ([*SUBMIT, "--api-key-env", "sk-secret"], ExitCode.USAGE, "not the key itself"),
        ([*SUBMIT, "--parse-policy", "x"], ExitCode.USAGE, "noop"),
        ([*SUBMIT, "--parse-policy-option", "resamples=99"], ExitCode.USAGE, "resamples"),
        ([*SUBMIT, "--parse-policy-option", "resample=1"], ExitCode.USAGE, "resample"),
        (["submit", "--request", "absent.json"], ExitCode.USAGE, "absent.json"),
        (["submit", "text-edit-save", "--model", "m", "--base-url", "http://x"], ExitCode.UNREACHABLE, "rollouts up"),
        (["list"], ExitCode.UNREACHABLE, NOWHERE),
        (["show", "a/b/0"], ExitCode.UNREACHABLE, NOWHERE),
        (["cancel"], ExitCode.USAGE, "--campaign"),
        (["pause", "a/b/0", "--campaign", "c"], ExitCode.USAGE, "--campaign"),
        (["cancel", "a/b/0"], ExitCode.UNREACHABLE, NOWHERE),
        (["setup"], ExitCode.UNREACHABLE, NOWHERE),
        (["tasks", "/no/such/place.json"], ExitCode.USAGE, "/no/such/place.json"),
        (["view", "--export", "out"], ExitCode.USAGE, "--export needs a rollout"),
        (["view", "a/b/0", "--export", "out"], ExitCode.NOT_FOUND, "no finished execution"),
        (["demo", "--model", "m"], ExitCode.USAGE, "--base-url"),
        (["demo", "no-such-task"], ExitCode.USAGE, "unknown task"),
    ],
)
def test_errors_are_one_line_with_the_remedy(capsys, arguments, code, says):
    got, out, err = run(capsys, *arguments)
    assert (got, out) == (code, "")
    assert says in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_errors_as_json(capsys):
    code, out, err = run(capsys, "list", "--json")
    assert out == ""
    assert json.loads(err)["error"]["exit_code"] == code == ExitCode.UNREACHABLE
    assert json.loads(err)["error"]["kind"] == "unreachable"
    assert json.loads(err)["error"]["remedy"].startswith("start one with `rollouts up`")
    assert "rollouts up" not in json.loads(err)["error"]["message"]


def test_a_wrong_setting_is_one_line(capsys, monkeypatch):
    monkeypatch.setenv("ROLLOUTS_VIEWER__PORT", "no")
    code, _, err = run(capsys, "config")
    assert code == ExitCode.USAGE
    assert "viewer.port" in err


def test_a_read_only_state_directory_is_said(capsys, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("ROLLOUTS_STATE_DIR", str(tmp_path / "file" / "state"))
    code, _, err = run(capsys, "up")
    assert code == ExitCode.ENVIRONMENT
    assert err.splitlines()[-1].startswith("error: ")


def test_a_defect_shows_a_traceback_only_with_debug(capsys, monkeypatch):
    def broken():
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(module, "build_app", broken)
    code, _, err = run(capsys, "tasks")
    assert code == ExitCode.INTERNAL
    assert "ZeroDivisionError: oops" in err
    assert "--debug" in err
    with pytest.raises(ZeroDivisionError):
        module.run(["tasks", "--debug"])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError()])
def test_interruption_has_its_code(capsys, monkeypatch, error):
    def interrupted():
        raise error

    monkeypatch.setattr(module, "build_app", interrupted)
    assert run(capsys, "tasks")[0] == ExitCode.INTERRUPTED


def test_every_code_has_a_meaning_and_help_shows_it(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == ExitCode.OK
    assert set(MEANINGS) == set(ExitCode)
    for number in ExitCode:
        assert f"{int(number):>3}  " in out
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for number in ExitCode:
        assert f"| {int(number)} |" in readme


@pytest.mark.parametrize("name", [name for name, _, _ in module._COMMANDS])
def test_every_command_has_help_and_json(capsys, name):
    code, out, _ = run(capsys, name, "--help")
    assert code == ExitCode.OK
    assert "--json" in out


def test_tasks_and_config_as_json(capsys):
    code, out, _ = run(capsys, "tasks", "--json")
    assert code == ExitCode.OK
    assert {"id", "domain", "instruction"} == set(json.loads(out)["tasks"][0])
    code, out, _ = run(capsys, "config", "--json")
    rows = {row["name"]: row for row in json.loads(out)["settings"]}
    assert rows["temporal.address"] == {
        **rows["temporal.address"],
        "value": NOWHERE,
        "origin": "environment ROLLOUTS_TEMPORAL__ADDRESS",
    }


def test_status_without_a_server_is_no_error(capsys):
    code, out, _ = run(capsys, "status", "--json")
    assert code == ExitCode.OK
    assert json.loads(out)["temporal"]["reachable"] is False
    assert run(capsys, "down", "--json")[0] == ExitCode.OK


def test_up_without_a_workers_packages_starts_nothing(capsys, monkeypatch):
    monkeypatch.setitem(services.NEEDED, "models", ("openai", "no_such_module"))
    code, _, err = run(capsys, "up")
    assert code == ExitCode.ENVIRONMENT
    assert err == (
        "error: a worker needs no_such_module, not installed here; make setup, which installs a worker's packages from the lock; "
        "or `rollouts up --no-worker`\n"
    )
    assert json.loads(run(capsys, "status", "--json")[1])["processes"] == []


def test_a_dry_run_needs_no_server(capsys):
    code, out, _ = run(
        capsys,
        "submit",
        "text-edit-save",
        "terminal-count-errors",
        "-n",
        "2",
        "--model",
        "m",
        "--base-url",
        "http://x/v1",
        "--dry-run",
        "--json",
    )
    assert code == ExitCode.OK
    ids = [item["rollout_id"] for item in json.loads(out)["rollouts"]]
    assert ids == [
        "default/text-edit-save/0",
        "default/terminal-count-errors/0",
        "default/text-edit-save/1",
        "default/terminal-count-errors/1",
    ]


def test_what_a_dry_run_printed_can_be_submitted(capsys, tmp_path):
    code, out, _ = run(capsys, *SUBMIT, "-n", "2", "--dry-run", "--json")
    assert code == ExitCode.OK
    (tmp_path / "all.json").write_text(out, encoding="utf-8")
    (tmp_path / "one.json").write_text(json.dumps(json.loads(out)["rollouts"][1]["request"]), encoding="utf-8")
    (tmp_path / "none.json").write_text('{"rollout": 1}', encoding="utf-8")
    assert run(capsys, "submit", "--request", str(tmp_path / "all.json"), "--dry-run", "--json")[1] == out
    _, again, _ = run(capsys, "submit", "--request", str(tmp_path / "one.json"), "--dry-run", "--json")
    assert json.loads(again)["rollouts"] == json.loads(out)["rollouts"][1:]
    code, _, err = run(capsys, "submit", "--request", str(tmp_path / "none.json"), "--dry-run")
    assert code == ExitCode.USAGE
    assert err.startswith("error: rollout")


def test_unknown_errors_stay_unknown():
    assert as_console_error(ZeroDivisionError()) is None
    assert as_console_error(ConsoleError("x")).message == "x"


def test_output_cannot_drive_the_terminal():
    assert clean("a\x1b[2Jb\u202ec\x07\r") == "a�[2Jb�c��"
    assert one_line("a\n b\tc") == "a b c"
    assert one_line("x" * 100, 10) == "x" * 9 + "…"


BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"aiohttp", "openai", "PIL", "numpy", "docker", "desktop_env", "pyarrow", "obstore", "anthropic", "filelock", "scipy", "fitz", "workflows", "activities", "worker"}:
            raise ImportError(f"blocked: {name}")
sys.meta_path.insert(0, Block())
from osworld_rollouts.console import main
sys.argv = ["rollouts", *sys.argv[1:]]
main.main()
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["tasks"], 0),
        (["config"], 0),
        (["tasks", "--check"], 6),
        (["submit", "text-edit-save", "--model", "m", "--base-url", "http://x", "--dry-run"], 0),
        (["submit", "text-edit-save", "--model", "m", "--base-url", "http://x"], 5),
        (["list"], 5),
        (["view", "a/b/0", "--export", "out"], 4),
    ],
)
def test_a_console_needs_none_of_a_workers_packages(arguments, code):
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code, done.stderr
    assert "blocked" not in done.stderr
    assert "unexpected" not in done.stderr


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ((), None),
        (("--parse-policy", "stop"), {"on_failure": "stop", "resamples": 5}),
        (("--parse-policy", "feedback", "--parse-policy-option", "resamples=2"), {"on_failure": "feedback", "resamples": 2}),
        (
            ("--adapter", "ui_tars", "--parse-policy-option", "max_failed_turns=4"),
            {"on_failure": "resample", "resamples": 2, "resample_temperature": 1.0, "max_failed_turns": 4},
        ),
    ],
)  # fmt: skip
def test_the_parse_policy_is_the_adapters_unless_it_is_named(capsys, options, policy):
    code, out, _ = run(capsys, *SUBMIT, *options, "--dry-run", "--json")
    assert code == 0
    (rollout,) = json.loads(out)["rollouts"]
    found = rollout["request"]["rollout"]["parse_policy"]
    assert found == policy if policy is None else policy.items() <= found.items()


@pytest.mark.parametrize("_attempt", range(5))
def test_the_process_leaves_with_the_code_it_promised(_attempt):
    """A client was used; see the trap in `main.main`."""
    done = subprocess.run(
        [sys.executable, "-m", "osworld_rollouts.console.main", "list"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == ExitCode.UNREACHABLE, done.stderr
    assert done.stderr.startswith("error: ")


def test_a_reader_that_leaves_early_is_no_error():
    command = f"{sys.executable} -m osworld_rollouts.console.main config --reasons | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_interrupted_before_anything_runs_is_no_traceback():
    """The signal comes while modules are imported; here the import raises what the signal raises."""
    code = (
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'osworld_rollouts.console.output': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from osworld_rollouts.console import main\n"
        "main.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, "list"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (ExitCode.INTERRUPTED, "error: interrupted\n")
