"""The wire format of `POST /v1/chat/completions` as vLLM 0.32 speaks it: reading a request, writing a reply or an error.

Field names and their quirks are those recorded from a real server; everything a trainer's checks look at is consistent: one
logprob entry per generated id, the end-of-turn id included when the reply was not cut, usage that counts the same ids, prompt
ids with image placeholders expanded in message order.
"""

from __future__ import annotations

import base64
import binascii
import io
import time
import uuid
from dataclasses import dataclass
from typing import Any

from PIL import Image, UnidentifiedImageError

from osworld_rollouts.testing import tokens

FINGERPRINT = "scripted-1"
MAX_MODEL_LEN = 262_144


class RefusedError(Exception):
    """A request this server answers with an error, in vLLM's form."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.param = status, kind, param

    def body(self) -> dict[str, Any]:
        """The JSON body of the error."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}}


@dataclass(frozen=True)
class ChatRequest:
    """The facts of a request that an answer depends on."""

    model: str
    texts: tuple[str, ...]
    images: tuple[bytes, ...]
    messages: tuple[tokens.Message, ...]
    max_tokens: int | None
    logprobs: bool
    top_logprobs: int
    token_ids: bool
    tokens_as_ids: bool


def read_request(body: Any) -> ChatRequest:
    """Check and read a request's JSON.

    Raises:
        RefusedError: 400, with what is wrong; unknown fields are ignored, as real servers do.
    """
    if not isinstance(body, dict):
        raise RefusedError(400, "the body must be a JSON object")
    if not isinstance(body.get("model"), str):
        raise RefusedError(400, "field `model` must be a string", param="model")
    if not (isinstance(body.get("messages"), list) and body["messages"]):
        raise RefusedError(400, "field `messages` must be a list with at least one message", param="messages")
    if body.get("stream"):
        raise RefusedError(400, "the scripted policy does not stream; leave `stream` out", param="stream")
    if body.get("n") not in {None, 1}:
        raise RefusedError(400, "the scripted policy gives one choice; leave `n` out", param="n")
    logprobs, top = bool(body.get("logprobs")), body.get("top_logprobs") or 0
    if not isinstance(top, int) or not 0 <= top <= 20:
        raise RefusedError(400, "`top_logprobs` must be between 0 and 20", param="top_logprobs")
    if top and not logprobs:
        raise RefusedError(
            400,
            "when using `top_logprobs`, `logprobs` must be set to true. (parameter=top_logprobs)",
            param="top_logprobs",
        )
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if limit is not None and not (isinstance(limit, int) and limit >= 1):
        raise RefusedError(400, f"max_tokens must be at least 1, got {limit!r}.", param="max_tokens")
    images: list[bytes] = []
    messages = [_message(message, images) for message in body["messages"]]
    texts = [part for role, parts in messages if role != "assistant" for part in parts if isinstance(part, str)]
    return ChatRequest(
        model=body["model"], texts=tuple(texts), images=tuple(images), messages=tuple(messages), max_tokens=limit,
        logprobs=logprobs, top_logprobs=top, token_ids=bool(body.get("return_token_ids")),
        tokens_as_ids=bool(body.get("return_tokens_as_token_ids")),
    )  # fmt: skip


def too_long(images: int, allowed: int, prompt_tokens: int) -> RefusedError:
    """The refusal of a prompt that does not fit, in vLLM's words; here what counts is its number of images."""
    limit = max(1, prompt_tokens - 1 - (images - allowed) * 256)
    return RefusedError(
        400,
        f"This model's maximum context length is {limit} tokens. However, your prompt contains at least {prompt_tokens} input "
        "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
        f"(parameter=input_tokens, value={prompt_tokens})",
        param="input_tokens",
    )


def write_reply(request: ChatRequest, text: str, request_id: str | None, cut: int | None = None) -> dict[str, Any]:
    """The reply's JSON. `cut` limits the generated ids below the request's own limit."""
    prompt = tokens.prompt_ids(list(request.messages))
    generated = [*tokens.encode(text), tokens.IM_END]
    limit = min(value for value in (cut, request.max_tokens, len(generated)) if value is not None)
    finished = limit == len(generated)
    generated = generated[:limit]
    entries = [
        tokens.logprob_entry(token, position, request.top_logprobs, as_ids=request.tokens_as_ids)
        for position, token in enumerate(generated)
    ]
    message = {
        "role": "assistant", "content": tokens.decode(generated), "refusal": None, "annotations": None, "audio": None,
        "function_call": None, "reasoning": None,
    }  # fmt: skip
    choice = {
        "index": 0, "message": message, "logprobs": {"content": entries} if request.logprobs else None,
        "finish_reason": "stop" if finished else "length", "stop_reason": None,
        "token_ids": generated if request.token_ids else None, "routed_experts": None,
    }  # fmt: skip
    usage = {
        "prompt_tokens": len(prompt), "total_tokens": len(prompt) + len(generated), "completion_tokens": len(generated),
        "prompt_tokens_details": None, "completion_tokens_details": None,
    }  # fmt: skip
    return {
        "id": f"chatcmpl-scripted-{request_id or uuid.uuid4().hex[:16]}", "object": "chat.completion", "created": int(time.time()),
        "model": request.model, "choices": [choice], "service_tier": None, "system_fingerprint": FINGERPRINT, "usage": usage,
        "prompt_logprobs": None, "prompt_token_ids": prompt if request.token_ids else None, "prompt_text": None,
        "kv_transfer_params": None, "ec_transfer_params": None, "metrics": None,
    }  # fmt: skip


def _message(message: Any, images: list[bytes]) -> tokens.Message:
    if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
        raise RefusedError(400, "every message must be an object with a `role`", param="messages")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return message["role"], (content or "",)
    if not isinstance(content, list):
        raise RefusedError(400, "a message's `content` must be text or a list of parts", param="messages")
    return message["role"], tuple(_part(part, images) for part in content)


def _part(part: Any, images: list[bytes]) -> str | tokens.ImageSize:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return part["text"]
    if kind == "image_url":
        url = part.get("image_url")
        encoded = _data(url.get("url") if isinstance(url, dict) else url)
        images.append(encoded)
        return _size(encoded)
    raise RefusedError(
        400, f"content part of type {kind!r} is not known here; send text or image_url", param="messages"
    )


def _data(url: Any) -> bytes:
    if not (isinstance(url, str) and url.startswith("data:image/") and ";base64," in url):
        raise RefusedError(400, "images must be data URLs: data:image/png;base64,…", param="messages")
    try:
        return base64.b64decode(url.split(";base64,", 1)[1], validate=True)
    except binascii.Error as error:
        raise RefusedError(400, f"an image's base64 is broken: {error}", param="messages") from error


def _size(encoded: bytes) -> tokens.ImageSize:
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            return tokens.ImageSize(image.width, image.height)
    except (UnidentifiedImageError, OSError) as error:
        raise RefusedError(400, f"Failed to load image: {error}", param="messages") from error
