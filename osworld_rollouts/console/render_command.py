"""`rollouts render`: the exact request, images as `media://<sha256>`."""

from __future__ import annotations

import json as jsonlib
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from osworld_rollouts.console.adapters_list import load
from osworld_rollouts.console.errors import ConsoleError, ExitCode
from osworld_rollouts.console.output import Output
from osworld_rollouts.console.store_commands import configured_store
from osworld_rollouts.contracts.desktop import MediaRef
from osworld_rollouts.contracts.model import PromptInput, View
from osworld_rollouts.contracts.request import Sampling
from osworld_rollouts.contracts.steps import HistoryWindow
from osworld_rollouts.evidence import chain, transcript
from osworld_rollouts.evidence.index import list_pointers
from osworld_rollouts.tasks.catalog import load_tasks

if TYPE_CHECKING:
    from osworld_rollouts.contracts.evidence import ModelCallRecord
    from osworld_rollouts.evidence.store import EvidenceStore

NO_SCREENSHOT = "0" * 64


def render(
    *,
    adapter: str = "pyautogui",
    task: str | None = None,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    turn: int = 0,
    option: tuple[str, ...] = (),
    model: str = "MODEL",
    store: str | None = None,
    json: bool = False,
) -> None:
    """Print the exact request a task begins with, or the one a rollout sent.

    Parameters
    ----------
    adapter
        The model protocol.
    task
        Id of a shipped task, or a task file: the first request of a rollout, with a placeholder for the screenshot.
    from_
        Id of a finished rollout: the requests it sent, from its last execution's evidence.
    turn
        With --from: which turn, from 0.
    option
        An adapter option, name=value. May be repeated.
    model
        The model's name in the request.
    store
        Path or URL of another evidence store.
    json
        Print JSON with what is known beside the request.
    """
    out = Output(as_json=json)
    if (task is None) == (from_ is None):
        raise ConsoleError("name a task with --task, or a finished rollout with --from")
    if from_ is not None:
        requests = _sent(configured_store(store), from_.removeprefix("rollout/"), turn)
    else:
        requests = [_first(adapter, option, str(task), model)]
    out.record(requests)
    for request in requests:
        for name, value in request.get("headers", {}).items():
            out.line(f"{name}: {value}")
        out.line(jsonlib.dumps(request["body"], indent=2, ensure_ascii=False))


def _first(name: str, option: tuple[str, ...], task: str, model: str) -> dict[str, Any]:
    adapter = load(name, option)
    (found,) = load_tasks(task)[:1]
    spec_width, spec_height = 1920, 1080
    geometry = adapter.geometry(spec_width, spec_height)
    shot = MediaRef(
        sha256=NO_SCREENSHOT,
        pixel_sha256=NO_SCREENSHOT,
        bytes=0,
        width=geometry.image_width,
        height=geometry.image_height,
    )
    needs = adapter.needs()
    tree = "(the accessibility tree)" if needs.accessibility_tree else None
    prompt = PromptInput(
        instruction=found.instruction,
        turn=0,
        max_turns=15,
        geometry=geometry,
        window=HistoryWindow(),
        past=(),
        current=View(image=shot if needs.screenshot else None, accessibility_tree=tree),
    )
    request = adapter.render(prompt, model, Sampling())
    return {"adapter": adapter.identity().model_dump(mode="json"), **request.model_dump(mode="json")}


def _sent(store: EvidenceStore, rollout: str, turn: int) -> list[dict[str, Any]]:
    """Every request of a turn, oldest first: the first call, then resamples and shrunk prompts."""
    pointers = sorted(list_pointers(store, rollout_id=rollout), key=lambda pointer: pointer.number)
    if not pointers:
        raise ConsoleError(
            f"no sealed execution of {rollout!r} is in this store",
            remedy="`rollouts list` shows rollouts; --store names another store",
            code=ExitCode.NOT_FOUND,
        )
    records = chain.walk(store, pointers[-1].head)
    calls = [call for call in transcript.calls(records) if call.turn == turn]
    if not calls:
        last = max((call.turn for call in transcript.calls(records)), default=None)
        known = "it sent none" if last is None else f"its turns are 0 to {last}"
        raise ConsoleError(
            f"{pointers[-1].execution_id} sent no request in turn {turn}; {known}", code=ExitCode.NOT_FOUND
        )
    return [_stored(store, call) for call in calls]


def _stored(store: EvidenceStore, call: ModelCallRecord) -> dict[str, Any]:
    request = jsonlib.loads(store.get(call.sent))
    return {
        "turn": call.turn,
        "call": call.call,
        "sent": call.sent,
        **request,
        "media": [media.sha256 for media in call.media],
    }
