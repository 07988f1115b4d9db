"""A sealed execution with exact evidence, made the way a worker makes one, with replies in vLLM's format."""

from __future__ import annotations

import json

from osworld_rollouts.contracts._base import canonical_json
from osworld_rollouts.contracts.action import Click, Point
from osworld_rollouts.contracts.model import ModelRequest
from osworld_rollouts.contracts.outcome import Outcome, OutcomeKind
from osworld_rollouts.contracts.request import Model, Rollout, RolloutRequest, Task
from osworld_rollouts.contracts.steps import HistoryWindow
from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.index import ExecutionPointer, write_pointer
from osworld_rollouts.evidence.media import put_screenshot
from osworld_rollouts.evidence.profile import ImageTokens, ServerProfile
from osworld_rollouts.evidence.store import put_json
from osworld_rollouts.serving.exact import PROFILE_KEY, ask_for_evidence, judge, sent_sampling
from osworld_rollouts.serving.journal import put_request
from osworld_rollouts.serving.reply import read_reply
from tests.evidence.builders import START, Chain, png

IMAGE, BEFORE, AFTER, END = 4088, 4085, 4086, 4078
PROFILE = ServerProfile(
    server="vllm", model="m", image_token=IMAGE, image_before=BEFORE, image_after=AFTER, end_tokens=(END,),
    images=(ImageTokens(width=64, height=48, tokens=6),), logprobs_mode="processed", special_texts=("<|image_pad|>",),
)  # fmt: skip


def make_request(rollout_id, campaign, evidence="exact") -> RolloutRequest:
    task = Task.from_document(
        {"id": "task", "instruction": "Do it", "config": [], "evaluator": {"func": "infeasible"}}, domain="os"
    )
    rollout = Rollout(task=task, model=Model(name="m", base_url="http://h/v1"), evidence=evidence)
    return RolloutRequest(rollout=rollout, campaign_id=campaign, rollout_id=rollout_id)


def vllm_reply(prompt, generated, **changes) -> bytes:
    entries = [
        {"token": f"token_id:{item}", "logprob": -0.125 * (at + 1), "bytes": [], "top_logprobs": []}
        for at, item in enumerate(generated)
    ]
    body = {
        "id": "chatcmpl-x", "model": "m", "system_fingerprint": None, "prompt_token_ids": prompt,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "click"}, "finish_reason": "stop", "stop_reason": None,
                     "token_ids": generated, "logprobs": {"content": entries}}],
        "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(generated), "total_tokens": len(prompt) + len(generated)},
    }  # fmt: skip
    return json.dumps({**body, **changes}).encode()


def exact_execution(
    store, execution_id="camp/task/0/x1", *, campaign="camp", turns=3, score=1.0, kind=OutcomeKind.AGENT_DONE, eligible=True,
    rewrite_at=None, change=None, evidence="exact", rejected_at=None,
) -> Chain:  # fmt: skip
    """`rewrite_at` re-renders the history before that turn; `change(turn, body)` spoils a reply; `rejected_at` adds a rejected call."""
    rollout_id, _, number = execution_id.rpartition("/x")
    request = make_request(rollout_id, campaign, evidence)
    made = Chain(store, execution_id, int(number))
    made.start(
        request=store.put(canonical_json(request.model_dump(mode="json"))), request_digest=request.request_digest(), campaign_id=campaign,
        rollout_id=rollout_id, provenance={PROFILE_KEY: put_json(store, PROFILE.model_dump(mode="json"))},
    )  # fmt: skip
    shots = [put_screenshot(store, png(mark=at)) for at in range(turns + 1)]
    made.prepare(shots[0])
    ids, media = [7], []
    for turn in range(turns):
        if turn == rewrite_at:
            ids, media = [8], []
        media.append(shots[turn])
        ids = [*ids, BEFORE, *[IMAGE] * 6, AFTER, 9]
        for call in range(2 if turn == rejected_at else 1):
            body = {
                "model": "m",
                "messages": [{"role": "user", "content": f"turn {turn}"}],
                "max_tokens": 64,
                "temperature": 1.0,
            }
            asked = ask_for_evidence(ModelRequest(api="chat_completions", body=body, media=tuple(media)))
            generated = [20 + turn, 30 + call, END]
            raw = vllm_reply(ids, generated)
            if change is not None:
                raw = change(turn, raw)
            reply = read_reply("chat_completions", raw, max_tokens=64, eos=(END,))
            records = chain.walk(store, made.head)
            sampling, unsent = sent_sampling(asked)
            arrays = {
                "prompt_token_ids": reply.prompt_token_ids,
                "generated_token_ids": reply.generated_token_ids,
                "logprobs": reply.logprobs,
            }
            bad = call == 0 and turn == rejected_at
            made.call(
                turn, call, sent=put_request(store, asked), received=store.put(raw), media=tuple(media), text=reply.text,
                finish_reason=reply.finish_reason, sampling=sampling, evidence=evidence, usage=reply.usage, served_model=reply.served_model,
                window=HistoryWindow(), response_id=reply.response_id, missing=(*unsent, *reply.missing),
                actions=() if bad else (Click(point=Point(x=1, y=2)),),
                failure={"kind": "no_action", "message": "nothing"} if bad else None,
                **{name: None if value is None else put_json(store, list(value)) for name, value in arrays.items()},
                **judge(store, records, asked, reply, exact=evidence == "exact", window=HistoryWindow()),
            )  # fmt: skip
        ids = [*ids, *generated]
        made.operate(turn, shots[turn + 1])
    if score is not None:
        made.evaluate(score)
    outcome = Outcome(kind=kind, score=score, eligible=eligible, admission_reason=str(kind), admission_policy="p")
    made.end(kind, score, eligible)
    records = chain.walk(store, made.head)
    write_pointer(
        store,
        ExecutionPointer(
            execution_id=execution_id, rollout_id=rollout_id, number=int(number), campaign_id=campaign, task_id="task",
            request_digest=request.request_digest(), workflow_id="w", run_id="r", head=made.head, outcome=outcome, sealed_at=START,
        ),
    )  # fmt: skip
    return made
