"""The provider of machines that somebody already runs."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from osworld_rollouts.desktops._provider import DesktopLost, DesktopNotReady, DesktopUnavailable
from osworld_rollouts.desktops.attached import AttachedDesktopProvider
from osworld_rollouts.desktops.attached_machines import Machine, MachineBook, parse_machines
from osworld_rollouts.desktops.clients import guest_client
from osworld_rollouts.desktops.guest_client import GuestRefused, Operation
from osworld_rollouts.desktops.host import DesktopHost
from osworld_rollouts.desktops.registry import create_provider, provider_names
from osworld_rollouts.settings import load_settings
from tests.desktops import rig
from tests.desktops.stock import machine

pytestmark = pytest.mark.desktop


@pytest.fixture(scope="module")
async def stock(desktop):
    async with machine(desktop) as found:
        yield found


@pytest.fixture
def make(stock, tmp_path):
    """A provider of the one real machine; keyword arguments are its settings."""

    def build(**settings) -> AttachedDesktopProvider:
        machines = settings.pop("machines", f"vm1={stock.address}")
        return create_provider(
            "attached", state_dir=tmp_path, machines=machines, inner_port=stock.inner_port, ready_timeout=2, **settings
        )

    return build


@pytest.fixture(autouse=True)
def fresh_machine(stock):
    """What a snapshot revert does to the ledger."""
    folder = stock.home / ".osworld-rollouts"
    if folder.exists():
        folder.rename(stock.home / f".before-{datetime.now(UTC).timestamp()}")


def reset_script(tmp_path: Path, stock, code: int = 0) -> str:
    """A reset command that tells what it was called for, and does as a revert would."""
    script = tmp_path / "reset.py"
    script.write_text(
        "import os, shutil, sys\n"
        f"open({str(tmp_path / 'resets')!r}, 'a').write(os.environ['ROLLOUTS_MACHINE'] + ' ' + os.environ['ROLLOUTS_MACHINE_PORT'] + '\\n')\n"
        f"if {code}: sys.exit('no such snapshot')\n"
        f"shutil.rmtree({str(stock.home / '.osworld-rollouts')!r}, ignore_errors=True)\n"
    )
    return f"{sys.executable} {script}"


async def test_a_machine_is_leased_alone_and_comes_back_dirty(make):
    provider = make()
    first, second = rig.new_lease(), rig.new_lease()
    record = await provider.create(rig.spec(), first, rig.owner())
    assert (record.state, record.marker, record.endpoints.ledger) == ("ready", "vm1", "stock")
    assert len(record.image_identity) == 64
    assert await provider.create(rig.spec(), first, rig.owner()) == record
    assert await make().adopt(first) == record
    with pytest.raises(DesktopUnavailable, match=r"vm1: it is leased by .*"):
        await make().create(rig.spec(), second, rig.owner())
    assert [kept.lease_id for kept in await provider.list()] == [first]
    later = datetime.now(UTC) + timedelta(hours=3)
    await provider.renew(first, later)
    assert (await provider.adopt(first)).expires_at == later
    await provider.destroy(first)
    await provider.destroy(first)
    assert await provider.list() == []
    with pytest.raises(DesktopUnavailable, match="ROLLOUTS_ATTACHED_RESET") as caught:
        await provider.create(rig.spec(), second, rig.owner())
    assert "rollouts machines --clear vm1" in str(caught.value)
    assert [problem.subject for problem in await provider.preflight()] == ["vm1"]
    provider.book.clear("vm1")
    await provider.create(rig.spec(), second, rig.owner())
    await provider.destroy(second)


async def test_the_reset_command_makes_a_dirty_machine_free(make, stock, tmp_path):
    provider = make(reset=reset_script(tmp_path, stock))
    for _ in range(2):
        lease = rig.new_lease()
        await provider.create(rig.spec(), lease, rig.owner())
        await provider.destroy(lease)
    assert (tmp_path / "resets").read_text().splitlines() == [f"vm1 {stock.server_port}"]


async def test_a_reset_that_fails_leaves_it_dirty_with_its_reason(make, stock, tmp_path):
    provider = make(reset=reset_script(tmp_path, stock, code=1))
    lease = rig.new_lease()
    await provider.create(rig.spec(), lease, rig.owner())
    await provider.destroy(lease)
    for _ in range(2):
        with pytest.raises(DesktopUnavailable, match="no such snapshot"):
            await provider.create(rig.spec(), rig.new_lease(), rig.owner())
    assert provider.book.entry("vm1").state == "dirty"
    assert await provider.list() == []


async def test_a_zombie_of_an_ended_lease_is_refused_by_the_machine(make):
    """Cleared by hand without a revert: the old ledger is still there, and its lease is over."""
    provider = make()
    old, new = rig.new_lease(), rig.new_lease()
    before = await provider.create(rig.spec(), old, rig.owner())
    await provider.destroy(old)
    provider.book.clear("vm1")
    record = await provider.create(rig.spec(), new, rig.owner())
    async with guest_client(before) as late, guest_client(record) as client:
        with pytest.raises(GuestRefused, match="stale_fence"):
            await late.execute(["true"], operation=Operation("old/o9", 9, 1))
        assert (await client.execute(["true"], operation=Operation("new/o0", 0, 1))).returncode == 0
    await provider.destroy(new)


async def test_a_machine_that_another_host_holds_is_refused(make, stock, tmp_path):
    lease = rig.new_lease()
    here, elsewhere = (
        make(),
        create_provider(
            "attached",
            state_dir=tmp_path / "elsewhere",
            machines=f"same={stock.address}",
            inner_port=stock.inner_port,
            ready_timeout=2,
        ),
    )
    await here.create(rig.spec(), lease, rig.owner())
    with pytest.raises(DesktopUnavailable, match="holds this machine"):
        await elsewhere.create(rig.spec(), rig.new_lease(), rig.owner())
    assert elsewhere.book.entry("same").state == "free"
    await here.destroy(lease)


async def test_a_machine_reset_under_its_lease_is_lost(make, stock):
    provider, lease = make(), rig.new_lease()
    await provider.create(rig.spec(), lease, rig.owner())
    (stock.home / ".osworld-rollouts").rename(stock.home / f".reset-{lease.replace('/', '-')}")
    with pytest.raises(DesktopLost, match="vm1"):
        await provider.create(rig.spec(), lease, rig.owner())
    await provider.destroy(lease)


async def test_what_does_not_come_up_is_left_free_and_the_next_is_tried(make, stock):
    machines = f"dead=127.0.0.1:9,vm1={stock.address}"
    provider, lease = make(machines=machines), rig.new_lease()
    assert (await provider.create(rig.spec(), lease, rig.owner())).marker == "vm1"
    assert provider.book.entry("dead").state == "free"
    await provider.destroy(lease)
    with pytest.raises(DesktopNotReady, match="dead: no usable screenshot"):
        await provider.create(rig.spec(image="dead"), rig.new_lease(), rig.owner())


async def test_another_screen_size_is_not_ready(make):
    provider = make()
    with pytest.raises(DesktopNotReady, match="1920x1080 pixels, not 1280x720"):
        await provider.create(rig.spec(width=1280, height=720), rig.new_lease(), rig.owner())
    assert provider.book.entry("vm1").state == "free"


async def test_two_makers_of_one_lease_and_two_leases_of_one_machine(make):
    lease = rig.new_lease()
    same = await asyncio.gather(*(make().create(rig.spec(), lease, rig.owner()) for _ in range(2)))
    assert same[0] == same[1]
    await make().destroy(lease)
    make().book.clear("vm1")
    leases = [rig.new_lease() for _ in range(3)]
    results = await asyncio.gather(
        *(make().create(rig.spec(), lease, rig.owner()) for lease in leases), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["DesktopRecord"] + ["DesktopUnavailable"] * 2
    for lease in leases:
        await make().destroy(lease)


async def test_a_maker_cancelled_halfway_gives_the_machine_back(make, stock, tmp_path):
    script = tmp_path / "slow.py"
    script.write_text("import time; time.sleep(60)")
    provider = make(reset=f"{sys.executable} {script}")
    lease = rig.new_lease()
    await provider.create(rig.spec(), lease, rig.owner())
    await provider.destroy(lease)
    again = rig.new_lease()
    making = asyncio.create_task(provider.create(rig.spec(), again, rig.owner()))
    await asyncio.sleep(1)
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert provider.book.entry("vm1").state == "dirty"
    await provider.destroy(again)
    assert await provider.list() == []


async def test_a_host_finds_machines_of_an_earlier_worker(make, stock, short_tmp):
    settings = {"attached": {"machines": f"vm1={stock.address}", "inner_port": stock.inner_port}}

    def host() -> DesktopHost:
        return DesktopHost(
            short_tmp, host_id="h", task_queue="q", capacity=1, lease_ttl_s=600, provider_settings=settings
        )

    lease = rig.new_lease()
    made = await host().provision(rig.spec(provider="attached", image="vm1"), lease, rig.owner(), 600)
    assert made.tier == "attached"
    assert (await host().find(lease)).marker == "vm1"
    assert await host().in_use() == 1
    kind, text = await host().diagnose(lease)
    assert "answers" in text, kind
    (stock.home / ".osworld-rollouts").rename(stock.home / f".gone-{lease.replace('/', '-')}")
    kind, text = await host().diagnose(lease)
    assert kind == "desktop_lost", text
    await host().destroy(lease)
    with pytest.raises(DesktopLost):
        await host().find(lease)


async def test_without_machines_it_says_how_to_name_them(tmp_path):
    provider = create_provider("attached", state_dir=tmp_path)
    assert [problem.fatal for problem in await provider.preflight()] == [True]
    with pytest.raises(DesktopUnavailable, match="ROLLOUTS_ATTACHED="):
        await provider.create(rig.spec(), "x", rig.owner())
    assert "attached" in provider_names()


def test_machines_are_written_as_desktop_env_writes_them():
    found = parse_machines("a=10.0.0.5:5001:9223:8007:8081, b=vm.example")
    assert found == {"a": Machine("a", "10.0.0.5", 5001, 9223, 8007, 8081), "b": Machine("b", "vm.example")}
    for wrong in ("a", "a=", "=h", "a=h:x", "a=h:0", "a=h:1:2:3:4:5", "a=h,a=g", "../a=h"):
        with pytest.raises(DesktopUnavailable, match="vm1=10"):
            parse_machines(wrong)


def test_they_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("ROLLOUTS_ATTACHED", "a=h")
    monkeypatch.setenv("ROLLOUTS_ATTACHED_RESET", "revert")
    assert load_settings().provider_settings() == {"attached": {"machines": "a=h", "reset": "revert"}}


def test_the_command_lists_and_clears(monkeypatch, tmp_path, capsys):
    from osworld_rollouts.console.main import run

    monkeypatch.setenv("ROLLOUTS_ATTACHED", "a=h")
    monkeypatch.setenv("ROLLOUTS_STATE_DIR", str(tmp_path))
    book = MachineBook.of(tmp_path)
    book.take("a", "lease-1")
    assert run(["machines", "--clear", "a"]) != 0
    book.begin_work("a", "lease-1")
    book.release("lease-1")
    assert run(["machines"]) == 0
    assert "a  h:5000  dirty from lease-1 since" in capsys.readouterr().out
    assert run(["machines", "--clear", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "free"
    assert run(["machines", "--clear", "zzz"]) != 0
