"""Prompts that were too long, as the evidence tells of them."""

from __future__ import annotations

from osworld_rollouts.contracts.action import Click
from osworld_rollouts.contracts.steps import ParseFailure
from osworld_rollouts.evidence import chain, transcript
from osworld_rollouts.evidence.export.nemo_gym import _step
from osworld_rollouts.evidence.transcript import Shrink
from tests.evidence.builders import Chain, media

REFUSED = {"received": None, "overflow": True, "status": 400}


def turns_of(store, *calls):
    made = Chain(store)
    made.start()
    made.prepare()
    for number, fields in enumerate(calls):
        made.call(0, number, **fields)
    return transcript.turns(chain.walk(store, made.head))


def test_each_refusal_says_how_many_images_it_had_and_how_many_the_next(store):
    bad = {"failure": ParseFailure(kind="no_action", message="nothing"), "media": (media(),)}
    (turn,) = turns_of(
        store, {**REFUSED, "media": (media(),) * 3}, {**REFUSED, "media": (media(),) * 2}, bad, {**bad, "failure": None, "actions": (Click(),)}
    )  # fmt: skip
    assert turn.shrinks == [Shrink(0, 3, 2), Shrink(1, 2, 1)]
    assert _step(turn, last=True, score=1.0)["info"] == {
        "prompt_shrink_events": [
            {"parse_attempt": 0, "from_images": 3, "to_images": 2, "reason": "context_overflow"},
            {"parse_attempt": 1, "from_images": 2, "to_images": 1, "reason": "context_overflow"},
        ],
        "failure_kind_counts": {"no_action": 1, "context_overflow": 2},
    }


def test_a_prompt_that_never_fits(store):
    (turn,) = turns_of(store, {**REFUSED, "media": (media(),)})
    assert turn.shrinks == [Shrink(0, 1, None)]


def test_nothing_is_said_where_nothing_happened(store):
    (turn,) = turns_of(store, {"actions": (Click(),)})
    assert turn.shrinks == []
    assert _step(turn, last=False, score=None)["info"] == {}
