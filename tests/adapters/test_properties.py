"""What holds for every adapter and every reply: parse never raises, every character is accounted for, nothing is invented."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osworld_rollouts.actions import guest_code
from osworld_rollouts.adapters import FailureKind, adapter_names, load_adapter
from osworld_rollouts.contracts.action import Click, Hotkey, Point, Press, PythonCode, TypeText
from osworld_rollouts.contracts.model import ParsedReply, Reply, ToolCall
from osworld_rollouts.testing.protocol_servers.messages import blocks_for
from osworld_rollouts.testing.protocol_servers.responses import items_for
from osworld_rollouts.testing.protocol_servers.texts import SPEAKERS

ADAPTERS = [*adapter_names()]
VARIANTS = [
    *((name, {}) for name in ADAPTERS),
    ("pyautogui", {"observation": "som", "one_action": True}),
    ("nemotron_nano_omni", {"thinking": False, "coordinates": "qwen25"}),
    ("qwen3_vl", {"coordinates": "absolute"}),
]
PIECES = st.sampled_from(
    [
        "```", "```python\n", "```json\n", "\n```\n", "DONE", "WAIT", "FAIL", "<think>", "</think>", "## Action:\n", "## Code:\n", "## ",
        "pyautogui.click(0.5, 0.5)", "pyautogui.scroll(-1, 1e999, 0)", "computer.wait()", "computer.terminate(status='success')",
        "<tool_call>", "</tool_call>", '{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [1, 2]}}',
        "<function=computer_use>", "<parameter=action>", "type", "</parameter>", "</function>", '{"action_type": "CLICK", "x": 1}',
        "Thought: ", "Action: ", "click(start_box='(1,2)')", "type(content='", "')", "\n\n", "\\n", "\x00", "\ud800", "é🙂", "[" * 30, "{",
    ]
)  # fmt: skip
WORDS = st.lists(st.one_of(PIECES, st.text(max_size=8)), max_size=12).map("".join)
TEXT = st.one_of(
    st.text(max_size=200),
    WORDS,
    st.lists(WORDS, max_size=2).map(lambda texts: str([{"type": "text", "text": it} for it in texts])),
)
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**20), 10**20),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=8),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=8,
)
KINDS = [
    "click",
    "double_click",
    "drag",
    "scroll",
    "type",
    "keypress",
    "key",
    "wait",
    "left_click",
    "mouse_move",
    "hold_key",
    "zap",
]
FIELDS = st.sampled_from(
    [
        "x",
        "y",
        "button",
        "path",
        "keys",
        "text",
        "scroll_y",
        "coordinate",
        "scroll_direction",
        "scroll_amount",
        "duration",
        "repeat",
    ]
)
INPUT = st.dictionaries(FIELDS, JSON, max_size=5).flatmap(
    lambda fields: st.sampled_from(KINDS).map(lambda kind: {"type": kind, "action": kind, **fields})
)
ITEM = st.one_of(
    st.dictionaries(st.text(max_size=8), JSON, max_size=3),
    INPUT.map(lambda action: {"type": "computer_call", "call_id": "c", "action": action}),
    st.lists(INPUT, max_size=3).map(lambda actions: {"type": "computer_call", "call_id": "c", "actions": actions}),
    INPUT.map(lambda action: {"type": "tool_use", "id": "t", "name": "computer", "input": action}),
    JSON.map(lambda anything: {"type": "tool_use", "id": "t", "name": "computer", "input": anything}),
    INPUT.map(lambda it: {"type": "tool_use", "name": it["action"], "toolset_name": "computer", "input": it}),
    JSON.map(lambda anything: {"type": "computer_call", "pending_safety_checks": anything, "action": anything}),
    JSON.map(lambda anything: {"type": "message", "content": anything}),
)
CALL = st.builds(
    ToolCall,
    name=st.sampled_from(["computer_use", "computer.wait", "x"]),
    arguments=st.one_of(st.text(max_size=20), INPUT.map(json.dumps)),
)
FACTS = st.fixed_dictionaries(
    {},
    optional={
        "reasoning": st.one_of(st.none(), TEXT),
        "truncated": st.sampled_from([None, True, False]),
        "finish_reason": st.sampled_from([None, "stop", "length", "tool_calls", "refusal", "end_turn"]),
        "tool_calls": st.lists(CALL, max_size=2).map(tuple),
        "output": st.lists(ITEM, max_size=3).map(tuple),
    },
)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@settings(max_examples=300, deadline=None)
@given(text=TEXT, facts=FACTS)
def test_parse_never_raises_and_accounts_for_every_character(name, options, text, facts):
    adapter = load_adapter(name, options)
    geometry = adapter.geometry(1920, 1080)
    parsed = adapter.parse(Reply(api=adapter.api, text=text, **facts), geometry, ((0, 0, 10, 10),))
    assert bool(parsed.actions) != bool(parsed.failure)
    if parsed.failure:
        assert parsed.failure.kind in set(FailureKind)
        assert parsed.failure.message
    own = [part for part in parsed.parts if part.source == "text"]
    assert "".join(text[part.start : part.end] for part in own) == text
    assert all((part.action is None) != (part.dropped is None) for part in parsed.parts)
    assert all(part.action < len(parsed.actions) for part in parsed.parts if part.action is not None)
    assert parsed.actions == () or any(part.action == 0 for part in parsed.parts)
    for action in parsed.actions:
        guest_code(action)
    json.dumps(parsed.model_dump(mode="json"))
    assert adapter.parse(Reply(api=adapter.api, text=text, **facts), geometry, ((0, 0, 10, 10),)) == parsed


@pytest.mark.parametrize("name", ["pyautogui", "nemotron_nano_omni"])
@settings(max_examples=300, deadline=None)
@given(text=TEXT)
def test_code_stands_in_the_reply(name, text):
    adapter = load_adapter(name, {"coordinates": "absolute"} if name == "nemotron_nano_omni" else {})
    parsed = adapter.parse(Reply(api=adapter.api, text=text), adapter.geometry(1920, 1080))
    said = _letters(text)
    for action in parsed.actions:
        if isinstance(action, PythonCode):
            assert _letters(action.code) in said


def _letters(text):
    """A text without blanks, numbers (which are projected) and line breaks written as two characters."""
    return re.sub(r"\\n|\\r|[\s\d.e+-]|inf", "", text)


@pytest.mark.parametrize("name", ADAPTERS)
@settings(max_examples=200, deadline=None)
@given(words=st.text(alphabet=st.characters(codec="utf-8"), min_size=1, max_size=60))
def test_typed_text_comes_through_exactly(name, words):
    if name in {"pyautogui", "nemotron_nano_omni"}:
        assert _typed(spoken(name, [TypeText(text=words)]).actions[0].code) == words
    else:
        assert spoken(name, [TypeText(text=words)]).actions == (TypeText(text=words),)


def _typed(code):
    typed = []
    exec(code, {"pyautogui": type("Fake", (), {"write": staticmethod(typed.append)})})
    return typed[0]


@pytest.mark.parametrize("name", [name for name in ADAPTERS if name not in {"pyautogui", "nemotron_nano_omni"}])
@settings(max_examples=100, deadline=None)
@given(x=st.integers(0, 1919), y=st.integers(0, 1079), count=st.sampled_from([1, 2]))
def test_points_come_through_within_the_grid(name, x, y, count):
    parsed = spoken(name, [Click(point=Point(x=x, y=y), count=count), Press(key="enter"), Hotkey(keys=("ctrl", "s"))])
    click, *rest = parsed.actions
    assert abs(click.point.x - x) <= 2
    assert abs(click.point.y - y) <= 2
    assert click.count == count
    assert rest == [Press(key="enter"), Hotkey(keys=("ctrl", "s"))]


@pytest.mark.parametrize("name", ADAPTERS)
def test_several_actions_are_refused_on_demand(name):
    several = [TypeText(text="a"), TypeText(text="b")]
    parsed = spoken(name, several, {"one_action": True}) if name == "nemotron_nano_omni" else None
    if parsed is None:
        with pytest.raises(AssertionError, match="multiple_where_one_allowed"):
            spoken(name, several, {"one_action": True})
    else:
        assert len(parsed.actions) == 1  # two lines of one program
    assert len(spoken(name, several[:1], {"one_action": True}).actions) == 1


def spoken(name, actions, options=None) -> ParsedReply:
    """What an adapter makes of actions said in its protocol's words."""
    adapter = load_adapter(name, options)
    geometry = adapter.geometry(1920, 1080)
    match adapter.api:
        case "responses":
            reply = Reply(api="responses", output=tuple(items_for(actions, 0)))
        case "messages":
            reply = Reply(api="messages", output=tuple(blocks_for(actions, 0, geometry)))
        case _:
            reply = Reply(api="chat_completions", text=SPEAKERS[name](actions, geometry))
    parsed = adapter.parse(reply, geometry)
    assert parsed.failure is None, parsed.failure
    return parsed
