"""Identities, digests and what a bad request says."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from osworld_rollouts.contracts.identity import execution_id, split_execution_id
from osworld_rollouts.contracts.request import (
    Model,
    ParsePolicy,
    Rollout,
    RolloutRequest,
    Sampling,
    Task,
    differing_fields,
)

DOCUMENT = {"id": "t-1", "instruction": "Do it", "config": [], "evaluator": {"func": "infeasible"}}


def rollout(**fields) -> Rollout:
    return Rollout(
        **{
            "task": Task.from_document(DOCUMENT, "os"),
            "model": Model(name="m", base_url="http://127.0.0.1:1/v1/"),
            **fields,
        }
    )


def test_default_rollout_id():
    assert RolloutRequest(rollout=rollout(), campaign_id="c", sample_index=4).rollout_id == "c/t-1/4"
    assert RolloutRequest(rollout=rollout(), rollout_id="mine").rollout_id == "mine"


def test_digest_ignores_scheduling_and_sees_meaning():
    base = RolloutRequest(rollout=rollout(), campaign_id="c")
    same = RolloutRequest(
        rollout=rollout(), campaign_id="d", sample_index=3, purpose="train", priority=1, labels={"a": "b"}
    )
    assert base.request_digest() == same.request_digest()
    other = RolloutRequest(rollout=rollout(sampling=Sampling(temperature=0.5)), campaign_id="c")
    assert base.request_digest() != other.request_digest()


def test_leaving_the_parse_policy_to_the_adapter_is_another_request_than_naming_one():
    left, named = rollout(), rollout(parse_policy=ParsePolicy())
    assert left.digest() != named.digest()
    assert differing_fields(left, named) == ["parse_policy"]
    assert rollout(parse_policy=None).digest() == left.digest()


def test_digest_survives_the_wire():
    request = RolloutRequest(rollout=rollout(), campaign_id="c")
    assert RolloutRequest.model_validate_json(request.model_dump_json()).request_digest() == request.request_digest()


def test_digest_is_pinned():
    # A changed digest splits every campaign that is running: change it only with a release note.
    assert rollout().digest() == rollout().digest()
    assert len(rollout().digest()) == 64


def test_differing_fields_are_named():
    left = rollout()
    right = rollout(
        max_turns=3, sampling=Sampling(temperature=0.1), model=Model(name="n", base_url="http://127.0.0.1:1/v1")
    )
    assert differing_fields(left, right) == ["max_turns", "model.name", "sampling.temperature"]
    assert differing_fields(left, rollout()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": None}, "'id' must be a str"),
        ({"instruction": 3}, "'instruction' must be a str"),
        ({"evaluator": []}, "'evaluator' must be a dict"),
        ({"config": {}}, "'config' must be a list"),
        ({"id": "../../etc/passwd"}, "task_id"),
        ({"id": "/etc/passwd"}, "task_id"),
        ({"id": "a\nb"}, "task_id"),
    ],
)
def test_malformed_task_says_which_field(change, said):
    with pytest.raises(ValueError, match=said):
        Task.from_document({**DOCUMENT, **change}, "os")


@pytest.mark.parametrize("bad", ["", "/x", "a//b", "a/../b", "a b", "x/", "a/\n"])
def test_rollout_ids_that_would_be_paths_are_refused(bad):
    if bad == "":
        return  # empty means "make one"
    with pytest.raises(ValidationError):
        RolloutRequest(rollout=rollout(), rollout_id=bad)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", ""])
def test_base_url_must_be_http(url):
    with pytest.raises(ValidationError, match="http"):
        Model(name="m", base_url=url)


def test_execution_ids_round_trip():
    assert split_execution_id(execution_id("c/t/0", 12)) == ("c/t/0", 12)
    for bad in ("c/t/0", "c/t/0/x0", "/x1", "c/x"):
        with pytest.raises(ValueError):
            split_execution_id(bad)
