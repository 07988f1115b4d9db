"""Finding out what a model's server can prove, by asking it: about 15 small requests, a few seconds.

Version numbers are recorded and not trusted. Servers ignore fields they do not know and answer 200, so every capability is
judged by what came back.
"""

from __future__ import annotations

import json
import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast

from osworld_rollouts.evidence.profile import ServerKind, ServerProfile
from osworld_rollouts.evidence.segments import SentAndGenerated, extension
from osworld_rollouts.serving.client import post
from osworld_rollouts.serving.errors import ModelCallError, ReplyUnreadable
from osworld_rollouts.serving.exact import NEUTRAL
from osworld_rollouts.serving.generate import compact_ids, generate_body
from osworld_rollouts.serving.logprobs import logprobs_mode
from osworld_rollouts.serving.probe_report import ProbeReport
from osworld_rollouts.serving.probe_server import WORDS, ProbedServer, data_url, picture, prompt_with
from osworld_rollouts.serving.probe_tokens import ask_end_tokens, ask_images

if TYPE_CHECKING:
    from collections.abc import Sequence

    from osworld_rollouts.contracts.model import Reply

DEFAULT_SIZES: Final = ((1920, 1080),)
_TOOL: Final = {
    "type": "function",
    "function": {"name": "computer_use", "description": "Control the desktop.", "parameters": {"type": "object", "properties": {"action": {"type": "string"}}}},
}  # fmt: skip
_NO_IDS: Final = (
    "serve the model with vLLM 0.10.2 or later, or SGLang of mid-2026 or later, which return ids when asked"
)


async def probe(
    base_url: str, model: str, *, images: int = 3, exact: bool = True, api_key: str | None = None,
    sizes: Sequence[tuple[int, int]] = DEFAULT_SIZES, timeout_s: float = 120,
) -> ProbeReport:  # fmt: skip
    """Ask a server what it can do with a model.

    Args:
        base_url: as in a request, usually ending in `/v1`.
        model: name as the server knows it.
        images: how many images one prompt must take.
        exact: ask everything exact evidence needs; False asks only whether the model answers.
        api_key: None for a server that needs none.
        sizes: (width, height) in pixels of the images that will be sent.
        timeout_s: for each request; the first after a start may take 20 s.

    Raises:
        ModelCallError: nobody answers there, or the model refuses the simplest prompt.
    """
    server = ProbedServer(base_url.rstrip("/"), model, api_key, timeout_s)
    started, asked_at = time.perf_counter(), datetime.now(UTC)
    profile = await _identify(server)
    shots = [picture(*sizes[0], mark) for mark in range(max(1, images))]
    first = await _first_reply(server, shots[0])
    profile = profile.model_copy(update={"system_fingerprint": first.system_fingerprint})
    if exact:
        profile = await _exact_facts(server, profile, first, shots, sizes)
    refused = any(item.needed and item.ok is not True for item in server.findings)
    return ProbeReport(
        base_url=server.base_url, asked_at=asked_at, duration_s=round(time.perf_counter() - started, 3), requests=server.requests,
        semantic=True, exact=exact and not refused, profile=profile, findings=tuple(server.findings),
    )  # fmt: skip


async def _identify(server: ProbedServer) -> ServerProfile:
    listed = await server.get("/v1/models")
    entries = cast("list[dict[str, Any]]", listed.get("data") or []) if isinstance(listed, dict) else []
    entry = next((item for item in entries if item.get("id") == server.model), None)
    names = ", ".join(str(item.get("id")) for item in entries)
    if listed is None:
        server.find("model_listed", None, "GET /v1/models gives nothing")
    else:
        server.find(
            "model_listed", entry is not None, f"served: {names or 'none'}", "name the model as the server lists it"
        )
    entry = entry or {}
    version, info = await server.get("/version"), await server.get("/get_model_info")
    owner = str(entry.get("owned_by", ""))
    kind: ServerKind = "openai-compatible"
    if owner == "vllm" or (isinstance(version, dict) and "version" in version and info is None):
        kind = "vllm"
    elif owner == "sglang" or (isinstance(info, dict) and "model_path" in info):
        kind = "sglang"
    number = str(version["version"]) if isinstance(version, dict) and "version" in version else None
    limit = entry.get("max_model_len")
    root = entry.get("root") or (info.get("model_path") if isinstance(info, dict) else None)
    server.find("server", True, f"{kind} {number or ''}".strip() + (f", model root {root}" if root else ""))
    server.find(
        "context_limit", None if limit is None else True, f"{limit} tokens" if limit else "the server does not say"
    )
    return ServerProfile(server=kind, server_version=number, model=server.model, model_root=root, max_model_len=limit)


async def _first_reply(server: ProbedServer, shot: bytes) -> Reply:
    """One prompt with one image, asking for everything."""
    try:
        reply = await server.chat(prompt_with("Click the button.", shot), max_tokens=WORDS, seed=7)
    except ModelCallError as error:
        if error.kind != "rejected" or error.status not in {400, 422}:
            raise
        server.extras_refused = error.message
        reply = await server.chat(prompt_with("Click the button.", shot), max_tokens=WORDS)
        server.find(
            "evidence_fields",
            False,
            f"the server refuses the fields that ask for evidence: {error.message}",
            _NO_IDS,
            needed=True,
        )
    server.find("answers", True, f"{reply.completion_tokens} tokens, finish reason {reply.finish_reason}")
    return reply


async def _exact_facts(
    server: ProbedServer, profile: ServerProfile, first: Reply, shots: list[bytes], sizes: Sequence[tuple[int, int]]
) -> ServerProfile:
    _ids_and_logprobs(server, first)
    if first.prompt_token_ids is None or first.generated_token_ids is None:
        return profile
    await _unknown_fields(server)
    profile = await ask_images(server, profile, first, shots, sizes)
    profile = await ask_end_tokens(server, profile)
    profile = profile.model_copy(update={"logprobs_mode": await _mode(server)})
    await _parsers(server, shots[0])
    await _second_turn(server, first, shots)
    await _server_defaults(server)
    return await _token_in(server, profile, first, shots[0])


def _ids_and_logprobs(server: ProbedServer, reply: Reply) -> None:
    for name, value in (
        ("prompt_ids", reply.prompt_token_ids),
        ("generated_ids", reply.generated_token_ids),
        ("logprobs", reply.logprobs),
    ):
        server.find(
            name, value is not None, "not in the reply" if value is None else f"{len(value)}", _NO_IDS, needed=True
        )
    if reply.prompt_token_ids is None or reply.generated_token_ids is None or reply.logprobs is None:
        return
    counts = (len(reply.prompt_token_ids), len(reply.generated_token_ids), len(reply.logprobs))
    agree = (
        counts[1] == counts[2]
        and reply.prompt_tokens in {None, counts[0]}
        and reply.completion_tokens in {None, counts[1]}
    )
    server.find(
        "lengths_agree", agree, f"{counts[0]} prompt ids, {counts[1]} generated ids, {counts[2]} log probabilities, usage {reply.prompt_tokens}/{reply.completion_tokens}",
        "the server's own numbers contradict each other: update it", needed=True,
    )  # fmt: skip
    named = reply.logprob_token_ids
    same = None if named is None else named == reply.generated_token_ids
    server.find(
        "logprob_ids_agree",
        same,
        "entries name no ids"
        if named is None
        else "entries name the generated ids"
        if same
        else "entries name other ids",
        needed=same is False,
    )


async def _unknown_fields(server: ProbedServer) -> None:
    try:
        await server.chat([{"role": "user", "content": "hi"}], osworld_rollouts_no_such_field=1)
        server.find(
            "unknown_fields", None, "ignored with 200: a missing capability gives no error, so every reply is checked"
        )
    except ModelCallError as error:
        server.find("unknown_fields", None, f"refused with {error.status}")


async def _mode(server: ProbedServer) -> Any:
    mode, detail = await logprobs_mode(server.chat, lambda: server.raw[-1])
    server.find(
        "logprobs_mode",
        mode == "processed",
        detail,
        "vLLM: --logprobs-mode processed_logprobs; otherwise sample at temperature 1 with top_p 1",
    )
    return mode


async def _parsers(server: ProbedServer, shot: bytes) -> None:
    hides = next((reply for reply in server.replies if reply.reasoning), None)
    server.find(
        "reasoning_parser", hides is None, "none" if hides is None else "the server moves part of the reply into `reasoning`",
        "serve without --reasoning-parser, so that the text is what the model wrote",
    )  # fmt: skip
    try:
        reply = await server.chat(
            prompt_with("Click the button.", shot), max_tokens=WORDS, tools=[_TOOL], tool_choice="auto", seed=3
        )
        found = "parses tool calls" if reply.tool_calls else "accepts tools; this reply held no call"
        server.find("tool_parser", None, f"{found}; exact requests send tool_choice none and get the text as written")
    except ModelCallError as error:
        server.find("tool_parser", None, f"none ({error.message}); tools are still rendered with tool_choice none")


async def _second_turn(server: ProbedServer, first: Reply, shots: list[bytes]) -> None:
    """Whether a rendered history repeats what was sampled. It need not for exact evidence: each call is its own unit."""
    said = first.text or (first.reasoning or "")
    messages = [
        *prompt_with("Click the button.", shots[0]),
        {"role": "assistant", "content": said},
        {"role": "user", "content": "Go on."},
    ]
    reply = await server.chat(messages)
    past = SentAndGenerated(first.prompt_token_ids, first.generated_token_ids, ("a",))
    found = extension(past, SentAndGenerated(reply.prompt_token_ids, reply.generated_token_ids, ("a",)))
    detail = (
        "the second prompt begins with the first and its reply"
        if found.extends
        else f"differs from position {found.position} of {found.previous_length}"
    )
    server.find(
        "second_turn_extends",
        found.extends,
        detail,
        "each call is its own segment; token-in/token-out stays free of drift",
    )


async def _server_defaults(server: ProbedServer) -> None:
    """What vLLM would use for parameters that a request leaves out."""
    body = json.dumps(
        {"model": server.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    ).encode()
    try:
        raw = await post(
            f"{server.base_url}/chat/completions/render",
            body,
            base_url=server.base_url,
            api_key=server.api_key,
            timeout_s=server.timeout_s,
            request_id=uuid.uuid4().hex,
        )
    except ModelCallError:
        return
    given = json.loads(raw.body).get("sampling_params") or {}
    changed = {
        name: given[name]
        for name, neutral in NEUTRAL.items()
        if name in given and given[name] not in {neutral, *([0] if name == "top_k" else [])}
    }
    server.find(
        "server_defaults", not changed, f"differ from neutral: {changed}" if changed else "neutral",
        "exact requests name every parameter; for the rest serve with --generation-config vllm",
    )  # fmt: skip


async def _token_in(server: ProbedServer, profile: ServerProfile, first: Reply, shot: bytes) -> ServerProfile:
    """The token endpoint of vLLM: the same prompt as ids and an image must expand to the same ids."""
    if profile.image_token is None or first.prompt_token_ids is None:
        return profile
    ids = compact_ids(first.prompt_token_ids, profile.image_token)
    body = generate_body(server.model, ids, [data_url(shot)], {"max_tokens": 1, "temperature": 1.0})
    try:
        reply = await server.send("generate", body)
    except (ModelCallError, ReplyUnreadable) as error:
        server.find("token_in", None, f"no token endpoint ({error})"[:200], "vLLM: --enable-scale-out")
        return profile
    ok = (
        reply.prompt_token_ids == first.prompt_token_ids and reply.image_runs is not None and len(reply.image_runs) == 1
    )
    server.find(
        "token_in",
        ok,
        "ids and images give the same prompt" if ok else "ids and images give another prompt than messages do",
    )
    return profile.model_copy(update={"token_in": ok})
