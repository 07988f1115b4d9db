"""What follows a reply without an action and a prompt that is too long, on a whole system."""

from __future__ import annotations

import json

import pytest

from osworld_rollouts.contracts.evidence import ModelCallRecord
from osworld_rollouts.contracts.outcome import OutcomeKind
from osworld_rollouts.contracts.request import Adapter, ParsePolicy, Sampling
from osworld_rollouts.evidence import chain, transcript
from osworld_rollouts.evidence.store import open_store
from osworld_rollouts.tasks import shipped_tasks

pytestmark = [pytest.mark.temporal, pytest.mark.desktop]
TASK = next(task for task in shipped_tasks() if task.task_id == "terminal-count-errors")


def records_of(stack, result):
    return chain.walk(open_store(stack.settings.store.url), result.executions[0].evidence_head)


async def test_the_adapters_own_parse_policy_decides_and_is_recorded(stack):
    submitted = await stack.submit(
        TASK,
        faults=":garbage",
        adapter=Adapter(name="nemotron_nano_omni"),
        sampling=Sampling(temperature=0.0),
        campaign=f"{stack.campaign}-own-policy",
    )
    result = await submitted.handle.result()
    assert (result.outcome.kind, result.outcome.turns) == (OutcomeKind.POLICY_RESPONSE_INVALID, 1)
    assert result.outcome.score == 0.0  # the evaluator's, of an untouched desktop
    records = records_of(stack, result)
    policy = transcript.started(records).parse_policy
    assert (policy.on_failure, policy.resamples, policy.max_failed_turns) == ("resample", 4, 1)
    calls = [record for record in records if isinstance(record, ModelCallRecord)]
    assert [(call.turn, call.call, call.sampling["temperature"]) for call in calls] == [
        (0, 0, 0.0), *((0, number, 0.2) for number in range(1, 5)),
    ]  # fmt: skip
    assert all(call.failure is not None for call in calls)


async def test_a_prompt_that_is_too_long_loses_a_screenshot_and_stays_short(stack):
    submitted = await stack.submit(TASK, faults=":overflow=2", campaign=f"{stack.campaign}-too-long")
    result = await submitted.handle.result()
    assert (result.outcome.kind, result.outcome.score) == (OutcomeKind.AGENT_DONE, 1.0)
    turns = transcript.turns(records_of(stack, result))
    assert len(turns) > 3
    assert [len(turn.shrinks) for turn in turns] == [0, 0, 1, *[0] * (len(turns) - 3)]
    (shrink,) = turns[2].shrinks
    assert (shrink.from_images, shrink.to_images) == (3, 2)
    assert all(len(turn.final.media) <= 2 for turn in turns)
    assert turns[2].calls[0].error


async def test_feedback_shows_the_refused_reply_and_no_second_screenshot(stack):
    submitted = await stack.submit(
        TASK,
        faults=":garbage=x1@1",
        parse_policy=ParsePolicy(on_failure="feedback", resamples=2),
        campaign=f"{stack.campaign}-feedback",
    )
    result = await submitted.handle.result()
    assert (result.outcome.kind, result.outcome.score) == (OutcomeKind.AGENT_DONE, 1.0)
    turns = transcript.turns(records_of(stack, result))
    assert [len(turn.calls) for turn in turns] == [1, 2, *[1] * (len(turns) - 2)]
    refused, accepted = turns[1].calls
    assert (refused.failure.kind, accepted.failure) == ("no_action", None)
    assert refused.media == accepted.media
    store = open_store(stack.settings.store.url)
    *shown, reply, feedback = json.loads(store.get(accepted.sent))["body"]["messages"]
    assert shown == json.loads(store.get(refused.sent))["body"]["messages"]
    assert refused.text in json.dumps(reply, ensure_ascii=False)
    assert refused.failure.message in json.dumps(feedback, ensure_ascii=False)
