"""Where an action touched the screen; model code is read, never run."""

from __future__ import annotations

import pytest

from osworld_rollouts.console.viewer.marks import Mark, marks_of, summary_of
from osworld_rollouts.contracts.action import (
    Click,
    Done,
    Drag,
    Hotkey,
    KeyDown,
    Move,
    Point,
    Press,
    PythonCode,
    Scroll,
    TypeText,
    Wait,
)


def code(text: str) -> tuple[Mark, ...]:
    return marks_of([PythonCode(code=text)])


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (Click(point=Point(x=1, y=2)), Mark("click", 1, ((1, 2),))),
        (
            Click(point=Point(x=1, y=2), button="right", count=2, modifiers=("ctrl",)),
            Mark("click", 1, ((1, 2),), "ctrl right x2"),
        ),
        (Click(), Mark("click", 1)),
        (Move(point=Point(x=5, y=6)), Mark("move", 1, ((5, 6),))),
        (Drag(path=(Point(x=1, y=1), Point(x=2, y=2), Point(x=3, y=1))), Mark("drag", 1, ((1, 1), (2, 2), (3, 1)))),
        (Scroll(point=Point(x=9, y=9), clicks_y=-5), Mark("scroll", 1, ((9, 9),), "↓5")),
        (Scroll(clicks_x=2, clicks_y=3), Mark("scroll", 1, (), "↑3 →2")),
        (TypeText(text="a\nb"), Mark("keys", 1, (), "type 'a\\nb'")),
        (Press(key="enter", count=2), Mark("keys", 1, (), "enter x2")),
        (Hotkey(keys=("ctrl", "s")), Mark("keys", 1, (), "ctrl + s")),
        (KeyDown(key="shift"), Mark("keys", 1, (), "shift down")),
    ],
)
def test_typed_actions(action, expected):
    assert marks_of([action]) == (expected,)


@pytest.mark.parametrize("action", [Done(), Wait(seconds=1)])
def test_what_touches_nothing_leaves_no_mark(action):
    assert marks_of([action]) == ()


def test_the_pointer_stays_where_it_was_between_actions():
    marks = marks_of([Move(point=Point(x=10, y=20)), Click(), Drag(path=(Point(x=50, y=60),)), Scroll(clicks_y=1)])
    assert [mark.points for mark in marks] == [((10, 20),), ((10, 20),), ((10, 20), (50, 60)), ((50, 60),)]
    assert [mark.number for mark in marks] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pyautogui.click(640, 380)", [("click", ((640, 380),), "")]),
        ("pyautogui.click(x=640, y=380, clicks=2, button='right')", [("click", ((640, 380),), "right x2")]),
        ("pyautogui.click((640, 380))", [("click", ((640, 380),), "")]),
        (
            "import pyautogui\npyautogui.moveTo(1, 2); pyautogui.dragTo(3, 4, 0.5)",
            [("move", ((1, 2),), ""), ("drag", ((1, 2), (3, 4)), "")],
        ),
        ("pyautogui.scroll(-10)", [("scroll", (), "↓10")]),
        ("pyautogui.scroll(-10, 5, 6)", [("scroll", ((5, 6),), "↓10")]),
        ("pyautogui.hotkey('ctrl', 'c')", [("keys", (), "ctrl + c")]),
        ("pyautogui.hotkey(['ctrl', 'c'])", [("keys", (), "ctrl + c")]),
        (
            "pyautogui.write('hi', interval=0.1)\npyautogui.press('enter')",
            [("keys", (), "type 'hi'"), ("keys", (), "enter")],
        ),
        ("pyautogui.write(message='hi')", [("keys", (), "type 'hi'")]),
        ("x = 3\npyautogui.click(x, x + 1)", [("click", (), "")]),
        ("for i in range(3):\n    pyautogui.press('tab')", [("keys", (), "tab")]),
        ("other.click(1, 2)", []),
        ("pyautogui.click(1, 2", []),
        ("", []),
        ("\0", []),
        ("(" * 5000, []),
        ("pyautogui.click(1e400, 2)", [("click", (), "")]),
        ("pyautogui.hotkey()", []),
        ("pyautogui.write()", []),
    ],
)
def test_python_is_read(text, expected):
    assert [(mark.kind, mark.points, mark.label) for mark in code(text)] == expected


def test_python_is_not_run(tmp_path):
    target = tmp_path / "ran"
    assert code(f"open({str(target)!r}, 'w')\npyautogui.click(open({str(target)!r}, 'w'), 1)")
    assert not target.exists()


def test_huge_code_is_left_alone():
    assert code("pyautogui.click(1, 2)\n" * 10_000) == ()


def test_python_is_told_by_its_calls():
    assert (
        summary_of(PythonCode(code="import pyautogui\npyautogui.click(1, 2)\ntime.sleep(1)\npyautogui.write('a')"))
        == "click(1, 2); write('a')"
    )
    assert summary_of(PythonCode(code="print(1)")) == "python 'print(1)'"
