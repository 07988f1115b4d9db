# ruff: noqa: T201  (a benchmark prints)
"""What a turn costs beside model, desktop and settling: time, events and bytes of history.

    python -m tests.workflows.bench_overhead [TURNS] [ROLLOUTS AT ONCE]

A real Temporal server with a file database as `rollouts up` starts it, the real workflows, and activities that return at once.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from osworld_rollouts import temporal
from osworld_rollouts.contracts.identity import execution_workflow_id
from osworld_rollouts.contracts.request import Model, Rollout, RolloutRequest, Task
from tests.conftest import temporal_binary
from tests.workflows.scripted import CLICK, Script, replying
from tests.workflows.test_rollout import world

PRAGMAS = ["--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=normal"]


def request(sample: int, turns: int) -> RolloutRequest:
    document = {"id": "task-1", "instruction": "Rename the file", "config": [], "evaluator": {"func": "infeasible"}}
    model = Model(name="scripted", base_url="http://127.0.0.1:9/v1", api_key_env=None)
    rollout = Rollout(task=Task.from_document(document, "os"), model=model, max_turns=turns)
    return RolloutRequest(rollout=rollout, campaign_id="bench", sample_index=sample)


async def measure(turns: int, at_once: int) -> None:
    keys = [value for value in vars(temporal).values() if type(value).__name__.startswith("_SearchAttributeKey")]
    with tempfile.TemporaryDirectory() as folder:
        async with await WorkflowEnvironment.start_local(
            dev_server_existing_path=temporal_binary(),
            data_converter=pydantic_data_converter,
            search_attributes=keys,
            dev_server_database_filename=str(Path(folder) / "temporal.db"),
            dev_server_log_level="error",
            dev_server_extra_args=PRAGMAS,
        ) as env:
            script = Script()
            script.model = replying([CLICK])
            async with world(env, script) as start:
                await (await start(request(0, 2))).handle.result()
                started = time.perf_counter()
                running = [await start(request(1 + sample, turns)) for sample in range(at_once)]
                await asyncio.gather(*(item.handle.result() for item in running))
                took = time.perf_counter() - started
                handle = env.client.get_workflow_handle(execution_workflow_id(f"{running[0].rollout_id}/x1"))
                info = (await handle.describe()).raw_description.workflow_execution_info
    print(f"rollouts at once            {at_once}")
    print(f"turns each                  {turns}")
    print(f"overhead a turn             {1000 * took / turns:.0f} ms of a rollout's time")
    print(f"turns a second, all         {turns * at_once / took:.1f}")
    print(
        f"history a turn              {info.history_length / turns:.1f} events, {info.history_size_bytes / turns:.0f} bytes"
    )


if __name__ == "__main__":
    arguments = [int(word) for word in sys.argv[1:]]
    asyncio.run(measure(*(arguments + [100, 1][len(arguments) :])))
