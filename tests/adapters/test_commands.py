from __future__ import annotations

import io
import json
import sys

import pytest

from osworld_rollouts.console.main import run
from osworld_rollouts.testing.protocol_servers.responses import computer_call, response

from .speech import block


@pytest.fixture
def command(capsys, monkeypatch):
    """Run `rollouts …`; its exit code, standard output and standard error."""

    def call(*arguments, given=""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        code = run(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_the_bare_noun_lists(command):
    code, out, _ = command("adapters")
    assert code == 0
    assert out == command("adapters", "list")[1]
    assert "nemotron_nano_omni" in out
    names = [item["name"] for item in json.loads(command("adapters", "--json")[1])]
    assert names == sorted(names)


def test_show_has_prompts_actions_and_defaults(command):
    code, out, _ = command("adapters", "show", "ui_tars", "--option", "action_space=call_user")
    assert code == 0
    for words in ("call_user()", "keep_images=5", "resample_temperature=1.0", "action_space=call_user", "prompt: user"):
        assert words in out
    facts = json.loads(command("adapters", "show", "pyautogui", "--json")[1])
    assert facts["identity"]["version"] == "1"
    assert "DONE" in facts["actions"]


def test_render_prints_the_request_a_task_begins_with(command):
    code, out, _ = command(
        "render", "--task", "text-edit-save", "--adapter", "anthropic_computer_use", "--model", "claude"
    )
    assert code == 0
    first, _, body = out.partition("\n")
    assert first == "anthropic-beta: computer-use-2025-01-24"
    assert json.loads(body)["model"] == "claude"
    assert "minutes.txt" in body


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("render",), 2, "name a task with --task"),
        (("render", "--task", "no-such-task"), 2, "no-such-task"),
        (("render", "--from", "nobody"), 4, "no sealed execution of 'nobody'"),
        (("adapters", "show", "gpt"), 2, "there is no adapter 'gpt'; installed are: anthropic_computer_use"),
        (("adapters", "show", "qwen3_vl", "--option", "colour=1"), 2, "colour: Extra inputs"),
        (("parse", "--adapter", "openai_computer_use"), 2, "no reply of the responses API"),
        (("parse", "--adapter", "ui_tars", "--width", "0"), 2, "width"),
    ],
)
def test_errors_say_what_to_do(command, arguments, code, words, tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUTS_STATE_DIR", str(tmp_path))
    found, _, err = command(*arguments)
    assert found == code
    assert words in err


def test_parse_shows_actions_and_what_was_dropped(command):
    code, out, _ = command("parse", given=f"I click.\n{block('pyautogui.click(1, 2)')}")
    assert code == 0
    assert "action 0: python 'pyautogui.click(1, 2)'" in out
    assert "dropped (text around the actions): I click." in out


def test_parse_of_nothing_is_exit_code_1(command):
    code, out, _ = command("parse", "--adapter", "computer_13", given="hello")
    assert code == 1
    assert out.startswith("no_action: ")


def test_parse_shows_the_call_it_dropped(command):
    zap = computer_call({"type": "zap", "x": 1})
    code, out, _ = command("parse", "--adapter", "openai_computer_use", given=json.dumps(response("gpt", zap)))
    assert code == 1
    dropped = out.splitlines()[-1]
    assert dropped.startswith("dropped (unknown_action: there is no action 'zap'): ")
    assert json.loads(dropped.split("): ", 1)[1])["action"] == {"type": "zap", "x": 1}


def test_parse_takes_whole_replies(command):
    body = json.dumps(response("gpt", computer_call({"type": "wait"})))
    code, out, _ = command("parse", "--adapter", "openai_computer_use", "--json", given=body)
    assert code == 0
    assert json.loads(out)["actions"] == [{"kind": "wait", "seconds": 1.0}]
