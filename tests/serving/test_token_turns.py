from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osworld_rollouts.contracts.model import ModelRequest, Reply
from osworld_rollouts.contracts.request import Model
from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.media import put_screenshot
from osworld_rollouts.evidence.store import get_json, put_json
from osworld_rollouts.serving.client import close_clients
from osworld_rollouts.serving.errors import ModelCallError
from osworld_rollouts.serving.exact import PROFILE_KEY, ask_for_evidence
from osworld_rollouts.serving.generate import compact_ids, generate_body, next_prompt_ids
from osworld_rollouts.serving.journal import put_request
from osworld_rollouts.serving.logprobs import logprobs_mode
from osworld_rollouts.serving.probe_tokens import _run
from osworld_rollouts.serving.token_turns import continuation, token_request
from tests.evidence.builders import Chain, png
from tests.evidence.exact import PROFILE
from tests.serving.fault_proxy import SmallServer

IMAGE, END = 4088, 4078


def test_compact():
    assert compact_ids([1, IMAGE, IMAGE, IMAGE, 2, IMAGE, 3], IMAGE) == [1, IMAGE, 2, IMAGE, 3]
    assert compact_ids([], IMAGE) == []


@given(st.lists(st.integers(0, 5)))
def test_compacting_twice_changes_nothing(ids):
    once = compact_ids(ids, 3)
    assert compact_ids(once, 3) == once
    assert [item for item in once if item != 3] == [item for item in ids if item != 3]


def test_next_prompt():
    arguments = {"image_token": IMAGE, "end_tokens": (END,)}
    assert next_prompt_ids([1, IMAGE, IMAGE], [5, END], [6, IMAGE], **arguments) == [1, IMAGE, 5, END, 6, IMAGE]
    assert next_prompt_ids([1], [5], [6], end=END, **arguments) == [1, 5, END, 6]
    with pytest.raises(ValueError, match="image id"):
        next_prompt_ids([1], [IMAGE, END], [6], **arguments)


def test_body():
    body = generate_body("m", [1, IMAGE], ["media://x"], {"max_tokens": 3}, stop_token_ids=[END])
    assert body["sampling_params"] == {"logprobs": 0, "n": 1, "max_tokens": 3, "stop_token_ids": [END]}
    assert body["content_parts"] == [{"type": "image_url", "url": "media://x"}]
    assert "content_parts" not in generate_body("m", [1], [], {})


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ([1, 2], [1, 2, 7, 8, END, 9, 10], [9, 10]),
        ([1, 2], [1, 2, END, 9], [9]),
        ([1, 2], [1, 3, 7, END, 9], None),
        ([1, 2], [1, 2, 7, 8], None),
        ([1, 2], [1], None),
    ],
)
def test_what_follows_the_last_reply(before, now, expected):
    assert continuation(before, now, (END,)) == expected


@pytest.fixture(autouse=True)
async def closed():
    yield
    await close_clients()


async def test_a_turn_continues_the_last_call_s_own_ids(store):
    profile = PROFILE.model_copy(update={"token_in": True})
    one, two = put_screenshot(store, png(mark=1)), put_screenshot(store, png(mark=2))
    made = Chain(store)
    made.start(provenance={PROFILE_KEY: put_json(store, profile.model_dump(mode="json"))})
    made.prepare()

    def request(*media):
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "seed": 3}
        return ask_for_evidence(ModelRequest(api="chat_completions", body=body, media=media))

    async def turn(tokens, *media):
        async with SmallServer(json.dumps({"tokens": tokens}).encode()) as server:
            model = Model(name="m", base_url=server.base_url)
            made_of = await token_request(
                store, chain.walk(store, made.head), request(*media), model, api_key=None, request_id="t"
            )
            assert server.requests[0][0].startswith(b"POST /tokenize")
            assert server.sent_bodies[0]["add_generation_prompt"] is True
            return made_of

    first = await turn([1, IMAGE, IMAGE, 2], one)
    assert first.api == "generate"
    assert first.body["token_ids"] == [1, IMAGE, 2]
    assert first.body["sampling_params"]["repetition_penalty"] == 1.0
    assert first.body["sampling_params"]["stop_token_ids"] == [END]
    sent = put_request(store, first)
    assert "messages" not in first.body
    assert get_json(store, sent)["source"]["rendered_ids"] == [1, IMAGE, 2]
    prompt, generated = [1, *[IMAGE] * 6, 2], [50, 51, END]
    arrays = {"prompt_token_ids": put_json(store, prompt), "generated_token_ids": put_json(store, generated)}
    made.call(0, sent=sent, api="generate", media=(one,), **arrays)
    # the server renders the reply as other ids (60, 61 for 50, 51): they are not used
    second = await turn([1, IMAGE, 2, 60, 61, END, 7, IMAGE, 8], one, two)
    assert second.body["token_ids"] == [1, IMAGE, 2, 50, 51, END, 7, IMAGE, 8]
    assert [part["url"] for part in second.body["content_parts"]] == [f"media://{one.sha256}", f"media://{two.sha256}"]
    # a compacted history starts anew
    third = await turn([1, IMAGE, 9], two)
    assert third.body["token_ids"] == [1, IMAGE, 9]
    # and so does a suffix with another number of images than were added
    fourth = await turn([1, IMAGE, 2, 60, END, 7, 8], one, two)
    assert fourth.body["token_ids"] == [1, IMAGE, 2, 60, END, 7, 8]


async def test_a_server_without_a_token_endpoint(store):
    made = Chain(store)
    made.start(provenance={PROFILE_KEY: put_json(store, PROFILE.model_dump(mode="json"))})
    model = Model(name="m", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(ModelCallError, match="enable-scale-out"):
        await token_request(
            store,
            chain.walk(store, made.head),
            ModelRequest(api="chat_completions", body={}),
            model,
            api_key=None,
            request_id="t",
        )


def test_how_an_image_stands_in_a_prompt():
    assert _run([1, 2, 4085, *[4088] * 9, 4086, 3]) == (4088, 4085, 4086, 9, 1)
    assert _run([1, 2, 2, 3]) is None
    assert _run([1, *[7] * 5, 2, *[7] * 5, 3]) == (7, None, None, 10, 2)
    assert _run([]) is None


class Sampler:
    """Reports log probabilities of two tokens, as a server in each mode would."""

    def __init__(self, mode, gap=1.0):
        self.mode, self.gap, self.body = mode, gap, {}

    async def __call__(self, messages, *, max_tokens, temperature, top_p=1.0, **_):
        logits = [0.0, -self.gap]
        if self.mode != "raw":
            logits = [value / temperature for value in logits]
        total = math.log(sum(math.exp(value) for value in logits))
        logprobs = [value - total for value in logits]
        if top_p < 0.5 and self.mode == "processed":
            logprobs = [0.0, -9999.0]
        entries = [{"token": f"token_id:{at}", "logprob": value} for at, value in enumerate(logprobs)]
        self.body = {"choices": [{"logprobs": {"content": [{**entries[0], "top_logprobs": entries}]}}]}
        return Reply(api="chat_completions", logprobs=(logprobs[0],))


@pytest.mark.parametrize(
    ("mode", "gap", "expected"),
    [
        ("processed", 1.0, "processed"),
        ("tempered", 1.0, "tempered"),
        ("raw", 1.0, "raw"),
        ("processed", 0.01, "unknown"),
    ],
)
async def test_which_log_probabilities_a_server_gives(mode, gap, expected):
    sampler = Sampler(mode, gap)
    found, why = await logprobs_mode(sampler, lambda: sampler.body)
    assert found == expected
    assert why.startswith(expected)
