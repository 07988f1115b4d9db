"""One rollout in the field names that NeMo Gym's consumers read, as far as our facts support them.

Sources: NVIDIA-NeMo/Gym, the `/run` response row of its OSWorld agent and the exact-trace envelope of its token capture; see
docs/evidence.md for the mapping. What we have no fact for is left out and named in the manifest (`fields_left_out`).

Ids and log probabilities stand on each output item, one for each model call whose reply was accepted, and on every entry of
`trajectory_model_calls`, rejected calls included. Each is its own unit: items of different calls are not to be joined unless
`expected_append_compatible` says so. A rollout without a score is not written here: the peer's format has no word for it but 0.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from osworld_rollouts.contracts._base import canonical_json
from osworld_rollouts.contracts.action import describe
from osworld_rollouts.contracts.evidence import ModelCallRecord
from osworld_rollouts.evidence import transcript
from osworld_rollouts.evidence.segments import BoundaryReason
from osworld_rollouts.evidence.store import get_json

if TYPE_CHECKING:
    from osworld_rollouts.contracts.evidence import ExecutionStarted
    from osworld_rollouts.evidence.export.rows import Execution
    from osworld_rollouts.evidence.store import EvidenceStore
    from osworld_rollouts.evidence.transcript import Turn

LEFT_OUT: Final = {
    "response.context_compaction_contract": "its generation contract names tokenizer, template and processor ids; a server does not tell them",
    "response.agent_contract": "the adapter's name, version and prompt digest stand in verifier_metadata instead",
    "completion_evidence[].processor_fingerprint": "the server's image processor is not visible from outside",
    "completion_evidence[].policy_output_spans[].old_logprobs_alignment": "one log probability for each generated id, always",
    "response.lineage_deltas, chunk_records, guard_records, final_policy_decision": "internal to the peer's recorder",
    "routed_experts": "not asked for",
    "verifier_metadata.osworld_proxy_*": "we have no proxy mode",
    "_ng_task_index": "our campaigns are sets, not lists; group by verifier_metadata.task_id",
}


def nemo_gym_row(store: EvidenceStore, execution: Execution, index: int) -> dict[str, Any]:
    """The row of a scored rollout.

    Args:
        store: where the arrays are.
        execution: its last execution, with a score.
        index: of the row in the file.
    """
    pointer, outcome, records = execution.pointer, execution.pointer.outcome, execution.records
    started = transcript.started(records)
    rollout = execution.request["rollout"]
    turns = transcript.turns(records)
    calls = [(name, record) for name, record in execution.named if isinstance(record, ModelCallRecord)]
    ids = {call.index: _call_id(name) for name, call in calls}
    model = rollout["model"]["name"]
    sampling = calls[-1][1].sampling if calls else {}
    output = [_item(store, turn) for turn in turns if turn.accepted is not None]
    finished = str(outcome.kind) in {"agent_done", "agent_fail"}
    params = {
        "model": model, "temperature": sampling.get("temperature"), "top_p": sampling.get("top_p"),
        "max_output_tokens": sampling.get("max_tokens"),
    }  # fmt: skip
    return {
        "responses_create_params": {"input": [{"role": "user", "content": rollout["task"]["instruction"]}], **params},
        "response": {
            "id": f"osworld-{rollout['task']['task_id']}",
            "created_at": started.recorded_at.timestamp(),
            "model": model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
            "temperature": sampling.get("temperature"),
            "top_p": sampling.get("top_p"),
            "usage": None,
            "media_assets": _media(calls),
            "completion_evidence": [_evidence(store, name, call, turns, pointer.rollout_id) for name, call in calls],
            "boundary_events": [_boundary(name, call) for name, call in calls if _starts_segment(call)],
            "trajectory_contract": _contract(execution, started, model, turns, len(calls)),
            "trajectory_transitions": [_transition(turn, outcome.score, ids, last=turn is turns[-1]) for turn in turns],
            "trajectory_model_calls": [_model_call(store, name, call, turns) for name, call in calls],
        },
        "reward": outcome.score,
        "mask_sample": outcome.mask_sample,
        "horizon_reached": str(outcome.kind) == "horizon_reached",
        "evaluation_completed": transcript.evaluation(records) is not None,
        "runtime_eligible": outcome.eligible,
        "runtime_admission_reason": outcome.admission_reason,
        "runtime_admission_policy_id": outcome.admission_policy,
        "rollout_purpose": started.purpose,
        "verifier_metadata": {
            "task_id": rollout["task"]["task_id"],
            "domain": rollout["task"]["domain"],
            "osworld_task": rollout["task"]["document"],
            "osworld_score": outcome.score,
            "osworld_finished": finished,
            "osworld_error": outcome.cause.message if outcome.cause else None,
            "osworld_steps": [_step(turn, last=turn is turns[-1], score=outcome.score) for turn in turns],
            "osworld_model_name": model,
            "osworld_termination_reason": _TERMINATIONS.get(str(outcome.kind), str(outcome.kind)),
            "osworld_execution_id": pointer.execution_id,
            "adapter": started.adapter,
            "adapter_version": started.adapter_version,
            "history": started.history,
            "request_digest": started.request_digest,
            "evidence_head": pointer.head,
        },
        "agent_ref": {"name": "osworld_rollouts"},
        "_ng_rollout_index": execution.request.get("sample_index", index),
        "_ng_attempt_index": pointer.number - 1,
        "_ng_rollout_id": pointer.rollout_id,
    }


_TERMINATIONS: Final = {
    "agent_done": "agent_done", "agent_fail": "agent_fail", "horizon_reached": "max_steps",
    "policy_response_invalid": "model_response_invalid", "context_overflow": "model_context_overflow",
}  # fmt: skip


def stable_id(prefix: str, value: Any) -> str:
    """The peer's form of an id: prefix and the first 24 digits of the sha256 of canonical JSON."""
    return f"{prefix}-{hashlib.sha256(canonical_json(value)).hexdigest()[:24]}"


def _arrays(store: EvidenceStore, call: ModelCallRecord) -> dict[str, Any]:
    names = {
        "prompt_token_ids": call.prompt_token_ids,
        "generation_token_ids": call.generated_token_ids,
        "generation_log_probs": call.logprobs,
    }
    return {name: get_json(store, blob) for name, blob in names.items() if blob is not None}


def _item(store: EvidenceStore, turn: Turn) -> dict[str, Any]:
    call = turn.accepted
    assert call is not None  # noqa: S101 - the caller filters
    return {
        "id": f"msg-step-{turn.turn + 1}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "annotations": [], "text": call.text}],
        **_arrays(store, call),
    }


def _step(turn: Turn, *, last: bool, score: float | None) -> dict[str, Any]:
    return {
        "step": turn.turn + 1,
        "model_text": turn.final.text if turn.final else "",
        "actions": [_action(action) for action in turn.actions],
        "reward": (score or 0.0) if last else 0.0,
        "done": last,
        "info": _info(turn),
    }


def _info(turn: Turn) -> dict[str, Any]:
    """What went wrong in a turn's calls, in the peer's words; nothing where nothing did."""
    events = [
        {
            "parse_attempt": it.call,
            "from_images": it.from_images,
            "to_images": it.to_images,
            "reason": "context_overflow",
        }
        for it in turn.shrinks
    ]
    kinds = [call.failure.kind for call in turn.rejected if call.failure] + ["context_overflow"] * len(events)
    counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    return {
        **({"prompt_shrink_events": events} if events else {}),
        **({"failure_kind_counts": counts} if counts else {}),
    }


def _action(action: Any) -> str:
    words = {"done": "DONE", "fail": "FAIL", "wait": "WAIT"}
    return words.get(action.kind) or (action.code if action.kind == "python" else describe(action))


def _starts_segment(call: ModelCallRecord) -> bool:
    return call.boundary is not None and call.boundary.get("reason") != BoundaryReason.FIRST_CALL.value


def _boundary(name: str, call: ModelCallRecord) -> dict[str, Any]:
    facts = call.boundary or {}
    return {
        "model_call_id": _call_id(name),
        "turn_id": f"turn-{call.turn + 1}",
        "segment_index": call.segment,
        "reason": "prompt_or_media_not_append_compatible",
        "detail": facts,
    }


def _call_id(name: str) -> str:
    return f"model-call-{name[:24]}"


def _place(call: ModelCallRecord, turns: list[Turn]) -> dict[str, Any]:
    turn = next(item for item in turns if item.turn == call.turn)
    return {
        "turn_id": f"turn-{call.turn + 1}",
        "environment_step": call.turn + 1,
        "parse_attempt": call.call,
        "accepted": turn.accepted is call,
        "parse_error": call.failure.message if call.failure else None,
    }


def _eligible(call: ModelCallRecord) -> bool:
    return call.evidence == "exact" and not call.violations and call.generated_token_ids is not None


def _evidence(
    store: EvidenceStore, name: str, call: ModelCallRecord, turns: list[Turn], rollout_id: str
) -> dict[str, Any]:
    arrays = _arrays(store, call)
    generated = arrays.get("generation_token_ids")
    runs = call.image_runs or ()
    return {
        "rollout_id": rollout_id,
        "completion_id": call.response_id,
        "model_call_id": _call_id(name),
        **_place(call, turns),
        "request_id": call.request_id,
        "prepared_request_id": f"request-{call.sent[:24]}",
        "context_epoch": call.window.epoch,
        "segment_index": call.segment,
        "segment_id": stable_id("segment", [rollout_id, call.segment]),
        "expected_append_compatible": call.extends_previous,
        "prompt_token_ids": arrays.get("prompt_token_ids"),
        "sampled_token_ids": generated,
        "sampled_logprobs": arrays.get("generation_log_probs"),
        "finish_reason": call.finish_reason,
        "media_ids": [media.sha256 for media in call.media],
        "policy_output_spans": []
        if not generated
        else [{"start": 0, "end": len(generated), "eligible": _eligible(call)}],
        "media_occurrences": [
            {"media_id": media.sha256, "offset": run[0], "length": run[1]}
            for media, run in zip(call.media, runs, strict=False)
        ],
        "eligible": _eligible(call),
        "violations": list(call.violations),
    }


def _model_call(store: EvidenceStore, name: str, call: ModelCallRecord, turns: list[Turn]) -> dict[str, Any]:
    arrays = _arrays(store, call)
    exact = len(arrays) == 3 and not call.violations
    sent = get_json(store, call.sent)
    return {
        "model_call_id": _call_id(name),
        **_place(call, turns),
        "state": {
            "prompt_messages": sent.get("body", {}).get("messages"),
            "media_ids": [media.sha256 for media in call.media],
        },
        "action": {"raw_completion": call.text, "parsed_actions": [_action(action) for action in call.actions]},
        "reward": None,
        "done": False,
        "eligible": _eligible(call),
        "generation_evidence": {**arrays, "finish_reason": call.finish_reason, "exact": exact},
    }


def _transition(turn: Turn, score: float | None, ids: dict[int, str], *, last: bool) -> dict[str, Any]:
    call = turn.accepted
    return {
        "transition_id": f"transition-{turn.turn + 1}",
        "turn_id": f"turn-{turn.turn + 1}",
        "state": {
            "observation": turn.observation.screenshot.sha256,
            "model_call_ids": [ids[item.index] for item in turn.calls],
        },
        "action": {
            "raw_completion": call.text if call else None,
            "parsed_actions": [_action(action) for action in turn.actions],
            "accepted_model_call_id": ids[call.index] if call else None,
        },
        "reward": score if last else None,
        "next_state": turn.after.screenshot.sha256 if turn.after else None,
        "done": last,
        "eligible": call is not None and _eligible(call),
    }


def _media(calls: list[tuple[str, ModelCallRecord]]) -> dict[str, Any]:
    return {
        media.sha256: {
            "media_id": media.sha256, "content_digest": f"sha256:{media.sha256}", "pixel_digest": f"sha256:{media.pixel_sha256}",
            "original_dimensions": [media.width, media.height], "mime_type": media.mime,
        }
        for _, call in calls
        for media in call.media
    }  # fmt: skip


def _contract(
    execution: Execution, started: ExecutionStarted, model: str, turns: list[Turn], calls: int
) -> dict[str, Any]:
    pointer = execution.pointer
    exact = execution.request["rollout"]["evidence"] == "exact"
    content: dict[str, Any] = {
        "schema_version": 2,
        "mode": "osworld_semantic_trajectory",
        "rollout_id": pointer.rollout_id,
        "group_id": f"{pointer.campaign_id}/{pointer.task_id}",
        "task_id": pointer.task_id,
        "rollout_index": execution.request.get("sample_index", 0),
        "attempt_index": pointer.number - 1,
        "identity_source": "caller",
        "model_name": model,
        "transition_count": len(turns),
        "model_call_count": calls,
        "capabilities": {
            "semantic_trajectory": True, "exact_model_call_evidence": exact, "arbitrary_prompt_rewrites": True,
            "trainable_token_reconstruction": exact,
        },
        "training_eligibility": {
            "status": "requires_runtime_admission" if exact else "ineligible",
            "incomplete_reasons": [] if exact else ["semantic evidence: no token ids"],
        },
        "request_digest": started.request_digest,
    }  # fmt: skip
    return {**content, "trajectory_contract_id": stable_id("trajectory-contract", content)}
