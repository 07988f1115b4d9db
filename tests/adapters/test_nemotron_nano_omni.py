from __future__ import annotations

import base64
import hashlib
import json

import pytest

from osworld_rollouts import history
from osworld_rollouts.contracts.model import ToolCall
from osworld_rollouts.contracts.request import History, Sampling
from osworld_rollouts.contracts.steps import ParseFailure

from .speech import FENCE, adapter, block, codes, picture, prompt, say, texts, turn

GOOD = "## Action:\nClick.\n## Code:\n```python\npyautogui.click(0.5, 0.5)\n```"

PUBLISHED = [
    ("fixed", {"keep_images": 3}, 25, "10be484ce3a314fd655235412f2fb455401e7b3ba88cf1826959ac4b9ab6611b"),
    ("fixed", {"keep_images": 1}, 15, "1ded2c44eb5e75008fc58fd3910ca72e7c4ca77b665e47f0c9cab5087bcef38d"),
    ("fixed", {"keep_images": 10}, 30, "12d7e595e029032e80ef9806a8d5447728d8903d59a2a5909ef2c1a680794bb2"),
    ("hysteresis", {"low": 3, "high": 10}, 35, "14f1207a6e35c2b9ca15fa541c1118ecc3ba9885b7df2fbff6cf56691b9dbc4f"),
    ("hysteresis", {"low": 1, "high": 5}, 20, "af37a0c96763486cc4903d381018a882de4d5f7428446bd36ab4b37483b00b48"),
    ("hysteresis", {"low": 5, "high": 20}, 45, "456a84ac58f9e545c1d7b68bbf2599c2a02eacf3b03dacd984fef2f0b2cd546c"),
]
"""Digests over every prompt of a deterministic trajectory, as NeMo Gym published them (test_history_policy_published_parity.py)."""


@pytest.mark.parametrize(("name", "params", "steps", "digest"), PUBLISHED)
def test_prompts_are_those_of_the_published_scores(name, params, steps, digest):
    it, policy = adapter("nemotron_nano_omni"), History(name=name, params=params)
    window, past, prompts = history.initial_window(policy), [], []
    for number in range(steps):
        window = history.advance(policy, window, number)
        live = history.live_turns(policy, window, number)
        shown = [item.model_copy(update={"live": item.turn in live}) for item in past]
        request = it.render(prompt(it, shown, instruction="Complete the task.", window=window), "m", Sampling())
        prompts.append(with_images(request.body["messages"]))
        past.append(turn(number, GOOD, reasoning=f"Thought {number + 1}", actions=say(it, GOOD).actions))
    text = json.dumps(prompts, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == digest


def with_images(messages):
    """The messages with `png-1`, `png-2`, … for images, as the published test has them."""
    text = json.dumps(messages)
    for number in range(60):
        data = base64.b64encode(f"png-{number + 1}".encode()).decode()
        text = text.replace(f"media://{picture(number).sha256}", f"data:image/png;base64,{data}")
    return json.loads(text)


@pytest.mark.parametrize(
    ("code", "actions"),
    [
        ("pyautogui.click(0.5, 0.25)", ["pyautogui.click(960, 270)"]),
        ("pyautogui.click(x=0.5, y=0.25, button='right')", ["pyautogui.click(x=960, y=270, button='right')"]),
        ("computer.wait()", ["wait"]),
        ('{"name": "computer.wait", "arguments": {}}', ["wait"]),
        ("computer.terminate(status='success', answer='42')", ["done"]),
        ('{"name": "computer.terminate", "arguments": {"status": "failure"}}', ["fail"]),
        ('computer.terminate: {"status": "success"}', ["done"]),
        ("DONE", ["done"]),
        ("WAIT", ["wait"]),
        ("pyautogui.click(1, 1)", ["pyautogui.click(1920, 1080)"]),
        ("pyautogui.click(1.5, 0.5)", ["pyautogui.click(2, 0)"]),
        ("pyautogui.click(-0.5, 1.2)", ["pyautogui.click(0, 1)"]),
        ("pyautogui.dragTo(0.1, 0.2, duration=0.5)", ["pyautogui.dragTo(192, 216, duration=0.5)"]),
        ("pyautogui.scroll(-5, 0.5, 0.5)", ["pyautogui.scroll(-5, 960, 540)"]),  # peers: pixel (0, 0)
        ("pyautogui.click((0.1,0.2))", ["pyautogui.click((192,216))"]),  # peers: pixel (0, 0)
        ("pyautogui.click(x, 0.2)", ["pyautogui.click(x, 0.2)"]),
        ("s = 'pyautogui.click(0.5, 0.5)'", ["s = 'pyautogui.click(0.5, 0.5)'"]),
        ("# computer.wait not\npyautogui.press('a')", ["# computer.wait not\npyautogui.press('a')"]),  # peers: WAIT
        ("pyautogui.click(0.5,0.5)\ncomputer.wait()", ["pyautogui.click(960,540)", "wait"]),  # peers: without the click
        ("pyautogui.press('a'); computer.terminate(status='success')", ["pyautogui.press('a')", "done"]),
        ("\\npyautogui.write('a\\nb')\\n", ["pyautogui.write('a\\nb')"]),
        ("## a comment\npyautogui.press('x')", ["## a comment\npyautogui.press('x')"]),
        ("print('é'); pyautogui.click(0.5, 0.5)", ["print('é'); pyautogui.click(960, 540)"]),
    ],
)
def test_code_sections(code, actions):
    assert codes(say(adapter("nemotron_nano_omni"), f"## Action:\nGo.\n## Code:\n{block(code)}")) == actions


@pytest.mark.parametrize(
    ("text", "actions"),
    [
        ("## Action: Go.\n## Code: pyautogui.click(0.5, 0.25)", ["pyautogui.click(960, 270)"]),
        (f"## Code:\n{block('a()')}\n{block('b()')}", ["b()"]),
        (f"{block('a()')}\n## Code:\n{block('b()')}\n## Note\n{block('c()')}", ["b()"]),
        (f"## Action:\\nGo.\\n## Code:\\n{block('b()')}", ["b()"]),
        (f"<think>{block('a()')}\n## Code:\n{block('a()')}</think>\n## Code:\n{block('b()')}", ["b()"]),
        (f"## Code\n{block('b()', 'py')}", ["b()"]),
        (f"## Action:\\nGo.\\n## Code:\\n{FENCE}python\\nb('x\\n')\\nc()\\n{FENCE}", ["b('x\\n')\nc()"]),
    ],
)
def test_layouts(text, actions):
    assert codes(say(adapter("nemotron_nano_omni"), text)) == actions


@pytest.mark.parametrize(
    ("text", "facts", "kind"),
    [
        (f"## Action:\nGo.\n{block('a()')}", {}, "no_action"),
        ("## Action:\nGo.\n## Code:\n", {}, "no_action"),
        (f"## Code:\n{block('# nothing')}", {}, "no_action"),
        (f"## Code:\n{FENCE}python\na()", {}, "unparseable"),
        (f"## Code:\n{block('if')}", {}, "unparseable"),
        (f"## Code:\n{block('computer.terminate()')}", {}, "unparseable"),
        (f"## Code:\n{block('computer.fly()')}", {}, "unknown_action"),
        (f"## Code:\n{block('ls', 'bash')}", {}, "unparseable"),
        (GOOD, {"finish_reason": "length"}, "truncated"),
        (GOOD, {"finish_reason": "content_filter"}, "unparseable"),
        ("", {"reasoning": "hm"}, "empty"),
    ],
)
def test_failures_have_kinds(text, facts, kind):
    parsed = say(adapter("nemotron_nano_omni"), text, **facts)
    assert parsed.actions == ()
    assert parsed.failure.kind == kind


@pytest.mark.parametrize("write", [json.dumps, str])
def test_a_list_of_text_parts_written_out_as_one_string_is_read(write):
    it = adapter("nemotron_nano_omni")
    text = write([{"type": "text", "text": GOOD[:20]}, {"type": "text", "text": GOOD[20:]}])
    parsed = say(it, text)
    assert codes(parsed) == codes(say(it, GOOD)) == ["pyautogui.click(960, 540)"]
    assert [(part.start, part.end, part.action) for part in parsed.parts] == [(0, len(text), 0)]
    assert parsed.notes == ("the reply's text is a list of text parts, written out as one string",)
    said = texts(it.render(prompt(it, [turn(0, text, actions=parsed.actions)]), "m", Sampling()).body["messages"])
    assert said == texts(
        it.render(prompt(it, [turn(0, GOOD, actions=parsed.actions)]), "m", Sampling()).body["messages"]
    )
    failed = say(it, write([{"type": "text", "text": "hm"}]))
    assert failed.failure.kind == "no_action"
    assert failed.parts[0].dropped == failed.failure.message


def test_coordinates():
    assert codes(
        say(adapter("nemotron_nano_omni", coordinates="qwen25"), f"## Code:\n{block('pyautogui.click(500, 250)')}")
    ) == ["pyautogui.click(960, 270)"]
    assert codes(
        say(
            adapter("nemotron_nano_omni", coordinates="absolute"), f"## Code:\n{block('pyautogui.moveTo(100.6, 50.5)')}"
        )
    ) == ["pyautogui.moveTo(101, 50)"]


def test_a_missing_action_sentence_is_noted():
    parsed = say(adapter("nemotron_nano_omni"), f"## Code:\n{block('a()')}")
    assert parsed.action_text == "Execute the provided code."
    assert parsed.notes == ("action_inferred",)


def test_wait_is_what_the_prompt_says():
    assert say(adapter("nemotron_nano_omni"), f"## Code:\n{block('computer.wait()')}").actions[0].seconds == 20


def test_a_native_call_counts_where_the_server_took_it_out_of_the_text():
    call = ToolCall(name="computer.terminate", arguments='{"status": "success", "answer": "done"}')
    assert codes(say(adapter("nemotron_nano_omni"), "## Action:\nEnd.\n## Code:\n", tool_calls=(call,))) == ["done"]


def guidance(*codes, **options):
    """The text of the current message after turns with these actions."""
    it = adapter("nemotron_nano_omni", **options)
    replies = [f"## Action:\nGo.\n## Code:\n{block(code)}" for code in codes]
    past = [turn(number, text, actions=say(it, text).actions) for number, text in enumerate(replies)]
    return texts(it.render(prompt(it, past), "m", Sampling()).body["messages"])[-1]


@pytest.mark.parametrize(
    ("codes_before", "options", "warned"),
    [
        (["a()", "a()"], {"repeat_threshold": 2}, "appeared 2 times in the last 2 steps"),
        (["a()", "b()", "a()"], {"repeat_threshold": 2}, "appeared 2 times in the last 3 steps"),
        (["a()", *["b()"] * 2, "a()"], {"repeat_threshold": 2, "repeat_window": 3}, None),
        (["a()", "b()"], {"repeat_threshold": 2}, None),
        (["a()", "a()"], {"repeat_threshold": 1}, None),
        (["a()", "a()"], {}, None),
        (["WAIT", "WAIT"], {"repeat_threshold": 2}, None),
        (["computer.wait()"] * 2, {"repeat_threshold": 2}, None),
        (["pyautogui.sleep(0.5)"] * 2, {"repeat_threshold": 2}, None),
        (["pyautogui.keyDown('return')\npyautogui.keyUp('return')"] * 2, {"repeat_threshold": 2}, None),
    ],
)
def test_repeated_actions_are_warned_of(codes_before, options, warned):
    said = guidance(*codes_before, **options)
    assert ("Recovery check" in said) is (warned is not None)
    assert (warned or "") in said


def test_feedback_is_bounded_and_shows_no_second_screenshot():
    it = adapter("nemotron_nano_omni")
    rejected = turn(0, f"first{'x' * 8000}", failure=ParseFailure(kind="unparseable", message=f"early{'y' * 2000}"))
    request = it.render(prompt(it, rejected=(rejected,)), "m", Sampling())
    *_, reply, feedback = texts(request.body["messages"])
    assert reply == "x" * 8000
    assert "y" * 2000 in feedback
    assert "early" not in feedback
    assert len(request.media) == 1


def test_guidance_and_feedback():
    it = adapter("nemotron_nano_omni", pre_done_checklist=True, repeat_threshold=2, thinking=False)
    again = [turn(number, GOOD, actions=say(it, GOOD).actions) for number in range(2)]
    rejected = turn(2, "", failure=ParseFailure(kind="empty", message="the reply is empty"))
    said = texts(it.render(prompt(it, again, rejected=(rejected,)), "m", Sampling()).body["messages"])
    assert "appeared 2 times in the last 2 steps" in said[-3]
    assert "re-read the exact task instruction" in said[-3]
    assert said[-2:] == ["<empty model response>", said[-1]]
    assert "the reply is empty" in said[-1]
    assert "## Thought\n{thought}" in said[0]
