"""Fail-closed checks of one exact model call.

Each violation has a name, is recorded with the call, and makes the call ineligible for training (and, by runtime admission's
stated rule, the sample). None touches score or outcome. All of them were seen on real servers, every one with HTTP 200; see
docs/evidence.md for how each comes about.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from osworld_rollouts.contracts.model import Reply
    from osworld_rollouts.evidence.profile import ServerProfile


class Violation(StrEnum):
    """Names of what makes a call's evidence unfit for training."""

    PROMPT_IDS_MISSING = "prompt_ids_missing"
    GENERATED_IDS_MISSING = "generated_ids_missing"
    LOGPROBS_MISSING = "logprobs_missing"
    EMPTY_GENERATION = "empty_generation"
    LENGTHS_DIFFER = "lengths_differ"
    USAGE_PROMPT_DIFFERS = "usage_prompt_differs"
    USAGE_GENERATED_DIFFERS = "usage_generated_differs"
    LOGPROB_IDS_DIFFER = "logprob_ids_differ"
    LOGPROB_IMPOSSIBLE = "logprob_impossible"
    LOGPROBS_NOT_OF_POLICY = "logprobs_not_of_policy"
    SEVERAL_CHOICES = "several_choices"
    CONSTRAINED_SAMPLING = "constrained_sampling"
    ABORTED = "aborted"
    TRUNCATED_AS_TOOL_CALL = "truncated_as_tool_call"
    TRUNCATION_UNKNOWN = "truncation_unknown"
    TEXT_CUT_AT_STOP_STRING = "text_cut_at_stop_string"
    REPLY_IN_REASONING = "reply_in_reasoning"
    IMAGE_COUNT_DIFFERS = "image_count_differs"
    IMAGE_RUN_STRAY = "image_run_stray"
    IMAGE_RUN_UNWRAPPED = "image_run_unwrapped"
    IMAGE_RUN_LENGTH_DIFFERS = "image_run_length_differs"
    IMAGE_RUNS_DISAGREE = "image_runs_disagree"
    IMAGE_CACHE_KEY_SENT = "image_cache_key_sent"
    VISION_TOKEN_GENERATED = "vision_token_generated"  # noqa: S105 - no password
    VISION_TEXT_IN_PROMPT = "vision_text_in_prompt"
    CONTROL_TEXT_IN_PROMPT = "control_text_in_prompt"
    SERVED_MODEL_DIFFERS = "served_model_differs"
    WEIGHTS_CHANGED = "weights_changed"
    SERVER_CHANGED = "server_changed"
    PROFILE_MISSING = "profile_missing"


# Fields by which a request binds sampling to a grammar or a bias: the reply is then not the policy's own.
_CONSTRAINTS: Final = (
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "regex", "ebnf", "json_schema",
    "logit_bias", "bad_words", "allowed_token_ids", "logits_processors", "custom_logit_processor",
)  # fmt: skip
_IMPOSSIBLE: Final = -9000.0  # vLLM writes -9999.0 where the log probability is minus infinity
_ROUNDING: Final = 1e-3  # a log probability may exceed 0 by as much in half precision
# Spellings of vision tokens in common tokenizers. A profile adds those of the served model.
_VISION_TEXT: Final = re.compile(
    r"<\|(?:image_pad|video_pad|vision_start|vision_end|vision_pad|image|image_soft_token)\|>|<image>|<image_soft_token>|<img>|</img>|<IMG_CONTEXT>|\[IMG(?:_BREAK|_END)?\]"
)
# Spellings of what separates one speaker from another. Tags that protocols write themselves (<think>, <tool_call>) are not among them.
_CONTROL_TEXT: Final = re.compile(
    r"<\|(?:im_start|im_end|im_sep|endoftext|eot_id|eom_id|start_header_id|end_header_id|begin_of_text|end_of_text)\|>|<(?:start|end)_of_turn>|\[/?INST\]"
)


@dataclass
class Checked:
    """Result of `check_call`: violations by name with what was seen, and the image runs among the prompt ids."""

    violations: dict[str, str] = field(default_factory=dict)
    image_runs: tuple[tuple[int, int], ...] | None = None
    truncated: bool | None = None

    def add(self, name: Violation, detail: str) -> None:
        """Note a violation; the first detail of a name stays."""
        self.violations.setdefault(name.value, detail)


def check_call(
    reply: Reply, body: Mapping[str, Any], image_sizes: Sequence[tuple[int, int]], profile: ServerProfile | None
) -> Checked:
    """Everything that can be checked about one call without looking at another.

    Args:
        reply: as read from the server's bytes.
        body: the request as sent (images as references).
        image_sizes: (width, height) of the images in the order sent.
        profile: what the probe found; None is itself a violation.
    """
    checked = Checked(truncated=reply.truncated)
    _check_request(body, checked)
    _check_presence(reply, checked)
    _check_lengths(reply, checked)
    _check_logprobs(reply, body, profile, checked)
    _check_ending(reply, body, profile, checked)
    if reply.served_model is not None and reply.served_model != body.get("model", reply.served_model):
        checked.add(Violation.SERVED_MODEL_DIFFERS, f"asked for {body.get('model')!r}, served {reply.served_model!r}")
    if reply.weight_version is not None and "," in reply.weight_version:
        checked.add(Violation.WEIGHTS_CHANGED, f"one reply by several weight versions: {reply.weight_version}")
    if profile is None:
        checked.add(Violation.PROFILE_MISSING, "the server was not probed: image runs and end tokens cannot be checked")
    else:
        if (
            None not in {reply.system_fingerprint, profile.system_fingerprint}
            and reply.system_fingerprint != profile.system_fingerprint
        ):
            checked.add(
                Violation.SERVER_CHANGED,
                f"fingerprint {reply.system_fingerprint}, {profile.system_fingerprint} when probed: the server runs with other options",
            )
        _check_images(reply, image_sizes, profile, checked)
        _check_vision_tokens(reply, body, profile, checked)
    _check_control_text(body, () if profile is None else profile.end_texts, checked)
    return checked


def image_runs(ids: Sequence[int], image_token: int) -> tuple[tuple[int, int], ...]:
    """(first position, length) of every unbroken run of the image token."""
    runs: list[tuple[int, int]] = []
    at = 0
    while True:
        try:
            start = ids.index(image_token, at)
        except ValueError:
            return tuple(runs)
        at = start
        while at < len(ids) and ids[at] == image_token:
            at += 1
        runs.append((start, at - start))


def _check_request(body: Mapping[str, Any], checked: Checked) -> None:
    sampling = cast("Mapping[str, Any]", body.get("sampling_params") or body)
    if sampling.get("n", 1) != 1:
        checked.add(Violation.SEVERAL_CHOICES, f"n is {sampling['n']}")
    choice = body.get("tool_choice")
    if choice == "required" or isinstance(choice, dict):
        checked.add(Violation.CONSTRAINED_SAMPLING, f"tool_choice {choice!r} binds sampling to a grammar")
    response_format = body.get("response_format")
    if isinstance(response_format, dict) and response_format.get("type") != "text":
        checked.add(Violation.CONSTRAINED_SAMPLING, f"response_format {response_format.get('type')!r}")
    for name in _CONSTRAINTS:
        if sampling.get(name) or body.get(name):
            checked.add(Violation.CONSTRAINED_SAMPLING, f"{name} is set")
    if any("uuid" in part and not _names_content(part) for part in _parts(body)):
        checked.add(Violation.IMAGE_CACHE_KEY_SENT, "an image carries a uuid, which the server takes for its content")


def _check_presence(reply: Reply, checked: Checked) -> None:
    said = {item.partition(":")[0]: item for item in reply.missing}
    for value, name, violation in (
        (reply.prompt_token_ids, "prompt_token_ids", Violation.PROMPT_IDS_MISSING),
        (reply.generated_token_ids, "generated_token_ids", Violation.GENERATED_IDS_MISSING),
        (reply.logprobs, "logprobs", Violation.LOGPROBS_MISSING),
    ):
        if value is None:
            checked.add(violation, said.get(name, f"{name}: not in the reply"))
    if reply.generated_token_ids == ():
        checked.add(Violation.EMPTY_GENERATION, "the list of generated ids is empty")
    if reply.choices != 1:
        checked.add(Violation.SEVERAL_CHOICES, f"the reply holds {reply.choices} samples")


def _check_lengths(reply: Reply, checked: Checked) -> None:
    prompt, generated, logprobs = reply.prompt_token_ids, reply.generated_token_ids, reply.logprobs
    if generated is not None and logprobs is not None and len(generated) != len(logprobs):
        checked.add(Violation.LENGTHS_DIFFER, f"{len(generated)} generated ids, {len(logprobs)} log probabilities")
    if prompt is not None and reply.prompt_tokens is not None and len(prompt) != reply.prompt_tokens:
        checked.add(Violation.USAGE_PROMPT_DIFFERS, f"{len(prompt)} prompt ids, usage says {reply.prompt_tokens}")
    if generated is not None and reply.completion_tokens is not None and len(generated) != reply.completion_tokens:
        checked.add(
            Violation.USAGE_GENERATED_DIFFERS, f"{len(generated)} generated ids, usage says {reply.completion_tokens}"
        )
    named = reply.logprob_token_ids
    if named is not None and generated is not None and named != generated:
        at = next(
            (i for i, (a, b) in enumerate(zip(named, generated, strict=False)) if a != b),
            min(len(named), len(generated)),
        )
        checked.add(
            Violation.LOGPROB_IDS_DIFFER, f"log probability entries name other ids than token_ids from position {at}"
        )


def _check_logprobs(reply: Reply, body: Mapping[str, Any], profile: ServerProfile | None, checked: Checked) -> None:
    for at, value in enumerate(reply.logprobs or ()):
        if not math.isfinite(value) or value > _ROUNDING or value < _IMPOSSIBLE:
            checked.add(
                Violation.LOGPROB_IMPOSSIBLE, f"position {at} has log probability {value}, which no sampled token has"
            )
            break
    changed = reshapes_distribution(body)
    mode = "unknown" if profile is None else profile.logprobs_mode
    if mode == "tempered":
        changed = [item for item in changed if not item.startswith("temperature ")]
    if profile is not None and changed and mode != "processed":
        checked.add(
            Violation.LOGPROBS_NOT_OF_POLICY,
            f"{', '.join(changed)}: the server's log probabilities are {mode}, not those of the distribution sampled from",
        )


def reshapes_distribution(body: Mapping[str, Any]) -> list[str]:
    """Sampling parameters of a request under which processed and raw log probabilities differ."""
    sampling = cast("Mapping[str, Any]", body.get("sampling_params") or body)
    neutral: dict[str, tuple[Any, ...]] = {
        "temperature": (1, None), "top_p": (1, None), "top_k": (-1, 0, None), "min_p": (0, None), "repetition_penalty": (1, None),
        "presence_penalty": (0, None), "frequency_penalty": (0, None),
    }  # fmt: skip
    return [f"{name} {sampling[name]}" for name, values in neutral.items() if sampling.get(name) not in values]


def _check_ending(reply: Reply, body: Mapping[str, Any], profile: ServerProfile | None, checked: Checked) -> None:
    ids = reply.generated_token_ids
    if reply.finish_reason in {"abort", "error"}:
        checked.add(Violation.ABORTED, f"the server ended the reply early: {reply.finish_reason}")
    elif ids and profile is not None and profile.end_tokens:
        stops = {*profile.end_tokens, *_stop_ids(body)}
        checked.truncated = ids[-1] not in stops and not isinstance(reply.stop_reason, str | int)
    if checked.truncated is None:
        checked.add(Violation.TRUNCATION_UNKNOWN, "neither ids nor finish reason tell whether the reply was cut")
    if checked.truncated and reply.finish_reason in {"tool_calls", "tool_use"}:
        checked.add(
            Violation.TRUNCATED_AS_TOOL_CALL,
            "the token limit cut the reply, and the server calls it a finished tool call",
        )
    if isinstance(reply.stop_reason, str) and reply.api != "messages":
        checked.add(
            Violation.TEXT_CUT_AT_STOP_STRING,
            f"text ends at {reply.stop_reason!r} inside a token: ids hold more than the text acted on",
        )
    if not reply.text.strip() and not reply.tool_calls and (reply.reasoning or "").strip() and not checked.truncated:
        checked.add(
            Violation.REPLY_IN_REASONING,
            "the server's reasoning parser took the whole reply; the adapter saw an empty text",
        )


def _check_images(reply: Reply, sizes: Sequence[tuple[int, int]], profile: ServerProfile, checked: Checked) -> None:
    ids = reply.prompt_token_ids
    if ids is None or profile.image_token is None:
        if ids is not None and sizes:
            checked.add(
                Violation.PROFILE_MISSING, "images were sent and the probe did not find the model's image token"
            )
        return
    found = image_runs(ids, profile.image_token)
    checked.image_runs = found
    if reply.image_runs is not None and reply.image_runs != found:
        checked.add(
            Violation.IMAGE_RUNS_DISAGREE,
            f"the server names image runs {list(reply.image_runs)}, the ids hold {list(found)}",
        )
    elif reply.api == "generate" and reply.image_runs is None and sizes:
        checked.add(Violation.IMAGE_COUNT_DIFFERS, f"{len(sizes)} images sent, the server bound none to the prompt")
    expected = [profile.tokens_for(*size) for size in sizes]
    known = [item for item in expected if item is not None]
    if len(known) != len(sizes):
        lacking = sorted({f"{w}x{h}" for (w, h), item in zip(sizes, expected, strict=True) if item is None})
        checked.add(Violation.PROFILE_MISSING, f"the probe did not ask for images of {', '.join(lacking)}")
        if len(found) != len(sizes):
            checked.add(
                Violation.IMAGE_COUNT_DIFFERS, f"{len(sizes)} images sent, {len(found)} image runs in the prompt"
            )
        return
    if any(
        item.runs != 1 for item in known
    ):  # rows of an image are separate runs: only the sums can be held against it
        if sum(length for _, length in found) != sum(item.tokens for item in known):
            checked.add(
                Violation.IMAGE_RUN_LENGTH_DIFFERS,
                f"{sum(n for _, n in found)} image ids, expected {sum(i.tokens for i in known)}",
            )
        return
    wrapped = [run for run in found if _wrapped(ids, run, profile)]
    for start, length in found:
        if (start, length) not in wrapped:
            whole = any(item.tokens == length for item in known)
            checked.add(
                Violation.IMAGE_RUN_UNWRAPPED if whole else Violation.IMAGE_RUN_STRAY,
                f"image ids at {start}..{start + length - 1} do not stand between the model's vision marks",
            )
    if len(found) != len(sizes):
        checked.add(Violation.IMAGE_COUNT_DIFFERS, f"{len(sizes)} images sent, {len(found)} image runs in the prompt")
    for number, ((start, length), item) in enumerate(zip(found, known, strict=False), 1):
        if length != item.tokens:
            checked.add(
                Violation.IMAGE_RUN_LENGTH_DIFFERS,
                f"run {number} at {start} has {length} ids; an image of {item.width}x{item.height} has {item.tokens}",
            )


def _wrapped(ids: Sequence[int], run: tuple[int, int], profile: ServerProfile) -> bool:
    start, length = run
    end = start + length
    before = profile.image_before is None or (start > 0 and ids[start - 1] == profile.image_before)
    after = profile.image_after is None or (end < len(ids) and ids[end] == profile.image_after)
    return before and after


def _check_vision_tokens(reply: Reply, body: Mapping[str, Any], profile: ServerProfile, checked: Checked) -> None:
    for at, item in enumerate(reply.generated_token_ids or ()):
        if item in profile.vision_tokens:
            checked.add(Violation.VISION_TOKEN_GENERATED, f"generated id {item} at position {at} is a vision token")
            break
    for text in _texts(body):
        literal = next((item for item in profile.special_texts if item in text), None)
        if literal is None:
            match = _VISION_TEXT.search(text)
            literal = match[0] if match and not profile.special_texts else None
        if literal is not None:
            checked.add(
                Violation.VISION_TEXT_IN_PROMPT,
                f"a text of the request holds {literal!r}, which the server reads as an image's place",
            )
            return


def _check_control_text(body: Mapping[str, Any], end_texts: Sequence[str], checked: Checked) -> None:
    for text in _texts(body):
        literal = next((item for item in end_texts if item in text), None)
        match = _CONTROL_TEXT.search(text)
        if literal is not None or match is not None:
            checked.add(
                Violation.CONTROL_TEXT_IN_PROMPT,
                f"a text of the request holds {literal or (match and match[0])!r}, which a server may read as the end of a message",
            )
            return


def _stop_ids(body: Mapping[str, Any]) -> tuple[int, ...]:
    sampling = cast("Mapping[str, Any]", body.get("sampling_params") or body)
    return tuple(sampling.get("stop_token_ids") or ())


def _parts(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Content parts of a request, in whatever API's form."""
    for key in ("messages", "input"):
        messages = body.get(key)
        for message in cast("list[Any]", messages) if isinstance(messages, list) else []:
            content = message.get("content") if isinstance(message, dict) else None
            yield from (
                (part for part in cast("list[Any]", content) if isinstance(part, dict))
                if isinstance(content, list)
                else ()
            )
    parts = body.get("content_parts")
    yield from (part for part in cast("list[Any]", parts) if isinstance(part, dict)) if isinstance(parts, list) else ()


def _names_content(part: Mapping[str, Any]) -> bool:
    """Whether an image's cache key is the sha256 of the image itself, which cannot go stale."""
    reference = part.get("url") or part.get("image_url")
    url = reference.get("url") if isinstance(reference, dict) else reference
    return isinstance(url, str) and url.startswith("media://") and url.removeprefix("media://") in str(part["uuid"])


def _texts(body: Mapping[str, Any]) -> Iterator[str]:
    """Every text that is rendered into the prompt: contents, tool calls and results, tool definitions."""
    for key in ("messages", "input", "tools", "instructions", "system", "prompt"):
        yield from _strings(body.get(key))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in cast("dict[str, Any]", value).items():
            if key not in {"image_url", "url"}:
                yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in cast("list[Any]", value):
            yield from _strings(inner)
