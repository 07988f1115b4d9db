from __future__ import annotations

import pytest

from osworld_rollouts.contracts.model import ModelRequest, Reply
from osworld_rollouts.contracts.steps import HistoryWindow
from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.store import put_json
from osworld_rollouts.serving.exact import PROFILE_KEY, ask_for_evidence, end_tokens, judge, sent_sampling
from tests.evidence.builders import Chain, media


def test_nothing_is_left_to_a_server_default():
    request = ask_for_evidence(
        ModelRequest(api="chat_completions", body={"model": "m", "messages": [], "max_tokens": 9, "temperature": 0.7})
    )
    sent, missing = sent_sampling(request)
    assert sent == {
        "temperature": 0.7, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
        "frequency_penalty": 0.0, "max_tokens": 9, "n": 1,
    }  # fmt: skip
    assert [line.split(":")[0] for line in missing] == ["sampling.seed", "sampling.stop"]
    assert request.body["return_token_ids"] is True
    assert request.body["top_logprobs"] == 0
    assert "tool_choice" not in request.body


def test_tools_stay_in_the_prompt_and_their_parser_out_of_the_reply():
    request = ask_for_evidence(ModelRequest(api="chat_completions", body={"model": "m", "messages": [], "tools": [{}]}))
    assert request.body["tool_choice"] == "none"
    kept = ask_for_evidence(
        ModelRequest(api="chat_completions", body={"tools": [{}], "tool_choice": "auto", "logprobs": False})
    )
    assert (kept.body["tool_choice"], kept.body["logprobs"]) == ("auto", False)


@pytest.mark.parametrize("api", ["generate", "responses", "messages"])
def test_other_apis(api):
    request = ModelRequest(
        api=api, body={"model": "m", "sampling_params": {"max_tokens": 3}} if api == "generate" else {"model": "m"}
    )
    asked = ask_for_evidence(request)
    assert request.body.get("return_token_ids") is None, "the request given is not changed"
    sent, missing = sent_sampling(asked)
    if api == "generate":
        assert sent["repetition_penalty"] == 1.0
        assert asked.body["output_mode"] == "tokens"
    if api == "messages":
        assert asked == request
        assert missing


def test_judging_a_call_against_the_one_before(store, tiny):
    profile = put_json(store, tiny.model_dump(mode="json"))
    made = Chain(store)
    made.start(provenance={PROFILE_KEY: profile})
    made.prepare()
    prompt, generated = [1, 4085, *[4088] * 240, 4086, 2], [5, 4078]
    image = media(width=560, height=336)
    records = chain.walk(store, made.head)
    request = ModelRequest(api="chat_completions", body={"model": "m", "messages": []}, media=(image,))

    def reply(prompt, generated):
        return Reply(
            api="chat_completions", text="x", prompt_token_ids=tuple(prompt), generated_token_ids=tuple(generated),
            logprobs=(-0.1,) * len(generated), finish_reason="stop", truncated=False,
        )  # fmt: skip

    first = judge(store, records, request, reply(prompt, generated), exact=True)
    assert (first["segment"], first["extends_previous"], first["boundary"]) == (0, None, {"reason": "first_call"})
    assert (first["violations"], first["image_runs"], first["prompt_tokens"]) == ((), ((2, 240),), 244)
    assert end_tokens(store, records) == (4078, 4076)
    made.call(
        0, prompt_token_ids=put_json(store, prompt), generated_token_ids=put_json(store, generated), media=(image,), segment=3,
    )  # fmt: skip
    records = chain.walk(store, made.head)
    longer = [*prompt, *generated, 7]
    extended = judge(store, records, request, reply(longer, [4078]), exact=True)
    assert (extended["segment"], extended["extends_previous"], extended["boundary"]) == (3, True, None)
    compacted = judge(store, records, request, reply([9], [4078]), exact=False, window=HistoryWindow(epoch=1))
    assert compacted["segment"] == 4
    assert compacted["boundary"]["reason"] == "history_compacted"
    assert "violations" not in compacted
    cut = judge(store, records, request, reply(longer, [5]), exact=True)
    assert cut["truncated"] is True


def test_without_ids_every_call_stands_alone(store):
    made = Chain(store)
    made.start()
    made.prepare()
    made.call(0)
    found = judge(
        store, chain.walk(store, made.head), ModelRequest(api="messages", body={}), Reply(api="messages"), exact=False
    )
    assert (found["segment"], found["extends_previous"]) == (1, None)
    assert found["boundary"] == {"reason": "ids_missing"}
