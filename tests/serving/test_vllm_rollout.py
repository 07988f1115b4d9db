"""A whole rollout on a real desktop, driven by the tiny model at temperature 1, with exact evidence: proved from every side.

`VLLM_VENV=… pytest -m vllm tests/serving` (needs what the desktop tests need, too).
"""

from __future__ import annotations

import json

import pytest
from temporalio.client import WorkflowFailureError

from osworld_rollouts.contracts.identity import execution_workflow_id
from osworld_rollouts.contracts.outcome import OutcomeKind
from osworld_rollouts.contracts.request import (
    Adapter,
    History,
    Limits,
    Model,
    ParsePolicy,
    Rollout,
    RolloutRequest,
    Sampling,
)
from osworld_rollouts.evidence import chain, open_campaign, open_store, transcript
from osworld_rollouts.evidence.export.campaign import export_campaign
from osworld_rollouts.evidence.store import get_json
from osworld_rollouts.evidence.verify import history_heads, verify_execution
from osworld_rollouts.serving.exact import SAMPLING_FIELDS
from osworld_rollouts.submit import submit
from osworld_rollouts.tasks import shipped_tasks
from tests.serving.fault_proxy import SmallServer
from tests.serving.test_vllm import recompute
from tests.serving.vllm_server import MODEL, VllmServer, missing
from tests.stack import QUICK, missing_packages, running

pytestmark = [
    pytest.mark.vllm, pytest.mark.desktop, pytest.mark.temporal, pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(missing()), reason=missing() or "runs"),
]  # fmt: skip
TURNS = 16
TASK = next(task for task in shipped_tasks() if task.task_id == "text-edit-save")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with VllmServer(tmp_path_factory.mktemp("vllm") / "log") as serving:
        yield serving


@pytest.fixture
async def stack(temporal_env):
    pytest.importorskip("desktop_env", reason="the evaluator extra is not installed")
    assert not missing_packages(), missing_packages()
    address = temporal_env.client.service_client.config.target_host
    async with running(temporal_env.client, address, in_process=True, name="vllm") as found:
        yield found


def request_of(server, campaign, sample, **fields) -> RolloutRequest:
    base = {
        "task": TASK, "model": Model(name=MODEL, base_url=server.base_url, api_key_env=None), "adapter": Adapter(name="pyautogui"),
        "history": History(name="hysteresis", params={"low_water": 2, "high_water": 5}), "parse_policy": ParsePolicy(max_failed_turns=50),
        "sampling": Sampling(max_tokens=100, temperature=1.0, top_p=1.0), "max_turns": TURNS, "evidence": "exact",
    }  # fmt: skip
    return RolloutRequest(
        rollout=Rollout(**{**base, **fields}),
        campaign_id=campaign,
        sample_index=sample,
        limits=Limits(max_executions=1),
    )


async def run(stack, request):
    submitted = await submit(
        stack.client,
        request,
        timing=QUICK,
        task_queue=stack.settings.temporal.workflow_queue,
        pool_queue=stack.settings.temporal.pool_queue,
    )
    return await submitted.handle.result()


async def test_a_rollout_of_at_least_15_turns_is_exact_and_provable(stack, server, tmp_path):
    store, result = open_store(stack.settings.store.url), None
    for sample in range(8):  # the tiny model says DONE at random
        result = await run(stack, request_of(server, stack.campaign, sample))
        if result.outcome.turns >= 15:
            break
    assert result.outcome.turns >= 15
    assert result.outcome.score is not None
    (execution,) = result.executions
    records = chain.walk(store, execution.evidence_head)
    calls = transcript.calls(records)

    # every call exact, of the policy's own distribution, with nothing left to a server's default
    assert all(
        call.evidence == "exact" and call.prompt_token_ids and call.generated_token_ids and call.logprobs
        for call in calls
    )
    flagged = {name for call in calls for name in call.violations}
    assert flagged <= {"vision_token_generated"}, [call.violation_details for call in calls]
    assert result.outcome.eligible is (not flagged)
    body = get_json(store, calls[0].sent)["body"]
    assert set(SAMPLING_FIELDS) - {"seed", "stop"} <= set(body)
    assert [len(call.media) for call in calls][:8] == [1, 2, 3, 4, 5, 2, 3, 4]
    compactions = [call for call in calls if call.boundary and call.boundary["reason"] == "history_compacted"]
    assert len(compactions) >= 3
    assert all(call.image_runs and len(call.image_runs) == len(call.media) for call in calls)

    # log probabilities recomputed from ids and images alone
    assert recompute(store, calls, tmp_path) < 1e-4

    # the chain, against what Temporal's history carries
    chain.forget_cached_records()
    heads = await history_heads(stack.client, execution_workflow_id(execution.execution_id))
    report = verify_execution(store, execution.evidence_head, heads)
    assert report.intact, report.problem
    assert report.witnessed >= len(calls)
    assert heads[-1] == execution.evidence_head

    # exported, admitted by the independent checker, read by polars
    import polars as pl

    export_campaign(store, stack.campaign, tmp_path / "out", format="parquet")
    rollouts = list(open_campaign(tmp_path / "out"))
    exported = next(item for item in rollouts if item.row["rollout_id"] == result.rollout_id)
    assert exported.admission.intact, exported.admission.reasons
    assert exported.admission.eligible is (not flagged)
    if not flagged:
        assert exported.admission.eligible_tokens == sum(call.generated_tokens for call in calls)
    frame = pl.read_parquet(tmp_path / "out" / "calls.parquet").filter(pl.col("rollout_id") == result.rollout_id)
    assert frame["generated_token_ids"].list.len().sum() == sum(call.generated_tokens for call in calls)
    assert frame["logprobs"].list.len().to_list() == frame["generated_token_ids"].list.len().to_list()
    assert exported.calls[-1].images()[0].size == (1920, 1080)

    # the record says what was sent, not what was asked for
    assert calls[0].sampling == {name: body[name] for name in SAMPLING_FIELDS if name in body}


async def test_exact_evidence_is_refused_where_it_cannot_be_had(stack, server):
    plain = {
        "id": "c",
        "model": "m",
        "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}],
        "usage": {},
    }
    async with SmallServer(json.dumps(plain).encode()) as other:
        model = Model(name="m", base_url=other.base_url, api_key_env=None)
        with pytest.raises(WorkflowFailureError) as caught:
            await run(stack, request_of(server, f"{stack.campaign}-refused", 0, model=model))
    assert caught.value.cause.type == OutcomeKind.EVIDENCE_REFUSED
    assert "generated_ids" in caught.value.cause.message
