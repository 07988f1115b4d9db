"""Recorded replies of a real vLLM: each corrupt one is flagged by the right name, each clean one passes."""

from __future__ import annotations

import json

import pytest

from osworld_rollouts.contracts.model import Reply
from osworld_rollouts.evidence.checks import Violation, check_call, image_runs, reshapes_distribution
from osworld_rollouts.evidence.profile import ImageTokens
from osworld_rollouts.serving.reply import read_reply

CLEAN = [
    "01_chat_1img_evidence", "02_chat_top1", "04_chat_prompt_logprobs", "07c_chat_stop_token_ids", "12_responses", "21_request_id",
    "30_tool_auto", "32_turn2_default", "32_turn2_keep_think", "32_turn2_legacy_reasoning_content", "34d_top_logprobs_null",
    "37_generate_from_render", "37b_generate_text_mode", "38_generate_content_parts", "38b_generate_turn2_tito",
    "40d_generate_after_version", "42_cached_tokens", "43_nouuid_b", "50_tool_maxtok_49", "56_chat_kv_prompt_ids",
    "70_recommended_noparser", "71_top_logprobs_1", "71_top_logprobs_2", "71_top_logprobs_5",
]  # fmt: skip

CORRUPT = {
    "03_chat_tokens_as_ids": {"prompt_ids_missing", "generated_ids_missing"},
    "05_chat_n3": {"several_choices", "usage_generated_differs", "vision_token_generated"},
    "07_chat_stop_string": {"text_cut_at_stop_string"},
    "07b_chat_stop_include": {"text_cut_at_stop_string"},
    "08_chat_eos_forced": {"constrained_sampling"},
    "12b_responses_plain": {"prompt_ids_missing", "generated_ids_missing"},
    "20_err_unknown_field": {"prompt_ids_missing", "generated_ids_missing", "logprobs_missing"},
    "22_uuid_images": {"image_cache_key_sent"},
    "33_include_reasoning_false": {"generated_ids_missing", "logprobs_missing"},
    "34c_tool_required": {"constrained_sampling"},
    "35_responses_tools": {"logprobs_missing"},
    "43_uuid_a": {"image_cache_key_sent"},
    "50_tool_maxtok_47": {"truncated_as_tool_call"},
    "51_include_reasoning_false": {"generated_ids_missing", "logprobs_missing"},
    "57_messages_anthropic": {"prompt_ids_missing", "generated_ids_missing", "logprobs_missing", "reply_in_reasoning"},
}


def images_of(body) -> int:
    return 1 if "features" in body else json.dumps(body).count("data:image")


def check(wire, tiny, name, images=None):
    api, body, data, limit = wire(name)
    reply = read_reply(api, data, max_tokens=limit, eos=tiny.end_tokens)
    return check_call(reply, body, [(560, 336)] * (images_of(body) if images is None else images), tiny)


@pytest.mark.parametrize("name", CLEAN)
def test_clean_reply_passes(wire, tiny, name):
    assert check(wire, tiny, name).violations == {}


@pytest.mark.parametrize("name", CORRUPT)
def test_corrupt_reply_is_named(wire, tiny, name):
    assert set(check(wire, tiny, name).violations) == CORRUPT[name]


def test_cut_after_a_tool_call_is_seen_by_ids_and_not_by_the_finish_reason(wire, tiny):
    cut, whole = check(wire, tiny, "50_tool_maxtok_47"), check(wire, tiny, "50_tool_maxtok_49")
    assert cut.truncated is True
    assert whole.truncated is False


def test_an_image_that_was_not_sent_or_one_too_many(wire, tiny):
    assert set(check(wire, tiny, "30_tool_auto", images=2).violations) == {"image_count_differs"}
    assert "image_count_differs" in check(wire, tiny, "30_tool_auto", images=0).violations


PROMPT = (1, 4085, *[4088] * 240, 4086, 2)


def reply(**fields) -> Reply:
    base = {
        "api": "chat_completions", "text": "hello", "finish_reason": "stop", "truncated": False, "served_model": "m", "prompt_tokens": len(PROMPT),
        "completion_tokens": 3, "prompt_token_ids": PROMPT, "generated_token_ids": (5, 6, 4078), "logprobs": (-0.1, -0.2, -0.3),
        "logprob_token_ids": (5, 6, 4078),
    }  # fmt: skip
    return Reply(**{**base, **fields})


BODY = {"model": "m", "messages": [], "temperature": 1.0, "top_p": 1.0}


@pytest.mark.parametrize(
    ("fields", "body", "expected"),
    [
        ({}, {}, set()),
        ({"logprobs": (-0.1, -0.2)}, {}, {"lengths_differ"}),
        ({"prompt_tokens": 9}, {}, {"usage_prompt_differs"}),
        ({"completion_tokens": 9}, {}, {"usage_generated_differs"}),
        ({"logprob_token_ids": (5, 7, 4078)}, {}, {"logprob_ids_differ"}),
        ({"logprobs": (-0.1, -9999.0, -0.3)}, {}, {"logprob_impossible"}),
        ({"logprobs": (-0.1, 0.4, -0.3)}, {}, {"logprob_impossible"}),
        ({"generated_token_ids": (), "logprobs": (), "completion_tokens": 0, "logprob_token_ids": None}, {}, {"empty_generation"}),
        ({"generated_token_ids": (5, 4085, 4078), "logprob_token_ids": None}, {}, {"vision_token_generated"}),
        ({"finish_reason": "abort"}, {}, {"aborted"}),
        ({"served_model": "other"}, {}, {"served_model_differs"}),
        ({"weight_version": "step-1,step-2"}, {}, {"weights_changed"}),
        ({"text": "", "reasoning": "I click."}, {}, {"reply_in_reasoning"}),
        ({}, {"n": 2}, {"several_choices"}),
        ({}, {"tool_choice": {"type": "function", "function": {"name": "f"}}}, {"constrained_sampling"}),
        ({}, {"response_format": {"type": "json_object"}}, {"constrained_sampling"}),
        ({}, {"guided_json": {"type": "object"}}, {"constrained_sampling"}),
        ({}, {"messages": [{"role": "user", "content": "see <|image_pad|>"}]}, {"vision_text_in_prompt"}),
        ({}, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a <|vision_end|>"}]}]}, {"vision_text_in_prompt"}),
        ({}, {"messages": [{"role": "user", "content": "label\t<|im_end|>\n<|im_start|>system"}]}, {"control_text_in_prompt"}),
        ({}, {"messages": [{"role": "assistant", "content": "<think>x</think>\n<tool_call>{}</tool_call> [1] <s>a</s>"}]}, set()),
        ({"image_runs": ((3, 240),)}, {}, {"image_runs_disagree"}),
        # a text's pad stole a slot: the run stands in a sentence, the real slot is one stray pad
        ({"prompt_token_ids": (1, 9, *[4088] * 240, 9, 4085, 4088, 4086), "prompt_tokens": 246}, {},
         {"image_run_unwrapped", "image_count_differs"}),
        # expanded ids were expanded again
        ({"prompt_token_ids": (1, 4085, *[4088] * 479, 4086), "prompt_tokens": 482}, {}, {"image_run_length_differs"}),
        ({"prompt_token_ids": (1, 9, 4088, 9, 4085, *[4088] * 240, 4086), "prompt_tokens": 246}, {},
         {"image_run_stray", "image_count_differs", "image_run_length_differs"}),
    ],
)  # fmt: skip
def test_each_violation_has_its_name(tiny, fields, body, expected):
    assert set(check_call(reply(**fields), {**BODY, **body}, [(560, 336)], tiny).violations) == expected


def test_every_violation_is_covered_by_a_test_or_a_recorded_reply():
    named = set().union(*CORRUPT.values())
    here = open(__file__).read()  # noqa: SIM115, PTH123
    assert [item for item in Violation if item.value not in named and f'"{item.value}"' not in here] == []


def test_a_message_ends_as_the_served_model_spells_it(tiny):
    body = {**BODY, "messages": [{"role": "user", "content": [{"type": "text", "text": "open </s>.txt"}]}]}
    assert check_call(reply(), body, [(560, 336)], tiny).violations == {}
    other = tiny.model_copy(update={"end_texts": ("</s>",)})
    (violation,) = check_call(reply(), body, [(560, 336)], other).violations.items()
    assert violation == (
        "control_text_in_prompt",
        "a text of the request holds '</s>', which a server may read as the end of a message",
    )


def test_raw_logprobs_are_not_of_the_policy_when_sampling_reshapes_it(tiny):
    raw = tiny.model_copy(update={"logprobs_mode": "raw"})
    assert check_call(reply(), BODY, [(560, 336)], raw).violations == {}
    assert set(check_call(reply(), {**BODY, "temperature": 0.6}, [(560, 336)], raw).violations) == {
        "logprobs_not_of_policy"
    }
    assert check_call(reply(), {**BODY, "temperature": 0.6}, [(560, 336)], tiny).violations == {}


def test_without_a_probe_nothing_is_trusted(tiny):
    assert "profile_missing" in check_call(reply(), BODY, [(560, 336)], None).violations
    assert "profile_missing" in check_call(reply(), BODY, [(100, 100)], tiny).violations
    assert set(check_call(reply(truncated=None), BODY, [], None).violations) == {
        "profile_missing",
        "truncation_unknown",
    }


def test_images_whose_rows_are_separate_runs_are_held_against_their_sum(tiny):
    rows = tiny.model_copy(update={"images": (ImageTokens(width=560, height=336, tokens=6, runs=2),)})
    ids = (1, 4088, 4088, 4088, 7, 4088, 4088, 4088, 8)
    assert check_call(reply(prompt_token_ids=ids, prompt_tokens=9), BODY, [(560, 336)], rows).violations == {}
    assert set(check_call(reply(prompt_token_ids=ids[:-2], prompt_tokens=7), BODY, [(560, 336)], rows).violations) == {
        "image_run_length_differs"
    }


def test_a_server_started_again_with_other_options(tiny):
    probed = tiny.model_copy(update={"system_fingerprint": "vllm-0.32.0-aa"})
    assert check_call(reply(system_fingerprint="vllm-0.32.0-aa"), BODY, [(560, 336)], probed).violations == {}
    assert set(check_call(reply(system_fingerprint="vllm-0.32.0-bb"), BODY, [(560, 336)], probed).violations) == {
        "server_changed"
    }


def test_tempered_logprobs_know_the_temperature_and_nothing_else(tiny):
    tempered = tiny.model_copy(update={"logprobs_mode": "tempered"})
    assert check_call(reply(), {**BODY, "temperature": 0.6}, [(560, 336)], tempered).violations == {}
    assert set(check_call(reply(), {**BODY, "top_p": 0.6}, [(560, 336)], tempered).violations) == {
        "logprobs_not_of_policy"
    }


def test_runs():
    assert image_runs([4, 9, 9, 4, 9], 9) == ((1, 2), (4, 1))
    assert image_runs((), 9) == ()


def test_what_reshapes_a_distribution():
    assert reshapes_distribution({"temperature": 1.0, "top_p": 1, "top_k": -1}) == []
    assert reshapes_distribution({"sampling_params": {"temperature": 0.5, "top_k": 0}}) == ["temperature 0.5"]


def test_an_image_cache_key_that_is_the_image_s_own_hash_is_harmless(tiny):
    sha = "ab" * 32
    body = {
        **BODY,
        "messages": [
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": f"media://{sha}"}, "uuid": f"sha256-{sha}"}],
            }
        ],
    }
    assert check_call(reply(), body, [(560, 336)], tiny).violations == {}
