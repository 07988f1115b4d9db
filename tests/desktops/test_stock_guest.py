"""The ledger kept from outside, on a real desktop behind an OSWorld server as one finds it."""

from __future__ import annotations

import ast
import asyncio
import json
from importlib import resources

import pytest

from osworld_rollouts.desktops import stock_guest
from osworld_rollouts.desktops.guest_client import GuestRefused, Operation, ReplyLost
from osworld_rollouts.desktops.stock_guest import StockGuestClient, lease_key, wrapped
from tests.desktops import rig
from tests.desktops.stock import machine

pytestmark = pytest.mark.desktop
SERVER_TIMEOUT_S = 6.0


@pytest.fixture(scope="module")
async def stock(desktop):
    async with machine(desktop, timeout=SERVER_TIMEOUT_S) as found:
        yield found


@pytest.fixture
async def lease():
    return rig.new_lease()


@pytest.fixture
async def client(stock, lease):
    stock.drop = lambda _request: False
    url = f"http://127.0.0.1:{stock.server_port}"
    async with StockGuestClient(lease_id=lease, base_url=url, inner_port=stock.inner_port) as found:
        await found.open()
        yield found
        await found.close_ledger()


def mark(stock, name: str) -> tuple[list[str], object]:
    """A command that leaves one line for each time it ran, and the counter of those lines on this side."""
    path = stock.home / name
    return (
        ["sh", "-c", f"echo once >> ~/{name}; echo out; echo err >&2; exit 3"],
        lambda: path.read_text().count("once") if path.exists() else 0,
    )


async def test_an_effect_happens_and_is_recorded(client, stock):
    words, count = mark(stock, "plain")
    result = await client.execute(words, operation=Operation("x/o0", 0, 1))
    assert (result.output, result.error, result.returncode, result.replayed) == ("out\n", "err\n", 3, False)
    status = await client.operation("x/o0")
    assert (status.state, status.seq, status.fence, status.returncode) == ("finished", 0, 1, 3)
    assert json.loads(status.body)["output"] == "out\n"
    assert status.started_at <= status.finished_at
    assert count() == 1


async def test_a_repeat_returns_the_recorded_result_and_never_runs_again(client, stock):
    words, count = mark(stock, "repeat")
    await client.execute(words, operation=Operation("x/o0", 0, 1))
    again = await client.execute(words, operation=Operation("x/o0", 0, 1))
    assert (again.output, again.returncode, again.replayed) == ("out\n", 3, True)
    assert count() == 1


async def test_ten_at_once_run_once(client, stock):
    words, count = mark(stock, "ten")
    results = await asyncio.gather(*(client.execute(words, operation=Operation("x/o0", 0, 1)) for _ in range(10)))
    assert sorted(result.replayed for result in results) == [False] + [True] * 9
    assert {result.output for result in results} == {"out\n"}
    assert count() == 1


async def test_a_dropped_reply_is_found_in_the_ledger(client, stock):
    words, count = mark(stock, "dropped")
    stock.drop = lambda request: b'"do\\": \\"run' in request
    before = stock.dropped
    with pytest.raises(ReplyLost):
        await client.execute(words, operation=Operation("x/o0", 0, 1))
    assert stock.dropped == before + 1
    assert (await client.operation("x/o0")).returncode == 3
    stock.drop = lambda _request: False
    assert (await client.execute(words, operation=Operation("x/o0", 0, 1))).replayed
    assert count() == 1


async def test_what_never_arrived_is_absent_and_may_be_sent(client, stock):
    assert await client.operation("x/o0") is None


async def test_a_killed_supervisor_leaves_interrupted_and_nothing_runs_again(client, stock):
    """The effect kills the process that would record its result: the crash between create and result."""
    path = stock.home / "killed"
    words = ["sh", "-c", "echo once >> ~/killed; kill -9 $PPID"]
    for _ in range(2):
        with pytest.raises(GuestRefused) as caught:
            await client.execute(words, operation=Operation("x/o0", 0, 1))
        assert caught.value.kind == "operation_interrupted"
    assert (await client.operation("x/o0")).state == "interrupted"
    assert path.read_text().count("once") == 1


async def test_a_torn_entry_is_interrupted_and_its_sequence_stays_taken(client, stock, lease):
    words, _ = mark(stock, "torn")
    await client.execute(words, operation=Operation("x/o0", 5, 1))
    folder = stock.home / ".osworld-rollouts/ledger" / lease_key(lease) / "ops"
    (entry,), (result,) = folder.glob("*.json"), folder.glob("*.result")
    entry.write_bytes(b'{"oper')
    result.unlink()
    with pytest.raises(GuestRefused, match="operation_interrupted"):
        await client.execute(words, operation=Operation("x/o0", 5, 1))
    with pytest.raises(GuestRefused, match="stale_sequence"):
        await client.execute(words, operation=Operation("x/o1", 5, 1))


async def test_older_sequence_stale_fence_and_another_body_are_refused(client, stock):
    words, count = mark(stock, "refused")
    await client.execute(words, operation=Operation("x/o3", 3, 2))
    for operation, kind in (
        (Operation("x/late", 2, 2), "stale_sequence"),
        (Operation("x/same", 3, 2), "stale_sequence"),
        (Operation("x/zombie", 4, 1), "stale_fence"),
    ):
        with pytest.raises(GuestRefused) as caught:
            await client.execute(words, operation=operation)
        assert (caught.value.status, caught.value.kind) == (409, kind)
        assert await client.operation(operation.operation_id) is None
    with pytest.raises(GuestRefused, match="operation_mismatch"):
        await client.execute(["true"], operation=Operation("x/o3", 3, 2))
    assert count() == 1
    assert (await client.health())["last_seq"] == 3


async def test_a_command_outlives_the_servers_time_limit(client, stock):
    """The server kills the wrapper after 6 s here (120 s in OSWorld); the effect ends in its own time and is recorded."""
    path = stock.home / "slow"
    words = ["sh", "-c", f"echo once >> ~/slow; sleep {SERVER_TIMEOUT_S + 3}; echo done"]
    running = asyncio.ensure_future(client.execute(words, operation=Operation("x/o0", 0, 1, timeout=40)))
    await asyncio.sleep(SERVER_TIMEOUT_S)
    assert (await client.operation("x/o0")).state == "running"
    assert (await running).output == "done\n"
    assert path.read_text().count("once") == 1


async def test_a_command_over_its_own_limit_is_killed_and_that_is_its_result(client):
    words = ["sh", "-c", "echo begun; sleep 60"]
    with pytest.raises(GuestRefused, match="command_timeout") as caught:
        await client.execute(words, operation=Operation("x/o0", 0, 1, timeout=1))
    assert caught.value.detail["output"] == "begun\n"
    status = await client.operation("x/o0")
    assert (status.state, status.status, status.returncode) == ("finished", 500, -9)


async def test_daemons_bytes_and_large_outputs_that_break_the_server_do_not_break_the_ledger(client):
    daemon = ["sh", "-c", "sleep 30 & echo left"]
    assert (await client.execute(daemon, operation=Operation("x/o0", 0, 1))).output == "left\n"
    odd = ["printf", r"\377\376 h\303\251\r\n"]
    assert (await client.execute(odd, operation=Operation("x/o1", 1, 1))).output == "�� hé\n"
    large = ["head", "-c", "20000000", "/dev/zero"]
    assert len((await client.execute(large, operation=Operation("x/o2", 2, 1))).output) == 20_000_000


async def test_commands_mean_what_they_mean_to_the_server(client):
    cases = [
        ({"command": "echo 'a b'  c"}, "a b c\n"),
        ({"command": 'echo $HOME ~/x; printf %s "$0"', "shell": True}, None),
        ({"command": ["echo", "~/x", "$HOME"]}, None),
        ({"command": ["no-such-program"]}, None),
        ({"command": ["echo", "héllo ☃ '\""]}, "héllo ☃ '\"\n"),
    ]
    for number, (body, expected) in enumerate(cases):
        data = json.dumps(body).encode()
        plain = await client.request("POST", "/execute", data=data, headers={"Content-Type": "application/json"})
        ours = await client.perform("/execute", data, Operation(f"x/o{number}", number, 1))
        assert (ours.status, json.loads(ours.body)) == (plain.status, json.loads(plain.body))
        assert expected is None or json.loads(ours.body)["output"] == expected


@pytest.mark.parametrize("command", ["unclosed 'quote", [], "", ["null\0byte"], ["x" * 140_000]])
async def test_what_is_no_command_is_refused_before_anything_is_sent(client, stock, command):
    sent = len(stock.requests)
    with pytest.raises(GuestRefused, match="bad_request"):
        await client.execute(command, operation=Operation("x/o0", 0, 1))
    assert len(stock.requests) == sent


async def test_the_servers_own_endpoints_are_asked_once_from_inside(client, stock):
    before = stock.effects("/setup/launch")
    parameters = {"command": ["sh", "-c", "echo once >> ~/launched"]}
    for replayed in (False, True):
        reply = await client.setup("launch", parameters, operation=Operation("x/o0", 0, 1))
        assert (reply.status, reply.replayed) == (200, replayed)
        assert b"launched successfully" in reply.body
    assert stock.effects("/setup/launch") == before + 1
    with pytest.raises(GuestRefused) as caught:
        await client.setup("activate_window", {"window_name": "nothing"}, operation=Operation("x/o1", 1, 1, timeout=30))
    assert caught.value.status == 404
    assert (await client.operation("x/o1")).status == 404


async def test_another_lease_and_a_reset_machine_are_refused_never_absent(client, stock):
    words, count = mark(stock, "leases")
    await client.execute(words, operation=Operation("x/o0", 0, 1))
    url = f"http://127.0.0.1:{stock.server_port}"
    async with StockGuestClient(lease_id="other", base_url=url, inner_port=stock.inner_port) as other:
        with pytest.raises(GuestRefused, match="machine_leased"):
            await other.open()
        with pytest.raises(GuestRefused, match="stale_fence"):
            await other.execute(words, operation=Operation("y/o0", 0, 1))
    folder = stock.home / ".osworld-rollouts"
    folder.rename(folder.with_name("elsewhere"))
    try:
        with pytest.raises(GuestRefused, match="reset"):
            await client.operation("x/o0")
        with pytest.raises(GuestRefused, match="reset"):
            await client.execute(words, operation=Operation("x/o1", 1, 1))
    finally:
        folder.with_name("elsewhere").rename(folder)
    assert count() == 1


async def test_reads_and_files_are_plain(client, stock):
    assert (await client.screenshot()).startswith(b"\x89PNG")
    await client.write_file("/tmp/attached.txt", b"abc")
    assert await client.read_file("/tmp/attached.txt") == b"abc"
    health = await client.health()
    assert health["ready"]
    assert health["screen"] == {"width": 1920, "height": 1080}
    headers = b"".join(request.split(b"\r\n\r\n")[0].lower() for request in stock.requests)
    assert b"x-operation" not in headers
    assert b"authorization" not in headers


def test_the_wrapper_is_python_3_8_and_fits_into_one_argument():
    source = resources.files("osworld_rollouts.desktops").joinpath("stock_wrapper.py").read_text()
    ast.parse(source, feature_version=(3, 8))
    assert len(stock_guest._wrapper()) < 16_000


def test_forms_are_not_wrapped():
    assert wrapped("/setup/open_file", "application/json")
    assert wrapped("/start_recording", "")
    assert not wrapped("/setup/upload", "multipart/form-data; boundary=x")
