"""Token in, token out: vLLM's `/inference/v1/generate`, by which a prompt is made of ids and never of re-tokenised text.

The next prompt is the last prompt's ids, the ids that were generated, and the ids of what follows; so it extends exactly. Ids go
out compact (one image id for each image) with the images beside them; the server expands them and says where each image stands.
Format: vLLM 0.32, `--enable-scale-out`; see docs/evidence.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def compact_ids(ids: Sequence[int], image_token: int) -> list[int]:
    """Expanded ids with every run of the image token made one id, which stands for one image."""
    compact: list[int] = []
    for item in ids:
        if item != image_token or not compact or compact[-1] != image_token:
            compact.append(item)
    return compact


def next_prompt_ids(
    prompt: Sequence[int],
    generated: Sequence[int],
    suffix: Sequence[int],
    *,
    image_token: int,
    end_tokens: Sequence[int],
    end: int | None = None,
) -> list[int]:
    """Compact ids of the next turn's prompt: what was there, what was generated, and what the template puts after it.

    Args:
        prompt: the last call's prompt ids, expanded or compact.
        generated: the ids it generated, all of them.
        suffix: ids between the end of a reply and the next reply, the next images compact.
        image_token: id that stands for an image.
        end_tokens: ids that end a reply.
        end: put after a reply that does not end with one of them, because the token limit cut it.

    Raises:
        ValueError: the reply holds an image id, which would take an image's place.
    """
    if image_token in generated:
        raise ValueError(f"the reply holds image id {image_token}; its ids cannot be a prompt")
    closing = [] if not generated or generated[-1] in end_tokens or end is None else [end]
    return [*compact_ids(prompt, image_token), *generated, *closing, *suffix]


def generate_body(
    model: str,
    ids: Sequence[int],
    image_urls: Sequence[str],
    sampling: dict[str, Any],
    *,
    stop_token_ids: Sequence[int] = (),
) -> dict[str, Any]:
    """A request body for the token endpoint.

    Args:
        model: name as the server knows it.
        ids: compact prompt ids.
        image_urls: `media://<sha256>` or data URLs, in the order of the image ids.
        sampling: parameters of `sampling_params`, max_tokens among them.
        stop_token_ids: end tokens; this endpoint takes the model's own unless given.
    """
    body: dict[str, Any] = {
        "model": model,
        "token_ids": list(ids),
        "sampling_params": {
            "logprobs": 0,
            "n": 1,
            **sampling,
            **({"stop_token_ids": list(stop_token_ids)} if stop_token_ids else {}),
        },
        "return_token_ids": True,
        "output_mode": "tokens",
    }
    if image_urls:
        body["content_parts"] = [{"type": "image_url", "url": url} for url in image_urls]
    return body
