"""Rows of an export: one for each model call, one for each rollout. Everything comes from verified records; nothing is joined or filled in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from osworld_rollouts.contracts.evidence import ModelCallRecord, Terminated
from osworld_rollouts.evidence import transcript
from osworld_rollouts.evidence.chain import walk_named
from osworld_rollouts.evidence.errors import ChainBroken
from osworld_rollouts.evidence.store import get_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from osworld_rollouts.contracts.evidence import Record
    from osworld_rollouts.evidence.index import ExecutionPointer
    from osworld_rollouts.evidence.store import EvidenceStore

SCHEMA_VERSION: Final = 1
Row = dict[str, Any]


@dataclass(frozen=True)
class Execution:
    """One sealed execution with its records, each with its sha256."""

    pointer: ExecutionPointer
    named: Sequence[tuple[str, Record]]
    request: dict[str, Any]

    @property
    def records(self) -> list[Record]:
        """Without the names."""
        return [record for _, record in self.named]


def read_execution(store: EvidenceStore, pointer: ExecutionPointer) -> Execution:
    """Walk a sealed execution's chain. Raises EvidenceError when it is not intact, or not the one that was sealed."""
    named = walk_named(store, pointer.head, remember=False)
    last = named[-1][1]
    if last.execution_id != pointer.execution_id:
        raise ChainBroken(f"the pointer of {pointer.execution_id} leads to the evidence of {last.execution_id}")
    if not isinstance(last, Terminated) or last.outcome != pointer.outcome:
        raise ChainBroken(
            f"record {last.index} {last.kind} is not the end that the pointer of {pointer.execution_id} names"
        )
    return Execution(pointer, named, get_json(store, transcript.started([named[0][1]]).request))


def call_rows(store: EvidenceStore, execution: Execution, *, final: bool) -> Iterator[Row]:
    """One row for each model call, in order, rejected ones too. JSON-able; arrays are lists."""
    pointer, started = execution.pointer, transcript.started(execution.records)
    taken = {turn.turn: turn.accepted for turn in transcript.turns(execution.records)}
    for name, record in execution.named:
        if not isinstance(record, ModelCallRecord):
            continue
        yield {
            "schema_version": SCHEMA_VERSION,
            "campaign_id": pointer.campaign_id,
            "rollout_id": pointer.rollout_id,
            "execution_id": pointer.execution_id,
            "execution_number": pointer.number,
            "final_execution": final,
            "turn": record.turn,
            "call": record.call,
            "record_index": record.index,
            "record_sha256": name,
            "accepted": taken[record.turn] is record,
            **_identity(execution, record, started.adapter, started.adapter_version, started.history),
            **_tokens(store, record),
            **_said(record),
            "reward": pointer.outcome.score,
            "runtime_eligible": pointer.outcome.eligible,
            "mask_sample": pointer.outcome.mask_sample,
            "sent_sha256": record.sent,
            "received_sha256": record.received,
            "request": json.dumps(get_json(store, record.sent), ensure_ascii=False, separators=(",", ":")),
        }


def rollout_row(executions: Sequence[Execution], problems: Sequence[str] = ()) -> Row:
    """One row for a rollout: its last execution decides, every execution is listed."""
    last = executions[-1]
    pointer, outcome = last.pointer, last.pointer.outcome
    started = transcript.started(last.records)
    rollout = last.request["rollout"]
    made = transcript.calls(last.records)
    evaluated = transcript.evaluation(last.records)
    return {
        "schema_version": SCHEMA_VERSION,
        "campaign_id": pointer.campaign_id,
        "rollout_id": pointer.rollout_id,
        "execution_id": pointer.execution_id,
        "execution_number": pointer.number,
        "executions": [
            {
                "execution_id": item.pointer.execution_id, "number": item.pointer.number, "outcome": str(item.pointer.outcome.kind),
                "score": item.pointer.outcome.score, "eligible": item.pointer.outcome.eligible, "head": item.pointer.head,
            }
            for item in executions
        ],
        "problems": list(problems),
        "task_id": rollout["task"]["task_id"],
        "domain": rollout["task"]["domain"],
        "instruction": rollout["task"]["instruction"],
        "sample_index": last.request.get("sample_index", 0),
        "purpose": started.purpose,
        "request_digest": started.request_digest,
        "model": rollout["model"]["name"],
        "adapter": started.adapter,
        "adapter_version": started.adapter_version,
        "history": started.history,
        "evidence": rollout["evidence"],
        "max_turns": rollout["max_turns"],
        "outcome": str(outcome.kind),
        "reward": outcome.score,
        "runtime_eligible": outcome.eligible,
        "runtime_admission_reason": outcome.admission_reason,
        "runtime_admission_policy_id": outcome.admission_policy,
        "mask_sample": outcome.mask_sample,
        "horizon_reached": str(outcome.kind) == "horizon_reached",
        "evaluation_completed": evaluated is not None,
        "turns": len({call.turn for call in made if not transcript.is_unanswered(call)}),
        "model_calls": len(made),
        "segments": len({call.segment for call in made if not transcript.is_unanswered(call)}),
        "unanswered_calls": sum(map(transcript.is_unanswered, made)),
        "unseen_samples": transcript.unseen_samples(made),
        "generated_tokens": sum(call.generated_tokens or 0 for call in made),
        "violations": sorted({name for call in made for name in call.violations}),
        "head": pointer.head,
        "records": len(last.named),
        "workflow_id": started.workflow_id,
        "run_id": started.run_id,
        "provenance": json.dumps(started.provenance, ensure_ascii=False, sort_keys=True, separators=(",", ":")),
    }  # fmt: skip


def _identity(execution: Execution, record: ModelCallRecord, adapter: str, version: str, history: str) -> Row:
    return {
        "model": execution.request["rollout"]["model"]["name"],
        "served_model": record.served_model,
        "system_fingerprint": record.system_fingerprint,
        "weight_version": record.weight_version,
        "response_id": record.response_id,
        "request_id": record.request_id,
        "activity_attempt": record.activity_attempt,
        "earlier_attempts": len(record.earlier_attempts),
        "unseen_samples": transcript.unseen_samples([record]),
        "attempts": json.dumps(
            list(record.earlier_attempts), ensure_ascii=False, sort_keys=True, separators=(",", ":")
        ),
        "adapter": adapter,
        "adapter_version": version,
        "history": history,
        "history_epoch": record.window.epoch,
        "api": record.api,
        "sampling": json.dumps(record.sampling, sort_keys=True),
        "evidence": record.evidence,
    }


def _tokens(store: EvidenceStore, record: ModelCallRecord) -> Row:
    prompt, generated, logprobs = (
        None if name is None else get_json(store, name)
        for name in (record.prompt_token_ids, record.generated_token_ids, record.logprobs)
    )
    runs = record.image_runs or ()
    placed = len(runs) == len(record.media)
    spans = [] if prompt is None or not generated else [{"start": len(prompt), "end": len(prompt) + len(generated)}]
    return {
        "segment": record.segment,
        "extends_previous": record.extends_previous,
        "boundary": None if record.boundary is None else json.dumps(record.boundary, sort_keys=True),
        "prompt_token_ids": prompt,
        "generated_token_ids": generated,
        "logprobs": logprobs,
        "policy_spans": spans,
        "media": [
            {
                "sha256": item.sha256, "pixel_sha256": item.pixel_sha256, "mime": item.mime, "width": item.width, "height": item.height,
                "bytes": item.bytes, "run_start": runs[at][0] if placed else None, "run_length": runs[at][1] if placed else None,
            }
            for at, item in enumerate(record.media)
        ],
        "prompt_tokens": record.prompt_tokens,
        "generated_tokens": record.generated_tokens,
        "cached_tokens": record.cached_tokens,
    }  # fmt: skip


def _said(record: ModelCallRecord) -> Row:
    return {
        "text": record.text,
        "reasoning": record.reasoning,
        "finish_reason": record.finish_reason,
        "stop_reason": None if record.stop_reason is None else str(record.stop_reason),
        "truncated": record.truncated,
        "latency_ms": record.latency_ms,
        "actions": json.dumps([action.model_dump(mode="json") for action in record.actions], ensure_ascii=False),
        "failure": record.failure.kind if record.failure else None,
        "failure_message": record.failure.message if record.failure else None,
        "overflow": record.overflow,
        "error": record.error,
        "violations": list(record.violations),
        "missing": list(record.missing),
    }
