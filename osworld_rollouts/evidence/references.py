"""Which blobs a record names: what `verify` demands and what `gc` keeps."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from osworld_rollouts.contracts.evidence import (
    DesktopPrepared,
    EvaluationRecord,
    ExecutionStarted,
    ModelCallRecord,
    OperationsRecord,
    PostStepsRecord,
    Record,
    RecoveryRecord,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import JsonValue

    from osworld_rollouts.contracts.desktop import Observation

_SHA256: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_PROFILE: Final = "server_profile"


def named_blobs(record: Record) -> Iterator[tuple[str, str]]:
    """(field, sha256) of every blob that a record must have."""
    match record:
        case ExecutionStarted():
            yield "request", record.request
            profile = record.provenance.get(_PROFILE)
            if isinstance(profile, str):
                yield f"provenance.{_PROFILE}", profile
        case DesktopPrepared():
            yield "exchanges", record.exchanges
            yield from _observation(record.observation)
        case ModelCallRecord():
            yield "sent", record.sent
            yield from ((f"media[{at}]", item.sha256) for at, item in enumerate(record.media))
            for name in ("received", "output", "prompt_token_ids", "generated_token_ids", "logprobs", "parsed"):
                value = getattr(record, name)
                if value is not None:
                    yield name, value
            yield from _listed("earlier_attempts", record.earlier_attempts, ("sent", "received"))
        case OperationsRecord():
            yield from _listed("operations", record.operations, ("command", "result"))
            yield from _observation(record.observation)
        case RecoveryRecord():
            if record.answers is not None:
                yield "answers", record.answers
        case PostStepsRecord():
            yield "exchanges", record.exchanges
        case EvaluationRecord():
            yield "exchanges", record.exchanges
            yield "log", record.log
            yield from ((f"files.{name}", sha256) for name, sha256 in record.files.items())
        case _:
            return


def possible_blobs(data: bytes) -> set[str]:
    """Every sha256-like word in a record or a JSON blob: what gc must not remove, whether or not a field is known to name a blob."""
    try:
        return set(_SHA256.findall(data.decode()))
    except UnicodeDecodeError:
        return set()


def nested_blobs(record: Record) -> list[str]:
    """Blobs whose JSON may name further blobs: exchanges with the guest, operations' results, answers."""
    found: list[str] = []
    for name in ("exchanges", "answers", "parsed", "sent"):
        value = getattr(record, name, None)
        if isinstance(value, str):
            found.append(value)
    if isinstance(record, OperationsRecord):
        found.extend(_SHA256.findall(json.dumps(record.operations)))
    return found


def _listed(field: str, items: Sequence[dict[str, JsonValue]], names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for at, item in enumerate(items):
        for name in names:
            value = item.get(name)
            if isinstance(value, str):
                yield f"{field}[{at}].{name}", value


def _observation(value: Observation) -> Iterator[tuple[str, str]]:
    yield "observation.screenshot", value.screenshot.sha256
    if value.accessibility_tree is not None:
        yield "observation.accessibility_tree", value.accessibility_tree


def is_json(data: bytes) -> bool:
    """Whether bytes look like a JSON container."""
    return data[:1] in {b"{", b"["}


def as_json(value: Any) -> str:
    """Compact JSON with keys in order."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
