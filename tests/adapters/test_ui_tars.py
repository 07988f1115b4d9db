from __future__ import annotations

import pytest

from osworld_rollouts.contracts.request import Sampling

from .speech import adapter, plain, prompt, say, texts, turn


@pytest.mark.parametrize(
    ("text", "actions"),
    [
        ("Thought: go\nAction: click(start_box='(966,546)')", [{"kind": "click", "point": {"x": 960, "y": 540}}]),
        (
            "Action: click(start_box='<|box_start|>(966,546)<|box_end|>')",
            [{"kind": "click", "point": {"x": 960, "y": 540}}],
        ),
        ("Action: click(point='<point>966 546</point>')", [{"kind": "click", "point": {"x": 960, "y": 540}}]),
        ("Action: left_double(start_box='(0,0,10,10)')", [{"kind": "click", "point": {"x": 4, "y": 4}, "count": 2}]),
        ("Action: right_single(start_box='(1,1)')", [{"kind": "click", "point": {"x": 0, "y": 0}, "button": "right"}]),
        ("Action: hover(start_box='(9999,1)')", [{"kind": "move", "point": {"x": 1919, "y": 0}}]),
        (
            "Action: drag(start_box='(0,0)', end_box='(966,546)')",
            [{"kind": "drag", "path": ({"x": 0, "y": 0}, {"x": 960, "y": 540}), "duration_s": 1.0}],
        ),
        ("Action: hotkey(key='ctrl c')", [{"kind": "hotkey", "keys": ("ctrl", "c")}]),
        ("Action: hotkey(key='arrowleft')", [{"kind": "press", "key": "left"}]),
        ("Action: type(content='it\\'s \"done\"\\n')", [{"kind": "type_text", "text": 'it\'s "done"\n'}]),
        ("Action: type(content='it's unescaped')", [{"kind": "type_text", "text": "it's unescaped"}]),
        ("Action: type(content='plan\\n')", [{"kind": "type_text", "text": "plan\n"}]),  # peers: strip the n of plan
        ("Action: type(content='two\n\nparagraphs')", [{"kind": "type_text", "text": "two\n\nparagraphs"}]),
        (
            "Action: scroll(start_box='(0,0)', direction='down')",
            [{"kind": "scroll", "point": {"x": 0, "y": 0}, "clicks_y": -5}],
        ),
        ("Action: scroll(direction='left')", [{"kind": "scroll", "clicks_x": -5}]),  # peers: nothing
        ("Action: wait()", [{"kind": "wait", "seconds": 5.0}]),
        ("Action: finished(content='all good')", [{"kind": "done", "answer": "all good"}]),
        ("Action: finished()", [{"kind": "done"}]),
        ("Action: call_user()", [{"kind": "call_user"}]),  # peers: FAIL
        (
            "Action: click(start_box='(0,0)')\n\nwait()",
            [{"kind": "click", "point": {"x": 0, "y": 0}}, {"kind": "wait", "seconds": 5.0}],
        ),
    ],
)
def test_vectors(text, actions):
    assert plain(say(adapter("ui_tars"), text)) == actions


@pytest.mark.parametrize(
    ("text", "facts", "kind"),
    [
        ("", {}, "empty"),
        ("Thought: I wonder", {}, "no_action"),
        ("Thought: I wonder\nAction:", {}, "no_action"),
        ("Action: fly(start_box='(1,1)')", {}, "unknown_action"),
        ("Action: click(start_box='(1,", {}, "unparseable"),
        ("Action: click(start_box='(1,", {"truncated": True}, "truncated"),
        ("Action: click()", {}, "unparseable"),
        ("Action: scroll(direction='sideways')", {}, "unknown_action"),
        ("Action: the button", {}, "unparseable"),
    ],
)
def test_failures_have_kinds(text, facts, kind):
    parsed = say(adapter("ui_tars"), text, **facts)
    assert parsed.actions == ()
    assert parsed.failure.kind == kind


def test_every_reply_stays_and_boxes_get_their_tokens_back():
    it = adapter("ui_tars", action_space="call_user")
    past = [turn(0, "Action: click(start_box='(1,2)')", live=False), turn(1, "Action: wait()")]
    said = texts(it.render(prompt(it, past), "tars", Sampling()).body["messages"])
    assert said[0] == "You are a helpful assistant."
    assert "call_user()" in said[1]
    assert said[1].endswith("## User Instruction\nRename the {file}\n")
    assert said[2:] == [
        "Action: click(start_box='<|box_start|>(1,2)<|box_end|>')",
        "<image>",
        "Action: wait()",
        "<image>",
    ]
