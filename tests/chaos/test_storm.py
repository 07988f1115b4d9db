"""Case 11: twenty rollouts at once while workers are killed at random.

CHAOS_MINUTES=10 CHAOS_SEED=1 CHAOS_ROLLOUTS=20 pytest tests/chaos/test_storm.py
"""

from __future__ import annotations

import asyncio
import os
import random
import time

import pytest

from tests.chaos.conftest import SCRIPTS
from tests.chaos.counting import POST, SETUP, counting_task, counts
from tests.chaos.system import System
from tests.stack import QUICK, running

MINUTES = float(os.environ.get("CHAOS_MINUTES", "10"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
ROLLOUTS = int(os.environ.get("CHAOS_ROLLOUTS", "20"))
WORKERS, DESKTOPS, TURNS = 3, 6, 6

pytestmark = [
    pytest.mark.temporal, pytest.mark.desktop, pytest.mark.chaos, pytest.mark.timeout(MINUTES * 60 + 1800),
]  # fmt: skip


async def test_every_rollout_ends_with_every_effect_once(temporal_env, table):
    """As one ends another is submitted, until the time is over; then all may end in peace."""
    address = temporal_env.client.service_client.config.target_host
    chance = random.Random(SEED)
    async with running(temporal_env.client, address, in_process=False, name="storm", scripts=SCRIPTS) as stack:
        system = System(stack)
        system.fleet.environment["ROLLOUTS_HOST__CAPACITY"] = str(DESKTOPS)
        await system.fleet.start(WORKERS)
        over = time.monotonic() + MINUTES * 60
        played = []

        async def one_after_another():
            while True:
                submitted = await system.submit(
                    counting_task(turns=TURNS), executions=20, timing=QUICK.model_copy(update={"host_grace_s": 300.0})
                )
                played.append(await system.ended(submitted))
                if time.monotonic() > over:
                    return

        async def killing():
            while time.monotonic() < over:
                await asyncio.sleep(chance.uniform(5, 25))
                stack.kill_worker(chance.choice(system.fleet.workers))

        lines = [asyncio.create_task(one_after_another()) for _ in range(ROLLOUTS)]
        await asyncio.gather(killing(), *lines)
        for run in played:
            assert run.kinds[-1] == "agent_done", run.result
            assert set(run.kinds[:-1]) <= {"prepare_failed", "evaluation_failed"}, run.kinds
            assert run.counts is not None
            assert (run.counts.gui, run.counts.setup, run.counts.post) == (counts(TURNS), SETUP, POST)
            await system.verified(run)
        await system.nothing_left(60)
        fault = f"{system.fleet.deaths} workers killed in {MINUTES:g} minutes, seed {SEED}, {ROLLOUTS} rollouts at once"
        table.add(11, fault, system, *played, turns=TURNS)
        await system.fleet.stop()
