"""One whole system for the session's end-to-end tests, its worker inside this process."""

from __future__ import annotations

import pytest

from tests.stack import missing_packages, running


@pytest.fixture(scope="session")
async def stack(temporal_env):
    """Temporal, worker, local desktops, evaluator, scripted policy."""
    pytest.importorskip("desktop_env", reason="the evaluator extra is not installed")
    assert not missing_packages(), missing_packages()
    address = temporal_env.client.service_client.config.target_host
    async with running(temporal_env.client, address, in_process=True, name="e2e") as found:
        yield found
