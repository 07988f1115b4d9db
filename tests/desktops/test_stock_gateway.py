"""The gateway over a stock guest that loses replies: what desktop-env repeats happens once, by the guest's own count."""

from __future__ import annotations

import json

import aiohttp
import pytest

from osworld_rollouts.desktops.stock_guest import StockGuestClient
from osworld_rollouts.osworld.gateway import Gateway
from osworld_rollouts.osworld.job import GuestEndpoint, StockLedger
from osworld_rollouts.osworld.operations import OperationNames
from osworld_rollouts.osworld.verdicts import Phase, Step
from tests.desktops import rig
from tests.desktops.stock import machine

pytestmark = pytest.mark.desktop


@pytest.fixture(scope="module")
async def stock(desktop):
    async with machine(desktop) as found:
        yield found


@pytest.fixture
async def endpoint(stock):
    stock.drop = lambda _request: False
    lease = rig.new_lease()
    guest = GuestEndpoint(
        host="127.0.0.1",
        server_port=stock.server_port,
        chromium_port=stock.chromium_port,
        vlc_port=stock.vlc_port,
        stock=StockLedger(lease, stock.inner_port),
    )
    async with StockGuestClient(lease_id=lease, base_url=guest.base_url, inner_port=stock.inner_port) as client:
        await client.open()
        yield guest
        await client.close_ledger()


@pytest.fixture
async def gateway(endpoint):
    async with Gateway(endpoint, Phase.SETUP, OperationNames("x/setup", 0), fence=1) as found:
        found.begin_step(Step(1, "execute"))
        yield found


async def as_desktop_env(gateway: Gateway, path: str, *, times: int = 3, **body) -> tuple[int, bytes]:
    """One request as the package makes it: repeated up to three times unless the answer is 200."""
    reply = 0, b""
    for _ in range(times):
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://127.0.0.1:{gateway.server_port}{path}", **body) as answer,
        ):
            reply = answer.status, await answer.read()
        if reply[0] == 200:
            break
    return reply


def drop_each_first(stock, what: bytes) -> None:
    """Lose the first reply to every second request that contains `what`."""
    seen: list[bytes] = []

    def drop(request: bytes) -> bool:
        if what not in request:
            return False
        seen.append(request)
        return len(seen) % 2 == 1

    stock.drop = drop


@pytest.mark.parametrize("path", ["/execute", "/setup/execute"])
async def test_commands_with_lost_replies_run_once(gateway, stock, path):
    name = "gateway" + path.replace("/", "-")
    drop_each_first(stock, b'do\\": \\"run')
    for number in range(3):
        status, body = await as_desktop_env(
            gateway, path, json={"command": f"echo {number} >> ~/{name}; echo {number}", "shell": True}
        )
        assert status == 200
        assert json.loads(body)["output"] == f"{number}\n"
    assert (stock.home / name).read_text().split() == ["0", "1", "2"]
    assert stock.dropped >= 3
    assert [exchange.replayed for exchange in gateway.exchanges] == [True] * 3
    assert not gateway.failure.done()


async def test_without_the_gateway_the_same_lost_replies_run_it_three_times(endpoint, stock):
    """The control: what the package does to an unmodified server by itself, by the same count."""
    stock.drop = lambda request: b"unprotected" in request
    for _ in range(3):
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.post(
                    f"{endpoint.base_url}/execute", json={"command": "echo once >> ~/unprotected", "shell": True}
                )
    assert (stock.home / "unprotected").read_text().split() == ["once"] * 3


async def test_a_command_that_fails_is_sent_once_however_often_the_package_asks(gateway, stock):
    """A missing program is a 500, which the package repeats."""
    status, body = await as_desktop_env(gateway, "/execute", json={"command": ["no-such-program"]})
    assert status == 500
    assert "no-such-program" in json.loads(body)["message"]
    assert len({exchange.operation_id for exchange in gateway.exchanges}) == 1


async def test_launch_with_a_lost_reply_starts_one_program(gateway, stock):
    before = stock.effects("/setup/launch")
    drop_each_first(stock, b'do\\": \\"post')
    status, body = await as_desktop_env(
        gateway, "/setup/launch", json={"command": ["sh", "-c", "echo once >> ~/gateway-launch"]}
    )
    assert (status, b"launched successfully" in body) == (200, True)
    assert stock.effects("/setup/launch") == before + 1
    assert (stock.home / "gateway-launch").read_text().split() == ["once"]


async def test_an_upload_with_a_lost_reply_is_the_same_file(gateway, stock):
    drop_each_first(stock, b"/setup/upload")
    form = aiohttp.FormData()
    form.add_field("file_path", "/tmp/gateway-upload")
    form.add_field("file_data", b"content", filename="x")
    status, _ = await as_desktop_env(gateway, "/setup/upload", data=form, times=1)
    assert status == 200
    assert gateway.exchanges[0].attempts == 2
    status, body = await as_desktop_env(gateway, "/file", data={"file_path": "/tmp/gateway-upload"})
    assert body == b"content"


async def test_a_form_nobody_knows_is_sent_once_and_indeterminate(gateway, stock):
    stock.drop = lambda request: b"POST /wallpaper_form" in request
    before = stock.effects("/wallpaper_form")
    status, _ = await as_desktop_env(gateway, "/wallpaper_form", data={"a": "b"}, times=1)
    assert status == 502
    assert stock.effects("/wallpaper_form") == before + 1
    assert gateway.failure.result().kind == "indeterminate"


async def test_an_effect_cut_short_in_the_guest_is_indeterminate(gateway, stock):
    command = {"command": "echo once >> ~/gateway-cut; kill -9 $PPID", "shell": True}
    status, _ = await as_desktop_env(gateway, "/execute", json=command)
    assert status == 409
    assert (stock.home / "gateway-cut").read_text().split() == ["once"]
    assert gateway.failure.result().kind == "indeterminate"


async def test_a_stale_fence_is_refused(endpoint, stock):
    async with Gateway(endpoint, Phase.SETUP, OperationNames("x/setup", 0), fence=2) as new:
        await as_desktop_env(new, "/execute", json={"command": ["true"]})
    async with Gateway(endpoint, Phase.SETUP, OperationNames("y/setup", 5), fence=1) as old:
        status, _ = await as_desktop_env(old, "/execute", json={"command": ["touch", "~/gateway-stale"]}, times=1)
        assert status == 409
        assert old.failure.result().kind == "refused"
        assert (await old.ask("/health"))["last_seq"] == 0
    assert not (stock.home / "gateway-stale").exists()
