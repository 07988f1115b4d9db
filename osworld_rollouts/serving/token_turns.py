"""Turns made of token ids: a chat request becomes one for vLLM's token endpoint that extends the last call exactly.

The adapter renders messages as ever. The server's `/tokenize` turns them into ids. Where the messages only grew since the last
call, what is new in those ids (everything after the end of the last reply) is put behind the last call's own prompt and
generated ids; the re-tokenised text of earlier replies is never used. Where they did not only grow (compaction, another system
prompt), the ids of the messages are the prompt, and a new segment starts.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final, cast

from osworld_rollouts.contracts.model import ModelRequest
from osworld_rollouts.evidence import transcript
from osworld_rollouts.evidence.store import get_json
from osworld_rollouts.serving.client import post
from osworld_rollouts.serving.errors import ModelCallError
from osworld_rollouts.serving.exact import NEUTRAL, recorded_profile
from osworld_rollouts.serving.generate import compact_ids, generate_body, next_prompt_ids
from osworld_rollouts.serving.media import media_reference, with_images

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from osworld_rollouts.contracts.evidence import ModelCallRecord, Record
    from osworld_rollouts.contracts.request import Model
    from osworld_rollouts.evidence.profile import ServerProfile
    from osworld_rollouts.evidence.store import EvidenceStore

_SAMPLING: Final = (*NEUTRAL, "max_tokens", "seed", "stop", "n", "min_tokens", "ignore_eos")


async def token_request(
    store: EvidenceStore, records: Sequence[Record], request: ModelRequest, model: Model, *, api_key: str | None, request_id: str,
    profile: ServerProfile | None = None,
) -> ModelRequest:  # fmt: skip
    """The same turn for the token endpoint.

    Args:
        store: where images and earlier ids are.
        records: the chain up to this call.
        request: a chat request with every sampling parameter set (`ask_for_evidence`).
        model: whose server tokenises.
        api_key: as for a call.
        request_id: for the tokenising request; any fresh id.
        profile: what the probe found; by default the one the chain's first record names.

    Raises:
        ModelCallError: the server has no token endpoint, or does not tokenise.
    """
    profile = profile or await asyncio.to_thread(recorded_profile, store, records)
    if profile is None or not profile.token_in or profile.image_token is None or not profile.end_tokens:
        raise ModelCallError(
            "rejected",
            "the model's server takes no token ids, or was not probed",
            remedy="vLLM: serve with --enable-scale-out, and ask for exact evidence",
        )
    rendered = await tokenize(
        request, model, api_key=api_key, request_id=request_id, load=store.get, image_token=profile.image_token
    )
    ids = await asyncio.to_thread(_continued, store, records, request, rendered, profile)
    body = generate_body(
        model.name,
        ids,
        [media_reference(item.sha256) for item in request.media],
        _sampling(request),
        stop_token_ids=profile.end_tokens,
    )
    body["output_mode"] = "text"  # with the text in the reply; the ids come all the same
    body["sampling_params"]["skip_special_tokens"] = False
    source: dict[str, Any] = {
        "messages": request.body.get("messages"), "tools": request.body.get("tools"), "rendered_ids": rendered,
    }  # fmt: skip
    return ModelRequest(api="generate", body=body, media=request.media, headers=request.headers, source=source)


async def tokenize(
    request: ModelRequest,
    model: Model,
    *,
    api_key: str | None,
    request_id: str,
    load: Callable[[str], bytes],
    image_token: int,
) -> list[int]:
    """Compact ids of a chat request's messages, by the server's `/tokenize`. Raises ModelCallError."""
    whole = await asyncio.to_thread(with_images, request, load)
    asked = {
        name: whole[name]
        for name in ("model", "messages", "tools", "chat_template_kwargs")
        if whole.get(name) is not None
    }
    content = json.dumps({**asked, "add_generation_prompt": True}, ensure_ascii=False).encode()
    url = f"{model.base_url.rstrip('/').removesuffix('/v1')}/tokenize"
    reply = await post(
        url, content, base_url=model.base_url, api_key=api_key, timeout_s=model.timeout_s, request_id=request_id
    )
    tokens = json.loads(reply.body).get("tokens")
    if not isinstance(tokens, list):
        raise ModelCallError(
            "unreadable", f"{url} gave no tokens", remedy="this needs vLLM's /tokenize", body=reply.body
        )
    return compact_ids(cast("list[int]", tokens), image_token)


def continuation(
    rendered_before: Sequence[int], rendered: Sequence[int], end_tokens: Sequence[int]
) -> list[int] | None:
    """Ids that follow the last reply in a rendered prompt, or None when the prompt did not only grow.

    Args:
        rendered_before: ids of the last call's messages, up to where its reply begins.
        rendered: ids of this call's messages.
        end_tokens: ids that end a reply; the template closes a reply with one of them.
    """
    length = len(rendered_before)
    if list(rendered[:length]) != list(rendered_before):
        return None
    for at in range(length, len(rendered)):
        if rendered[at] in end_tokens:
            return list(rendered[at + 1 :])
    return None


def _continued(
    store: EvidenceStore, records: Sequence[Record], request: ModelRequest, rendered: list[int], profile: ServerProfile
) -> list[int]:
    before = transcript.previous_call(records)
    if (
        before is None
        or before.api != "generate"
        or before.prompt_token_ids is None
        or before.generated_token_ids is None
    ):
        return rendered
    kept = [item.sha256 for item in before.media]
    if [item.sha256 for item in request.media[: len(kept)]] != kept:
        return rendered
    source = _source(store, before)
    suffix = None if source is None else continuation(source["rendered_ids"], rendered, profile.end_tokens)
    token = cast("int", profile.image_token)
    generated = cast("list[int]", get_json(store, before.generated_token_ids))
    if suffix is None or suffix.count(token) != len(request.media) - len(kept) or token in generated:
        return rendered
    return next_prompt_ids(
        cast("list[int]", get_json(store, before.prompt_token_ids)), generated, suffix,
        image_token=token, end_tokens=profile.end_tokens, end=profile.end_tokens[0],
    )  # fmt: skip


def _source(store: EvidenceStore, call: ModelCallRecord) -> dict[str, Any] | None:
    source = get_json(store, call.sent).get("source")
    return cast("dict[str, Any]", source) if isinstance(source, dict) and "rendered_ids" in source else None


def _sampling(request: ModelRequest) -> dict[str, Any]:
    return {name: request.body[name] for name in _SAMPLING if request.body.get(name) is not None}
