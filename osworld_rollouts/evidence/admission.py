"""Trainer admission: a consumer's own check of one exported rollout before its tokens become loss.

This is a reference to read and to copy. It imports nothing of the recorder: records, hashes, ids, lengths, image runs, segment
boundaries and identities are all read again from the bytes, by code that shares no line with what wrote them. It needs the
standard library only. It does not recompute a score and computes neither advantage nor loss.

    report = admit_rollout(rollout, calls, get)
    for call in report.calls:
        if call.eligible:
            ...  # call.generated_ids[i] was sampled with log probability call.logprobs[i] after call.prompt_ids

Two layers. A rollout is *intact* when every hash, link and identity holds; if it is not, nothing in it may be used. A call of an
intact, runtime-eligible rollout is *eligible* when its own facts hold. Reasons name what failed, in the order found.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

POLICY_ID = "osworld-rollouts-trainer-admission-v1"

Json = Mapping[str, Any]
GetBlob = Callable[[str], bytes]


@dataclass(frozen=True)
class CallAdmission:
    """One model call: its ids and log probabilities as re-read from the server's bytes, and whether they may be trained on."""

    execution_id: str
    turn: int
    call: int
    record_sha256: str
    eligible: bool
    reasons: tuple[str, ...]
    prompt_ids: tuple[int, ...] = ()
    generated_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    extends_previous: bool = False

    @property
    def span(self) -> tuple[int, int]:
        """Where the generated ids stand in prompt + generation: the only ids loss may be taken on."""
        return len(self.prompt_ids), len(self.prompt_ids) + len(self.generated_ids)


@dataclass(frozen=True)
class RolloutAdmission:
    """The verdict on one rollout."""

    rollout_id: str
    execution_id: str
    intact: bool
    eligible: bool
    reasons: tuple[str, ...]
    calls: tuple[CallAdmission, ...] = ()
    policy: str = POLICY_ID

    @property
    def eligible_tokens(self) -> int:
        """How many generated ids may be trained on."""
        return sum(len(call.generated_ids) for call in self.calls if call.eligible)


@dataclass(frozen=True)
class Expected:
    """What the consumer asked for: an echo that differs is another rollout than the one it wants."""

    rollout_id: str | None = None
    execution_id: str | None = None
    request_digest: str | None = None
    model: str | None = None


@dataclass
class _Findings:
    reasons: list[str] = field(default_factory=list)

    def expect(self, holds: object, reason: str) -> bool:
        if not holds:
            self.reasons.append(reason)
        return bool(holds)


class _BrokenError(Exception):
    """Evidence that is not what its name says."""


def admit_rollout(
    rollout: Json, calls: Iterable[Json], get: GetBlob, *, expected: Expected | None = None
) -> RolloutAdmission:
    """Judge one exported rollout.

    Args:
        rollout: its row of the export.
        calls: rows of the model calls of its final execution, in order.
        get: bytes of a blob by sha256; they are hashed here again. Any exception means that it is not there.
        expected: identities the consumer asked for.
    """
    found = _Findings()
    execution = str(rollout.get("execution_id"))
    rollout_id = str(rollout.get("rollout_id"))
    try:
        records = _chain(str(rollout.get("head")), get)
        _check_identity(rollout, records, get, expected or Expected(), found)
        judged = _check_calls(list(calls), records, get, found)
    except _BrokenError as error:
        return RolloutAdmission(
            rollout_id, execution, intact=False, eligible=False, reasons=(*found.reasons, str(error))
        )
    intact = not found.reasons
    outcome = records[-1][1]["outcome"]
    allowed = _Findings()
    allowed.expect(
        outcome.get("eligible") is True, f"runtime admission: {outcome.get('admission_reason') or 'not eligible'}"
    )
    allowed.expect(outcome.get("score") is not None, "there is no score")
    allowed.expect(judged, "there is no model call")
    eligible = intact and not allowed.reasons
    if not eligible:
        judged = [_refused(call, "the rollout is not admitted") for call in judged]
    return RolloutAdmission(
        rollout_id,
        execution,
        intact=intact,
        eligible=eligible,
        reasons=(*found.reasons, *allowed.reasons),
        calls=tuple(judged),
    )


def _chain(head: str, get: GetBlob) -> list[tuple[str, Json]]:
    """(sha256, record) from the first to the head; every byte hashed here."""
    found: list[tuple[str, Json]] = []
    name: str | None = head
    while name is not None:
        record = _object(_blob(name, get), f"record {name}")
        found.append((name, record))
        if record.get("index") == 0 or len(found) > 1_000_000:
            break
        name = record.get("previous")
    found.reverse()
    for at, (name, record) in enumerate(found):
        before = found[at - 1][0] if at else None
        if record.get("index") != at or record.get("previous") != before:
            raise _BrokenError(f"record {at} ({name}) is not the one that follows {before}")
        if record.get("execution_id") != found[0][1].get("execution_id"):
            raise _BrokenError(f"record {at} ({name}) is of another execution")
    if found[0][1].get("kind") != "execution_started" or found[-1][1].get("kind") != "terminated":
        raise _BrokenError("the chain does not reach from execution_started to terminated")
    return found


def _check_identity(
    rollout: Json, records: Sequence[tuple[str, Json]], get: GetBlob, expected: Expected, found: _Findings
) -> None:
    started, ended = records[0][1], records[-1][1]
    outcome = cast("Json", ended["outcome"])
    for name in ("rollout_id", "execution_id", "campaign_id", "request_digest"):
        found.expect(
            rollout.get(name) == started.get(name),
            f"{name}: the row says {rollout.get(name)!r}, the evidence {started.get(name)!r}",
        )
    request = _object(_blob(str(started.get("request")), get), "the request")
    asked = request.get("rollout")
    digest = hashlib.sha256(_canonical(asked)).hexdigest()
    found.expect(digest == started.get("request_digest"), f"request_digest: the stored request has {digest}")
    model = cast("Json", asked).get("model", {}).get("name") if isinstance(asked, dict) else None
    for name, wanted, is_now in (
        ("rollout_id", expected.rollout_id, started.get("rollout_id")),
        ("execution_id", expected.execution_id, started.get("execution_id")),
        ("request_digest", expected.request_digest, digest),
        ("model", expected.model, model),
    ):
        found.expect(wanted in {None, is_now}, f"{name}: expected {wanted!r}, the evidence says {is_now!r}")
    found.expect(
        rollout.get("reward") == outcome.get("score"),
        f"reward: the row says {rollout.get('reward')!r}, the evidence {outcome.get('score')!r}",
    )
    found.expect(
        rollout.get("runtime_eligible") == outcome.get("eligible"), "runtime_eligible differs from the evidence"
    )
    found.expect(
        rollout.get("mask_sample") is (not outcome.get("eligible")),
        "mask_sample is not the negation of runtime_eligible",
    )
    scores = [record.get("score") for _, record in records if record.get("kind") == "evaluation"]
    if outcome.get("score") is not None:
        found.expect(
            scores and scores[-1] == outcome["score"],
            f"score {outcome['score']!r} is not the evaluator's {scores[-1:] or 'nothing'}",
        )


def _check_calls(
    rows: list[Json], records: Sequence[tuple[str, Json]], get: GetBlob, found: _Findings
) -> list[CallAdmission]:
    recorded = [(name, record) for name, record in records if record.get("kind") == "model_call"]
    names = [row.get("record_sha256") for row in rows]
    found.expect(
        names == [name for name, _ in recorded],
        f"the rows are not the {len(recorded)} model calls of the chain in order",
    )
    asked = cast("Json", _object(_blob(str(records[0][1].get("request")), get), "the request").get("rollout") or {})
    profile = _profile(records[0][1], get)
    judged: list[CallAdmission] = []
    before: tuple[tuple[int, ...], tuple[str, ...]] | None = None
    by_name = {str(row.get("record_sha256")): row for row in rows}
    for name, record in recorded:
        reasons = _Findings()
        body = _reply(record, get)
        prompt, generated, logprobs = _facts(body)
        extends = _extends(before, prompt, record)
        row = by_name.get(name, {})
        if asked.get("evidence") != "exact":
            reasons.expect(False, "the evidence is semantic: no ids were asked for")
        elif record.get("overflow") or record.get("received") is None:
            reasons.expect(False, "nothing was generated")
        else:
            _check_arrays(row, record, prompt, generated, logprobs, get, reasons)
            _check_images(record, prompt, generated, profile, reasons)
            _check_sample(record, body, logprobs, reasons)
            claimed = record.get("extends_previous")
            reasons.expect(
                claimed in {None, extends} and row.get("extends_previous") in {None, extends},
                f"extends_previous is {claimed}, computed {extends}",
            )
        judged.append(
            CallAdmission(
                execution_id=str(record["execution_id"]), turn=int(record["turn"]), call=int(record["call"]), record_sha256=name,
                eligible=not reasons.reasons, reasons=tuple(reasons.reasons), prompt_ids=prompt or (), generated_ids=generated or (),
                logprobs=logprobs or (), extends_previous=extends,
            )
        )  # fmt: skip
        if prompt is not None and generated is not None:
            before = ((*prompt, *generated), tuple(str(item["sha256"]) for item in record.get("media") or ()))
        elif record.get("received") is not None:
            before = None
    return judged


def _check_arrays(
    row: Json, record: Json, prompt: tuple[int, ...] | None, generated: tuple[int, ...] | None,
    logprobs: tuple[float, ...] | None, get: GetBlob, reasons: _Findings,
) -> None:  # fmt: skip
    """The row, the record's arrays and the server's own bytes must say the same."""
    for field_name, blob_name, value in (
        ("prompt_token_ids", "prompt_token_ids", prompt),
        ("generated_token_ids", "generated_token_ids", generated),
        ("logprobs", "logprobs", logprobs),
    ):
        if not reasons.expect(value is not None, f"{field_name}: the server's reply has none"):
            continue
        reasons.expect(
            list(row.get(field_name) or ()) == list(value or ()),
            f"{field_name}: the row differs from the server's reply",
        )
        stored = record.get(blob_name)
        same = isinstance(stored, str) and json.loads(_blob(stored, get)) == list(value or ())
        reasons.expect(same, f"{field_name}: the record differs from the server's reply")
    reasons.expect(generated, "no ids were generated")
    reasons.expect(
        len(generated or ()) == len(logprobs or ()),
        f"{len(generated or ())} ids, {len(logprobs or ())} log probabilities",
    )


def _check_sample(record: Json, body: Json, logprobs: tuple[float, ...] | None, reasons: _Findings) -> None:
    """The call's own words about itself, and what no sample of a policy has."""
    violations = list(record.get("violations") or ())
    reasons.expect(not violations, f"violations: {', '.join(map(str, violations))}")
    reasons.expect(record.get("evidence") == "exact", "the record says semantic evidence")
    reasons.expect(
        all(math.isfinite(value) and -9000 < value <= 1e-3 for value in logprobs or ()),
        "a log probability is impossible",
    )
    choices = body.get("choices")
    reasons.expect(not isinstance(choices, list) or len(choices) == 1, "the reply holds several samples")
    usage = body.get("usage")
    if isinstance(usage, dict) and "completion_tokens" in usage:
        reasons.expect(
            usage["completion_tokens"] == len(logprobs or ()),
            f"usage says {usage['completion_tokens']} generated tokens",
        )


def _check_images(
    record: Json, prompt: tuple[int, ...] | None, generated: tuple[int, ...] | None, profile: Json, reasons: _Findings
) -> None:
    """As many runs of image ids as images were sent, each of its size; none among the generated ids."""
    token = profile.get("image_token")
    media = list(record.get("media") or ())
    if not isinstance(token, int):
        reasons.expect(not media, "images were sent and the probe names no image id")
        return
    runs: list[int] = []
    for at, item in enumerate(prompt or ()):
        if item == token:
            if at and (prompt or ())[at - 1] == token:
                runs[-1] += 1
            else:
                runs.append(1)
    sizes = {(item["width"], item["height"]): item for item in profile.get("images") or ()}
    wanted = [sizes.get((item["width"], item["height"])) for item in media]
    if not reasons.expect(None not in wanted, "the probe did not ask for images of this size"):
        return
    known = [item for item in wanted if item is not None]
    if all(item.get("runs", 1) == 1 for item in known):
        expected = [item["tokens"] for item in known]
        reasons.expect(runs == expected, f"image runs of {runs} ids, expected {expected}")
    else:
        reasons.expect(sum(runs) == sum(item["tokens"] for item in known), "the number of image ids differs")
    vision = {profile.get("image_token"), profile.get("image_before"), profile.get("image_after")} - {None}
    reasons.expect(not vision.intersection(generated or ()), "a vision id was generated")


def _extends(
    before: tuple[tuple[int, ...], tuple[str, ...]] | None, prompt: tuple[int, ...] | None, record: Json
) -> bool:
    if before is None or prompt is None:
        return False
    ids, media = before
    now = tuple(str(item["sha256"]) for item in record.get("media") or ())
    return prompt[: len(ids)] == ids and now[: len(media)] == media


def _reply(record: Json, get: GetBlob) -> Json:
    received = record.get("received")
    return _object(_blob(str(received), get), "the reply") if received is not None else {}


def _facts(body: Json) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None, tuple[float, ...] | None]:
    """Prompt ids, generated ids and log probabilities of a reply (vLLM chat and generate, SGLang chat and its `sglext`)."""
    choices = body.get("choices")
    choice = cast("Json", choices[0]) if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    prompt = body.get("prompt_token_ids")
    prompt = choice.get("prompt_token_ids") if prompt is None else prompt
    generated = choice.get("token_ids")
    generated = choice.get("response_token_ids") if generated is None else generated
    extension = choice.get("sglext") or body.get("sglext")
    if isinstance(extension, dict):
        prompt = _first_list(extension.get("input_ids")) if prompt is None else prompt
        generated = _first_list(extension.get("output_ids")) if generated is None else generated
    content = (choice.get("logprobs") or {}).get("content")
    try:
        return (
            None if prompt is None else tuple(map(int, prompt)),
            None if generated is None else tuple(map(int, generated)),
            None if content is None else tuple(float(entry["logprob"]) for entry in content),
        )
    except (TypeError, ValueError, KeyError) as error:
        raise _BrokenError(f"a reply's ids cannot be read: {error}") from error


def _first_list(value: Any) -> Any:
    """SGLang's extension holds one list of ids, or one for each choice."""
    return value[0] if isinstance(value, list) and value and isinstance(value[0], list) else value


def _profile(started: Json, get: GetBlob) -> Json:
    name = (started.get("provenance") or {}).get("server_profile")
    return _object(_blob(name, get), "the server's profile") if isinstance(name, str) else {}


def _refused(call: CallAdmission, reason: str) -> CallAdmission:
    return replace(call, eligible=False, reasons=(reason, *call.reasons))


def _blob(name: str, get: GetBlob) -> bytes:
    try:
        data = get(name)
    except Exception as error:
        raise _BrokenError(f"blob {name} cannot be had: {error}") from error
    actual = hashlib.sha256(data).hexdigest()
    if actual != name:
        raise _BrokenError(f"blob {name} holds other bytes ({actual})")
    return data


def _object(data: bytes, what: str) -> Json:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise _BrokenError(f"{what} is no JSON") from error
    if not isinstance(value, dict):
        raise _BrokenError(f"{what} is no JSON object")
    return cast("Json", value)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
