from __future__ import annotations

import json

import pytest

from osworld_rollouts.contracts.model import ToolCall
from osworld_rollouts.contracts.request import Sampling

from .speech import adapter, plain, prompt, say, texts, turn


def call(**arguments):
    body = json.dumps({"name": "computer_use", "arguments": arguments})
    return f"Action: do it.\n<tool_call>\n{body}\n</tool_call>"


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        ({"action": "left_click", "coordinate": [500, 250]}, {"kind": "click", "point": {"x": 960, "y": 270}}),
        (
            {"action": "left_click", "coordinate": [999, 999]},
            {"kind": "click", "point": {"x": 1919, "y": 1079}},
        ),  # peers: one too far
        ({"action": "left_click"}, {"kind": "click"}),
        (
            {"action": "right_click", "coordinate": [0, 0]},
            {"kind": "click", "point": {"x": 0, "y": 0}, "button": "right"},
        ),
        ({"action": "middle_click"}, {"kind": "click", "button": "middle"}),
        ({"action": "double_click"}, {"kind": "click", "count": 2}),
        ({"action": "triple_click"}, {"kind": "click", "count": 3}),  # peers: dropped
        ({"action": "mouse_move", "coordinate": [999, 0]}, {"kind": "move", "point": {"x": 1919, "y": 0}}),
        ({"action": "left_click_drag", "coordinate": [0, 0]}, {"kind": "drag", "path": ({"x": 0, "y": 0},)}),
        ({"action": "type", "text": 'it\'s "<b>"\n'}, {"kind": "type_text", "text": 'it\'s "<b>"\n'}),  # peers: broken
        ({"action": "key", "keys": ["enter"]}, {"kind": "press", "key": "enter"}),
        ({"action": "key", "keys": ["ctrl", "C"]}, {"kind": "hotkey", "keys": ("ctrl", "c")}),
        ({"action": "key", "keys": ["keys=['ctrl'", "'c']"]}, {"kind": "hotkey", "keys": ("ctrl", "c")}),
        ({"action": "key", "keys": "ctrl+shift+t"}, {"kind": "hotkey", "keys": ("ctrl", "shift", "t")}),
        ({"action": "key", "keys": ["+"]}, {"kind": "press", "key": "+"}),
        ({"action": "scroll", "pixels": -5}, {"kind": "scroll", "clicks_y": -5}),
        (
            {"action": "scroll", "pixels": 5, "coordinate": [100, 100]},
            {"kind": "scroll", "point": {"x": 192, "y": 108}, "clicks_y": 5},
        ),  # peers: where the pointer is
        ({"action": "hscroll", "pixels": 2}, {"kind": "scroll", "clicks_x": 2}),
        ({"action": "wait", "time": 3}, {"kind": "wait", "seconds": 3.0}),  # peers: time ignored
        ({"action": "wait"}, {"kind": "wait"}),
        ({"action": "terminate", "status": "success"}, {"kind": "done"}),
        ({"action": "terminate", "status": "failure"}, {"kind": "fail"}),  # peers: DONE
        ({"action": "answer", "text": "42"}, {"kind": "done", "answer": "42"}),
    ],
)
def test_vectors(arguments, action):
    parsed = say(adapter("qwen3_vl"), call(**arguments))
    assert plain(parsed) == [action]
    assert parsed.action_text == "do it."


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "computer_use", "arguments": {"action": "key", "keys": ["a"]}}',
        '<tool_call>{"name": "computer_use", "arguments": {"action": "key", "keys": ["a"]}}</tool_call>',
        '<tool_call>\n{"name": "computer_use", "arguments": "{\\"action\\": \\"key\\", \\"keys\\": [\\"a\\"]}"}',
        '<tool_call>\n<function=computer_use>\n<parameter=action>\nkey\n</parameter>\n<parameter=keys>\n["a"]\n</parameter>\n</function>\n</tool_call>',
        "<function=computer_use><parameter=action>key</parameter><parameter=keys>a</parameter></function>",
        f"<think>{call(action='wait')}</think>\n{call(action='key', keys=['a'])}",
    ],
)
def test_spellings_of_a_call(text):
    assert plain(say(adapter("qwen3_vl"), text)) == [{"kind": "press", "key": "a"}]


def test_xml_text_is_exact():
    text = '<function=computer_use><parameter=action>type</parameter><parameter=text>\n a < b && "c"\n\n</parameter></function>'
    assert plain(say(adapter("qwen3_vl"), text)) == [{"kind": "type_text", "text": ' a < b && "c"\n'}]


def test_native_calls():
    parsed = say(adapter("qwen3_vl"), "", tool_calls=(ToolCall(name="computer_use", arguments='{"action": "wait"}'),))
    assert plain(parsed) == [{"kind": "wait"}]
    assert [(part.source, part.action) for part in parsed.parts] == [("tool_calls[0]", 0)]


@pytest.mark.parametrize(
    ("text", "facts", "kind"),
    [
        ("", {}, "empty"),
        ("prose about <tool_call> and nothing", {}, "no_action"),
        ("<tool_call>\n{bad\n</tool_call>", {}, "unparseable"),
        ('<tool_call>\n{"name": "computer_use", "argu', {"truncated": True}, "truncated"),
        ('<tool_call>\n{"name": "shell", "arguments": {}}\n</tool_call>', {}, "unknown_action"),
        (call(action="fly"), {}, "unknown_action"),
        (call(action="mouse_move"), {}, "unparseable"),  # peers: moves to (0, 0)
        (call(action="terminate", status="maybe"), {}, "unknown_action"),
        (call(action="key", keys=["nokey"]), {}, "unknown_action"),
        (call(action="left_click", coordinate=["a", 1]), {}, "unparseable"),
    ],
)
def test_failures_have_kinds(text, facts, kind):
    parsed = say(adapter("qwen3_vl"), text, **facts)
    assert parsed.actions == ()
    assert parsed.failure.kind == kind


def test_absolute_coordinates_are_pixels_of_the_resized_image():
    it = adapter("qwen3_vl", coordinates="absolute")
    geometry = it.geometry(1920, 1080)
    assert (geometry.image_width, geometry.image_height) == (1504, 832)
    assert plain(say(it, call(action="left_click", coordinate=[752, 416]))) == [
        {"kind": "click", "point": {"x": 960, "y": 540}}
    ]


def test_the_first_screenshot_carries_the_task_and_older_actions():
    it = adapter("qwen3_vl")
    past = [
        turn(0, call(action="wait"), live=False, actions=say(it, call(action="wait")).actions),
        turn(1, "Action: open it.\n<tool_call>…"),
    ]
    said = texts(it.render(prompt(it, past), "qwen", Sampling()).body["messages"])
    assert "The screen's resolution is 1000x1000." in said[0]
    assert said[1].startswith("<image>\nPlease generate the next move")
    assert said[1].endswith("Instruction: Rename the {file}\n\nPrevious actions:\nStep 1: do it.")
    assert said[2:] == ["Action: open it.\n<tool_call>…", "<image>"]


def test_native_calls_come_back_as_text():
    it = adapter("qwen3_vl")
    output = ({"id": "c", "type": "function", "function": {"name": "computer_use", "arguments": '{"action": "wait"}'}},)
    said = texts(it.render(prompt(it, [turn(0, "Action: wait.", output=output)]), "qwen", Sampling()).body["messages"])
    assert (
        said[2] == 'Action: wait.\n<tool_call>\n{"name": "computer_use", "arguments": {"action": "wait"}}\n</tool_call>'
    )
