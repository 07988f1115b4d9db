"""The toy tokeniser keeps the shapes that evidence checks look at."""

from __future__ import annotations

from osworld_rollouts.testing import tokens
from osworld_rollouts.testing.tokens import IMAGE_PAD, VISION_END, VISION_START, ImageSize


def test_text_round_trips():
    assert tokens.decode(tokens.encode("héllo <|im_end|> 文")) == "héllo <|im_end|> 文"


def test_incomplete_bytes_become_replacement_characters():
    assert tokens.decode(tokens.encode("é")[:1]) == "�"


def test_images_are_runs_between_vision_marks_in_message_order():
    messages: list[tokens.Message] = [("user", ("a", ImageSize(560, 336), "b", ImageSize(56, 28)))]
    ids = tokens.prompt_ids(messages)
    assert ids.count(IMAGE_PAD) == 240 + 2
    first = ids.index(VISION_START)
    assert ids[first + 1 : first + 242] == [IMAGE_PAD] * 240 + [VISION_END]
    assert ids.count(VISION_START) == ids.count(VISION_END) == 2


def test_text_cannot_pretend_to_be_an_image():
    assert IMAGE_PAD not in tokens.prompt_ids([("user", ("<|image_pad|>",))])


def test_large_images_are_capped():
    assert ImageSize(1920, 1080).tokens == 252
    assert ImageSize(1, 1).tokens == 1


def test_logprobs_are_reproducible_and_never_positive():
    values = [tokens.logprob(token, position) for token in range(261) for position in range(50)]
    assert all(-1 < value <= 0 for value in values)
    assert values == [tokens.logprob(token, position) for token in range(261) for position in range(50)]


def test_top_logprobs_begin_with_the_sampled_token_as_in_vllm():
    entry = tokens.logprob_entry(104, 3, 3, as_ids=False)
    assert entry["token"] == "h"
    assert entry["top_logprobs"][0]["token"] == "h"
    assert len(entry["top_logprobs"]) == 3
    assert tokens.logprob_entry(104, 3, 0, as_ids=False)["top_logprobs"] == []


def test_tokens_as_ids_have_vllms_odd_bytes():
    entry = tokens.logprob_entry(104, 0, 1, as_ids=True)
    assert (entry["token"], entry["bytes"]) == ("token_id:104", [104])
    assert bytes(entry["top_logprobs"][0]["bytes"]) == b"token_id:104"
    assert tokens.logprob_entry(0xC3, 0, 0, as_ids=False) | {"logprob": 0} == {
        "token": "",
        "logprob": 0,
        "bytes": [],
        "top_logprobs": [],
    }
