# ruff: noqa: ASYNC220, ASYNC221, ASYNC240 - real processes are started, killed and looked for
"""Making, adopting and removing desktops on this machine, in every way that can go wrong."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from osworld_rollouts.desktops._provider import DesktopLost, DesktopNotReady, DesktopProvider, DesktopUnavailable
from osworld_rollouts.desktops.guest_client import GuestClient, Operation
from osworld_rollouts.desktops.lease_registry import LeaseRegistry
from osworld_rollouts.desktops.local import LocalDesktopProvider, home_link, processes
from osworld_rollouts.desktops.registry import create_provider, provider_names
from tests.desktops import rig

pytestmark = pytest.mark.desktop
TIERS = ["bubblewrap", "process"]


@pytest.fixture
async def lease():
    """A lease whose desktop is removed in the end, whatever the test did."""
    await rig.remove_leftovers()
    name = rig.new_lease()
    yield name
    await rig.provider().destroy(name)


def running(pids):
    """Those of `pids` that are still there and no zombies."""
    left = []
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                left.append(pid)
        except OSError:
            continue
    return left


@pytest.mark.parametrize("tier", TIERS)
async def test_life_of_a_desktop(lease, tier):
    maker = rig.provider(tier=tier)
    record = await maker.create(rig.spec(), lease, rig.owner())
    assert record.tier == tier
    assert record.state == "ready"
    assert record.ready_at is not None
    async with GuestClient.of(record) as guest:
        await guest.setup("launch", {"command": ["setsid", "sleep", "1000"]})
        await guest.setup("launch", {"command": ["mousepad"]})
        await guest.setup("activate_window", {"window_name": "Mousepad"})
        display = (await guest.execute(["printenv", "DISPLAY"])).output.strip()
        await guest.execute(["sh", "-c", "echo mine > /home/user/file"])
    assert (record.state_dir / "home" / "file").read_text() == "mine\n"
    everything = processes.tree(record.marker)
    assert len(everything) > 10
    await maker.destroy(lease)
    deadline = time.monotonic() + 2
    while running(everything) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    assert running(everything) == []
    assert not record.state_dir.exists()
    assert not list(record.state_dir.parent.glob(f".{record.state_dir.name}*"))
    if tier == "process":
        number = display.removeprefix(":")
        assert not Path(f"/tmp/.X{number}-lock").exists()
        assert not Path(f"/tmp/.X11-unix/X{number}").exists()
        assert not home_link.LINK.is_symlink()
    assert await maker.adopt(lease) is None
    await maker.destroy(lease)


async def test_plain_processes_take_turns(lease):
    """They share the machine's /home/user and its ports, so there is one desktop at a time."""
    maker = rig.provider(tier="process")
    assert (maker.most(), rig.provider(tier="bubblewrap").most()) == (1, None)
    await maker.create(rig.spec(), lease, rig.owner())
    second = rig.new_lease()
    with pytest.raises(DesktopUnavailable, match="one desktop at a time"):
        await maker.create(rig.spec(), second, rig.owner())
    assert [record.lease_id for record in await maker.list() if record.lease_id in (lease, second)] == [lease]
    await maker.destroy(lease)
    try:
        await maker.create(rig.spec(), second, rig.owner())
    finally:
        await maker.destroy(second)


async def test_a_second_create_adopts(lease):
    maker = rig.provider()
    first = await maker.create(rig.spec(), lease, rig.owner())
    second = await rig.provider().create(rig.spec(), lease, rig.owner())
    assert second == first
    assert second.token.get_secret_value() == first.token.get_secret_value()


async def test_two_creates_at_once_make_one(lease):
    records = await asyncio.gather(*(rig.provider().create(rig.spec(), lease, rig.owner()) for _ in range(3)))
    assert len({record.marker for record in records}) == 1
    assert len([found for found in processes.find(records[0].marker) if found.session]) == 1


async def test_it_outlives_its_maker(lease):
    code = (
        "import asyncio, os\nfrom tests.desktops import rig\n"
        f"asyncio.run(rig.provider().create(rig.spec(), {lease!r}, rig.owner()))\nos.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == -signal.SIGKILL
    record = await rig.provider().adopt(lease)
    assert record is not None
    async with GuestClient.of(record) as guest:
        assert (await guest.execute(["echo", "here"])).output == "here\n"


@pytest.mark.parametrize("after", [0.0, 0.05, 0.2, 0.5, 0.9])
async def test_a_maker_killed_half_way_leaves_nothing_that_is_not_found(lease, after):
    code = (
        "import asyncio, sys\nfrom tests.desktops import rig\nmaker = rig.provider()\nprint('go', flush=True)\n"
        f"asyncio.run(maker.create(rig.spec(), {lease!r}, rig.owner()))"
    )
    child = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    await asyncio.sleep(after)
    child.kill()
    child.wait()
    maker = rig.provider()
    record = await maker.create(rig.spec(), lease, rig.owner())
    assert [found.session for found in processes.find(record.marker)].count(True) == 1
    async with GuestClient.of(record) as guest:
        assert (await guest.execute(["echo", "here"])).output == "here\n"


@pytest.mark.parametrize("tier", TIERS)
async def test_a_dead_desktop_that_was_worked_on_is_lost(lease, tier):
    maker = rig.provider(tier=tier)
    record = await maker.create(rig.spec(), lease, rig.owner())
    async with GuestClient.of(record) as guest:
        await guest.execute(["true"], operation=Operation("o", 0, 1))
        await guest.setup("launch", {"command": ["setsid", "sleep", "1000"]})
        await guest.setup("launch", {"command": ["google-chrome"]})
        await guest.setup("activate_window", {"window_name": "Chromium"})
    everything = processes.tree(record.marker)
    for found in processes.find(record.marker):
        if found.session:
            os.kill(found.pid, signal.SIGKILL)
    while processes.find(record.marker):
        await asyncio.sleep(0.02)
    assert await maker.adopt(lease) is None
    assert [known.lease_id for known in await maker.list() if known.lease_id == lease] == [lease]
    with pytest.raises(DesktopLost):
        await maker.create(rig.spec(), lease, rig.owner())
    await maker.destroy(lease)
    deadline = time.monotonic() + 3
    while running(everything) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    assert running(everything) == []


async def test_a_dead_desktop_nobody_used_is_made_again(lease):
    maker = rig.provider()
    first = await maker.create(rig.spec(), lease, rig.owner())
    processes.end(first.marker, sandboxed=True)
    second = await maker.create(rig.spec(), lease, rig.owner())
    assert second.marker != first.marker
    assert second.state == "ready"


async def test_the_display_dying_is_noticed(lease):
    maker = rig.provider()
    record = await maker.create(rig.spec(), lease, rig.owner())
    async with GuestClient.of(record) as guest:
        await guest.setup("launch", {"command": ["pkill", "-9", "Xvfb"]})
    deadline = time.monotonic() + 5
    while await maker.adopt(lease) is not None and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert await maker.adopt(lease) is None


@pytest.mark.parametrize("program", ["xfce4-panel", "xfwm4", "xfdesktop"])
async def test_a_part_of_the_desktop_dying_comes_back(desktop, guest, program):
    await guest.execute(["pkill", "-9", "-x", program])
    await asyncio.sleep(0.3)
    assert (await guest.wait_ready(10))["ready"]
    assert (await guest.execute(["pgrep", "-x", program])).returncode == 0


async def test_what_never_comes_up_is_removed_and_explained(lease):
    maker = rig.provider(ready_timeout=0.05)
    with pytest.raises(DesktopNotReady) as failed:
        await maker.create(rig.spec(), lease, rig.owner())
    assert lease in str(failed.value)
    assert "did not come up within 0.0" in str(failed.value)
    assert lease not in {record.lease_id for record in await maker.list()}


async def test_what_dies_at_once_is_not_waited_for(lease, monkeypatch):
    monkeypatch.setattr(
        "osworld_rollouts.desktops.local._provider.command", lambda *_, **__: ["sh", "-c", "echo broken >&2; exit 1"]
    )
    started = time.monotonic()
    with pytest.raises(DesktopNotReady) as failed:
        await rig.provider().create(rig.spec(), lease, rig.owner())
    assert time.monotonic() - started < 20
    assert "its processes ended" in str(failed.value)
    assert "broken" in str(failed.value)


async def test_a_state_directory_that_cannot_be_written():
    with tempfile.NamedTemporaryFile() as blocked, pytest.raises(DesktopUnavailable, match="cannot be made in"):
        await LocalDesktopProvider(blocked.name).create(rig.spec(), "lease", rig.owner())


async def test_the_host_network_when_asked(lease):
    record = await rig.provider().create(rig.spec(network="host"), lease, rig.owner())
    async with GuestClient.of(record) as guest:
        names = (await guest.execute(["python", "-c", "import socket; print(len(socket.if_nameindex()))"])).output
        display = (await guest.execute(["printenv", "DISPLAY"])).output
        done = await guest.execute(["python", "-c", "import pyautogui; print(pyautogui.size())"])
    assert int(names) == len(list(Path("/sys/class/net").iterdir()))
    assert display.startswith(":")
    assert done.output.startswith("Size(width=1920"), done.error


async def test_size_is_what_was_asked(lease):
    record = await rig.provider().create(rig.spec(width=1280, height=720), lease, rig.owner())
    async with GuestClient.of(record) as guest:
        assert (await guest.health())["screen"] == {"width": 1280, "height": 720}


async def test_leases_are_renewed_and_listed(lease):
    maker = rig.provider(lease_ttl=timedelta(minutes=3))
    record = await maker.create(rig.spec(), lease, rig.owner())
    assert timedelta(minutes=2) < record.expires_at - datetime.now(UTC) < timedelta(minutes=3)
    later = datetime.now(UTC) + timedelta(hours=1)
    await maker.renew(lease, later)
    assert [known.expires_at for known in await maker.list() if known.lease_id == lease] == [later]
    await maker.renew("nobody", later)


async def test_record_holds_no_secret(lease):
    record = await rig.provider().create(rig.spec(), lease, rig.owner())
    token = record.token.get_secret_value()
    assert token not in repr(record)
    assert token not in record.model_dump_json()
    assert token not in (record.state_dir / "record.json").read_text()
    secret = record.state_dir / "token"
    assert secret.read_text() == token
    assert secret.stat().st_mode & 0o077 == 0
    for found in processes.tree(record.marker):
        try:
            seen = Path(f"/proc/{found}/cmdline").read_bytes() + Path(f"/proc/{found}/environ").read_bytes()
        except OSError:
            continue
        assert token.encode() not in seen


class TestSandbox:
    """What the bubblewrap tier keeps from the desktop."""

    @pytest.fixture(autouse=True)
    def only_sandboxes(self, desktop):
        if desktop.tier != "bubblewrap":
            pytest.skip("this machine allows no sandbox")

    async def test_who_and_where(self, guest):
        done = await guest.execute(
            "id -un; id -u; echo $HOME; hostname; whoami; date +%Z; cat /proc/1/comm", shell=True
        )
        assert done.output.split() == ["user", "1000", "/home/user", "desktop", "user", "UTC", "python3"]

    async def test_files_of_the_host_are_not_there(self, guest, desktop):
        paths = ["/etc/shadow", "/root", "/etc/ssh", str(desktop.state_dir), str(Path(__file__)), "/sys", "/boot"]
        for path in paths:
            assert (await guest.execute(["ls", path])).returncode != 0, path

    async def test_nothing_of_the_system_can_be_written(self, guest):
        for path in (
            "/usr/x",
            "/etc/fonts/x",
            "/opt/osworld-guest/guest/x",
            "/proc/sys/kernel/core_pattern",
            "/etc/passwd",
        ):
            assert (await guest.execute(f"echo x > {path}", shell=True)).returncode != 0, path

    async def test_no_network_but_its_own(self, guest):
        code = "import socket; print([n for _, n in socket.if_nameindex()]); s = socket.create_connection(('1.1.1.1', 53), 2)"
        done = await guest.execute(["python", "-c", code])
        assert done.output == "['lo']\n"
        assert "Network is unreachable" in done.error

    async def test_processes_of_the_host_are_not_seen(self, guest):
        assert str(os.getpid()) not in (await guest.execute(["ls", "/proc"])).output.split() or os.getpid() < 2000
        assert "pytest" not in (await guest.execute(["ps", "aux"])).output

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a desktop another user")
    async def test_it_is_no_one_outside(self, desktop):
        ids = {Path(f"/proc/{pid}").stat().st_uid for pid in processes.tree(desktop.marker)}
        status = [
            Path(f"/proc/{pid}/status").read_text().split("Uid:")[1].split()[0]
            for pid in processes.tree(desktop.marker)
        ]
        assert set(status) == {str((desktop.state_dir / "home").stat().st_uid)}
        assert int(status[0]) >= 0x70000000, ids

    async def test_processes_are_limited(self, guest):
        done = await guest.execute(
            [
                "python",
                "-c",
                "import resource as r; print(r.getrlimit(r.RLIMIT_NPROC)[1], r.getrlimit(r.RLIMIT_CORE)[1])",
            ]
        )
        assert done.output == "2048 0\n"


class TestBrowser:
    """Chromium as OSWorld's tasks use Chrome."""

    async def test_debugging_port_through_the_relay(self, guest, desktop):
        import aiohttp

        await guest.setup("launch", {"command": ["google-chrome", "--remote-debugging-port=1337"]})
        await guest.setup("launch", {"command": ["socat", "tcp-listen:9222,fork,reuseaddr", "tcp:localhost:1337"]})
        version = None
        for _ in range(100):
            try:
                async with (
                    aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(desktop.endpoints.chromium))) as session,
                    session.get("http://localhost/json/version") as reply,
                ):
                    version = await reply.json()
                    break
            except aiohttp.ClientError:
                await asyncio.sleep(0.2)
        assert version is not None
        assert version["Browser"].startswith("Chrome/")
        assert (await guest.execute(["ls", "/home/user/.config/google-chrome/Default/Preferences"])).returncode == 0
        await guest.execute(["pkill", "chrome"])
        await asyncio.sleep(1)
        assert (await guest.execute(["pgrep", "-x", "chrome"])).returncode == 1
        await guest.execute(["pkill", "socat"])


class TestRegistry:
    def test_known_by_name(self):
        assert "local" in provider_names()
        assert isinstance(create_provider("local", state_dir=rig.STATE), LocalDesktopProvider)
        assert isinstance(rig.provider(), DesktopProvider)

    def test_unknown_name(self):
        with pytest.raises(DesktopUnavailable, match=r"there is no desktop provider 'nope'; known are .*local"):
            create_provider("nope")

    def test_path_too_long_for_sockets(self, tmp_path):
        from osworld_rollouts.desktops._provider import DesktopError

        with pytest.raises(DesktopError, match="choose a shorter state directory"):
            LeaseRegistry(tmp_path / ("x" * 90)).folder("lease")

    def test_remnants_without_a_record_are_tidied(self, tmp_path):
        registry = LeaseRegistry(tmp_path)
        with registry.lock("a") as folder:
            (folder / "home").mkdir(parents=True)
        assert registry.folders() == [folder]
        registry.tidy()
        assert registry.folders() == []
        assert list(tmp_path.iterdir()) == []

    def test_a_lock_that_is_held_keeps_its_folder(self, tmp_path):
        registry = LeaseRegistry(tmp_path)
        with registry.lock("a") as folder:
            folder.mkdir()
            registry.tidy()
            assert folder.exists()

    def test_only_its_own_folders_are_removed(self, tmp_path):
        from osworld_rollouts.desktops._provider import DesktopError

        (tmp_path / "mine").mkdir()
        with pytest.raises(DesktopError):
            LeaseRegistry(tmp_path / "desktops").remove(tmp_path / "mine")
        assert (tmp_path / "mine").exists()


class TestProcesses:
    def test_a_process_that_only_mentions_the_marker_is_not_ours(self):
        marker = "0123456789abcdef0123456789abcdef"
        settings = json.dumps({"marker": marker})
        others = [
            subprocess.Popen(["sleep", "30"], env={"MARKER": marker}),
            subprocess.Popen(["bash", "-c", "sleep 30; true", marker]),
            subprocess.Popen(["bash", "-c", "sleep 30; true", "session", f"grep {settings}"]),
        ]
        ours = subprocess.Popen(
            ["bash", "-c", "sleep 30; true", "session", settings], env={"OSWORLD_DESKTOP": "another"}
        )
        try:
            time.sleep(0.2)
            assert [found.pid for found in processes.find(marker)] == [ours.pid]
            processes.end(marker, sandboxed=True)
            assert ours.wait(5) == -signal.SIGKILL
            assert [other.poll() for other in others] == [None, None, None]
        finally:
            for process in (*others, ours):
                process.kill()
                process.wait()
