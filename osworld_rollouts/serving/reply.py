"""Reading a server's reply: the facts in it, and which facts that were asked for are not in it. Nothing is filled in.

Formats: vLLM 0.32, SGLang 0.5 and plain OpenAI Chat Completions; OpenAI Responses (and vLLM's); Anthropic Messages; vLLM's
token endpoint `/inference/v1/generate`. A fact that a server spells in two ways is read from either; ids come only from id
fields, never from text.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, cast

from osworld_rollouts.contracts.model import Reply, ToolCall
from osworld_rollouts.serving.errors import ReplyUnreadable

if TYPE_CHECKING:
    from collections.abc import Collection

    from osworld_rollouts.contracts.model import Api

_TOKEN_ID: Final = re.compile(r"^token_id:(\d+)$")  # vLLM and SGLang with return_tokens_as_token_ids

Object = dict[str, Any]


def read_reply(api: Api, body: bytes, *, max_tokens: int | None = None, eos: Collection[int] = ()) -> Reply:
    """The facts of a reply with status 200.

    Args:
        api: which format to expect.
        body: the bytes as received.
        max_tokens: the request's limit; with ids it tells a cut reply from a whole one.
        eos: ids that end a reply, if known (from the capability probe); without them `truncated` may stay None.

    Raises:
        ReplyUnreadable: the body is not what the API promises.
    """
    try:
        data = json.loads(body)
    except ValueError as error:
        raise ReplyUnreadable(f"{len(body)} bytes are not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ReplyUnreadable(f"expected a JSON object, got {type(data).__name__}")
    read = {"chat_completions": _chat, "responses": _responses, "messages": _messages, "generate": _generate}[api]
    try:
        reply = Reply(api=api, **read(cast("Object", data)))
    except ReplyUnreadable:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ReplyUnreadable(f"not a reply of the {api} API: {type(error).__name__}: {error}") from error
    truncated = is_truncated(reply, max_tokens=max_tokens, eos=eos)
    missing = list(reply.missing)
    if truncated is None:
        missing.append("truncated: neither the ids with known end tokens nor the finish reason decide it")
    return reply.model_copy(update={"truncated": truncated, "missing": tuple(missing)})


def is_truncated(reply: Reply, *, max_tokens: int | None, eos: Collection[int]) -> bool | None:
    """Whether the token limit cut the reply; None when it cannot be known.

    A finish reason lies: vLLM says `tool_calls` for a reply that `max_tokens` cut right after a tool call. With ids, a reply is
    whole when its last id is an end token or the server names what stopped it, and cannot be cut when it is below the limit.
    """
    ids = reply.generated_token_ids
    finish = reply.finish_reason
    if finish in {"abort", "error"}:
        return True
    if ids:
        if reply.stop_reason is not None or ids[-1] in eos:
            return False
        if eos:
            return True
        if max_tokens is not None and len(ids) < max_tokens:
            return finish == "length"
    if finish in {"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"}:
        return True
    if finish == "tool_calls" and max_tokens is not None:
        count = reply.completion_tokens if ids is None else len(ids)
        if count is not None and count >= max_tokens:
            return None
    return (
        False
        if finish
        in {"stop", "tool_calls", "tool_use", "end_turn", "stop_sequence", "completed", "content_filter", "refusal"}
        else None
    )


def _chat(data: Object) -> Object:
    choice = _first_choice(data)
    message = choice.get("message") or {}
    missing: list[str] = []
    extension = choice.get("sglext") or data.get("sglext") or {}
    prompt = _ids(data.get("prompt_token_ids"), choice.get("prompt_token_ids"), extension.get("input_ids"))
    generated = _ids(choice.get("token_ids"), choice.get("response_token_ids"), _first(extension.get("output_ids")))
    entries = _entries(choice.get("logprobs"))
    if prompt is None:
        missing.append(
            "prompt_token_ids: the reply has none (return_token_ids not asked for, unknown to the server or ignored)"
        )
    if generated is None:
        missing.append(
            "generated_token_ids: the reply has none (return_token_ids not asked for, unknown to the server or ignored)"
        )
    if entries is None:
        missing.append("logprobs: the reply has none")
    tools = tuple(cast("list[Object]", message.get("tool_calls") or []))
    metadata = data.get("metadata")
    version = metadata.get("weight_version") if isinstance(metadata, dict) else None
    return {
        "text": _text(message.get("content")),
        "reasoning": _optional_text(message.get("reasoning"), message.get("reasoning_content")),
        "tool_calls": tuple(_tool_call(tool) for tool in tools),
        "output": tools,
        "finish_reason": choice.get("finish_reason"),
        "stop_reason": choice.get("stop_reason", choice.get("matched_stop")),
        "prompt_token_ids": prompt,
        "generated_token_ids": generated,
        "logprobs": None if entries is None else tuple(float(entry["logprob"]) for entry in entries),
        "logprob_token_ids": _entry_ids(entries),
        "choices": len(data["choices"]),
        "weight_version": version,
        "missing": tuple(missing),
        **_common(data),
    }


def _generate(data: Object) -> Object:
    choice = _first_choice(data)
    missing: list[str] = []
    prompt, generated = (
        _ids(data.get("prompt_token_ids"), choice.get("prompt_token_ids")),
        _ids(choice.get("token_ids")),
    )
    entries = _entries(choice.get("logprobs"))
    for name, value in (("prompt_token_ids", prompt), ("generated_token_ids", generated), ("logprobs", entries)):
        if value is None:
            missing.append(f"{name}: the reply has none")
    text = choice.get("text")
    if text is None:
        missing.append("text: the token endpoint gives ids only")
    placeholders = data.get("mm_placeholders")
    runs = (
        None
        if placeholders is None
        else tuple((int(run["offset"]), int(run["length"])) for run in placeholders.get("image", []))
    )
    versions = [str(span["version"]) for span in choice.get("weight_versions") or []]
    return {
        "text": text or "",
        "finish_reason": choice.get("finish_reason"),
        "stop_reason": choice.get("stop_reason"),
        "prompt_token_ids": prompt,
        "generated_token_ids": generated,
        "logprobs": None if entries is None else tuple(float(entry["logprob"]) for entry in entries),
        "logprob_token_ids": _entry_ids(entries),
        "image_runs": runs,
        "choices": len(data["choices"]),
        "weight_version": ",".join(dict.fromkeys(versions)) or None,
        "missing": tuple(missing),
        **_common(data),
        "response_id": data.get("request_id"),
    }


def _responses(data: Object) -> Object:
    items = cast("list[Object]", data["output"])
    text: list[str] = []
    reasoning: list[str] = []
    tools: list[ToolCall] = []
    entries: list[Object] | None = []
    missing: list[str] = []
    for item in items:
        match item.get("type"):
            case "message":
                for part in item.get("content") or []:
                    text.append(part.get("text") or part.get("refusal") or "")
                    given = part.get("logprobs")
                    entries = None if entries is None or not given else entries + given
            case "reasoning":
                entries = None
                parts = (item.get("content") or []) or (item.get("summary") or [])
                reasoning.extend(part.get("text", "") for part in parts)
            case "function_call":
                entries = None
                tools.append(
                    ToolCall(id=item.get("call_id"), name=item["name"], arguments=_arguments(item["arguments"]))
                )
            case _:
                entries = None
    prompt, generated = _message_ids(data.get("input_messages")), _message_ids(data.get("output_messages"))
    for name, value in (("prompt_token_ids", prompt), ("generated_token_ids", generated)):
        if value is None:
            missing.append(f"{name}: the reply has none (vLLM gives them with enable_response_messages)")
    if not entries:
        entries = None
        missing.append("logprobs: not given, or not for every item (reasoning and calls carry none in this API)")
    finish = (data.get("incomplete_details") or {}).get("reason") or data.get("status")
    return {
        "text": "".join(text),
        "reasoning": "\n".join(reasoning) if reasoning else None,
        "tool_calls": tuple(tools),
        "output": tuple(items),
        "finish_reason": finish,
        "prompt_token_ids": prompt,
        "generated_token_ids": generated,
        "logprobs": None if entries is None else tuple(float(entry["logprob"]) for entry in entries),
        "logprob_token_ids": _entry_ids(entries),
        "missing": tuple(missing),
        **_common(data),
    }


def _messages(data: Object) -> Object:
    items = cast("list[Object]", data["content"])
    thinking = [item.get("thinking", "") for item in items if item.get("type") == "thinking"]
    return {
        "text": "".join(item.get("text", "") for item in items if item.get("type") == "text"),
        "reasoning": "\n".join(thinking) if thinking else None,
        "tool_calls": tuple(
            ToolCall(id=item.get("id"), name=item["name"], arguments=_arguments(item.get("input", {})))
            for item in items
            if item.get("type") == "tool_use"
        ),
        "output": tuple(items),
        "finish_reason": data.get("stop_reason"),
        "stop_reason": data.get("stop_sequence"),
        "missing": tuple(
            f"{fact}: the Messages API gives none" for fact in ("prompt_token_ids", "generated_token_ids", "logprobs")
        ),
        **_common(data),
    }


def _common(data: Object) -> Object:
    usage = cast("Object | None", data.get("usage"))
    numbers = usage or {}
    details = numbers.get("prompt_tokens_details") or numbers.get("input_tokens_details") or {}
    cached = details.get("cached_tokens", numbers.get("cache_read_input_tokens"))
    return {
        "response_id": data.get("id"),
        "served_model": data.get("model"),
        "system_fingerprint": data.get("system_fingerprint"),
        "usage": usage,
        "prompt_tokens": numbers.get("prompt_tokens", numbers.get("input_tokens")),
        "completion_tokens": numbers.get("completion_tokens", numbers.get("output_tokens")),
        "cached_tokens": cached,
    }


def _first_choice(data: Object) -> Object:
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices:
        raise ReplyUnreadable("the reply has no choices")
    return min(cast("list[Object]", choices), key=lambda choice: choice.get("index", 0))


def _ids(*candidates: Any) -> tuple[int, ...] | None:
    """The first list of ids that is one. An empty list is a fact, null is not."""
    for candidate in candidates:
        if isinstance(candidate, list):
            if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in candidate):
                raise ReplyUnreadable("a list of token ids holds something that is no id")
            return tuple(candidate)
    return None


def _message_ids(messages: Any) -> tuple[int, ...] | None:
    if not isinstance(messages, list) or not messages:
        return None
    parts = [_ids(message.get("tokens")) for message in cast("list[Object]", messages)]
    if any(part is None for part in parts):
        return None
    return tuple(item for part in parts if part is not None for item in part)


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value and isinstance(value[0], list) else value


def _entries(logprobs: Any) -> list[Object] | None:
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return content if isinstance(content, list) else None


def _entry_ids(entries: list[Object] | None) -> tuple[int, ...] | None:
    if not entries:
        return None
    found: list[int] = []
    for entry in entries:
        named = entry.get("token_id")
        if named is None:
            match = _TOKEN_ID.match(entry.get("token") or "")
            if match is None:
                return None
            named = int(match[1])
        found.append(int(named))
    return tuple(found)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(
            part.get("text", "")
            for part in cast("list[Object]", content)
            if part.get("type") in {"text", "output_text"}
        )
    return content or ""


def _optional_text(*candidates: Any) -> str | None:
    return next((candidate for candidate in candidates if isinstance(candidate, str)), None)


def _tool_call(tool: Object) -> ToolCall:
    function = tool["function"]
    return ToolCall(id=tool.get("id"), name=function["name"], arguments=_arguments(function.get("arguments")))


def _arguments(value: Any) -> str:
    """The raw string; a server that sends an object is quoted as compact JSON, keys in order."""
    if isinstance(value, str):
        return value
    return json.dumps({} if value is None else value, ensure_ascii=False, separators=(",", ":"))
