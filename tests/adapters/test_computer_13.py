from __future__ import annotations

import json

import pytest

from .speech import FENCE, adapter, block, plain, say


def act(**fields):
    return block(json.dumps(fields), "json")


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (act(action_type="CLICK", x=10, y=20), {"kind": "click", "point": {"x": 10, "y": 20}}),
        (
            act(action_type="CLICK", parameters={"x": 10.9, "y": 20, "num_clicks": 2}),
            {"kind": "click", "point": {"x": 10, "y": 20}, "count": 2},
        ),
        (act(action_type="CLICK", click_type="RIGHT"), {"kind": "click", "button": "right"}),
        (act(action_type="LEFT_CLICK", x=1, y=2), {"kind": "click", "point": {"x": 1, "y": 2}}),
        (act(action_type="RIGHT_CLICK"), {"kind": "click", "button": "right"}),
        (act(action_type="DOUBLE_CLICK", x=1, varies=2), {"kind": "click", "point": {"x": 1, "y": 2}, "count": 2}),
        (act(action_type="TRIPLE_CLICK", x=1, y=2), {"kind": "click", "point": {"x": 1, "y": 2}, "count": 3}),
        (act(action_type="MOUSE_MOVE", x=1319.11, y=65.06), {"kind": "move", "point": {"x": 1319, "y": 65}}),
        (act(action_type="MOUSE_DOWN", click_type="MIDDLE"), {"kind": "mouse_down", "button": "middle"}),
        (act(action_type="MOUSE_UP"), {"kind": "mouse_up"}),
        (act(action_type="DRAG_TO", x=3, y=4), {"kind": "drag", "path": ({"x": 3, "y": 4},)}),
        (act(action_type="SCROLL", dx=0, dy=-3), {"kind": "scroll", "clicks_y": -3}),
        (act(action_type="CLICK", click_type="WHEEL_UP"), {"kind": "scroll", "clicks_y": 1}),
        (act(action_type="CLICK", click_type="WHEEL_DOWN"), {"kind": "scroll", "clicks_y": -1}),
        (act(action_type="TYPE", text='<b>"it\'s"</b>\n'), {"kind": "type_text", "text": '<b>"it\'s"</b>\n'}),
        (act(action_type="TYPING", text="é中🙂"), {"kind": "type_text", "text": "é中🙂"}),
        (act(action_type="KEY", key="ctrl+c"), {"kind": "hotkey", "keys": ("ctrl", "c")}),
        (act(action_type="PRESS", key="Return"), {"kind": "press", "key": "enter"}),
        (act(action_type="KEY_DOWN", key="shift"), {"kind": "key_down", "key": "shift"}),
        (act(action_type="KEY_UP", key="shift"), {"kind": "key_up", "key": "shift"}),
        (act(action_type="HOTKEY", keys=["ctrl", "shift", "T"]), {"kind": "hotkey", "keys": ("ctrl", "shift", "t")}),
        (act(action_type="WAIT"), {"kind": "wait"}),
        ("DONE", {"kind": "done"}),
        (block("FAIL", ""), {"kind": "fail"}),
        ('{"action_type": "WAIT"}', {"kind": "wait"}),
        ("{'action_type': 'WAIT', 'parameters': None}", {"kind": "wait"}),
        (act(action_type="CLICK", x=1920, y=1080), {"kind": "click", "point": {"x": 1919, "y": 1079}}),
    ],
)
def test_vectors(text, action):
    assert plain(say(adapter("computer_13"), text)) == [action]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (act(action_type="CLICK", x=5000, y=1), "off_screen"),
        (act(action_type="FLY"), "unknown_action"),
        (act(action_type="PRESS", key="nokey"), "unknown_action"),
        (act(action_type="CLICK", num_clicks=7), "unknown_action"),
        (act(action_type="MOVE_TO", x=1), "unparseable"),
        (act(action_type="CLICK", x="NaN", y=1), "unparseable"),
        (act(x=1), "unparseable"),
        (block("{bad", "json"), "unparseable"),
        (block("[]", "json"), "unparseable"),
        (f"{FENCE}json\n{{", "unparseable"),
        ("I will click the button", "no_action"),
        ("", "empty"),
    ],
)
def test_failures_have_kinds(text, kind):
    parsed = say(adapter("computer_13"), text)
    assert parsed.actions == ()
    assert parsed.failure.kind == kind


def test_what_follows_an_unreadable_action_is_left_out():
    parsed = say(adapter("computer_13"), act(action_type="WAIT") + block("{bad", "json") + act(action_type="DONE"))
    assert plain(parsed) == [{"kind": "wait"}]
    assert [part.dropped for part in parsed.parts if part.dropped][-1] == "follows a call that could not be read"


def test_tags_stand_for_points():
    it = adapter("computer_13", observation="som")
    assert plain(say(it, act(action_type="CLICK", tag=1), marks=((10, 10, 20, 20),))) == [
        {"kind": "click", "point": {"x": 20, "y": 20}}
    ]
    assert say(it, act(action_type="CLICK", tag=2), marks=((10, 10, 20, 20),)).failure.kind == "unknown_action"
    assert "tag" in it.prompts()["system"]
