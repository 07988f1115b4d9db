"""From the evidence chain to the adapter's input: everything a prompt may show, and nothing else."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from osworld_rollouts import history as policies
from osworld_rollouts.adapters.registry import load_adapter
from osworld_rollouts.contracts.model import ImageGeometry, ModelRequest, ObservationNeeds, PastTurn, PromptInput, View
from osworld_rollouts.contracts.request import History, RolloutRequest, Sampling
from osworld_rollouts.evidence import transcript
from osworld_rollouts.evidence.media import describe_image, put_screenshot
from osworld_rollouts.serving.exact import ask_for_evidence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from osworld_rollouts.adapters._contract import ModelAdapter
    from osworld_rollouts.contracts.desktop import MediaRef, Observation
    from osworld_rollouts.contracts.evidence import ExecutionStarted, Record
    from osworld_rollouts.contracts.steps import CallModel
    from osworld_rollouts.evidence.store import EvidenceStore

_REMEMBERED_IMAGES = 2048


@dataclass(frozen=True)
class Prompt:
    """An adapter with what it is to render."""

    adapter: ModelAdapter
    request: RolloutRequest
    started: ExecutionStarted
    sampling: Sampling
    input: PromptInput

    def render(self, model_name: str | None = None) -> ModelRequest:
        """The request as it is sent, with the caller's further fields and, for exact evidence, the fields that ask for it."""
        rollout = self.request.rollout
        request = self.adapter.render(self.input, model_name or rollout.model.name, self.sampling)
        request = request.model_copy(update={"body": {**request.body, **rollout.model.extra_body}})
        return ask_for_evidence(request) if rollout.evidence == "exact" else request


class AdapterVersionError(RuntimeError):
    """This worker has another version of the adapter than the one the execution began with."""


class PromptBuilder:
    """Builds prompts from chains. Remembers images it has already brought into a model's geometry.

    With `keep_images=False` those are named by their sha256 and not stored: for whoever only wants to look.
    """

    def __init__(self, store: EvidenceStore, *, keep_images: bool = True) -> None:
        self._store = store
        self._keep_images = keep_images
        self._lock = threading.Lock()
        self._images: OrderedDict[tuple[str, ImageGeometry, tuple[tuple[int, int, int, int], ...]], MediaRef] = (
            OrderedDict()
        )
        self._request = functools.lru_cache(maxsize=256)(self._read_request)

    def build(self, records: Sequence[Record], step: CallModel) -> Prompt:
        """The prompt of one call. Blocks; run it in a thread.

        Raises:
            AdapterVersionError: another version of the adapter is installed here than the execution began with.
            EvidenceError: something the chain names cannot be read.
        """
        started = transcript.started(records)
        request = self._request(started.request)
        rollout = request.rollout
        adapter = load_adapter(rollout.adapter.name, dict(rollout.adapter.options))
        if adapter.identity().version != started.adapter_version:
            raise AdapterVersionError(
                f"execution {started.execution_id} began with {started.adapter} {started.adapter_version}; "
                f"this worker has {adapter.identity().version}"
            )
        return self.build_with(adapter, records, step)

    def build_with(self, adapter: ModelAdapter, records: Sequence[Record], step: CallModel) -> Prompt:
        """As `build`, for any adapter: what it would be shown in the place of the execution's own.

        Raises:
            EvidenceError: something the chain names cannot be read.
        """
        started = transcript.started(records)
        request = self._request(started.request)
        rollout = request.rollout
        geometry = adapter.geometry(rollout.desktop.width, rollout.desktop.height)
        needs = adapter.needs()
        history = History(name=started.history, params=started.history_params)
        live = set(policies.live_turns(history, step.window, step.turn))
        kept = set(policies.kept_turns(history, step.window, step.turn))
        past = transcript.turns(records, before=step.turn)
        current = transcript.current_observation(records)
        turn = next((item for item in transcript.turns(records) if item.turn == step.turn), None)
        rejected = turn.rejected if turn is not None and step.feedback else []
        return Prompt(
            adapter=adapter,
            request=request,
            started=started,
            sampling=resolve_sampling(rollout.sampling, adapter.sampling_defaults(), step.temperature),
            input=PromptInput(
                instruction=rollout.task.instruction,
                turn=step.turn,
                max_turns=rollout.max_turns,
                geometry=geometry,
                window=step.window,
                past=tuple(self._past(item, item.turn in live, needs, geometry) for item in past if item.turn in kept),
                current=self._view(current, needs, geometry),
                rejected=tuple(self._call(step.turn, call) for call in rejected),
            ),
        )

    def _past(self, turn: transcript.Turn, live: bool, needs: ObservationNeeds, geometry: ImageGeometry) -> PastTurn:
        view = self._view(turn.observation, needs, geometry, image=live)
        shown = turn.final
        if shown is None:
            return PastTurn(turn=turn.turn, view=view, live=live, outcomes=turn.outcomes)
        return self._call(turn.turn, shown).model_copy(
            update={
                "view": view,
                "live": live,
                "actions": turn.actions,
                "outcomes": turn.outcomes,
                "failure": turn.failure,
            }
        )

    def _call(self, turn: int, call: transcript.ModelCallRecord) -> PastTurn:
        return PastTurn(
            turn=turn,
            view=View(),
            live=False,
            text=call.text,
            reasoning=call.reasoning,
            output=transcript.output_items(self._store, call),
            response_id=call.response_id,
            actions=call.actions,
            failure=call.failure,
        )

    def _view(
        self, observation: Observation, needs: ObservationNeeds, geometry: ImageGeometry, *, image: bool = True
    ) -> View:
        if not observation.accessibility_tree or not (needs.accessibility_tree or needs.set_of_marks):
            return View(image=self._image(observation.screenshot, geometry, ()) if image and needs.screenshot else None)
        from osworld_rollouts.adapters.accessibility import accessibility_text, marks_of  # noqa: PLC0415 - XML, for few adapters

        tree = self._store.get(observation.accessibility_tree).decode("utf-8", "replace")
        marks = (
            marks_of(tree, observation.screenshot.width, observation.screenshot.height) if needs.set_of_marks else ()
        )
        return View(
            image=self._image(observation.screenshot, geometry, marks) if image and needs.screenshot else None,
            accessibility_tree=accessibility_text(tree),
            marks=marks,
        )

    def _image(self, shot: MediaRef, geometry: ImageGeometry, marks: tuple[tuple[int, int, int, int], ...]) -> MediaRef:
        if not marks and (shot.width, shot.height) == (geometry.image_width, geometry.image_height):
            return shot
        from osworld_rollouts.adapters.images import draw_marks, prepare_image  # noqa: PLC0415 - Pillow, only for other geometries

        key = (shot.sha256, geometry, marks)
        with self._lock:
            if key in self._images:
                return self._images[key]
        data = self._store.get(shot.sha256)
        resized = prepare_image(draw_marks(data, marks) if marks else data, geometry)
        prepared = put_screenshot(self._store, resized) if self._keep_images else describe_image(resized)
        with self._lock:
            self._images[key] = prepared
            while len(self._images) > _REMEMBERED_IMAGES:
                self._images.popitem(last=False)
        return prepared

    def _read_request(self, sha256: str) -> RolloutRequest:
        return RolloutRequest.model_validate_json(self._store.get(sha256))


def resolve_sampling(asked: Sampling, default: Sampling, temperature: float | None) -> Sampling:
    """The request's own values over the adapter's; a resample's temperature over both."""
    merged = {**default.model_dump(exclude_none=True), **asked.model_dump(exclude_none=True)}
    if temperature is not None:
        merged["temperature"] = temperature
    return Sampling.model_validate(merged)
