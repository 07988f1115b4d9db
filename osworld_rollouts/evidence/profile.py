"""What is known of a served model, found out by asking it (serving/probe.py): the facts that exact checks need."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from osworld_rollouts.contracts._base import Contract

LogprobsMode = Literal["processed", "tempered", "raw", "unknown"]
ServerKind = Literal["vllm", "sglang", "openai-compatible"]


class ImageTokens(Contract):
    """Image placeholders for one image size: how many ids, in how many unbroken runs."""

    width: int
    height: int
    tokens: int
    runs: int = 1


class ServerProfile(Contract):
    """Facts about one model on one server.

    `image_token` is the id that stands for a piece of an image, `image_before` and `image_after` the ids around an image's run
    (None where there is none), `end_tokens` the ids with which a reply ends. `logprobs_mode` is `processed` when log
    probabilities are those of the distribution that was sampled from, `tempered` when they know the temperature and not the
    truncation (top_p, top_k), `raw` when they know neither.
    """

    schema_version: Literal[1] = 1
    server: ServerKind
    server_version: str | None = None
    model: str
    model_root: str | None = None
    system_fingerprint: str | None = None
    max_model_len: int | None = None
    image_token: int | None = None
    image_before: int | None = None
    image_after: int | None = None
    images: tuple[ImageTokens, ...] = ()
    end_tokens: tuple[int, ...] = ()
    special_texts: tuple[str, ...] = Field(
        default=(), description="literal texts that the tokenizer turns into vision ids"
    )
    end_texts: tuple[str, ...] = Field(default=(), description="how `end_tokens` are spelt, where the server says it")
    logprobs_mode: LogprobsMode = "unknown"
    token_in: bool = Field(
        default=False, description="the server takes token ids and images (vLLM's generate endpoint)"
    )

    def tokens_for(self, width: int, height: int) -> ImageTokens | None:
        """What an image of this size should become, if it was asked."""
        return next((item for item in self.images if (item.width, item.height) == (width, height)), None)

    @property
    def vision_tokens(self) -> frozenset[int]:
        """Ids that only an image may bring into a prompt, and no reply may hold."""
        return frozenset(item for item in (self.image_token, self.image_before, self.image_after) if item is not None)
