"""Fixtures: one warm evaluator for the session, a guest that misbehaves on request, a real desktop for each test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from osworld_rollouts.contracts.desktop import DesktopSpec, LeaseOwner
from osworld_rollouts.osworld.evaluator import OSWorldEvaluator
from osworld_rollouts.osworld.gateway import GatewayLimits
from osworld_rollouts.osworld.job import GuestEndpoint
from tests.osworld.fault_server import FaultServer
from tests.osworld.rig import Rig

QUICK = GatewayLimits(
    connect_s=2, reconnect_s=1.5, read_s=3, accessibility_s=3, command_s=2, launch_s=2, open_s=2, upload_s=5, file_s=3,
    window_s=1, post_window_s=0.5, grace_s=1,
)  # fmt: skip
"""The product's limits, made short: a hung guest should not hang the tests."""


@pytest.fixture(scope="session")
async def evaluator(tmp_path_factory):
    """A warm evaluator with short limits."""
    pytest.importorskip("desktop_env", reason="the evaluator extra is not installed")
    found = OSWorldEvaluator(state_dir=tmp_path_factory.mktemp("evaluator"), limits=QUICK, heartbeat_every_s=0.2)
    await found.start()
    yield found
    await found.close()


@pytest.fixture(scope="session")
async def patient_evaluator(tmp_path_factory):
    """A warm evaluator with the product's own limits, for real desktops."""
    pytest.importorskip("desktop_env", reason="the evaluator extra is not installed")
    found = OSWorldEvaluator(state_dir=tmp_path_factory.mktemp("patient"))
    await found.start()
    yield found
    await found.close()


@pytest.fixture
async def server():
    """A guest over real HTTP that answers well until it is told otherwise."""
    async with FaultServer() as found:
        yield found


@pytest.fixture
def rig(evaluator, server, tmp_path) -> Rig:
    """The evaluator against the misbehaving guest."""
    guest = GuestEndpoint(host="127.0.0.1", server_port=server.port, token=server.token)
    return Rig(evaluator, guest, tmp_path / "cache", [])


@pytest.fixture
async def desktop(tmp_path_factory):
    """A real local desktop of one's own."""
    from osworld_rollouts.desktops.local import LocalDesktopProvider

    provider = LocalDesktopProvider(tmp_path_factory.getbasetemp() / "desktops")
    problems = [problem for problem in await provider.preflight() if problem.fatal]
    if problems:
        pytest.skip(f"no local desktop here: {problems[0].message}; {problems[0].remedy}")
    lease = f"osworld-tests-{tmp_path_factory.mktemp('lease').name}"
    owner = LeaseOwner(workflow_id="tests", run_id="tests", execution_id="tests/osworld/0/x1")
    record = await provider.create(DesktopSpec(), lease, owner)
    yield record
    await provider.destroy(lease)


@pytest.fixture
def real_rig(patient_evaluator, desktop, tmp_path) -> Rig:
    """The evaluator against a real desktop."""
    return Rig(patient_evaluator, GuestEndpoint.of(desktop), tmp_path / "cache", [])


@pytest.fixture(scope="session")
def canonical(shared):
    """Read a canonical task: `canonical("os", "a4d98375")`."""
    folder: Path = shared / "data" / "osworld" / "examples"

    def read(domain: str, prefix: str) -> dict[str, Any]:
        (path,) = folder.glob(f"{domain}/{prefix}*.json")
        return json.loads(path.read_text())

    return read
