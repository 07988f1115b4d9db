"""The Parquet schemas. docs/evidence.md explains every column; a test holds the two together."""

from __future__ import annotations

import pyarrow as pa

_IDS = pa.list_(pa.int32())
_MEDIA = pa.list_(
    pa.struct(
        [
            ("sha256", pa.string()), ("pixel_sha256", pa.string()), ("mime", pa.string()), ("width", pa.int32()),
            ("height", pa.int32()), ("bytes", pa.int64()), ("run_start", pa.int32()), ("run_length", pa.int32()),
        ]
    )
)  # fmt: skip

CALLS = pa.schema(
    [
        ("schema_version", pa.int32()), ("campaign_id", pa.string()), ("rollout_id", pa.string()), ("execution_id", pa.string()),
        ("execution_number", pa.int32()), ("final_execution", pa.bool_()), ("turn", pa.int32()), ("call", pa.int32()),
        ("record_index", pa.int32()), ("record_sha256", pa.string()), ("accepted", pa.bool_()),
        ("model", pa.string()), ("served_model", pa.string()), ("system_fingerprint", pa.string()), ("weight_version", pa.string()),
        ("response_id", pa.string()), ("request_id", pa.string()), ("activity_attempt", pa.int32()), ("earlier_attempts", pa.int32()),
        ("unseen_samples", pa.int32()), ("attempts", pa.string()), ("adapter", pa.string()), ("adapter_version", pa.string()), ("history", pa.string()),
        ("history_epoch", pa.int32()), ("api", pa.string()), ("sampling", pa.string()), ("evidence", pa.string()),
        ("segment", pa.int32()), ("extends_previous", pa.bool_()), ("boundary", pa.string()),
        ("prompt_token_ids", _IDS), ("generated_token_ids", _IDS), ("logprobs", pa.list_(pa.float64())),
        ("policy_spans", pa.list_(pa.struct([("start", pa.int32()), ("end", pa.int32())]))), ("media", _MEDIA),
        ("prompt_tokens", pa.int32()), ("generated_tokens", pa.int32()), ("cached_tokens", pa.int32()),
        ("text", pa.string()), ("reasoning", pa.string()), ("finish_reason", pa.string()), ("stop_reason", pa.string()),
        ("truncated", pa.bool_()), ("latency_ms", pa.int64()), ("actions", pa.string()), ("failure", pa.string()),
        ("failure_message", pa.string()), ("overflow", pa.bool_()), ("error", pa.string()), ("violations", pa.list_(pa.string())), ("missing", pa.list_(pa.string())),
        ("reward", pa.float64()), ("runtime_eligible", pa.bool_()), ("mask_sample", pa.bool_()),
        ("sent_sha256", pa.string()), ("received_sha256", pa.string()), ("request", pa.string()),
    ]
)  # fmt: skip

ROLLOUTS = pa.schema(
    [
        ("schema_version", pa.int32()), ("campaign_id", pa.string()), ("rollout_id", pa.string()), ("execution_id", pa.string()),
        ("execution_number", pa.int32()),
        ("executions", pa.list_(pa.struct([
            ("execution_id", pa.string()), ("number", pa.int32()), ("outcome", pa.string()), ("score", pa.float64()),
            ("eligible", pa.bool_()), ("head", pa.string()),
        ]))),
        ("problems", pa.list_(pa.string())), ("task_id", pa.string()), ("domain", pa.string()), ("instruction", pa.string()),
        ("sample_index", pa.int32()), ("purpose", pa.string()), ("request_digest", pa.string()), ("model", pa.string()),
        ("adapter", pa.string()), ("adapter_version", pa.string()), ("history", pa.string()), ("evidence", pa.string()),
        ("max_turns", pa.int32()), ("outcome", pa.string()), ("reward", pa.float64()), ("runtime_eligible", pa.bool_()),
        ("runtime_admission_reason", pa.string()), ("runtime_admission_policy_id", pa.string()), ("mask_sample", pa.bool_()),
        ("horizon_reached", pa.bool_()), ("evaluation_completed", pa.bool_()), ("turns", pa.int32()), ("model_calls", pa.int32()),
        ("segments", pa.int32()), ("unanswered_calls", pa.int32()), ("unseen_samples", pa.int32()), ("generated_tokens", pa.int64()), ("violations", pa.list_(pa.string())), ("head", pa.string()),
        ("records", pa.int32()), ("workflow_id", pa.string()), ("run_id", pa.string()), ("provenance", pa.string()),
    ]
)  # fmt: skip
