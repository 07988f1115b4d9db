"""One request to a model's server, one reply, exact bytes, no retries of its own.

The OpenAI SDK carries the request (connection pool, proxies, TLS); its retries are off and its response models are not used. A
retry is a new attempt with a new request id, started and recorded by our own layer.
"""

from __future__ import annotations

import asyncio
import json
import time
import weakref
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from osworld_rollouts.serving.errors import ModelCallError, is_overflow
from osworld_rollouts.serving.media import with_images
from osworld_rollouts.serving.secrets import public_headers, redact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from openai import AsyncOpenAI

    from osworld_rollouts.contracts.model import Api, ModelRequest
    from osworld_rollouts.contracts.request import Model

_CONNECT_S: Final = 10.0
_ANTHROPIC_VERSION: Final = "2023-06-01"  # the only published version of the Messages API
_NO_KEY: Final = "none"
_SHOWN_BODY: Final = 400  # characters of a server's error in a message

# httpx exceptions that come before a server can have read the whole request.
_BEFORE_SENDING: Final = frozenset(
    {"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "ProxyError"}
)

_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], AsyncOpenAI]] = (
    weakref.WeakKeyDictionary()
)


@dataclass(frozen=True)
class RawReply:
    """A reply as received. `body` holds the exact bytes (after content decoding); latency is from sending to the last byte."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    latency_ms: int = 0
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    request_id: str = ""


def shared_client(base_url: str, api_key: str | None) -> AsyncOpenAI:
    """The client of this event loop for a server and a key: one connection pool however many calls run."""
    from openai import AsyncOpenAI  # noqa: PLC0415 - a heavy import that exporters do not need

    loop_clients = _clients.setdefault(asyncio.get_running_loop(), {})
    place = (base_url, api_key or "")
    if place not in loop_clients:
        loop_clients[place] = AsyncOpenAI(base_url=base_url, api_key=api_key or _NO_KEY, max_retries=0)
    return loop_clients[place]


async def close_clients() -> None:
    """Close this event loop's connections."""
    for client in _clients.pop(asyncio.get_running_loop(), {}).values():
        await client.close()


def endpoint(base_url: str, api: Api) -> str:
    """Where requests of an API go. vLLM's token endpoint stands at the server's root, beside `/v1`."""
    base = base_url.rstrip("/")
    match api:
        case "chat_completions":
            return f"{base}/chat/completions"
        case "responses":
            return f"{base}/responses"
        case "messages":
            return f"{base}/messages"
        case "generate":
            return f"{base.removesuffix('/v1')}/inference/v1/generate"


async def send(
    request: ModelRequest,
    model: Model,
    *,
    request_id: str,
    api_key: str | None,
    load: Callable[[str], bytes],
    headers: Mapping[str, str] | None = None,
) -> RawReply:
    """Send one request once.

    Args:
        request: with images as `media://<sha256>`.
        model: whose `base_url` and `timeout_s` (for the whole exchange, connecting included) are used.
        request_id: fresh for each attempt; sent as X-Request-Id, which vLLM makes part of its response id.
        api_key: None for a server that needs none.
        load: bytes of an image by sha256; called in a thread.
        headers: further headers, such as X-Execution-Id and X-Turn for the server's own log.

    Raises:
        ModelCallError: anything but a JSON object with status 200.
        EvidenceError: an image could not be loaded.
    """
    content = await asyncio.to_thread(lambda: _encode(with_images(request, load)))
    return await post(
        endpoint(model.base_url, request.api),
        content,
        base_url=model.base_url,
        api_key=api_key,
        timeout_s=model.timeout_s,
        request_id=request_id,
        anthropic=request.api == "messages",
        extra_headers={**request.headers, **(headers or {})},
    )


async def post(
    url: str,
    content: bytes,
    *,
    base_url: str,
    api_key: str | None,
    timeout_s: float,
    request_id: str,
    anthropic: bool = False,
    extra_headers: Mapping[str, str] | None = None,
) -> RawReply:
    """Post JSON bytes once and read the whole reply. Raises as `send`."""
    import openai  # noqa: PLC0415 - as above

    client = shared_client(base_url, api_key)
    sent_headers: dict[str, Any] = {
        **(extra_headers or {}),
        "X-Request-Id": request_id,
        "Content-Type": "application/json",
        "X-Stainless-Raw-Response": "stream",  # the SDK then hands out the response before it is read
    }
    if api_key is None or anthropic:
        sent_headers["Authorization"] = openai.Omit()
    if anthropic:
        sent_headers |= {"anthropic-version": _ANTHROPIC_VERSION, **({"x-api-key": api_key} if api_key else {})}
    received = bytearray()
    started_at, started = datetime.now(UTC), time.perf_counter()
    status: int | None = None
    try:
        async with asyncio.timeout(timeout_s):
            raw = await client.post(
                url,
                cast_to=cast("type[Any]", object),
                content=content,
                options={
                    "headers": sent_headers,
                    "timeout": openai.Timeout(timeout_s, connect=min(_CONNECT_S, timeout_s)),
                    "max_retries": 0,
                    "follow_redirects": False,
                },
            )
            response = raw.http_response
            status = response.status_code
            try:
                async for chunk in response.aiter_bytes():
                    received += chunk
            finally:
                await response.aclose()
    except openai.APIStatusError as error:
        body = await _error_body(error)
        raise status_error(error.status_code, body, dict(error.response.headers), url, api_key) from None
    except TimeoutError:
        raise _timeout(url, timeout_s, status, bytes(received)) from None
    except openai.APITimeoutError as error:
        if type(error.__cause__).__name__ in _BEFORE_SENDING:
            raise _unreachable(url, error.__cause__) from None
        raise _timeout(url, timeout_s, status, bytes(received)) from None
    except openai.APIConnectionError as error:
        cause = error.__cause__ or error
        if type(cause).__name__ in _BEFORE_SENDING:
            raise _unreachable(url, cause) from None
        raise _cut(url, cause, status, bytes(received)) from None
    except openai.OpenAIError as error:
        raise ModelCallError(
            "rejected", f"the request to {_place(url)} could not be built: {redact(str(error), api_key)}"
        ) from None
    except Exception as error:
        if type(error).__module__.split(".", 1)[0] not in {"httpx", "httpx2", "httpcore", "httpcore2"}:
            raise
        if type(error).__name__.endswith("Timeout"):
            raise _timeout(url, timeout_s, status, bytes(received)) from None
        raise _cut(url, error, status, bytes(received)) from None
    latency_ms = round((time.perf_counter() - started) * 1000)
    reply = RawReply(
        response.status_code,
        bytes(received),
        public_headers(dict(response.headers)),
        latency_ms,
        started_at,
        request_id,
    )
    _expect_object(reply, url, api_key)
    return reply


async def get_json(url: str, *, base_url: str, api_key: str | None, timeout_s: float = 10) -> Any:
    """The JSON behind a GET of the same server; None when there is none. Raises ModelCallError when nobody answers there."""
    import openai  # noqa: PLC0415 - as above

    headers: dict[str, Any] = {} if api_key else {"Authorization": openai.Omit()}
    options: Any = {"headers": headers, "timeout": timeout_s, "max_retries": 0, "follow_redirects": False}
    try:
        return await shared_client(base_url, api_key).get(url, cast_to=object, options=options)
    except openai.APIStatusError:
        return None
    except (openai.APIConnectionError, openai.APITimeoutError) as error:
        raise _unreachable(url, error.__cause__ or error) from None
    except (openai.OpenAIError, ValueError):
        return None


def status_error(status: int, body: bytes, headers: dict[str, str], url: str, api_key: str | None) -> ModelCallError:
    """The error that a non-200 reply amounts to."""
    said = redact(_message(body), api_key)
    where = f"{_place(url)} answered {status}"
    retry_after = _retry_after({name.lower(): value for name, value in headers.items()})
    if is_overflow(status, body.decode("utf-8", "replace")):
        return ModelCallError(
            "context_overflow",
            f"{where}: {said}",
            status=status,
            body=body,
            remedy="send fewer screenshots or a shorter history",
        )
    if status == 429:
        return ModelCallError(
            "rate_limited", f"{where}: {said}", status=status, body=body, retry_after=retry_after,
            remedy="lower the campaign's concurrency or raise the endpoint's limit",
        )  # fmt: skip
    if status in {408, 504}:
        return ModelCallError(
            "timeout", f"{where}: {said}", status=status, body=body, retry_after=retry_after, sample_may_exist=True,
            remedy="raise the gateway's time limit above the time a reply takes",
        )  # fmt: skip
    if status >= 500:
        return ModelCallError(
            "server_error", f"{where}: {said}", status=status, body=body, retry_after=retry_after, sample_may_exist=True,
            remedy="look at the server's log",
        )  # fmt: skip
    remedies = {
        401: "check the key in the variable that model.api_key_env names",
        403: "the key or the server's options do not allow this request",
        404: "check model.base_url (usually ending in /v1) and model.name against GET /v1/models",
        413: "the request is too large for a proxy before the server: raise its body limit or send fewer screenshots",
        422: "the server does not know a field of the request; see model.extra_body and evidence",
    }
    remedy = remedies.get(
        status, "check model.base_url" if status < 400 else "the server refuses the request as it is; see its message"
    )
    return ModelCallError("rejected", f"{where}: {said}", status=status, body=body, remedy=remedy)


def _encode(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


async def _error_body(error: Any) -> bytes:
    try:
        return bytes(error.response.content)
    except Exception:  # noqa: BLE001 - an unread or cut error body leaves the status, which decides
        return b""


def _expect_object(reply: RawReply, url: str, api_key: str | None) -> None:
    """A reply that cannot be one is an error of this attempt, not of the policy."""
    try:
        value = json.loads(reply.body)
    except ValueError:
        shown = redact(reply.body[:_SHOWN_BODY].decode("utf-8", "replace"), api_key)
        raise ModelCallError(
            "unreadable", f"{_place(url)} answered {reply.status} with {len(reply.body)} bytes that are not JSON: {shown!r}",
            status=reply.status, body=reply.body, sample_may_exist=True, remedy="check that model.base_url is the model's API and no page of a proxy",
        ) from None  # fmt: skip
    if not isinstance(value, dict):
        raise ModelCallError(
            "unreadable", f"{_place(url)} answered with a JSON {type(value).__name__}, expected an object",
            status=reply.status, body=reply.body, sample_may_exist=True, remedy="check model.base_url",
        )  # fmt: skip
    failed = cast("dict[str, Any]", value).get("error")
    if failed:  # Responses have "error": null; some gateways answer 200 with an error inside
        inner = cast("dict[str, Any]", failed).get("code") if isinstance(failed, dict) else None
        raise status_error(
            inner if isinstance(inner, int) and 400 <= inner < 600 else 502, reply.body, reply.headers, url, api_key
        )


def _message(body: bytes) -> str:
    text = body.decode("utf-8", "replace")
    try:
        value = json.loads(text)
        for key in ("error", "detail", "message"):
            if isinstance(value, dict) and key in value:
                inner: Any = value[key]
                text = str(inner.get("message") or inner) if isinstance(inner, dict) else str(inner)
                break
    except ValueError:
        pass
    text = " ".join(text.split())
    return (text[:_SHOWN_BODY] + "…" if len(text) > _SHOWN_BODY else text) or "no message"


def _retry_after(headers: dict[str, str]) -> float | None:
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        return max(0.0, float(headers["retry-after"]))
    except (KeyError, ValueError):
        return None  # an HTTP date is not worth a clock comparison


def _place(url: str) -> str:
    """The URL without user, password and query."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"


def _unreachable(url: str, cause: object) -> ModelCallError:
    return ModelCallError(
        "unreachable", f"{_place(url)} cannot be reached: {type(cause).__name__}: {cause}",
        remedy="check that the model is served there and that this worker may connect to it",
    )  # fmt: skip


def _timeout(url: str, timeout_s: float, status: int | None, body: bytes) -> ModelCallError:
    return ModelCallError(
        "timeout", f"{_place(url)} gave no whole reply within {timeout_s:g} s ({len(body)} bytes arrived)", status=status, body=body,
        sample_may_exist=True, remedy="raise model.timeout_s above the time a reply takes, or serve the model with more capacity",
    )  # fmt: skip


def _cut(url: str, cause: object, status: int | None, body: bytes) -> ModelCallError:
    return ModelCallError(
        "cut", f"the connection to {_place(url)} ended before the reply was whole ({len(body)} bytes arrived): {type(cause).__name__}: {cause}",
        status=status, body=body, sample_may_exist=True, remedy="look at the server and at proxies between here and there",
    )  # fmt: skip
