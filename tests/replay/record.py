"""Record the histories that `test_replay.py` replays, from a real system with real desktops: `python -m tests.replay.record [KIND…]`.

A change that is guarded by `workflow.patched` gets a kind of its own beside the old ones, and only that is recorded. All are recorded
again after a change that is meant to break running rollouts (docs/upgrades.md says when that is allowed), never to make a failing
replay pass.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from pathlib import Path

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from osworld_rollouts import temporal
from osworld_rollouts.contracts.identity import execution_workflow_id
from tests.chaos.conftest import SCRIPTS
from tests.chaos.counting import counting_task
from tests.chaos.system import Played, System
from tests.conftest import temporal_binary
from tests.stack import QUICK, ROOT, running, wait_until

HISTORIES = Path(__file__).parent / "histories"
LONG = 100
"""Events after which the server suggests continue-as-new here: more than three turns make, fewer than twelve."""


async def main(kinds: list[str]) -> None:
    """Play these kinds of rollout, or all, and write down their histories."""
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=temporal_binary(),
        data_converter=pydantic_data_converter,
        search_attributes=[
            value for value in vars(temporal).values() if type(value).__name__.startswith("_SearchAttributeKey")
        ],
        dev_server_log_level="error",
        dev_server_extra_args=["--dynamic-config-value", f"limit.historyCount.suggestContinueAsNew={LONG}"],
    ) as env:
        address = env.client.service_client.config.target_host
        async with running(env.client, address, in_process=False, name="replay", scripts=SCRIPTS) as stack:
            system = System(stack)
            await system.fleet.start(2)
            try:
                for kind in kinds or KINDS:
                    await keep(system, kind, await KINDS[kind](system))
            finally:
                await system.fleet.stop()


async def succeeded(system: System) -> Played:
    return await system.play(counting_task())


async def failed_then_retried(system: System) -> Played:
    system.arm("setup-after-landing", "/x1/setup/o1")
    return await system.play(counting_task())


async def recovered(system: System) -> Played:
    system.arm("act-after-landing", "/t1/o0")
    return await system.play(counting_task())


async def continued_as_new(system: System) -> Played:
    return await system.play(counting_task(turns=12), max_turns=20)


async def cancelled(system: System) -> Played:
    submitted = await system.submit(counting_task(gated=True))
    await system.desktop(f"{submitted.rollout_id}/x1")
    await submitted.handle.cancel()
    return await system.ended(submitted)


async def paused(system: System) -> Played:
    """For longer than a third of the lease, so that it is renewed."""
    timing = QUICK.model_copy(update={"lease_ttl_s": 9.0})
    submitted = await system.submit(counting_task(), faults=":slow=2", timing=timing)
    await wait_until(lambda: system.asked(submitted, turn=1))
    await submitted.handle.execute_update("pause")
    await wait_until(lambda: system.scheduled(submitted, "renew_lease", 3))
    await submitted.handle.execute_update("resume")
    return await system.ended(submitted)


async def deadline(system: System) -> Played:
    """It comes during the second model call: scored as the desktop stands."""
    return await system.play(counting_task(), faults=":slow=60@1", execution_s=15.0)


async def too_late(system: System) -> Played:
    """It comes during the first model call, of both executions."""
    return await system.play(counting_task(), faults=":slow=60@0", execution_s=8.0)


async def cancelled_early(system: System) -> Played:
    """While the desktop is made."""
    submitted = await system.submit(counting_task())
    await wait_until(lambda: system.scheduled(submitted, "provision_desktop", 1))
    await submitted.handle.cancel()
    return await system.ended(submitted)


async def cancelled_late(system: System) -> Played:
    """While a failed execution removes its desktop, which hangs for as long as its worker does."""
    system.arm("teardown-started", signal_name="STOP")
    submitted = await system.submit(counting_task(), faults=":slow=60@0", execution_s=8.0)
    await system.until_fired()
    await submitted.handle.cancel()
    return await system.ended(submitted)


KINDS = {
    "succeeded": succeeded,
    "failed-then-retried": failed_then_retried,
    "recovered": recovered,
    "continued-as-new": continued_as_new,
    "cancelled": cancelled,
    "paused": paused,
    "deadline": deadline,
    "too-late": too_late,
    "cancelled-early": cancelled_early,
    "cancelled-late": cancelled_late,
}


async def keep(system: System, name: str, played: Played) -> None:
    """Write the histories of a rollout, without what tells about this machine."""
    for old in HISTORIES.glob(f"{name}.*.json"):
        old.unlink()
    client = system.stack.client
    found = {"rollout": await runs(client, f"rollout/{played.result.rollout_id}")}
    for item in played.result.executions:
        found[f"x{item.number}"] = await runs(client, execution_workflow_id(item.execution_id))
    for part, texts in found.items():
        for number, text in enumerate(texts, 1):
            path = HISTORIES / f"{name}.{part}{f'-run{number}' if len(texts) > 1 else ''}.json"
            path.write_text(anonymous(text, system), encoding="utf-8")
    sys.stdout.write(f"{name}: {played.kinds}\n")


async def runs(client: Client, workflow_id: str) -> list[str]:
    """The histories of all runs of a workflow, oldest first."""
    texts, run_id = [], None
    while True:
        history = await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
        texts.append(history.to_json())
        run_id = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
        if not run_id:
            return texts[::-1]


def anonymous(text: str, system: System) -> str:
    """The same history from a machine called `host`."""
    for private, public in (
        (str(system.stack.settings.state_dir), "/state"),
        (str(ROOT), "/src"),
        (sys.prefix, "/venv"),
        (sys.base_prefix, "/python"),
        (socket.gethostname(), "host"),
    ):
        text = text.replace(private, public)
    return json.dumps(json.loads(text), indent=1) + "\n"


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
