"""Asking a server for exact evidence, and judging what it gave."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, Final, cast

from osworld_rollouts.evidence import transcript
from osworld_rollouts.evidence.checks import check_call
from osworld_rollouts.evidence.profile import ServerProfile
from osworld_rollouts.evidence.segments import SentAndGenerated, extension

if TYPE_CHECKING:
    from collections.abc import Sequence

    from osworld_rollouts.contracts.evidence import ModelCallRecord, Record
    from osworld_rollouts.contracts.model import ModelRequest, Reply
    from osworld_rollouts.contracts.steps import HistoryWindow
    from osworld_rollouts.evidence.store import EvidenceStore

PROFILE_KEY: Final = "server_profile"
"""Key in `ExecutionStarted.provenance`: sha256 of the blob that holds the ServerProfile."""

# What leaves a model's own distribution as it is. A server would otherwise take its own defaults, which a model's
# generation_config.json may set (Qwen2.5-Instruct: repetition_penalty 1.05).
NEUTRAL: Final[dict[str, float]] = {
    "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}  # fmt: skip
SAMPLING_FIELDS: Final = (*NEUTRAL, "max_tokens", "seed", "stop", "n")
_OTHER_NAMES: Final = {"max_tokens": ("max_tokens", "max_completion_tokens", "max_output_tokens")}


def ask_for_evidence(request: ModelRequest) -> ModelRequest:
    """The request with the fields that make vLLM or SGLang return ids and log probabilities, and no sampling left to defaults.

    Fields that the request has already are kept: the checks say if one of them spoils the evidence.
    """
    body = dict(request.body)
    match request.api:
        case "chat_completions":
            _fill(body, {**NEUTRAL, "n": 1})
            _fill(
                body,
                {"logprobs": True, "top_logprobs": 0, "return_token_ids": True, "return_tokens_as_token_ids": True},
            )
            if body.get("tools"):
                # Tools stay in the prompt, the server's tool parser stays out of the reply, which arrives as the model wrote it.
                _fill(body, {"tool_choice": "none"})
        case "generate":
            sampling = dict(cast("dict[str, Any]", body.get("sampling_params") or {}))
            _fill(sampling, {**NEUTRAL, "n": 1, "logprobs": 0})
            body["sampling_params"] = sampling
            _fill(body, {"return_token_ids": True, "output_mode": "tokens"})
        case "responses":
            _fill(
                body,
                {
                    "temperature": 1.0,
                    "top_p": 1.0,
                    "enable_response_messages": True,
                    "include": ["message.output_text.logprobs"],
                },
            )
        case "messages":
            pass  # gives neither ids nor log probabilities, whatever is asked
    return request.model_copy(update={"body": body})


def sent_sampling(request: ModelRequest) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Every sampling parameter as the body carries it, and a line for each that was not sent."""
    body = cast("dict[str, Any]", request.body.get("sampling_params") or request.body)
    sent: dict[str, Any] = {}
    for name in SAMPLING_FIELDS:
        found = next((other for other in _OTHER_NAMES.get(name, (name,)) if body.get(other) is not None), None)
        if found is not None:
            sent[name] = body[found]
    return sent, tuple(
        f"sampling.{name}: not sent, the server's default applies" for name in SAMPLING_FIELDS if name not in sent
    )


def judge(
    store: EvidenceStore,
    records: Sequence[Record],
    request: ModelRequest,
    reply: Reply,
    *,
    exact: bool,
    window: HistoryWindow | None = None,
    profile: ServerProfile | None = None,
) -> dict[str, Any]:
    """What a reply's record says beside its content: segment, image runs, and for exact evidence the violations.

    Args:
        store: where ids of the previous call are.
        records: the chain up to this call.
        request: as sent.
        reply: as read.
        exact: whether the request asked for exact evidence; only then are violations noted.
        window: history window of this call, to tell compaction from other rewriting.
        profile: what the probe found; by default the one that the chain's first record names.

    Returns:
        Fields of ModelCallRecord.
    """
    profile = profile or recorded_profile(store, records)
    before = transcript.previous_call(records)
    epoch = window.epoch if window is not None else (before.window.epoch if before is not None else 0)
    now = SentAndGenerated(
        reply.prompt_token_ids, reply.generated_token_ids, tuple(item.sha256 for item in request.media), epoch
    )
    found = extension(None if before is None else _past(store, before), now)
    ids, generated = reply.prompt_token_ids, reply.generated_token_ids
    fields: dict[str, Any] = {
        "prompt_tokens": reply.prompt_tokens if ids is None else len(ids),
        "generated_tokens": reply.completion_tokens if generated is None else len(generated),
        "cached_tokens": reply.cached_tokens,
        "image_runs": reply.image_runs,
        "segment": 0 if before is None else before.segment + (0 if found.extends else 1),
        "extends_previous": found.extends,
        "boundary": found.boundary(),
    }
    if exact:
        checked = check_call(reply, request.body, [(item.width, item.height) for item in request.media], profile)
        fields |= {
            "image_runs": checked.image_runs or reply.image_runs,
            "truncated": checked.truncated,
            "violations": tuple(checked.violations),
            "violation_details": checked.violations,
        }
    return fields


def recorded_profile(store: EvidenceStore, records: Sequence[Record]) -> ServerProfile | None:
    """The server's profile that an execution began with, if it has one."""
    sha256 = transcript.started(records).provenance.get(PROFILE_KEY) if records else None
    return _profile(store, sha256) if isinstance(sha256, str) else None


def end_tokens(store: EvidenceStore, records: Sequence[Record]) -> tuple[int, ...]:
    """Ids with which a reply of this execution's model ends; empty when the server was not probed. For `read_reply(eos=…)`."""
    profile = recorded_profile(store, records)
    return () if profile is None else profile.end_tokens


@functools.lru_cache(maxsize=64)
def _profile(store: EvidenceStore, sha256: str) -> ServerProfile:
    return ServerProfile.model_validate_json(store.get(sha256))


@functools.lru_cache(maxsize=256)
def _ids(store: EvidenceStore, sha256: str) -> tuple[int, ...]:
    return tuple(json.loads(store.get(sha256)))


def _past(store: EvidenceStore, call: ModelCallRecord) -> SentAndGenerated:
    return SentAndGenerated(
        None if call.prompt_token_ids is None else _ids(store, call.prompt_token_ids),
        None if call.generated_token_ids is None else _ids(store, call.generated_token_ids),
        tuple(item.sha256 for item in call.media),
        call.window.epoch,
    )


def _fill(body: dict[str, Any], values: dict[str, Any]) -> None:
    for name, value in values.items():
        if body.get(name) is None:
            body[name] = value
