from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from osworld_rollouts.actions import (
    KEY_NAMES,
    MAX_COMMAND_BYTES,
    ActionTooLarge,
    UnknownKey,
    guest_code,
    key_name,
    key_names,
)
from osworld_rollouts.contracts.action import (
    EFFECT_KINDS,
    Action,
    CallUser,
    Click,
    Done,
    Drag,
    Fail,
    Hotkey,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    Move,
    Observe,
    Point,
    Press,
    PythonCode,
    Scroll,
    TypeText,
    Wait,
    describe,
)

HERE = Point(x=3, y=4)
EFFECTS = [
    Click(point=HERE), Click(button="back", count=2), Click(point=HERE, modifiers=("ctrl",)), Move(point=HERE, duration_s=0.5),
    Drag(path=(HERE,)), Drag(path=(HERE, Point(x=9, y=9)), modifiers=("shift",)), MouseDown(), MouseUp(point=HERE),
    Scroll(clicks_y=-3), Scroll(point=HERE, clicks_x=2, modifiers=("ctrl",)), TypeText(text="a<b\n'\"é🙂\\"), Press(key="enter", count=3),
    Hotkey(keys=("ctrl", "é")), Hotkey(keys=("a",), hold_s=1), KeyDown(key="shift"), KeyUp(key="shift"), PythonCode(code="for i in '''é''':\n  pass"),
]  # fmt: skip


@pytest.mark.parametrize("action", EFFECTS, ids=describe)
def test_every_effect_is_python_of_its_own(action):
    code = guest_code(action)
    assert code.isascii()
    tree = ast.parse(code, feature_version=(3, 8))
    assert "FAILSAFE = False" in code
    assert tree.body
    assert len(code.encode()) < MAX_COMMAND_BYTES


def test_every_effect_kind_is_covered():
    assert {action.kind for action in EFFECTS} == EFFECT_KINDS
    kinds = {
        schema["properties"]["kind"]["const"]
        for schema in TypeAdapter(Action).json_schema()["$defs"].values()
        if "kind" in schema.get("properties", {})
    }
    assert kinds - EFFECT_KINDS == {"wait", "observe", "done", "fail", "call_user"}


@pytest.mark.parametrize("action", [Wait(), Wait(seconds=3), Observe(), Done(), Fail(), CallUser()])
def test_what_does_nothing_in_the_guest(action):
    assert guest_code(action) is None


def test_long_text_is_packed_and_too_long_text_refused():
    code = guest_code(TypeText(text="🙂" * 20_000))
    assert len(code) < MAX_COMMAND_BYTES
    assert code.startswith("import base64, zlib\n")
    import random

    noise = "".join(chr(random.Random(number).randrange(0x4E00, 0x9FFF)) for number in range(100_000))
    with pytest.raises(ActionTooLarge, match="a command holds 120000"):
        guest_code(PythonCode(code=f"x = {noise!r}"))


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
def test_text_is_passed_on_exactly(text):
    last = [line for line in guest_code(TypeText(text=text)).splitlines() if line.startswith("type_text(")]
    assert ast.literal_eval(last[-1].removeprefix("type_text(").removesuffix(")")) == text


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("Return", "enter"), ("KP_Enter", "enter"), ("Control_L", "ctrl"), ("CMD", "win"), ("super", "win"), ("ArrowDown", "down"),
        ("Page_Down", "pagedown"), ("page down", "pagedown"), ("Escape", "esc"), ("F5", "f5"), ("a", "a"), ("A", "A"), ("+", "+"),
        ("plus", "+"), ("\n", "enter"), ("\t", "tab"), (" ", "space"), ("é", "é"), ("KP_7", "num7"), ("Key.enter", "enter"),
        ("nokey", None), ("", None), ("\x07", None), ("f25", None),
    ],
)  # fmt: skip
def test_names_of_keys(spelling, name):
    assert key_name(spelling) == name
    assert name is None or len(name) == 1 or name in KEY_NAMES


@pytest.mark.parametrize(
    ("given_keys", "names"),
    [
        ("ctrl+c", ("ctrl", "c")), ("ctrl+shift+T", ("ctrl", "shift", "t")), ("ctrl++", ("ctrl", "+")), ("+", ("+",)), ("T", ("T",)),
        (["CTRL", "C"], ("ctrl", "c")), (["ctrl+alt", "Delete"], ("ctrl", "alt", "delete")), ("Page_Up", ("pageup",)),
    ],
)  # fmt: skip
def test_combinations(given_keys, names):
    assert key_names(given_keys) == names


def test_an_unknown_key_is_named():
    with pytest.raises(UnknownKey, match="no key 'nokey'"):
        key_names("ctrl+nokey")
