"""Operations over HTTP on a real desktop: performed once, whatever is repeated, cut or killed in between."""

from __future__ import annotations

import asyncio
import itertools
import json
import time

import pytest

from osworld_rollouts.desktops.guest_client import GuestClient, GuestError, GuestRefused, Operation, ReplyLost
from tests.desktops import rig

pytestmark = pytest.mark.desktop
names = itertools.count()


@pytest.fixture
async def next_operation(guest):
    """Makes operations with growing sequence numbers."""
    seq = (await guest.health())["last_seq"]
    sequence = itertools.count(seq + 1)
    fence = (await guest.health())["fence"] or 1

    def make(**fields):
        number = next(sequence)
        return Operation(
            **{"operation_id": f"e/x1/t{number}/o{next(names)} ü", "seq": number, "fence": fence, **fields}
        )

    return make


def appending(path, sleep=0):
    return [
        "python",
        "-c",
        f"import time; f = open('{path}', 'a'); f.write('x'); f.close(); time.sleep({sleep}); print('done')",
    ]


async def test_repeat_returns_the_record_and_performs_nothing(guest, next_operation):
    operation = next_operation()
    first = await guest.execute(appending("/tmp/once"), operation=operation)
    second = await guest.execute(appending("/tmp/once"), operation=operation)
    assert (first.output, second.output) == ("done\n", "done\n")
    assert (first.replayed, second.replayed) == (False, True)
    assert await guest.read_file("/tmp/once") == b"x"


async def test_status_of_an_operation(guest, next_operation):
    operation = next_operation()
    assert await guest.operation(operation.operation_id) is None
    await guest.execute(["sh", "-c", "echo out; exit 3"], operation=operation)
    status = await guest.operation(operation.operation_id)
    assert status is not None
    assert (status.state, status.status, status.returncode, status.seq) == ("finished", 200, 3, operation.seq)
    assert json.loads(status.body or "")["output"] == "out\n"
    assert 0 <= (status.finished_at or 0) - status.started_at < 5
    listed = json.loads((await guest.ask("GET", "/operations")).body)["operations"]
    assert listed[-1]["operation_id"] == operation.operation_id


async def test_repeat_while_running_waits(guest, next_operation):
    operation = next_operation()
    first = asyncio.create_task(guest.execute(appending("/tmp/slow", 1), operation=operation))
    await asyncio.sleep(0.3)
    assert (await guest.operation(operation.operation_id)).state == "running"
    second = await guest.execute(appending("/tmp/slow", 1), operation=operation)
    assert second.replayed
    assert (await first).output == second.output
    assert await guest.read_file("/tmp/slow") == b"x"


async def test_repeat_while_running_has_a_limit(guest, next_operation):
    operation = next_operation(timeout=3)
    first = asyncio.create_task(guest.execute(["sleep", "1.5"], operation=operation))
    await asyncio.sleep(0.2)
    impatient = Operation(operation.operation_id, operation.seq, operation.fence, timeout=0.2)
    with pytest.raises(GuestRefused) as running:
        await guest.execute(["sleep", "1.5"], operation=impatient)
    assert (running.value.status, running.value.kind) == (409, "operation_running")
    await first


async def test_a_client_that_goes_away_changes_nothing(guest, next_operation):
    operation = next_operation()
    task = asyncio.create_task(guest.execute(appending("/tmp/away", 0.6), operation=operation))
    await asyncio.sleep(0.25)
    task.cancel()
    result = await guest.execute(appending("/tmp/away", 0.6), operation=operation)
    assert result.replayed
    assert await guest.read_file("/tmp/away") == b"x"


async def test_stale_sequence_and_mismatch(guest, next_operation):
    done = next_operation()
    await guest.execute(["true"], operation=done)
    for seq in (done.seq, done.seq - 1):
        with pytest.raises(GuestRefused) as refused:
            await guest.execute(["touch", "/tmp/stale"], operation=Operation("new id", seq, done.fence))
        assert (refused.value.status, refused.value.kind) == (409, "stale_sequence")
    with pytest.raises(GuestRefused) as refused:
        await guest.execute(["touch", "/tmp/stale"], operation=done)
    assert refused.value.kind == "operation_mismatch"
    assert (await guest.execute(["test", "-e", "/tmp/stale"])).returncode == 1


async def test_failed_start_is_a_finished_operation(guest, next_operation):
    operation = next_operation()
    for replayed in (False, True):
        with pytest.raises(GuestRefused) as refused:
            await guest.execute(["no-such-program"], operation=operation)
        assert (refused.value.status, refused.value.kind) == (500, "command_not_started")
        reply = await guest.request(
            "POST",
            "/execute",
            data=json.dumps({"command": ["no-such-program"], "shell": False}).encode(),
            operation=operation,
        )
        assert reply.replayed, replayed


@pytest.mark.parametrize("missing", ["X-Operation-Id", "X-Operation-Seq", "X-Lease-Fence"])
async def test_half_an_operation_is_refused(guest, next_operation, missing):
    headers = next_operation().headers()
    del headers[missing]
    reply = await guest.request("POST", "/execute", data=b'{"command": ["touch", "/tmp/half"]}', headers=headers)
    assert reply.status == 400
    assert json.loads(reply.body)["error"]["type"] == "operation_headers"
    assert (await guest.execute(["test", "-e", "/tmp/half"])).returncode == 1


async def test_upload_is_an_operation_whatever_its_boundary(guest, next_operation):
    operation = next_operation()
    await guest.write_file("/tmp/up", b"1", operation=operation)
    await guest.execute(["rm", "/tmp/up"])
    await guest.write_file("/tmp/up", b"1", operation=operation)
    assert (await guest.execute(["test", "-e", "/tmp/up"])).returncode == 1, "it was written twice"
    with pytest.raises(GuestRefused) as refused:
        await guest.write_file("/tmp/up", b"2", operation=operation)
    assert refused.value.kind == "operation_mismatch"


async def test_reading_is_no_operation(guest, next_operation):
    operation = next_operation()
    await guest.request("POST", "/screen_size", headers=operation.headers())
    assert await guest.operation(operation.operation_id) is None


@pytest.mark.parametrize("endpoint", ["run_python", "run_bash_script", "setup/launch"])
async def test_every_effect_is_covered(guest, next_operation, endpoint):
    operation = next_operation()
    path = f"/tmp/effect-{endpoint.replace('/', '-')}"
    body = {
        "run_python": {"code": f"open('{path}', 'a').write('x')"},
        "run_bash_script": {"script": f"printf x >> {path}"},
        "setup/launch": {"command": f"printf x >> {path}", "shell": True},
    }[endpoint]
    replies = [
        await guest.ask("POST", f"/{endpoint}", data=json.dumps(body).encode(), operation=operation) for _ in range(3)
    ]
    assert [reply.replayed for reply in replies] == [False, True, True]
    assert len({reply.body for reply in replies}) == 1
    await asyncio.sleep(0.2)
    assert await guest.read_file(path) == b"x"


async def test_killed_server_comes_back_and_says_interrupted():
    maker = rig.provider()
    lease = rig.new_lease()
    record = await maker.create(rig.spec(), lease, rig.owner())
    try:
        async with GuestClient.of(record) as guest:
            kept = Operation("kept", 0, 3)
            await guest.execute(appending("/tmp/kept"), operation=kept)
            cut = Operation("cut", 1, 3)
            running = asyncio.create_task(guest.execute(appending("/tmp/cut", 20), operation=cut))
            await asyncio.sleep(0.5)
            with pytest.raises(GuestError):
                await guest.execute(["pkill", "-9", "-f", "guest server"])
            with pytest.raises(ReplyLost):
                await running
            assert (await guest.wait_ready(10))["ready"]
            health = await guest.health()
            assert (health["fence"], health["last_seq"]) == (3, 1)
            assert (await guest.execute(appending("/tmp/kept"), operation=kept)).replayed
            status = await guest.operation("cut")
            assert status is not None
            assert status.state == "interrupted"
            with pytest.raises(GuestRefused) as refused:
                await guest.execute(appending("/tmp/cut", 20), operation=cut)
            assert refused.value.kind == "operation_interrupted"
            with pytest.raises(GuestRefused) as refused:
                await guest.execute(["true"], operation=Operation("old worker", 2, 2))
            assert refused.value.kind == "stale_fence"
            assert await guest.read_file("/tmp/cut") == b"x"
    finally:
        await maker.destroy(lease)


async def test_time_the_ledger_takes(guest, next_operation):
    with_ledger, without = [], []
    for _ in range(7):
        started = time.perf_counter()
        await guest.execute(["python", "-c", ""], operation=next_operation())
        with_ledger.append(time.perf_counter() - started)
        started = time.perf_counter()
        await guest.execute(["python", "-c", ""])
        without.append(time.perf_counter() - started)
    assert sorted(with_ledger)[3] - sorted(without)[3] < 0.05
