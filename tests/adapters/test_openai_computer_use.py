from __future__ import annotations

import pytest
from openai.types.responses import Response, ResponseComputerToolCall
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic import TypeAdapter

from osworld_rollouts.contracts.request import Sampling
from osworld_rollouts.contracts.steps import ParseFailure
from osworld_rollouts.testing.protocol_servers.responses import computer_call, message, response

from .speech import adapter, picture, plain, prompt, say, turn

REQUEST = TypeAdapter(ResponseCreateParamsNonStreaming)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ({"type": "click", "button": "left", "x": 5, "y": 6}, {"kind": "click", "point": {"x": 5, "y": 6}}),
        (
            {"type": "click", "button": "wheel", "x": 5, "y": 6, "keys": ["SHIFT"]},
            {"kind": "click", "point": {"x": 5, "y": 6}, "button": "middle", "modifiers": ("shift",)},
        ),
        (
            {"type": "click", "button": "back", "x": 5, "y": 6},
            {"kind": "click", "point": {"x": 5, "y": 6}, "button": "back"},
        ),
        ({"type": "double_click", "x": 5, "y": 6}, {"kind": "click", "point": {"x": 5, "y": 6}, "count": 2}),
        ({"type": "move", "x": 5, "y": 6}, {"kind": "move", "point": {"x": 5, "y": 6}}),
        (
            {"type": "drag", "path": [{"x": 1, "y": 2}, {"x": 3, "y": 4}]},
            {"kind": "drag", "path": ({"x": 1, "y": 2}, {"x": 3, "y": 4})},
        ),
        (
            {"type": "scroll", "x": 1, "y": 1, "scroll_x": 0, "scroll_y": 350},
            {"kind": "scroll", "point": {"x": 1, "y": 1}, "clicks_y": -4},
        ),  # peers: 350 notches
        (
            {"type": "scroll", "x": 1, "y": 1, "scroll_x": 100, "scroll_y": -20},
            {"kind": "scroll", "point": {"x": 1, "y": 1}, "clicks_x": 1, "clicks_y": 1},
        ),  # peers: one axis, x mirrored
        ({"type": "type", "text": "<a> 'b'\n"}, {"kind": "type_text", "text": "<a> 'b'\n"}),
        ({"type": "keypress", "keys": ["CTRL", "C"]}, {"kind": "hotkey", "keys": ("ctrl", "c")}),
        ({"type": "keypress", "keys": ["ARROWDOWN"]}, {"kind": "press", "key": "down"}),
        ({"type": "wait"}, {"kind": "wait", "seconds": 1.0}),
        ({"type": "screenshot"}, {"kind": "observe"}),
        ({"type": "click", "button": "left", "x": 9999, "y": 6}, {"kind": "click", "point": {"x": 1919, "y": 6}}),
    ],
)
def test_vectors(action, expected):
    item = computer_call(action)
    ResponseComputerToolCall.model_validate(item, strict=True)
    assert plain(say(adapter("openai_computer_use"), output=(item,))) == [expected]


def test_batched_actions():
    batch = computer_call({"type": "wait"}, {"type": "keypress", "keys": ["a"]})
    assert [action["kind"] for action in plain(say(adapter("openai_computer_use"), output=(batch,)))] == [
        "wait",
        "press",
    ]


@pytest.mark.parametrize(
    ("items", "text", "facts", "kind"),
    [
        ((), "", {}, "empty"),
        ((), "", {"truncated": True}, "truncated"),
        ((computer_call({"type": "zap"}),), "", {}, "unknown_action"),
        ((computer_call({"type": "click", "button": "nose", "x": 1, "y": 1}),), "", {}, "unknown_action"),
        ((computer_call({"type": "drag", "path": []}),), "", {}, "unparseable"),
        (
            (computer_call({"type": "wait"}, checks=[{"id": "s", "code": "malicious_instructions", "message": "hm"}]),),
            "",
            {},
            "safety_check",
        ),
        (({"type": "message", "content": [{"type": "refusal", "refusal": "no"}]},), "no", {}, "refused"),
    ],
)
def test_failures_have_kinds(items, text, facts, kind):
    parsed = say(adapter("openai_computer_use"), text, output=items, **facts)
    assert parsed.actions == ()
    assert parsed.failure.kind == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [("I changed the setting.", "done"), ("The task is infeasible.", "fail"), ("That cannot be done.", "fail")],
)
def test_without_a_call_the_episode_ends(text, kind):
    parsed = say(adapter("openai_computer_use"), text, output=(message(text),))
    assert [action.kind for action in parsed.actions] == [kind]
    assert parsed.notes == ("no computer_call: the model ended the episode",)


def test_safety_checks_are_acknowledged_only_by_policy():
    check = {"id": "s", "code": "malicious_instructions", "message": "hm"}
    call = computer_call({"type": "wait"}, checks=[check])
    it = adapter("openai_computer_use", safety_checks="acknowledge")
    assert say(it, output=(call,)).notes == ("safety check malicious_instructions acknowledged",)
    items = it.render(prompt(it, [turn(0, output=(call,))]), "gpt", Sampling()).body["input"]
    assert items[-1]["acknowledged_safety_checks"] == [check]
    strict = adapter("openai_computer_use")
    items = strict.render(prompt(strict, [turn(0, output=(call,))]), "gpt", Sampling()).body["input"]
    assert "acknowledged_safety_checks" not in items[-1]


@pytest.mark.parametrize("conversation", ["resend", "previous_response_id"])
def test_a_call_that_waits_for_an_acknowledgement_is_not_sent_back(conversation):
    check = {"id": "s", "code": "malicious_instructions", "message": "hm"}
    waiting, fine = computer_call({"type": "wait"}, checks=[check]), computer_call({"type": "wait"}, call_id="call_9")
    it = adapter("openai_computer_use", conversation=conversation)
    failure = say(it, output=(waiting,)).failure
    past = [turn(0, output=(fine,), response_id="r0"), turn(1, output=(waiting,), response_id="r1", failure=failure)]
    body = it.render(prompt(it, past), "gpt", Sampling()).body
    REQUEST.validate_python(body)
    assert "previous_response_id" not in body
    assert [item.get("type", "message") for item in body["input"]] == [
        "message", "computer_call", "computer_call_output", "message",
    ]  # fmt: skip
    assert "malicious_instructions" in str(body["input"][-1])
    assert picture(2).sha256 in str(body["input"][-1])
    later = it.render(prompt(it, [*past, turn(2, output=(fine,), response_id="r2")]), "gpt", Sampling()).body
    assert later.get("previous_response_id") == (None if conversation == "resend" else "r2")
    assert "pending_safety_checks': [{" not in str(later["input"])


@pytest.mark.parametrize("tool", ["computer", "computer_use_preview"])
@pytest.mark.parametrize("conversation", ["resend", "previous_response_id"])
def test_requests_are_what_the_sdk_would_send(tool, conversation):
    it = adapter("openai_computer_use", tool=tool, conversation=conversation, reasoning_effort="low")
    past = [
        turn(0, output=(computer_call({"type": "wait"}),), response_id="resp_0", live=False),
        turn(1, output=(computer_call({"type": "wait"}),), response_id="resp_1", live=False),
        turn(
            2,
            output=(computer_call({"type": "wait"}),),
            response_id="resp_2",
            failure=ParseFailure(kind="unknown_action", message="no zap"),
        ),
    ]
    request = it.render(prompt(it, past), "gpt", Sampling(max_tokens=99))
    REQUEST.validate_python(request.body)
    assert request.body["max_output_tokens"] == 99
    shown = [media.sha256 for media in request.media]
    if conversation == "resend":
        assert shown == [picture(2).sha256, picture(3).sha256]
        assert "Step 1: no action" in str(request.body["input"][0])
    else:
        assert shown == [picture(3).sha256]
        assert request.body["previous_response_id"] == "resp_2"
    assert "no zap" in str(request.body["input"][-1])


def test_the_scripted_server_answers_like_the_real_one():
    Response.model_validate(response("gpt", computer_call({"type": "wait"})), strict=True)
    Response.model_validate(response("gpt", message("done")), strict=True)
