"""Recorded histories of real rollouts replay on today's workflows: a change that would break running rollouts fails here."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil

import pytest
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

import workflows
from tests.replay.record import HISTORIES

PATHS = sorted(HISTORIES.glob("*.json"))


def defined() -> list[type]:
    """Every workflow class of the package."""
    modules = [importlib.import_module(f"workflows.{item.name}") for item in pkgutil.iter_modules(workflows.__path__)]
    found = {
        value
        for module in modules
        for _, value in inspect.getmembers(module, inspect.isclass)
        if "__temporal_workflow_definition" in vars(value)
    }
    return sorted(found, key=lambda kind: kind.__name__)


def started(text: str) -> dict:
    return json.loads(text)["events"][0]["workflowExecutionStartedEventAttributes"]


async def replay(text: str) -> None:
    history = WorkflowHistory.from_json(started(text)["workflowId"], text)
    await Replayer(workflows=defined(), data_converter=pydantic_data_converter).replay_workflow(history)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
async def test_recorded_history_replays(path):
    await replay(path.read_text(encoding="utf-8"))


def test_every_kind_of_rollout_is_recorded():
    kinds = {path.name.split(".")[0] for path in PATHS}
    assert kinds >= {
        "succeeded",
        "failed-then-retried",
        "recovered",
        "continued-as-new",
        "cancelled",
        "cancelled-early",
        "cancelled-late",
    }
    assert (HISTORIES / "failed-then-retried.x2.json").exists()
    assert (HISTORIES / "continued-as-new.x1-run2.json").exists()
    assert '"recover_operation"' in (HISTORIES / "recovered.x1.json").read_text(encoding="utf-8")


def test_every_workflow_is_recorded():
    recorded = {started(path.read_text(encoding="utf-8"))["workflowType"]["name"] for path in PATHS}
    assert recorded >= {kind.__name__ for kind in defined()}


async def test_a_changed_sequence_is_noticed():
    text = (HISTORIES / "succeeded.x1.json").read_text(encoding="utf-8")
    with pytest.raises(Exception, match="Nondeterminism"):
        await replay(text.replace('"prepare_evaluation"', '"prepare_nothing"'))
