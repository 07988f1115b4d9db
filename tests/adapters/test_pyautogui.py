from __future__ import annotations

import pytest

from osworld_rollouts.contracts.model import View
from osworld_rollouts.contracts.request import Sampling
from osworld_rollouts.contracts.steps import OperationOutcome, ParseFailure

from .speech import FENCE, adapter, block, codes, picture, prompt, say, texts, turn


@pytest.mark.parametrize(
    ("text", "actions"),
    [
        ("DONE", ["done"]),
        (" DONE \n", ["done"]),
        (f"{FENCE}DONE{FENCE}", ["done"]),
        (f"{FENCE}\nDONE\n{FENCE}", ["done"]),
        (block("DONE"), ["done"]),
        (f"{FENCE}DONE\n{FENCE}", ["done"]),  # peers: nothing
        (f"{FENCE}python DONE{FENCE}", ["done"]),
        (block("pyautogui.click(1,2)\nDONE"), ["pyautogui.click(1,2)", "done"]),
        (f"{block('a()')} then {block('b()')}", ["a()", "b()"]),
        (block("DONE\nx()"), ["DONE\nx()"]),
        (f"WAIT\n{FENCE}x(){FENCE}", ["x()"]),
        (f"{FENCE}import time\ntime.sleep(1){FENCE}", ["import time\ntime.sleep(1)"]),  # peers: without the import
        (f"{FENCE}c++\nx\n{FENCE}", ["c++\nx"]),
        (f"<think>{block('x()')}</think>{FENCE}WAIT{FENCE}", ["wait"]),
        (f"plan {block('x()')}</think>{FENCE}FAIL{FENCE}", ["fail"]),  # the opening tag is in the chat template
        (f"<think>{block('x()')}", ["x()"]),
        (block(f"write('{FENCE}')"), [f"write('{FENCE}')"]),  # peers: cut at the backticks
        (block("if a:\n    b()\n# note; it's fine"), ["if a:\n    b()\n# note; it's fine"]),
        (f"{FENCE}python\na(){FENCE}\n{block('DONE', '')}", ["a()", "done"]),
    ],
)
def test_vectors(text, actions):
    parsed = say(adapter("pyautogui"), text)
    assert codes(parsed) == actions
    assert parsed.failure is None


@pytest.mark.parametrize(
    ("text", "facts", "kind"),
    [
        ("", {}, "empty"),
        ("", {"reasoning": "I should click"}, "empty"),
        ("done", {}, "no_action"),
        ("I am DONE", {}, "no_action"),
        ("pyautogui.click(1,2)", {}, "no_action"),
        (f"{FENCE}{FENCE}", {}, "no_action"),
        (f"{FENCE}python\nx()", {}, "unparseable"),
        (f"{FENCE}python\nx()", {"truncated": True}, "truncated"),
        (f"<think>{block('x()')} and so", {"truncated": True}, "truncated"),
        ("<think>only thoughts</think>", {}, "no_action"),
    ],
)
def test_failures_have_kinds(text, facts, kind):
    parsed = say(adapter("pyautogui"), text, **facts)
    assert parsed.actions == ()
    assert parsed.failure.kind == kind


def test_a_cut_reply_with_a_whole_block_is_used_and_noted():
    parsed = say(adapter("pyautogui"), f"{block('x()')} and th", truncated=True)
    assert codes(parsed) == ["x()"]
    assert parsed.notes == ("cut by the token limit after the last complete block",)


def test_points_off_the_screen_stay_as_written_and_are_noted():
    code = "pyautogui.click(1920, 5)\npyautogui.moveTo(x=-3, y=9); pyautogui.dragTo((1919.2, 1079))\nprint(f(5000, 1))"
    parsed = say(adapter("pyautogui"), block(code))
    assert codes(parsed) == [code]
    assert parsed.notes == tuple(f"{point} is off the screen, left as written" for point in ("(1920, 5)", "(-3, 9)"))


def test_a_swallowed_answer_is_named():
    parsed = say(adapter("pyautogui"), "", reasoning="everything")
    assert "reasoning field" in parsed.failure.message


def test_marks_stand_before_the_code():
    parsed = say(
        adapter("pyautogui", observation="som"),
        block("pyautogui.click(tag_2)"),
        marks=((0, 0, 10, 10), (100, 50, 20, 10)),
    )
    assert codes(parsed) == ["tag_1 = (5, 5)\ntag_2 = (110, 55)\npyautogui.click(tag_2)"]


def test_turns_are_shown_with_the_replies():
    it = adapter("pyautogui")
    request = it.render(prompt(it, [turn(0, "First.", live=False), turn(1, "Second.")]), "gpt", Sampling(temperature=0))
    said = texts(request.body["messages"])
    assert said[0].endswith("You are asked to complete the following task: Rename the {file}")
    assert said[1:] == [
        "The observation of this earlier step is no longer shown.", "First.",
        "Given the screenshot as below. What's the next step that you will do to help with the task?<image>", "Second.",
        "Given the screenshot as below. What's the next step that you will do to help with the task?<image>",
    ]  # fmt: skip
    assert [media.sha256 for media in request.media] == [picture(1).sha256, picture(2).sha256]
    assert {key: request.body[key] for key in ("max_tokens", "temperature", "top_p")} == {
        "max_tokens": 1500, "temperature": 0, "top_p": 0.9,
    }  # fmt: skip


def test_gym_shows_screenshots_only():
    it = adapter("pyautogui", form="gym")
    said = texts(it.render(prompt(it, [turn(0, "Mine.")]), "m", Sampling()).body["messages"])
    assert said[1:] == [
        "Previous screenshot:<image>",
        "Task: Rename the {file}\nGiven the screenshot below, what's the next step you will take to help complete the task?<image>",
    ]


def test_the_model_hears_of_its_failures_when_asked_to():
    it = adapter("pyautogui", show_errors=True)
    crashed = turn(
        0, block("1/0"), outcomes=(OperationOutcome(operation_id="o", returncode=1, error="ZeroDivisionError"),)
    )
    rejected = turn(1, "hm", failure=ParseFailure(kind="no_action", message="there is no code block"))
    said = texts(it.render(prompt(it, [crashed], rejected=(rejected,)), "m", Sampling()).body["messages"])
    assert said[3].startswith("The last action ended with an error (exit code 1):\nZeroDivisionError\nGiven")
    assert said[4] == "hm"
    assert said[5].startswith("Your last reply could not be used: there is no code block")


def test_tree_is_trimmed_and_numbered():
    it = adapter("pyautogui", observation="som", tree_max_chars=40)
    view = View(
        image=picture(0), accessibility_tree='tag\tname\ttext\tclass\nbutton\tOK\t""\tx\nlabel\tName of a thing\t""\ty'
    )
    said = texts(it.render(prompt(it, current=view), "m", Sampling()).body["messages"])[-1]
    assert 'index\ttag\tname\ttext\n1\tbutton\tOK\t""\n2\tlab[...]\n' in said
    assert it.needs().set_of_marks


def test_a_tree_alone_sends_no_image():
    it = adapter("pyautogui", observation="a11y_tree")
    request = it.render(prompt(it, current=View(image=picture(0), accessibility_tree="rows")), "m", Sampling())
    assert request.media == ()
    assert "rows" in texts(request.body["messages"])[-1]
