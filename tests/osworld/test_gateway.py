"""The gateway by itself: what it adds, what it forwards, and Chrome's DevTools through it."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest
from yarl import URL

from osworld_rollouts.osworld.gateway import Gateway, GatewayLimits
from osworld_rollouts.osworld.job import GuestEndpoint
from osworld_rollouts.osworld.operations import OperationNames
from osworld_rollouts.osworld.verdicts import Phase, Step
from tests.osworld.conftest import QUICK


@pytest.fixture
async def gateway(server):
    guest = GuestEndpoint(host="127.0.0.1", server_port=server.port, token=server.token)
    async with Gateway(guest, Phase.SETUP, OperationNames("x/setup", 0), fence=7, limits=QUICK) as found:
        yield found


async def post(gateway: Gateway, path: str, body: dict | None = None, **how) -> tuple[int, bytes]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{gateway.server_port}{path}", json=body or {}, **how) as reply,
    ):
        return reply.status, await reply.read()


async def test_effects_carry_their_operation_and_reads_do_not(gateway, server):
    gateway.begin_step(Step(1, "execute"))
    await post(gateway, "/setup/execute", {"command": ["a"]})
    await post(gateway, "/file")
    first, second = server.requests
    assert {name: first.headers[name] for name in ("x-operation-id", "x-operation-seq", "x-lease-fence")} == {
        "x-operation-id": "x/setup/o0", "x-operation-seq": "0", "x-lease-fence": "7",
    }  # fmt: skip
    assert first.headers["x-operation-timeout"] == "2"
    assert first.json == {"command": ["a"]}
    assert not [name for name in second.headers if name.startswith("x-")]
    assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {server.token}"}


async def test_the_package_cannot_pass_operation_headers_of_its_own(gateway, server):
    await post(gateway, "/file", headers={"X-Operation-Id": "mine", "Authorization": "Bearer mine"})
    assert server.requests[0].operation_id is None
    assert server.requests[0].headers["authorization"] == f"Bearer {server.token}"


async def test_an_inner_retry_is_the_same_operation(gateway, server):
    """desktop-env sends again what was answered with an error; the ledger answers it with what is recorded."""
    server.answer("/execute", lambda _: (500, "application/json", b'{"status": "error"}'))
    gateway.begin_step(Step(1, "execute"))
    for _ in range(3):
        assert (await post(gateway, "/execute", {"command": ["type", "x"]}))[0] == 500
    assert len(server.effects) == 1
    assert [exchange.operation_id for exchange in gateway.exchanges] == ["x/setup/o0"] * 3
    assert [exchange.replayed for exchange in gateway.exchanges] == [False, True, True]


async def test_an_inner_retry_happens_once_without_a_ledger_too(server):
    server.ledger = False
    server.answer("/execute", lambda _: (500, "application/json", b'{"status": "error"}'))
    guest = GuestEndpoint(host="127.0.0.1", server_port=server.port, token=server.token, ledger=False)
    async with Gateway(guest, Phase.SETUP, OperationNames("x", 0), fence=1, limits=QUICK) as gateway:
        for _ in range(3):
            assert await post(gateway, "/execute", {"command": ["type", "x"]}) == (500, b'{"status": "error"}')
    assert len(server.effects) == 1


async def test_an_equal_request_after_a_delivered_reply_is_a_new_operation(gateway, server):
    gateway.begin_step(Step(1, "execute"))
    for _ in range(2):
        await post(gateway, "/execute", {"command": ["x"]})
    assert len(server.effects) == 2


async def test_a_client_that_gave_up_gets_the_same_operation_again(gateway, server):
    """desktop-env gives up after 90 s; what it asked for then is still one operation."""
    gateway.begin_step(Step(1, "execute"))
    started = asyncio.Event()

    def slow(_request):
        started.set()
        return 200, "application/json", b"{}"

    server.answer("/execute", slow)
    server.fail("/execute", "hang_after", times=1)
    with pytest.raises(TimeoutError):
        await post(gateway, "/execute", {"command": ["x"]}, timeout=aiohttp.ClientTimeout(total=0.3))
    assert (await post(gateway, "/execute", {"command": ["x"]}))[0] == 200
    assert len(server.effects) == 1


async def test_large_bodies_pass(gateway, server):
    body = b"x" * 20_000_000
    server.answer("/file", lambda request: (200, "application/octet-stream", request.body))
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{gateway.server_port}/file", data=body) as reply,
    ):
        assert await reply.read() == body


async def test_odd_paths_and_queries_pass_unchanged(gateway, server):
    async with (
        aiohttp.ClientSession() as session,
        session.get(URL(f"http://127.0.0.1:{gateway.server_port}/a%20b?c=d%2Fe", encoded=True)),
    ):
        pass
    assert server.requests[0].path == "/a%20b?c=d%2Fe"


async def test_it_listens_on_loopback_only_and_stops(server):
    guest = GuestEndpoint(host="127.0.0.1", server_port=server.port, token=server.token)
    async with Gateway(guest, Phase.SETUP, OperationNames("x", 0), fence=1) as gateway:
        assert gateway._runner.addresses[0][0] == "127.0.0.1"
        ports = [gateway.server_port, gateway.chromium_port, gateway.vlc_port]
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


async def test_a_port_the_desktop_does_not_offer_is_closed_and_counted(gateway):
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.vlc_port)
    assert await reader.read() == b""
    writer.close()
    assert gateway.forwards_refused == 1


def test_limits_cover_the_guests_own():
    limits = GatewayLimits()
    for path in ("/execute", "/setup/launch", "/setup/open_file", "/setup/upload", "/setup/activate_window"):
        assert limits.call_s(Phase.SETUP, "POST", path) > limits.guest_s(Phase.SETUP, path)


@pytest.mark.desktop
async def test_chrome_is_driven_through_the_forwarder(desktop, tmp_path):
    """Chrome names its WebSocket by the Host header, so plain bytes are enough for playwright."""
    playwright = pytest.importorskip("playwright.async_api", reason="the evaluator extra is not installed")
    async with Gateway(GuestEndpoint.of(desktop), Phase.SETUP, OperationNames("t/setup", 0), fence=1) as gateway:
        gateway.begin_step(Step(1, "launch"))
        await post(gateway, "/setup/launch", {"command": ["google-chrome", "--remote-debugging-port=1337"]})
        await post(gateway, "/setup/launch", {"command": ["socat", "tcp-listen:9222,fork", "tcp:localhost:1337"]})
        url = f"http://127.0.0.1:{gateway.chromium_port}"
        async with playwright.async_playwright() as driver:
            for attempt in range(30):
                try:
                    browser = await driver.chromium.connect_over_cdp(url)
                    break
                except playwright.Error:
                    assert attempt < 29
                    await asyncio.sleep(0.5)
            page = await browser.contexts[0].new_page()
            await page.goto("data:text/html,<title>through the gateway</title>")
            assert await page.title() == "through the gateway"
            async with aiohttp.ClientSession() as session, session.get(f"{url}/json/version") as reply:
                assert f":{gateway.chromium_port}/" in json.loads(await reply.text())["webSocketDebuggerUrl"]
            await browser.close()
