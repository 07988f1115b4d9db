"""Every protocol drives a real desktop to a solved task, its model played by a server that speaks the real wire format."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from osworld_rollouts.adapters import adapter_names
from osworld_rollouts.contracts.action import Click, Done, Hotkey, Point, Press, TypeText
from osworld_rollouts.contracts.evidence import ModelCallRecord
from osworld_rollouts.contracts.outcome import OutcomeKind
from osworld_rollouts.contracts.request import Adapter
from osworld_rollouts.evidence import chain, transcript
from osworld_rollouts.evidence.store import open_store
from osworld_rollouts.tasks import shipped_tasks
from osworld_rollouts.testing.protocol_servers.server import ProtocolServer
from tests.e2e.conftest import stack  # noqa: F401 - a fixture

pytestmark = [pytest.mark.temporal, pytest.mark.desktop]
TASK = next(task for task in shipped_tasks() if task.task_id == "text-edit-save")
TEXT_AREA = Point(x=960, y=500)
TURNS = [
    [Click(point=TEXT_AREA)],
    [Hotkey(keys=("ctrl", "home")), Press(key="down"), Press(key="down"), Press(key="home")],
    [Hotkey(keys=("ctrl", "right"))] * 5,
    [Hotkey(keys=("ctrl", "shift", "right")), TypeText(text=" Thursday")],
    [Hotkey(keys=("ctrl", "end")), TypeText(text="Guest: Ms Okafor")],
    [Hotkey(keys=("ctrl", "s"))],
    [Done()],
]
OPTIONS = [
    ("anthropic_computer_use", {"tool": "computer_toolset_20260801"}),
    ("computer_13", {"observation": "screenshot_a11y_tree"}),
    ("openai_computer_use", {"conversation": "previous_response_id", "tool": "computer_use_preview"}),
    ("pyautogui", {"observation": "som", "form": "gym"}),
    ("qwen3_vl", {"coordinates": "absolute"}),
]
VARIANTS = [
    *((name, {}) for name in adapter_names()),
    *(pytest.param(*variant, marks=pytest.mark.slow) for variant in OPTIONS),
]


TURN = 4


async def rendered_again(rollout_id, store, name, options):
    """What `rollouts render` makes of a turn that was played, from the evidence alone."""
    given = [word for key, value in options.items() for word in ("--option", f"{key}={value}")]
    command = (
        "render",
        "--from",
        rollout_id,
        "--turn",
        str(TURN),
        "--adapter",
        name,
        *given,
        "--store",
        store,
        "--json",
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "osworld_rollouts.console.main", *command, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    (request,) = json.loads(out)
    return request["body"]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
async def test_a_task_is_solved_in_every_protocol(stack, name, options):  # noqa: F811
    async with ProtocolServer(name, TURNS, options=options) as server:
        submitted = await stack.submit(
            TASK,
            campaign=f"{stack.campaign}-{name}-{len(options)}",
            base_url=server.base_url,
            adapter=Adapter(name=name, options=options),
        )
        result = await submitted.handle.result()
    assert (result.outcome.kind, result.outcome.score) == (OutcomeKind.AGENT_DONE, 1.0), result
    assert result.outcome.turns == len(TURNS) == len(server.requests)
    records = chain.walk(open_store(stack.settings.store.url), result.executions[0].evidence_head)
    calls = [record for record in records if isinstance(record, ModelCallRecord)]
    assert all(call.failure is None for call in calls)
    assert all(outcome.returncode == 0 for turn in transcript.turns(records) for outcome in turn.outcomes)
    sent = json.loads(open_store(stack.settings.store.url).get(calls[TURN].sent))
    assert await rendered_again(submitted.rollout_id, stack.settings.store.url, name, options) == sent["body"]
    if name == "anthropic_computer_use":
        beta = None if options else "computer-use-2025-01-24"
        assert server.requests[0][0].get("anthropic-beta") == beta
    if "observation" in options:
        assert "Mousepad" in json.dumps(server.requests[1][1])
