from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from osworld_rollouts.contracts.request import Sampling
from osworld_rollouts.contracts.steps import ParseFailure
from osworld_rollouts.testing.protocol_servers.messages import member_use, reply, text_block, tool_use

from .speech import adapter, picture, plain, prompt, say, turn


@pytest.mark.parametrize(
    ("given", "actions"),
    [
        ({"action": "left_click", "coordinate": [640, 360]}, [{"kind": "click", "point": {"x": 960, "y": 540}}]),
        (
            {"action": "left_click", "coordinate": [640, 360], "text": "ctrl+shift"},
            [{"kind": "click", "point": {"x": 960, "y": 540}, "modifiers": ("ctrl", "shift")}],
        ),
        ({"action": "triple_click"}, [{"kind": "click", "count": 3}]),
        ({"action": "mouse_move", "coordinate": [0, 0]}, [{"kind": "move", "point": {"x": 0, "y": 0}}]),
        (
            {"action": "left_click_drag", "start_coordinate": [0, 0], "coordinate": [10, 10]},
            [{"kind": "drag", "path": ({"x": 0, "y": 0}, {"x": 15, "y": 15})}],
        ),
        ({"action": "left_mouse_down"}, [{"kind": "mouse_down"}]),
        ({"action": "left_mouse_up"}, [{"kind": "mouse_up"}]),
        (
            {"action": "scroll", "coordinate": [2, 2], "scroll_direction": "left", "scroll_amount": 5},
            [{"kind": "scroll", "point": {"x": 3, "y": 3}, "clicks_x": -5}],
        ),
        ({"action": "key", "text": "ctrl+S"}, [{"kind": "hotkey", "keys": ("ctrl", "s")}]),
        ({"action": "key", "text": "Page_Down", "repeat": 3}, [{"kind": "press", "key": "pagedown", "count": 3}]),
        ({"action": "key", "text": "ctrl+z", "repeat": 2}, [{"kind": "hotkey", "keys": ("ctrl", "z")}] * 2),
        (
            {"action": "hold_key", "text": "shift", "duration": 2},
            [{"kind": "hotkey", "keys": ("shift",), "hold_s": 2.0}],
        ),
        ({"action": "type", "text": 'a"""b\\n'}, [{"kind": "type_text", "text": 'a"""b\\n'}]),  # peers: broken
        ({"action": "wait", "duration": 2}, [{"kind": "wait", "seconds": 2.0}]),  # peers: half a second
        ({"action": "screenshot"}, [{"kind": "observe"}]),
        ({"action": "cursor_position"}, [{"kind": "observe"}]),
    ],
)
def test_vectors(given, actions):
    assert plain(say(adapter("anthropic_computer_use"), output=(tool_use(given),))) == actions


def test_the_toolset_names_its_actions():
    it = adapter("anthropic_computer_use", tool="computer_toolset_20260801")
    block = member_use(tool_use({"action": "left_click", "coordinate": [2, 2]}))
    assert (block["name"], block["toolset_name"], block["input"]) == ("left_click", "computer", {"coordinate": [2, 2]})
    assert plain(say(it, output=(block,))) == [{"kind": "click", "point": {"x": 3, "y": 3}}]
    assert say(it, output=({**block, "name": "zoom"},)).failure.kind == "unknown_action"


def test_the_toolset_is_offered_without_a_beta_header_and_without_zoom():
    params = pytest.importorskip("anthropic.types.message_create_params")
    it = adapter("anthropic_computer_use", tool="computer_toolset_20260801")
    past = turn(0, output=(text_block("I look."), member_use(tool_use({"action": "screenshot"}))))
    request = it.render(prompt(it, [past]), "claude", Sampling())
    TypeAdapter(params.MessageCreateParamsNonStreaming).validate_python(request.body)
    assert request.headers == {}
    assert request.body["tools"] == [{"type": "computer_toolset_20260801", "configs": {"zoom": {"enabled": False}}}]
    sent, result = request.body["messages"][1]["content"][1], request.body["messages"][2]["content"][0]
    assert (sent["name"], sent["toolset_name"]) == ("screenshot", "computer")
    assert (result["tool_use_id"], len(result["content"])) == (sent["id"], 1)


@pytest.mark.parametrize(
    ("items", "text", "facts", "kind"),
    [
        ((), "", {}, "empty"),
        ((), "x", {"finish_reason": "refusal"}, "refused"),
        ((tool_use({"action": "wait", "duration": 1}),), "", {"truncated": True}, "truncated"),
        ((tool_use({"action": "left_click", "coordinate": [1400, 5]}),), "", {}, "off_screen"),
        ((tool_use({"action": "zoom", "region": [1, 2, 3, 4]}),), "", {}, "unknown_action"),
        ((tool_use({"action": "key", "text": "nokey"}),), "", {}, "unknown_action"),
        ((tool_use({"action": "mouse_move"}),), "", {}, "unparseable"),
        ((tool_use({"command": "ls"}, name="bash"),), "", {}, "unknown_action"),
    ],
)
def test_failures_have_kinds(items, text, facts, kind):
    parsed = say(adapter("anthropic_computer_use"), text, output=items, **facts)
    assert parsed.actions == ()
    assert parsed.failure.kind == kind


@pytest.mark.parametrize(("text", "kind"), [("Renamed.", "done"), ("[INFEASIBLE] there is no such file", "fail")])
def test_without_a_call_the_episode_ends(text, kind):
    assert [
        action.kind for action in say(adapter("anthropic_computer_use"), text, output=(text_block(text),)).actions
    ] == [kind]


def test_each_call_gets_its_result_and_unreadable_ones_their_reason():
    it = adapter("anthropic_computer_use")
    good, bad = tool_use({"action": "wait", "duration": 1}, call_id="a"), tool_use({"action": "zoom"}, call_id="b")
    messages = it.render(prompt(it, [turn(0, output=(good, bad))]), "claude", Sampling()).body["messages"]
    first, second = messages[2]["content"]
    assert (first["tool_use_id"], first["is_error"], first["content"]) == ("a", False, [])
    assert (second["tool_use_id"], second["is_error"]) == ("b", True)
    assert "there is no action 'zoom'" in second["content"][0]["text"]
    assert second["content"][1]["source"]["data"] == f"media://{picture(1).sha256}"


@pytest.mark.parametrize("tool", ["computer_20250124", "computer_20251124"])
def test_requests_are_what_the_sdk_would_send(tool):
    params = pytest.importorskip("anthropic.types.beta.message_create_params")
    it = adapter("anthropic_computer_use", tool=tool, thinking_budget=2000)
    past = [
        turn(0, output=(text_block("I look."), tool_use({"action": "screenshot"})), live=False),
        turn(1, output=(text_block("Hm."),), failure=ParseFailure(kind="no_action", message="nothing"), live=False),
    ]
    request = it.render(prompt(it, past), "claude", Sampling(stop=("x",)))
    TypeAdapter(params.MessageCreateParamsNonStreaming).validate_python(request.body)
    assert request.headers == {
        "anthropic-beta": {
            "computer_20250124": "computer-use-2025-01-24",
            "computer_20251124": "computer-use-2025-11-24",
        }[tool]
    }
    assert request.body["tools"][0]["display_width_px"] == 1280
    assert request.body["stop_sequences"] == ["x"]
    assert [media.sha256 for media in request.media] == [picture(2).sha256]
    assert "no longer shown" in str(request.body["messages"][2])


def test_the_scripted_server_answers_like_the_real_one():
    beta = pytest.importorskip("anthropic.types.beta")
    beta.BetaMessage.model_validate(reply("claude", tool_use({"action": "screenshot"})), strict=True)
    beta.BetaMessage.model_validate(reply("claude", text_block("done")), strict=True)
    types = pytest.importorskip("anthropic.types")
    click = member_use(tool_use({"action": "left_click", "coordinate": [1, 2]}))
    (block,) = types.Message.model_validate(reply("claude", click), strict=True).content
    assert block.toolset_name == "computer"
    types.ComputerLeftClickToolUseBlock.model_validate(click, strict=True)
