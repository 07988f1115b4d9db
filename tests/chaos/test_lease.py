"""Case 12: waiting longer than a desktop's lease lasts, for a person and for a model. The reaper looks every two seconds meanwhile."""

from __future__ import annotations

import time

import pytest

from tests.chaos.conftest import SCRIPTS
from tests.chaos.counting import counting_task
from tests.chaos.system import System
from tests.stack import QUICK, running, wait_until

pytestmark = [pytest.mark.temporal, pytest.mark.desktop, pytest.mark.chaos]
LEASE_S = 6.0


@pytest.fixture(scope="module")
async def system(temporal_env):
    """A system of its own, whose leases are short."""
    address = temporal_env.client.service_client.config.target_host
    async with running(temporal_env.client, address, in_process=False, name="lease", scripts=SCRIPTS) as stack:
        found = System(stack)
        found.fleet.environment["ROLLOUTS_TIMEOUTS__LEASE_TTL_S"] = str(LEASE_S)
        await found.fleet.start()
        yield found
        await found.fleet.stop()


SHORT = QUICK.model_copy(update={"lease_ttl_s": LEASE_S})


async def test_paused_for_longer_than_the_lease(system, table):
    submitted = await system.submit(counting_task(), faults=":slow=2", timing=SHORT)
    record = await system.desktop(f"{submitted.rollout_id}/x1")
    await wait_until(lambda: system.asked(submitted, turn=1))
    await submitted.handle.execute_update("pause")
    until, expires_at = time.monotonic() + 3 * LEASE_S, record.expires_at
    await wait_until(lambda: time.monotonic() > until, 4 * LEASE_S)  # how long the pause lasts is what is tried
    assert (await system.stack.view(submitted.rollout_id)).paused
    kept = await system.desktop(f"{submitted.rollout_id}/x1")
    assert (kept.lease_id, kept.expires_at > expires_at) == (record.lease_id, True)
    await submitted.handle.execute_update("resume")
    played = await system.ended(submitted)
    assert played.kinds == ["agent_done"]
    assert played.generations == [1, 1, 1, 1]
    await system.exactly_once(played)
    table.add(12, f"paused for {3 * LEASE_S:g} s, lease of {LEASE_S:g} s", system, played)


async def test_model_that_takes_longer_than_the_lease(system, table):
    played = await system.play(counting_task(), faults=f":slow={3 * LEASE_S:g}@1", timing=SHORT)
    assert played.kinds == ["agent_done"]
    await system.exactly_once(played)
    table.add(12, f"model takes {3 * LEASE_S:g} s, lease of {LEASE_S:g} s", system, played)
