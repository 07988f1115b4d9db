from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osworld_rollouts.evidence.segments import BoundaryReason, SentAndGenerated, extension, first_divergence
from osworld_rollouts.serving.reply import read_reply

ids = st.lists(st.integers(0, 3), max_size=12)
media = st.lists(st.sampled_from("abc"), max_size=4)


def one(prompt, generated, images=(), epoch=0):
    return SentAndGenerated(tuple(prompt), tuple(generated), tuple(images), epoch)


@given(ids, ids, ids, media, media)
def test_appending_extends(prompt, generated, suffix, before, more):
    found = extension(one(prompt, generated, before), one([*prompt, *generated, *suffix], [], [*before, *more]))
    assert found.extends is True
    assert found.boundary() is None


@given(ids, ids, ids, media, media)
def test_extends_means_prefix_and_nothing_else(prompt, generated, now, before, after):
    whole = [*prompt, *generated]
    expected = now[: len(whole)] == whole and after[: len(before)] == before
    found = extension(one(prompt, generated, before), one(now, [], after))
    assert found.extends is expected
    assert (found.boundary() is None) is expected


@given(ids, ids)
def test_divergence_is_the_first_difference(before, after):
    at = first_divergence(before, after)
    if at is None:
        assert after[: len(before)] == before
    else:
        assert after[:at] == before[:at]
        assert at == len(after) or before[at] != after[at]


@given(st.integers(0, 9000), st.integers(0, 9000))
def test_divergence_far_in(length, at):
    before = tuple(range(length))
    after = list(before)
    if at < length:
        after[at] = -1
    assert first_divergence(before, tuple(after)) == (at if at < length else None)


@pytest.mark.parametrize(
    ("previous", "current", "reason", "position"),
    [
        (None, one([1], []), BoundaryReason.FIRST_CALL, None),
        (SentAndGenerated(None, (1,), ()), one([1], []), BoundaryReason.IDS_MISSING, None),
        (one([1], [2]), SentAndGenerated(None, None, ()), BoundaryReason.IDS_MISSING, None),
        (one([1, 2, 3], [4, 5]), one([1, 9, 3, 4, 5], []), BoundaryReason.PROMPT_REWRITTEN, 1),
        (one([1, 2, 3], [4, 5]), one([1, 2, 3, 4, 9, 6], []), BoundaryReason.GENERATION_RETOKENISED, 4),
        (one([1, 2, 3], [4, 5]), one([1, 2], []), BoundaryReason.PROMPT_SHORTER, 2),
        (one([1, 2], [3], "ab"), one([1, 2, 3, 4], [], "ac"), BoundaryReason.MEDIA_CHANGED, None),
        (one([1, 2], [3], "ab"), one([1, 2, 3, 4], [], "a"), BoundaryReason.MEDIA_CHANGED, None),
        (one([1, 2], [3], "ab", 0), one([1, 4], [], "b", 1), BoundaryReason.HISTORY_COMPACTED, 1),
    ],
)
def test_reasons(previous, current, reason, position):
    found = extension(previous, current)
    assert not found.extends
    assert (found.reason, found.position) == (reason, position)
    assert found.boundary()["reason"] == reason


def test_a_new_epoch_that_still_extends_is_no_boundary():
    assert extension(one([1], [2], "a", 0), one([1, 2, 3], [], "ab", 1)).extends


@pytest.mark.parametrize(
    ("turn_two", "extends", "position"),
    [
        ("32_turn2_default", False, 404),  # vLLM's template renders the tool call with another blank line
        ("32_turn2_keep_think", False, 404),
        ("38b_generate_turn2_tito", True, None),  # token in, token out
    ],
)
def test_drift_recorded_on_a_real_server(wire, turn_two, extends, position):
    def facts(name):
        api, _, data, limit = wire(name)
        reply = read_reply(api, data, max_tokens=limit)
        return reply.prompt_token_ids, reply.generated_token_ids

    first = one(*facts("30_tool_auto"), ["image"])
    found = extension(first, one(*facts(turn_two), ["image", "image2"]))
    assert (found.extends, found.position, found.previous_length) == (extends, position, 440)
    if not extends:
        assert found.reason is BoundaryReason.GENERATION_RETOKENISED
