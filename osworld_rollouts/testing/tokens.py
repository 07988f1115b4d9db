"""A toy tokeniser for the scripted policy: one id per UTF-8 byte, and a few special ids.

It gives prompts and replies exact, reproducible token ids in the shape a real server gives them. It is no model's tokeniser,
and its log-probabilities are made up from position and id: nothing trained on them would learn anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

IM_START, IM_END, VISION_START, VISION_END, IMAGE_PAD = range(256, 261)
_SPECIAL = {
    IM_START: "<|im_start|>", IM_END: "<|im_end|>", VISION_START: "<|vision_start|>", VISION_END: "<|vision_end|>",
    IMAGE_PAD: "<|image_pad|>",
}  # fmt: skip
_PATCH = 28
_MAX_IMAGE_TOKENS = 256


@dataclass(frozen=True)
class ImageSize:
    """Pixels of an image in a prompt, where its run of placeholder ids goes."""

    width: int
    height: int

    @property
    def tokens(self) -> int:
        """Length of the run: one id per 28 x 28 patch, the image first made small enough for 256 (as the Qwen2.5-VL family counts)."""
        columns, rows = max(1, round(self.width / _PATCH)), max(1, round(self.height / _PATCH))
        if columns * rows > _MAX_IMAGE_TOKENS:
            shrink = math.sqrt(self.width * self.height / (_MAX_IMAGE_TOKENS * _PATCH * _PATCH))
            columns, rows = (max(1, int(side / shrink / _PATCH)) for side in (self.width, self.height))
        return columns * rows


Message = tuple[str, tuple[str | ImageSize, ...]]
"""A role and its parts in order."""


def encode(text: str) -> list[int]:
    """Ids of plain text. Text that looks like a special token stays text."""
    return list(text.encode("utf-8", "surrogatepass"))


def prompt_ids(messages: list[Message]) -> list[int]:
    """Ids of a whole prompt, image placeholders expanded, ending where the assistant begins."""
    ids: list[int] = []
    for role, parts in messages:
        ids += [IM_START, *encode(f"{role}\n")]
        for part in parts:
            ids += encode(part) if isinstance(part, str) else [VISION_START, *[IMAGE_PAD] * part.tokens, VISION_END]
        ids += [IM_END, *encode("\n")]
    return [*ids, IM_START, *encode("assistant\n")]


def decode(ids: list[int]) -> str:
    """Text of ids, special ids left out and incomplete bytes as U+FFFD, as servers do."""
    return bytes(token for token in ids if token < 256).decode("utf-8", "replace")


def logprob(token: int, position: int) -> float:
    """A made-up log-probability, the same for the same token at the same place, between -1 and 0."""
    return -((token * 2654435761 + position * 40503) % 1000003) / 1000003


def logprob_entry(token: int, position: int, top: int, *, as_ids: bool) -> dict[str, object]:
    """One entry of `logprobs.content` as vLLM 0.32 writes it: the sampled token first among `top_logprobs`, others after it."""
    entry = _entry(token, logprob(token, position), as_ids=as_ids)
    others = [other for other in range(32, 127) if other != token][: max(top - 1, 0)]
    ranked = [(token, logprob(token, position)), *((other, -2.0 - rank) for rank, other in enumerate(others))][:top]
    tops = [_entry(other, value, as_ids=as_ids) for other, value in ranked]
    if as_ids:
        # vLLM 0.32 gives here the bytes of the literal `token_id:...`, unlike in the entry itself.
        tops = [{**item, "bytes": list(str(item["token"]).encode())} for item in tops]
    return {**entry, "top_logprobs": tops}


def _entry(token: int, value: float, *, as_ids: bool) -> dict[str, object]:
    text = _SPECIAL.get(token) or (chr(token) if token < 128 else "")
    return {"token": f"token_id:{token}" if as_ids else text, "logprob": value, "bytes": list(text.encode())}
