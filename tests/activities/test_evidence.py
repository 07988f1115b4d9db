"""What an execution begins with: the policies that hold, as resolved, in its first record."""

from __future__ import annotations

import pytest
from temporalio.testing import ActivityEnvironment

from activities.evidence import EvidenceActivities
from osworld_rollouts.adapters import adapter_names, load_adapter
from osworld_rollouts.contracts.request import Adapter, ParsePolicy, Sampling
from osworld_rollouts.contracts.steps import OpenExecution
from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.store import open_store


@pytest.fixture
def opened(tmp_path):
    """Open an execution; the first record and what the workflow is told."""
    store = open_store(tmp_path)

    async def open_execution(request):
        step = OpenExecution(request=request, execution_id="c/t/0/x1", number=1, workflow_id="w", run_id="r")
        activities = EvidenceActivities(store, server_version=None)
        told = await ActivityEnvironment().run(activities.open_execution, step)
        return chain.read_record(store, told.head, remember=False), told

    return open_execution


@pytest.mark.parametrize("name", adapter_names())
async def test_without_a_parse_policy_the_adapters_own_holds_and_is_recorded(opened, make_request, name):
    record, told = await opened(make_request(adapter=Adapter(name=name)))
    default = load_adapter(name).parse_policy_default()
    assert record.parse_policy == told.parse_policy == default
    assert (default.on_failure == "noop") is (name not in {"nemotron_nano_omni", "ui_tars"})


async def test_a_parse_policy_that_was_asked_for_holds(opened, make_request):
    asked = ParsePolicy(on_failure="feedback", resamples=1)
    record, told = await opened(make_request(adapter=Adapter(name="ui_tars"), parse_policy=asked))
    assert record.parse_policy == told.parse_policy == asked


@pytest.mark.parametrize(
    ("policy", "temperature", "resampled_at"),
    [
        ({}, 0.0, None),
        ({"resample_temperature_min": 0.2}, 0.0, 0.2),
        ({"resample_temperature_min": 0.2}, 0.2, None),
        ({"resample_temperature_min": 0.2}, 1.0, None),
        ({"resample_temperature_min": 0.2}, None, None),
        ({"resample_temperature_min": 0.2, "resample_temperature": 0.7}, 0.0, 0.7),
        ({"resample_temperature_min": 0.2, "resample_temperature": 0.1}, 1.0, 0.2),
    ],
)
async def test_further_calls_are_not_colder_than_the_policy_says(
    opened, make_request, policy, temperature, resampled_at
):
    request = make_request(
        sampling=Sampling(temperature=temperature), parse_policy=ParsePolicy(on_failure="resample", **policy)
    )
    record, _ = await opened(request)
    assert record.parse_policy.resample_temperature == resampled_at


async def test_the_rule_knows_the_adapters_own_temperature(opened, make_request):
    policy = ParsePolicy(on_failure="resample", resample_temperature_min=0.3)
    record, _ = await opened(make_request(adapter=Adapter(name="qwen3_vl"), parse_policy=policy))
    assert load_adapter("qwen3_vl").sampling_defaults().temperature == 0.0
    assert record.parse_policy.resample_temperature == 0.3
