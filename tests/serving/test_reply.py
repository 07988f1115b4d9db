from __future__ import annotations

import json

import pytest

from osworld_rollouts.serving.errors import ReplyUnreadable
from osworld_rollouts.serving.reply import read_reply


def chat(message=None, **choice):
    top = choice.pop("top", {})
    whole = {
        "id": "c",
        "model": "m",
        "choices": [{"index": 0, "message": message or {"content": "hi"}, "finish_reason": "stop", **choice}],
        **top,
    }
    return read_reply("chat_completions", json.dumps(whole).encode())


def test_vllm_chat(wire):
    api, _, body, limit = wire("70_recommended_noparser")
    reply = read_reply(api, body, max_tokens=limit, eos={4078})
    data = json.loads(body)
    assert reply.prompt_token_ids == tuple(data["prompt_token_ids"])
    assert reply.generated_token_ids == tuple(data["choices"][0]["token_ids"])
    assert reply.logprobs == tuple(entry["logprob"] for entry in data["choices"][0]["logprobs"]["content"])
    assert (reply.truncated, reply.finish_reason, reply.served_model, reply.cached_tokens) == (
        False,
        "stop",
        "tiny-vlm",
        384,
    )
    assert reply.system_fingerprint.startswith("vllm-0.32.0-")
    assert reply.text.startswith("<think>")
    assert reply.missing == ()


def test_ids_named_by_the_logprob_entries(wire):
    api, _, body, _ = wire("03_chat_tokens_as_ids")
    reply = read_reply(api, body)
    assert reply.logprob_token_ids[:2] == (1397, 3917)
    assert reply.generated_token_ids is None
    assert [line.split(":")[0] for line in reply.missing] == ["prompt_token_ids", "generated_token_ids"]


def test_vllm_tools_and_reasoning(wire):
    api, _, body, _ = wire("30_tool_auto")
    reply = read_reply(api, body, max_tokens=160)
    assert reply.tool_calls[0].name == "computer_use"
    assert json.loads(reply.tool_calls[0].arguments)["action"] == "left_click"
    assert reply.output[0]["type"] == "function"
    assert reply.reasoning == "\nI should click the button.\n"
    assert reply.truncated is False


def test_vllm_generate(wire):
    api, _, body, _ = wire("38b_generate_turn2_tito")
    reply = read_reply(api, body)
    assert reply.logprob_token_ids == reply.generated_token_ids
    assert reply.image_runs == ((131, 240), (447, 240))
    assert reply.weight_version == "default"
    assert reply.response_id.startswith("generate-tokens-")
    assert [line.split(":")[0] for line in reply.missing] == ["text"]
    api, _, body, _ = wire("40d_generate_after_version")
    assert read_reply(api, body).weight_version == "step-42"


def test_vllm_responses(wire):
    api, _, body, _ = wire("35_responses_tools")
    reply = read_reply(api, body)
    assert len(reply.prompt_token_ids) == 391
    assert len(reply.generated_token_ids) == 49
    assert reply.logprobs is None
    assert reply.tool_calls[0].name == "computer_use"
    assert [item["type"] for item in reply.output] == ["reasoning", "function_call"]
    api, _, body, _ = wire("12_responses")
    assert read_reply(api, body).truncated is True


def test_anthropic_messages(wire):
    api, _, body, _ = wire("57_messages_anthropic")
    reply = read_reply(api, body)
    assert (reply.text, reply.finish_reason, reply.prompt_tokens, reply.cached_tokens) == ("", "end_turn", 14, 256)
    assert "pyautogui.click" in reply.reasoning
    used = read_reply(
        "messages",
        json.dumps(
            {
                "content": [{"type": "tool_use", "id": "t", "name": "computer", "input": {"b": 1, "a": 2}}],
                "stop_reason": "tool_use",
            }
        ).encode(),
    )
    assert used.tool_calls[0].arguments == '{"b":1,"a":2}'


def test_openai_computer_use():
    items = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "look"}]},
        {"type": "computer_call", "call_id": "c", "action": {"type": "wait"}},
    ]
    reply = read_reply(
        "responses", json.dumps({"id": "r", "status": "completed", "output": items, "error": None}).encode()
    )
    assert reply.output == tuple(items)
    assert (reply.reasoning, reply.truncated) == ("look", False)


def test_sglang():
    reply = chat(
        prompt_token_ids=[1, 2], response_token_ids=[3, 4], matched_stop=4, message={"content": "x", "reasoning_content": "why"},
        top={"metadata": {"weight_version": "v7"}},
    )  # fmt: skip
    assert (reply.prompt_token_ids, reply.generated_token_ids) == ((1, 2), (3, 4))
    assert (reply.stop_reason, reply.reasoning, reply.weight_version, reply.truncated) == (4, "why", "v7", False)
    extension = chat(sglext={"input_ids": [1], "output_ids": [[2, 3]]})
    assert (extension.prompt_token_ids, extension.generated_token_ids) == ((1,), (2, 3))


def test_plain_openai_gives_no_ids_and_says_so():
    reply = chat()
    assert reply.text == "hi"
    assert len(reply.missing) == 3
    assert reply.truncated is False


@pytest.mark.parametrize(
    ("choice", "limit", "eos", "expected"),
    [
        ({"finish_reason": "length", "token_ids": [1, 2]}, 2, (), True),
        ({"finish_reason": "stop", "token_ids": [1, 2]}, 9, (), False),
        ({"finish_reason": "tool_calls", "token_ids": [1, 2]}, 2, (), None),
        ({"finish_reason": "tool_calls", "token_ids": [1, 2]}, 2, (2,), False),
        ({"finish_reason": "tool_calls", "token_ids": [1, 2]}, 2, (9,), True),
        ({"finish_reason": "tool_calls", "token_ids": [1, 2]}, 3, (), False),
        ({"finish_reason": "stop", "token_ids": [1, 2], "stop_reason": "e"}, 2, (9,), False),
        ({"finish_reason": "stop", "token_ids": [1, 2]}, 2, (9,), True),
        ({"finish_reason": "abort", "token_ids": [1]}, 9, (), True),
        ({"finish_reason": None}, None, (), None),
        ({"finish_reason": "tool_calls"}, None, (), False),
    ],
)
def test_truncation_is_decided_from_ids(choice, limit, eos, expected):
    body = json.dumps({"choices": [{"index": 0, "message": {}, **choice}]}).encode()
    assert read_reply("chat_completions", body, max_tokens=limit, eos=eos).truncated is expected


def test_other_shapes_of_content():
    assert (
        chat({"content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]}).text
        == "ab"
    )
    assert chat({"content": None}).text == ""
    call = {"id": "1", "function": {"name": "f", "arguments": {"x": 1}}}
    assert chat({"content": None, "tool_calls": [call]}).tool_calls[0].arguments == '{"x":1}'


@pytest.mark.parametrize(
    "body",
    [
        b"", b"nope", b"[]", b"{}", b'{"choices":[]}', b'{"choices":[{"message":{"content":"x"},"token_ids":["a"]}]}',
        b'{"choices":[{"message":{"tool_calls":[{}]}}]}', b'{"choices":[{"message":3}]}',
        b'{"choices":[{"message":{},"logprobs":{"content":[{}]}}]}', b'{"choices":[null]}',
    ],
)  # fmt: skip
def test_what_is_no_reply(body):
    with pytest.raises(ReplyUnreadable):
        read_reply("chat_completions", body)


@pytest.mark.parametrize("api", ["responses", "messages", "generate"])
def test_what_is_no_reply_of_other_apis(api):
    with pytest.raises(ReplyUnreadable):
        read_reply(api, b'{"id":"x"}')
