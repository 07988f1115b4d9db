"""One system for this folder's tests, and the table of results."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.counting import counting_script
from tests.chaos.system import System
from tests.chaos.table import Table
from tests.stack import missing_packages, running

SCRIPTS = [counting_script(), counting_script(pause_s=2), counting_script(turns=6), counting_script(turns=12)]


@pytest.fixture(scope="session")
def table():
    """Results by case; written to the document that RELIABILITY_REPORT names."""
    found = Table()
    yield found
    if path := os.environ.get("RELIABILITY_REPORT"):
        found.write(Path(path))


@pytest.fixture(scope="package")
async def system(temporal_env):
    """Temporal, two worker processes of one host, each started again when it dies, local desktops, evaluator, scripted policy."""
    pytest.importorskip("desktop_env", reason="the evaluator extra is not installed")
    assert not missing_packages(), missing_packages()
    address = temporal_env.client.service_client.config.target_host
    async with running(temporal_env.client, address, in_process=False, name="chaos", scripts=SCRIPTS) as stack:
        found = System(stack)
        await found.fleet.start(2)
        yield found
        await found.fleet.stop()
