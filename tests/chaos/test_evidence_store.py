"""Case 9: the disk of the evidence store is full; the store is away for a while. Nothing paid for is thrown away."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.chaos.conftest import SCRIPTS
from tests.chaos.counting import counting_task
from tests.chaos.system import System
from tests.stack import running, wait_until

pytestmark = [pytest.mark.temporal, pytest.mark.desktop, pytest.mark.chaos]
AWAY_S = float(os.environ.get("CHAOS_STORE_AWAY_S", "60"))


@pytest.fixture(scope="module")
def small_disk():
    """A file system of 64 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder = Path(tempfile.mkdtemp(prefix="ro-disk-", dir="/tmp"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
    folder.rmdir()


@pytest.fixture(scope="module")
async def system(temporal_env, small_disk):
    """A system of its own, whose evidence store is on the small disk."""
    address = temporal_env.client.service_client.config.target_host
    async with running(temporal_env.client, address, in_process=False, name="store", scripts=SCRIPTS) as stack:
        url = (small_disk / "evidence").as_uri()
        stack.settings = stack.settings.model_copy(
            update={"store": stack.settings.store.model_copy(update={"url": url, "min_free_bytes": 0})}
        )
        found = System(stack)
        found.fleet.environment |= {"ROLLOUTS_STORE__URL": url, "ROLLOUTS_STORE__MIN_FREE_BYTES": "0"}
        await found.fleet.start()
        yield found
        await found.fleet.stop()


def fill(folder: Path) -> Path:
    """Take every free byte."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(2**16))
        except OSError:
            pass
        try:
            while True:
                file.write(bytes(512))
        except OSError:
            pass
    return filler


async def said(system, words: str) -> None:
    """Wait until a worker said this."""
    await wait_until(lambda: words in system.stack.logs(), 90)


async def test_disk_full_while_a_reply_is_on_its_way(system, small_disk, table):
    submitted = await system.submit(counting_task(), faults=":slow=4@1")
    await wait_until(lambda: system.asked(submitted, turn=1), 90)
    filler = fill(small_disk)
    await said(system, "evidence store is away")
    await wait_until(lambda: system.generations(f"{submitted.rollout_id}/x1") == [1, 1])
    filler.unlink()
    played = await system.ended(submitted)
    assert played.kinds == ["agent_done"]
    assert played.generations == [1, 1, 1, 1]
    await system.exactly_once(played)
    table.add(9, "evidence disk full while a reply is on its way", system, played)


async def test_disk_full_while_an_operation_runs(system, small_disk, table):
    submitted = await system.submit(counting_task(pause_s=2))
    record = await system.desktop(f"{submitted.rollout_id}/x1", 90)
    await wait_until(lambda: len(system.counts_now(record).gui) == 3, 60, 0.01)
    before = system.stack.logs().count("evidence store is away")
    filler = fill(small_disk)
    await wait_until(lambda: system.stack.logs().count("evidence store is away") > before)
    filler.unlink()
    played = await system.ended(submitted)
    assert played.kinds == ["agent_done"]
    await system.exactly_once(played)
    table.add(9, "evidence disk full while an operation runs", system, played)


@pytest.mark.parametrize("when", ["turns", "setup"])
async def test_store_away_for_a_minute(system, small_disk, table, when):
    submitted = await system.submit(counting_task(gated=when == "setup"), faults=":slow=4@1")
    record = await system.desktop(f"{submitted.rollout_id}/x1", 90)
    if when == "turns":
        await wait_until(lambda: system.asked(submitted, turn=1), 90)
    before = system.stack.logs().count("evidence store is away")
    store = small_disk / "evidence"
    store.rename(small_disk / "away")
    if when == "setup":
        system.open_gate(record)
    await asyncio.sleep(AWAY_S)  # how long the store is away is the fault itself
    (small_disk / "away").rename(store)
    assert system.stack.logs().count("evidence store is away") > before
    played = await system.ended(submitted)
    assert played.kinds == ["agent_done"]
    assert played.generations == [1, 1, 1, 1]
    await system.exactly_once(played)
    table.add(9, f"evidence store away for {AWAY_S:g} s during {when}", system, played)
