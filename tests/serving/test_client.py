"""What is paid, what is seen and what may have been lost, for everything that can happen to a reply on its way."""

from __future__ import annotations

import asyncio
import base64
import json
import time

import pytest

from osworld_rollouts.contracts.desktop import MediaRef
from osworld_rollouts.contracts.model import ModelRequest
from osworld_rollouts.contracts.request import Model
from osworld_rollouts.evidence import open_store
from osworld_rollouts.evidence.errors import BlobMissing
from osworld_rollouts.evidence.media import put_screenshot
from osworld_rollouts.serving.client import close_clients, endpoint, send, shared_client
from osworld_rollouts.serving.errors import ModelCallError, is_overflow
from osworld_rollouts.serving.media import media_reference, references
from tests.evidence.builders import png
from tests.serving.fault_proxy import FaultProxy, Faults, SmallServer

REPLY = json.dumps(
    {"id": "c1", "model": "m", "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]}
).encode()
KEY = "sk-very-secret-0123456789"


@pytest.fixture(autouse=True)
async def closed():
    yield
    await close_clients()


@pytest.fixture
def store(tmp_path):
    return open_store(tmp_path)


def request_of(**body) -> ModelRequest:
    return ModelRequest(api="chat_completions", body={"model": "m", "messages": [], **body})


async def call(base_url, request=None, *, timeout_s=5.0, key=None, load=None, request_id="rid1", headers=None):
    model = Model(name="m", base_url=base_url, timeout_s=timeout_s)
    return await send(
        request or request_of(),
        model,
        request_id=request_id,
        api_key=key,
        load=load or (lambda sha: b""),
        headers=headers,
    )


async def fails(*args, **kwargs) -> ModelCallError:
    with pytest.raises(ModelCallError) as caught:
        await call(*args, **kwargs)
    return caught.value


async def test_bytes_come_back_exactly_as_sent():
    body = b'{"a" : 1.10, "model":"m",\n "choices":[]}'
    async with SmallServer(body, headers=b"X-Request-Id: seen\r\nSet-Cookie: secret=1\r\n") as server:
        reply = await call(server.base_url, headers={"X-Turn": "3"})
        assert reply.body == body
        assert (reply.status, reply.request_id) == (200, "rid1")
        assert reply.headers["x-request-id"] == "seen"
        assert "set-cookie" not in reply.headers
        line, headers, _ = server.requests[0]
        assert line == b"POST /v1/chat/completions HTTP/1.1"
        assert (headers["x-request-id"], headers["x-turn"]) == ("rid1", "3")
        assert headers["x-stainless-retry-count"] == "0"
        assert "authorization" not in headers


async def test_keys_go_where_their_api_wants_them():
    async with SmallServer(REPLY) as server:
        await call(server.base_url, key=KEY)
        assert server.requests[0][1]["authorization"] == f"Bearer {KEY}"
        await call(server.base_url, ModelRequest(api="messages", body={"model": "m"}), key=KEY)
        line, headers, _ = server.requests[1]
        assert line == b"POST /v1/messages HTTP/1.1"
        assert headers["x-api-key"] == KEY
        assert headers["anthropic-version"] == "2023-06-01"
        assert "authorization" not in headers


@pytest.mark.parametrize(
    ("api", "expected"),
    [
        ("chat_completions", "http://h/v1/chat/completions"),
        ("responses", "http://h/v1/responses"),
        ("messages", "http://h/v1/messages"),
        ("generate", "http://h/inference/v1/generate"),
    ],
)
def test_endpoints(api, expected):
    assert endpoint("http://h/v1/", api) == expected


async def test_images_are_sent_with_their_exact_bytes_and_key_order_is_kept(store):
    first, second = put_screenshot(store, png(mark=1)), put_screenshot(store, png(mark=9))
    body = {
        "model": "m",
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": media_reference(first.sha256)},
                {"type": "image_url", "image_url": {"url": media_reference(second.sha256), "detail": "high"}},
                {"type": "input_image", "image_url": media_reference(first.sha256)},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": media_reference(first.sha256)}},
            ]}
        ],
        "tools": [{"type": "function", "function": {"name": "z", "a": 1}}],
        "b": 1,
        "a": 2,
    }  # fmt: skip
    request = ModelRequest(api="chat_completions", body=body, media=(second, first))
    assert references(request.body) == [second.sha256, first.sha256, first.sha256]
    async with SmallServer(REPLY) as server:
        await call(server.base_url, request, load=store.get)
        sent = server.sent_bodies[0]
    text, image, item, source = sent["messages"][0]["content"]
    assert text["text"] == media_reference(first.sha256), "a text that looks like a reference stays text"
    assert image["image_url"] == {
        "url": "data:image/png;base64," + base64.b64encode(png(mark=9)).decode(),
        "detail": "high",
    }
    assert item["image_url"] == "data:image/png;base64," + base64.b64encode(png(mark=1)).decode()
    assert base64.b64decode(source["source"]["data"]) == png(mark=1)
    assert list(sent) == ["model", "messages", "tools", "b", "a"]


async def test_an_image_nobody_named_or_nobody_has():
    ref = MediaRef(sha256="0" * 64, pixel_sha256="0" * 64, bytes=1, width=1, height=1)
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"media://{'0' * 64}"}}]}],
    }
    async with SmallServer(REPLY) as server:
        with pytest.raises(ValueError, match="media list does not name"):
            await call(server.base_url, ModelRequest(api="chat_completions", body=body))

        def load(sha):
            raise BlobMissing(sha, "here")

        with pytest.raises(BlobMissing):
            await call(server.base_url, ModelRequest(api="chat_completions", body=body, media=(ref,)), load=load)
        assert server.requests == []


@pytest.mark.parametrize(
    ("fault", "kind", "may_exist", "retry_after"),
    [
        ("refuse_after_generation", "server_error", True, 2.0),
        ("drop", "cut", True, None),
        ("half", "cut", True, None),
        ("slow", "timeout", True, None),
        ("stall", "timeout", True, None),
    ],
)
async def test_a_reply_lost_on_its_way_is_paid_once_and_said_to_exist(fault, kind, may_exist, retry_after):
    async with SmallServer(REPLY) as server, FaultProxy("127.0.0.1", server.port, Faults([fault])) as proxy:
        error = await fails(proxy.base_url, timeout_s=1.0)
        assert (error.kind, error.sample_may_exist, error.retry_after) == (kind, may_exist, retry_after)
        assert error.remedy
        assert error.retryable
        await asyncio.sleep(0.1)
        assert len(server.requests) == 1, "no retry happened behind our back"
        if fault == "half":
            assert error.body
            assert REPLY.startswith(error.body)


async def test_the_time_limit_is_for_the_whole_reply_and_not_for_a_byte():
    async with (
        SmallServer(REPLY) as server,
        FaultProxy("127.0.0.1", server.port, Faults(["slow"], delay_s=0.05)) as proxy,
    ):
        begun = time.perf_counter()
        error = await fails(proxy.base_url, timeout_s=0.5)
        assert time.perf_counter() - begun < 2
        assert error.kind == "timeout"
        assert error.body, "what arrived is kept"


async def test_nobody_listens():
    error = await fails("http://127.0.0.1:9/v1", timeout_s=3)
    assert (error.kind, error.sample_may_exist) == ("unreachable", False)
    assert "127.0.0.1:9" in str(error)
    error = await fails("http://no-such-host.invalid/v1", timeout_s=5)
    assert (error.kind, error.sample_may_exist) == ("unreachable", False)


async def test_a_cancelled_call_closes_its_connection():
    closed = asyncio.Event()

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        while await reader.read(1000):
            pass
        closed.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    task = asyncio.ensure_future(call(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", timeout_s=60))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(closed.wait(), 5)
    server.close()


@pytest.mark.parametrize(
    ("status", "body", "kind", "may_exist", "retryable"),
    [
        (400, b'{"error":{"message":"This model\'s maximum context length is 16384 tokens. Please reduce the length of the input prompt."}}',
         "context_overflow", False, False),
        (413, b"prompt is too long", "context_overflow", False, False),
        (400, b'{"error":{"message":"Failed to load image"}}', "rejected", False, False),
        (401, b'{"error":{"message":"Incorrect API key provided: sk-very-secret-0123456789"}}', "rejected", False, False),
        (403, b"", "rejected", False, False),
        (404, b'{"error":{"message":"The model `m` does not exist."}}', "rejected", False, False),
        (413, b"<html>nginx</html>", "rejected", False, False),
        (422, b'{"detail":"Unexpected fields in the request: {\'return_token_ids\'}"}', "rejected", False, False),
        (307, b"", "rejected", False, False),
        (408, b"", "timeout", True, True),
        (429, b'{"error":{"message":"slow down"}}', "rate_limited", False, True),
        (500, b"Internal Server Error", "server_error", True, True),
        (504, b"", "timeout", True, True),
        (200, b"<html>please log in</html>", "unreadable", True, True),
        (200, b"[1]", "unreadable", True, True),
        (200, b'{"error":{"message":"model overloaded","code":503}}', "server_error", True, True),
    ],
)  # fmt: skip
async def test_kinds_of_refusal(status, body, kind, may_exist, retryable):
    async with SmallServer(body, status, headers=b"Retry-After: 7\r\nLocation: http://127.0.0.1:9/\r\n") as server:
        error = await fails(server.base_url, key=KEY)
        assert (error.kind, error.sample_may_exist, error.retryable) == (kind, may_exist, retryable)
        assert error.status == status or kind == "server_error"
        assert error.remedy
        assert KEY not in str(error)
        assert "\n" not in str(error)
        assert len(server.requests) == 1
        assert error.retry_after == (7.0 if kind in {"rate_limited", "server_error", "timeout"} else None)


def test_overflow_as_vllm_says_it(shared):
    exchange = json.loads((shared / "data" / "vllm_wire" / "20_err_too_long.json").read_text())
    assert is_overflow(exchange["status"], json.dumps(exchange["response"]))


@pytest.mark.parametrize(
    "name",
    [
        "20_err_bad_image",
        "20_err_bad_model",
        "20_err_too_many_images",
        "20_err_prompt_plus_max_too_long",
        "20_err_too_many_top_logprobs",
    ],
)
def test_other_refusals_are_no_overflow(shared, name):
    exchange = json.loads((shared / "data" / "vllm_wire" / f"{name}.json").read_text())
    assert not is_overflow(exchange["status"], json.dumps(exchange["response"]))


async def test_one_client_for_a_server_and_a_key():
    one = shared_client("http://h/v1", "k")
    assert shared_client("http://h/v1", "k") is one
    assert shared_client("http://h/v1", "other") is not one
    assert one.max_retries == 0
