"""SGLang's wire format from reply to admission.

No SGLang runs here: the replies are built after its source (0.5.23: ids for each choice, `response_token_ids`, `matched_stop`, the `sglext`
extension, fields left out when off). What a deployed server really gives is for the probe to find out.
"""

from __future__ import annotations

import json

import pytest

from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.admission import admit_rollout
from osworld_rollouts.evidence.export.rows import call_rows, read_execution, rollout_row
from osworld_rollouts.evidence.index import read_pointer
from tests.evidence.exact import END, IMAGE, exact_execution


def as_sglang(raw: bytes, *, extension: bool = False, **changes) -> bytes:
    """A vLLM reply as SGLang words the same sample."""
    vllm = json.loads(raw)
    choice = vllm["choices"][0]
    entries = [
        {"token": entry["token"], "bytes": [], "logprob": entry["logprob"], "top_logprobs": []}
        for entry in choice["logprobs"]["content"]
    ]
    said = {
        "index": 0,
        "message": {"role": "assistant", "content": choice["message"]["content"], "tool_calls": None, "reasoning_content": None},
        "logprobs": {"content": entries},
        "finish_reason": "stop",
        "matched_stop": END,
    }  # fmt: skip
    body = {
        "id": "5f0c1c5e", "object": "chat.completion", "created": 1795965481, "model": vllm["model"], "choices": [said],
        "usage": vllm["usage"] | {"reasoning_tokens": 0}, "metadata": {"weight_version": "step-7"},
    }  # fmt: skip
    if extension:
        body["sglext"] = {"input_ids": vllm["prompt_token_ids"], "output_ids": [choice["token_ids"]]}
    else:
        said |= {"prompt_token_ids": vllm["prompt_token_ids"], "response_token_ids": choice["token_ids"]}
    said |= changes
    return json.dumps(body).encode()


def judged(store, change):
    made = exact_execution(store, turns=3, change=lambda _, raw: change(raw))
    calls = [record for record in chain.walk(store, made.head) if record.kind == "model_call"]
    execution = read_execution(store, read_pointer(store, "camp/task/0/x1"))
    report = admit_rollout(rollout_row([execution]), list(call_rows(store, execution, final=True)), store.get)
    return calls, report


@pytest.mark.parametrize("extension", [False, True])
def test_a_clean_reply_is_exact_and_admitted(store, extension):
    calls, report = judged(store, lambda raw: as_sglang(raw, extension=extension))
    assert [call.violations for call in calls] == [()] * 3
    assert [call.extends_previous for call in calls] == [None, True, True]
    assert [call.truncated for call in calls] == [False] * 3
    assert (report.intact, report.eligible, report.eligible_tokens) == (True, True, 9)
    assert report.calls[1].generated_ids == (21, 30, END)


@pytest.mark.parametrize(
    ("changes", "violation"),
    [
        ({"response_token_ids": None}, "generated_ids_missing"),
        ({"prompt_token_ids": None}, "prompt_ids_missing"),
        ({"logprobs": None}, "logprobs_missing"),
        ({"finish_reason": "abort", "matched_stop": None}, "aborted"),
        ({"response_token_ids": [20, IMAGE, END]}, "vision_token_generated"),
        ({"response_token_ids": [20, END]}, "lengths_differ"),
    ],
)
def test_a_spoilt_reply_is_named_and_refused(store, changes, violation):
    calls, report = judged(store, lambda raw: as_sglang(raw, **changes))
    assert all(violation in call.violations for call in calls)
    assert (report.intact, report.eligible_tokens) == (True, 0)


def test_ids_that_a_server_of_another_version_does_not_give_are_not_made_up(store):
    """An older SGLang ignores `return_token_ids`: nothing stands in for the ids."""
    calls, report = judged(store, lambda raw: as_sglang(raw, response_token_ids=None, prompt_token_ids=None))
    assert {"prompt_ids_missing", "generated_ids_missing"} <= set(calls[0].violations)
    assert (calls[0].prompt_token_ids, calls[0].generated_token_ids) == (None, None)
    assert report.eligible_tokens == 0
