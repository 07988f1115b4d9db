"""Requests to an OpenAI-compatible `chat/completions` endpoint.

Shape: https://platform.openai.com/docs/api-reference/chat/create; `top_k`, `min_p` and `repetition_penalty` are vLLM's and
SGLang's additions. Images stand as `media://<sha256>` and are put in by whoever sends the request.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from osworld_rollouts.contracts.model import ModelRequest

if TYPE_CHECKING:
    from pydantic import JsonValue

    from osworld_rollouts.contracts.desktop import MediaRef
    from osworld_rollouts.contracts.request import Sampling

Role = Literal["system", "user", "assistant", "tool"]
Detail = Literal["auto", "low", "high"]


class Chat:
    """Messages in the making, and the images in them in order."""

    def __init__(self, detail: Detail | None = None) -> None:
        self.messages: list[JsonValue] = []
        self.media: list[MediaRef] = []
        self.detail = detail

    def say(self, role: Role, *parts: str | MediaRef | None) -> None:
        """Append a message of text and images, in this order; a None is left out."""
        self.messages.append({"role": role, "content": [self._part(part) for part in parts if part is not None]})

    def say_text(self, role: Role, text: str) -> None:
        """Append a message whose content is a plain string."""
        self.messages.append({"role": role, "content": text})

    def request(self, model: str, sampling: Sampling, **fields: JsonValue) -> ModelRequest:
        """The request; further fields as they are."""
        body: dict[str, JsonValue] = {"model": model, "messages": self.messages, **sampling_fields(sampling), **fields}
        return ModelRequest(api="chat_completions", body=body, media=tuple(self.media))

    def _part(self, part: str | MediaRef) -> JsonValue:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        self.media.append(part)
        image: dict[str, JsonValue] = {"url": media_url(part)}
        if self.detail:
            image["detail"] = self.detail
        return {"type": "image_url", "image_url": image}


def media_url(media: MediaRef) -> str:
    """What stands for an image in a rendered request."""
    return f"media://{media.sha256}"


def sampling_fields(sampling: Sampling) -> dict[str, JsonValue]:
    """The parameters that are set, under their wire names."""
    return sampling.model_dump(mode="json", exclude_none=True)


def merged(defaults: Sampling, asked: Sampling) -> Sampling:
    """The request's values where it has any, else the defaults."""
    return defaults.model_copy(update=asked.model_dump(exclude_none=True))


def fill(template: str, **values: object) -> str:
    """A prompt text with its `{fields}` filled in one pass, so that values and the text itself may contain braces."""
    return re.sub(r"\{(\w+)\}", lambda field: str(values.get(field[1], field[0])), template)
