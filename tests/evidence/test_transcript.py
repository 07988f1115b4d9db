from __future__ import annotations

import pytest

from osworld_rollouts.contracts.action import Click, Point
from osworld_rollouts.contracts.steps import ParseFailure
from osworld_rollouts.evidence import chain, transcript
from osworld_rollouts.evidence.errors import ChainBroken
from osworld_rollouts.evidence.store import put_json
from tests.evidence.builders import Chain, media

CLICK = Click(point=Point(x=1, y=2))
FAILED = ParseFailure(kind="no_action", message="there is none")


def shots(number):
    return [media(f"{n:064x}") for n in range(number)]


def test_turns_with_resamples_noops_and_effects(store):
    first, second = shots(2)
    made = Chain(store)
    made.start()
    made.prepare(first)
    made.call(0, 0, failure=FAILED, text="hm")
    made.call(0, 1, actions=(CLICK,), text="click")
    made.operate(0, second)
    made.call(1, 0, failure=FAILED, text="what")
    made.call(2, 0, overflow=True, received=None)
    made.call(2, 1, actions=(CLICK,))
    records = chain.walk(store, made.head)
    zero, one, two = transcript.turns(records)
    assert (zero.observation.screenshot, zero.after.screenshot) == (first, second)
    assert zero.accepted.text == zero.final.text == "click"
    assert [call.text for call in zero.rejected] == ["hm"]
    assert (zero.actions, zero.failure) == ((CLICK,), None)
    assert one.observation.screenshot == second
    assert (one.accepted, one.failure, one.final.text, one.actions) == (None, FAILED, "what", ())
    assert two.rejected == []
    assert two.after is None
    assert [turn.turn for turn in transcript.turns(records, before=2)] == [0, 1]
    assert transcript.current_observation(records).screenshot == second
    assert len(transcript.calls(records)) == 5
    assert transcript.previous_call(records).turn == 2
    assert transcript.previous_call(records[:-1]).turn == 1


def test_nothing_observed_yet(store):
    made = Chain(store)
    made.start()
    with pytest.raises(ChainBroken, match="nothing was observed"):
        transcript.current_observation(chain.walk(store, made.head))
    made.call(0)
    with pytest.raises(ChainBroken, match="before the desktop was prepared"):
        transcript.turns(chain.walk(store, made.head))


def test_output_items(store):
    made = Chain(store)
    made.start()
    made.prepare()
    items = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    made.call(0, output=put_json(store, items))
    call = transcript.calls(chain.walk(store, made.head))[0]
    assert transcript.output_items(store, call) == tuple(items)
    assert transcript.output_items(store, call.model_copy(update={"output": None})) == ()


def test_ends(store):
    made = Chain(store)
    started = made.start()
    made.prepare()
    records = chain.walk(store, made.head)
    assert transcript.started(records) == started
    assert transcript.evaluation(records) is None
    assert transcript.terminated(records) is None
    made.evaluate(0.5)
    made.end()
    records = chain.walk(store, made.head)
    assert transcript.evaluation(records).score == 0.5
    assert transcript.terminated(records).outcome.score == 1.0
