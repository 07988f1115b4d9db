"""Case 5: the Temporal server is killed and comes back on its file database, alone or, as after a power cut, with everything else."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError

from osworld_rollouts.contracts.outcome import RolloutResult
from osworld_rollouts.desktops.local import processes
from osworld_rollouts.temporal import SEARCH_ATTRIBUTES
from tests.chaos.conftest import SCRIPTS
from tests.chaos.counting import counting_task
from tests.chaos.system import System
from tests.conftest import temporal_binary
from tests.stack import running, wait_until

pytestmark = [pytest.mark.temporal, pytest.mark.desktop, pytest.mark.chaos]


class Server:
    """`temporal server start-dev` with a file database on a fixed port."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> Client:
        """Start it, and give a client once it answers."""
        self._spawn()
        deadline = asyncio.get_running_loop().time() + 60
        while True:
            with contextlib.suppress(RuntimeError, RPCError):
                return await Client.connect(self.address, data_converter=pydantic_data_converter)
            assert asyncio.get_running_loop().time() < deadline, (self._folder / "server.log").read_text()
            await asyncio.sleep(0.1)

    def _spawn(self) -> None:
        attributes = [
            word for name, kind in SEARCH_ATTRIBUTES.items() for word in ("--search-attribute", f"{name}={kind}")
        ]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(temporal_binary(), "server", "start-dev", "--headless", "--log-level", "error"),
                    *("--port", self.address.rpartition(":")[2], "--db-filename", str(self._folder / "temporal.db")),
                    *attributes,
                ],
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.mark.parametrize("during", ["a model call", "an operation"])
async def test_rollouts_go_on_when_the_server_is_back(tmp_path, table, during):
    server = Server(tmp_path)
    client = await server.start()
    try:
        async with running(client, server.address, in_process=False, name="server", scripts=SCRIPTS) as stack:
            system = System(stack)
            worker = stack.start_worker()
            if during == "a model call":
                submitted = await system.submit(counting_task(), faults=":slow=4@1")
                await wait_until(lambda: system.asked(submitted, turn=1), 90)
            else:
                submitted = await system.submit(counting_task(pause_s=2))
                record = await system.desktop(f"{submitted.rollout_id}/x1", 90)
                await wait_until(lambda: len(system.counts_now(record).gui) == 3, 60, 0.01)
            server.kill()
            await asyncio.sleep(12)  # longer than a heartbeat's timeout: the server comes back to overdue timers
            stack.client = await server.start()
            submitted = dataclasses.replace(
                submitted, handle=stack.client.get_workflow_handle(submitted.handle.id, result_type=RolloutResult)
            )
            played = await system.ended(submitted)
            assert worker.poll() is None
            assert played.kinds == ["agent_done"]
            assert played.generations == [1, 1, 1, 1]
            await system.exactly_once(played)
            table.add(5, f"Temporal server killed during {during}", system, played)
    finally:
        server.kill()


async def test_everything_dies_but_the_disk(tmp_path, table):
    """Server, worker and desktops are killed at once, as by a reboot: a new execution on a fresh desktop, soon, and nothing of the old one stays."""
    server = Server(tmp_path)
    client = await server.start()
    try:
        async with running(client, server.address, in_process=False, name="reboot", scripts=SCRIPTS) as stack:
            system = System(stack)
            worker = stack.start_worker()
            submitted = await system.submit(counting_task(), faults=":slow=4@1")
            await wait_until(lambda: system.asked(submitted, turn=1), 90)
            record = await system.desktop(f"{submitted.rollout_id}/x1")
            server.kill()
            stack.kill_worker(worker)
            for process in processes.find(record.marker):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            assert record.state_dir.exists()
            stack.client = await server.start()
            stack.start_worker()
            submitted = dataclasses.replace(
                submitted, handle=stack.client.get_workflow_handle(submitted.handle.id, result_type=RolloutResult)
            )
            async with asyncio.timeout(120):
                played = await system.ended(submitted)
            assert played.kinds == ["desktop_lost", "agent_done"]
            assert played.failure is None
            assert not record.state_dir.exists()
            await system.exactly_once(played)
            table.add(5, "Temporal server, worker and desktop killed at once", system, played)
    finally:
        server.kill()
