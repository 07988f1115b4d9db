"""`rollouts render`: the exact request of a task's first turn or of one that was played, images as `media://<sha256>`."""

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
from osworld_rollouts.contracts.request import RolloutRequest, Sampling
from osworld_rollouts.contracts.steps import CallModel, HistoryWindow
from osworld_rollouts.evidence import chain, transcript
from osworld_rollouts.evidence.index import list_pointers
from osworld_rollouts.prompts import PromptBuilder
from osworld_rollouts.tasks.catalog import load_tasks

if TYPE_CHECKING:
    from osworld_rollouts.contracts.evidence import ModelCallRecord, Record
    from osworld_rollouts.evidence.store import EvidenceStore

NO_SCREENSHOT = "0" * 64


def render(
    *,
    adapter: str | None = None,
    task: str | None = None,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    turn: int = 0,
    option: tuple[str, ...] = (),
    model: str | None = None,
    store: str | None = None,
    json: bool = False,
) -> None:
    """Print the exact request a task begins with, the one a rollout sent, or the one another adapter makes of the same turn.

    Parameters
    ----------
    adapter
        The model protocol: pyautogui with --task. With --from, what this one makes of the turn (the task, the turns its history showed,
        what the desktop showed) instead of the request that was sent.
    task
        Id of a shipped task, or a task file: the first request of a rollout, with a placeholder for the screenshot.
    from_
        Id of a finished rollout: the requests it sent, from its last execution's evidence.
    turn
        With --from: which turn, from 0.
    option
        An adapter option, name=value. May be repeated. With --from and no --adapter: the rollout's own adapter, changed so far.
    model
        The model's name in the request; with --from the rollout's, otherwise MODEL.
    store
        Path or URL of another evidence store.
    json
        Print JSON with what is known beside the request.
    """
    out = Output(as_json=json)
    if (task is None) == (from_ is None):
        raise ConsoleError("name a task with --task, or a finished rollout with --from")
    if from_ is None:
        requests = [_first(adapter or "pyautogui", option, str(task), model or "MODEL")]
    else:
        evidence = configured_store(store)
        records, calls = _calls(evidence, from_.removeprefix("rollout/"), turn)
        if adapter is None and not option and model is None:
            requests = [_stored(evidence, call) for call in calls]
        else:
            requests = [_anew(evidence, records, calls[0], adapter, option, model, out)]
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


def _calls(store: EvidenceStore, rollout: str, turn: int) -> tuple[list[Record], list[ModelCallRecord]]:
    """A rollout's last chain, and every call of a turn, oldest first: the first call, then resamples and shrunk prompts."""
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
    return records, calls


def _anew(
    store: EvidenceStore,
    records: list[Record],
    call: ModelCallRecord,
    name: str | None,
    option: tuple[str, ...],
    model: str | None,
    out: Output,
) -> dict[str, Any]:
    """What an adapter makes of a turn's first call: the same history window, and nothing the chain learnt later."""
    own = RolloutRequest.model_validate_json(store.get(transcript.started(records).request)).rollout.adapter
    kept = [f"{key}={jsonlib.dumps(value)}" for key, value in own.options.items()] if name is None else []
    adapter = load(name or own.name, [*kept, *option])
    before = records[: records.index(call)]
    step = CallModel(
        execution_id=call.execution_id, head=call.previous or "", turn=call.turn, call=call.call, window=call.window
    )
    try:
        prompt = PromptBuilder(store, keep_images=False).build_with(adapter, before, step)
    except ImportError as error:  # Pillow, for screenshots in another size or with marks
        raise ConsoleError(
            f"{adapter.name} shows screenshots in another form, for which {error.name} is needed",
            remedy="pip install 'osworld-rollouts[worker]'",
        ) from error
    needs, seen = adapter.needs(), transcript.current_observation(before)
    lacking = (needs.accessibility_tree or needs.set_of_marks) and seen.accessibility_tree is None
    if lacking:
        out.note(
            f"{adapter.name} wants the accessibility tree; the rollout's own adapter did not, so none was recorded"
        )
    request = prompt.render(model)
    return {
        "turn": call.turn,
        "instead_of": call.sent,
        "adapter": adapter.identity().model_dump(mode="json"),
        "api": request.api,
        "body": request.body,
        "headers": request.headers,
        "media": [media.sha256 for media in request.media],
        "missing": ["accessibility_tree"] if lacking else [],
    }


def _stored(store: EvidenceStore, call: ModelCallRecord) -> dict[str, Any]:
    request = jsonlib.loads(store.get(call.sent))
    return {
        "turn": call.turn,
        "call": call.call,
        "sent": call.sent,
        **request,
        "media": [media.sha256 for media in call.media],
    }
