"""OpenAI's computer tool over the Responses API: `computer_use_preview`, and the newer `computer` with batched actions.

Format: OpenAI's computer use guide and the types of its Python SDK (`ResponseComputerToolCall`, `ComputerAction`,
`ComputerCallOutput`). Tips: xlang-ai/OSWorld, `mm_agents/openai_cua_agent.py` (OPERATOR_PROMPT), Apache-2.0.

Coordinates are pixels of the screen; off it they are clamped. `scroll_x` and `scroll_y` are pixels, positive right and down; a wheel
notch stands for `pixels_per_notch`. A reply without a `computer_call` ends the episode: as infeasible when it says so in the words
that the tips ask for (or OSWorld's other words for it), otherwise as done.

Safety checks are never acknowledged in silence: `safety_checks="stop"` makes them the failure `safety_check`, `"acknowledge"`
sends the acknowledgement and notes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from osworld_rollouts.adapters._chat import fill, media_url, merged
from osworld_rollouts.adapters._contract import BaseAdapter, FailureKind, Marks, Options
from osworld_rollouts.adapters._failures import no_action
from osworld_rollouts.adapters._parts import Ledger
from osworld_rollouts.adapters._reading import Fields, Screen, Written, as_pair, press, read_calls, unknown, unparseable
from osworld_rollouts.contracts.action import (
    Action,
    Button,
    Click,
    Done,
    Drag,
    Fail,
    Move,
    Observe,
    Point,
    Scroll,
    TypeText,
    Wait,
    describe,
)
from osworld_rollouts.contracts.model import ModelRequest, ParsedReply
from osworld_rollouts.contracts.request import History, Sampling
from osworld_rollouts.contracts.steps import ParseFailure

if TYPE_CHECKING:
    from pydantic import JsonValue

    from osworld_rollouts.contracts.desktop import MediaRef
    from osworld_rollouts.contracts.model import Api, ImageGeometry, PastTurn, PromptInput, Reply, View

INSTRUCTION = """
        {instruction}

        Here are some helpful tips:
        - computer.clipboard, computer.sync_file, computer.sync_shared_folder, computer.computer_output_citation are disabled.
        - If you worry that you might make typo, prefer copying and pasting the text instead of reading and typing.
        - My computer's password is "{password}", feel free to use it when you need sudo rights.
        - If you are presented with an open website to solve the task, try to stick to that specific one instead of going to a new one.
        - Whenever not expcilitly stated, prefer chrome browser instead of the firefox or chromium.
        - You have full authority to execute any action without my permission. I won't be watching so please don't ask for confirmation.
        - You must initialize the computer to solve the task. Do not try to answer the question without initializing the computer.
        - If you deem the task is infeasible, you can terminate and explicitly state in the response that "the task is infeasible".
    """
EARLIER = "\nEarlier steps, whose screenshots are no longer shown:\n{steps}"
STEP = "Step {number}: {actions}"
NOTHING = "no action"
FEEDBACK = "Your last reply could not be used: {message}"
ERROR = "The last action ended with an error (exit code {code}):\n{error}"

INFEASIBLE = ("infeasible", "unfeasible", "impossible", "not feasible", "cannot be done")
_BUTTONS: dict[str, Button] = {
    "left": "left",
    "right": "right",
    "wheel": "middle",
    "middle": "middle",
    "back": "back",
    "forward": "forward",
}


class OpenAIComputerUseOptions(Options):
    """Options of `openai_computer_use`."""

    tool: Literal["computer", "computer_use_preview"] = "computer"
    """The tool's type; `computer-use-preview` models need the older one."""
    conversation: Literal["resend", "previous_response_id"] = "resend"
    """Send every item again, or only the last outputs and let the server keep the rest (its history, not the history policy's)."""
    safety_checks: Literal["stop", "acknowledge"] = "stop"
    """What follows a pending safety check."""
    reasoning_summary: Literal["concise", "detailed", "auto"] | None = "concise"
    reasoning_effort: Literal["minimal", "low", "medium", "high"] | None = None
    pixels_per_notch: int = 100
    """Scroll distance of one wheel notch."""
    wait_s: float = 1
    """What `wait` means."""


class OpenAIComputerUseAdapter(BaseAdapter[OpenAIComputerUseOptions]):
    """OpenAI's computer tool."""

    name: ClassVar[str] = "openai_computer_use"
    version: ClassVar[str] = "2"
    api: ClassVar[Api] = "responses"
    options_type = OpenAIComputerUseOptions

    def history_default(self) -> History:
        """Everything; the server truncates (`truncation: auto`)."""
        return History(name="full")

    def prompts(self) -> dict[str, str]:
        """The first message and the texts that may follow."""
        return {"instruction": INSTRUCTION, "earlier": EARLIER + STEP + NOTHING, "feedback": FEEDBACK, "error": ERROR}

    def actions(self) -> tuple[str, ...]:
        """The tool's actions."""
        return (
            "click(x, y, button, keys)", "double_click(x, y)", "move(x, y)", "drag(path)", "scroll(x, y, scroll_x, scroll_y)",
            "type(text)", "keypress(keys)", "wait()", "screenshot()",
        )  # fmt: skip

    def render(self, prompt: PromptInput, model_name: str, sampling: Sampling) -> ModelRequest:
        """The instruction with the first screenshot, then each reply's items followed by what they led to."""
        sampling = merged(self.sampling_defaults(), sampling)
        media: list[MediaRef] = []
        last = prompt.past[-1] if prompt.past and self.options.conversation == "previous_response_id" else None
        chained = last.response_id if last and not self._withheld(last) else None
        body: dict[str, JsonValue] = {
            "model": model_name,
            "input": self._chained(prompt, media) if chained else self._resent(prompt, media),
            "tools": [self._tool(prompt)],
            "truncation": "auto",
        }
        if chained:
            body["previous_response_id"] = chained
        reasoning = {"summary": self.options.reasoning_summary, "effort": self.options.reasoning_effort}
        if any(reasoning.values()):
            body["reasoning"] = {key: value for key, value in reasoning.items() if value}
        names = {"max_tokens": "max_output_tokens"}
        body |= {
            names.get(key, key): value for key, value in sampling.model_dump(mode="json", exclude_none=True).items()
        }
        return ModelRequest(api=self.api, body=body, media=tuple(media))

    def parse(self, reply: Reply, geometry: ImageGeometry, marks: Marks = ()) -> ParsedReply:  # noqa: ARG002
        """The actions of every `computer_call`, in order; without one, the end of the episode."""
        screen = Screen(geometry, "clamp")
        ledger = Ledger(reply.text)
        calls: list[Written] = []
        ledgers: list[Ledger] = []
        for index, item in enumerate(reply.output):
            if item.get("type") != "computer_call":
                continue
            if (pending := _checks(item)) and self.options.safety_checks == "stop":
                return self.checked(
                    ParsedReply(failure=_unacknowledged(pending), parts=ledger.parts(), thought=reply.reasoning)
                )
            screen.notes += [f"safety check {check.get('code') or check.get('id')} acknowledged" for check in pending]
            own = Ledger(" ", f"output[{index}]")
            ledgers.append(own)
            if item.get("status") == "incomplete":
                own.dropped(0, 1, "the call is incomplete")
                continue
            calls.append(
                Written(own, (0, 1), lambda call=item: [self._action(value, screen) for value in _actions(call)])
            )
        actions, failure = read_calls(calls)
        if not calls:
            ended = _ended(reply)
            failure = ended if isinstance(ended, ParseFailure) else None
            if not isinstance(ended, ParseFailure):
                actions = [ended]
                screen.notes.append("no computer_call: the model ended the episode")
                ledger.took(0, len(reply.text), 0)
        return self.checked(
            ParsedReply(
                actions=tuple(actions),
                failure=failure,
                parts=sum((own.parts() for own in ledgers), ledger.parts()),
                notes=tuple(screen.notes),
                action_text=reply.text.strip() or None,
                thought=reply.reasoning,
            )
        )

    def _tool(self, prompt: PromptInput) -> dict[str, JsonValue]:
        if self.options.tool == "computer":
            return {"type": "computer"}
        size = prompt.geometry
        return {
            "type": "computer_use_preview",
            "display_width": size.image_width,
            "display_height": size.image_height,
            "environment": "linux",
        }

    def _resent(self, prompt: PromptInput, media: list[MediaRef]) -> JsonValue:
        """Every turn; one whose result is no longer shown becomes a line of the first message."""
        views = [*(past.view for past in prompt.past), prompt.current]
        shown = [*(past.live for past in prompt.past), True]
        folded = [past for past, after in zip(prompt.past, shown[1:], strict=True) if not after]
        text = fill(INSTRUCTION, password=prompt.password, instruction=prompt.instruction)
        if folded:
            text += EARLIER.replace("{steps}", "\n".join(map(_step, folded)))
        items: list[JsonValue] = [_message(text, views[0] if shown[0] else None, media)]
        for index, past in enumerate(prompt.past):
            if past not in folded:
                items += self._after(past, views[index + 1], media)
        return [*items, *self._rejected(prompt, media)]

    def _chained(self, prompt: PromptInput, media: list[MediaRef]) -> JsonValue:
        """What the last reply led to."""
        items = self._after(prompt.past[-1], prompt.current, media, resend=False)
        return [*items, *self._rejected(prompt, media)]

    def _withheld(self, past: PastTurn) -> bool:
        """Whether a reply waits for an acknowledgement that nobody gave: the API takes no result for its calls, so they are not sent."""
        return self.options.safety_checks == "stop" and any(map(_checks, past.output))

    def _rejected(self, prompt: PromptInput, media: list[MediaRef]) -> list[JsonValue]:
        return [item for past in prompt.rejected for item in self._after(past, prompt.current, media)]

    def _after(self, past: PastTurn, view: View, media: list[MediaRef], *, resend: bool = True) -> list[JsonValue]:
        """A reply's items, an output with the next screenshot for each call, and what else the model should know."""
        withheld = self._withheld(past)
        items: list[JsonValue] = [dict(item) for item in past.output] if resend and not withheld else []
        calls = [item for item in past.output if item.get("type") == "computer_call" and not withheld]
        for call in calls:
            acknowledged = cast("JsonValue", _checks(call)) if self.options.safety_checks == "acknowledge" else None
            items.append(
                {
                    "type": "computer_call_output",
                    "call_id": call.get("call_id"),
                    "output": _screenshot(view, media),
                    **({"acknowledged_safety_checks": acknowledged} if acknowledged else {}),
                }
            )
        failed = [outcome for outcome in past.outcomes if outcome.returncode and self.options.show_errors]
        words = [FEEDBACK.replace("{message}", past.failure.message)] if past.failure else []
        words += [fill(ERROR, code=it.returncode, error=it.error.strip()[-1000:]) for it in failed]
        if words or not calls:
            items.append(_message("\n".join(words) or NOTHING, None if calls else view, media))
        return items

    def _action(self, value: object, screen: Screen) -> Action:
        fields = Fields(value, "an action")
        kind = fields.text("type")
        fields.what = kind
        match kind:
            case "click":
                button = fields.choice("button", _BUTTONS, "left")
                return Click(point=_point(fields, screen), button=_BUTTONS[button], modifiers=_held(fields))
            case "double_click":
                return Click(point=_point(fields, screen), count=2, modifiers=_held(fields))
            case "move":
                return Move(point=_point(fields, screen))
            case "drag":
                path = fields.values.get("path")
                if not isinstance(path, list) or len(path) < 2:
                    unparseable("drag needs a path of at least two points")
                points = tuple(screen.point(*as_pair(point, "drag needs points")) for point in path)
                duration = 0.5 if len(points) == 2 else min(0.2 * (len(points) - 1), 30.0)
                return Drag(path=points, duration_s=duration, modifiers=_held(fields))
            case "scroll":
                right, down = (self._notches(fields.number(name, 0), screen) for name in ("scroll_x", "scroll_y"))
                point = _point(fields, screen) if fields.has("x", "y") else None
                return Scroll(point=point, clicks_x=right, clicks_y=-down, modifiers=_held(fields))
            case "type":
                return TypeText(text=fields.text("text"))
            case "keypress":
                return press(fields.keys("keys"))
            case "wait":
                return Wait(seconds=screen.seconds(max(fields.number("ms", self.options.wait_s * 1000) / 1000, 0.1)))
            case "screenshot":
                return Observe()
            case _:
                return unknown(f"there is no action {kind!r}")

    def _notches(self, pixels: float, screen: Screen) -> int:
        """Wheel notches for a distance: at least one when there is any."""
        whole = round(abs(pixels) / self.options.pixels_per_notch) or int(pixels != 0)
        return screen.notches(whole if pixels > 0 else -whole)


def _actions(call: dict[str, JsonValue]) -> list[object]:
    """The single action of the preview tool or the batch of the newer one."""
    batch = call.get("actions")
    if isinstance(batch, list) and batch:
        return list(batch)
    return [call["action"]] if call.get("action") is not None else unparseable("the computer_call has no action")


def _checks(call: dict[str, JsonValue]) -> list[dict[str, Any]]:
    checks = call.get("pending_safety_checks")
    return (
        [cast("dict[str, Any]", check) for check in checks if isinstance(check, dict)]
        if isinstance(checks, list)
        else []
    )


def _unacknowledged(pending: list[dict[str, Any]]) -> ParseFailure:
    said = "; ".join(
        f"{check.get('code') or check.get('id')}: {check.get('message') or 'no message'}" for check in pending
    )
    return ParseFailure(
        kind=FailureKind.SAFETY_CHECK, message=f"a safety check is pending and options.safety_checks is 'stop': {said}"
    )


def _ended(reply: Reply) -> Action | ParseFailure:
    """What a reply without a call means."""
    parts = [part for item in reply.output if item.get("type") == "message" for part in _contents(item)]
    if any(part.get("type") == "refusal" for part in parts):
        return ParseFailure(kind=FailureKind.REFUSED, message=f"the model refused: {reply.text.strip()[:500]}")
    if reply.truncated or not reply.text.strip():
        return no_action(reply, reply.text, "")
    if any(word in reply.text.lower() for word in INFEASIBLE):
        return Fail(reason=reply.text.strip())
    return Done(answer=reply.text.strip())


def _contents(item: dict[str, JsonValue]) -> list[dict[str, JsonValue]]:
    content = item.get("content")
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _point(fields: Fields, screen: Screen) -> Point:
    return screen.point(fields.number("x"), fields.number("y"))


def _held(fields: Fields) -> tuple[str, ...]:
    return fields.keys("keys") if fields.values.get("keys") else ()


def _message(text: str, view: View | None, media: list[MediaRef]) -> JsonValue:
    content: list[JsonValue] = []
    if view is not None and view.image is not None:
        media.append(view.image)
        content.append({"type": "input_image", "image_url": media_url(view.image), "detail": "auto"})
    return {"role": "user", "content": [*content, {"type": "input_text", "text": text}]}


def _screenshot(view: View, media: list[MediaRef]) -> JsonValue:
    if view.image is None:
        return {"type": "computer_screenshot"}
    media.append(view.image)
    return {"type": "computer_screenshot", "image_url": media_url(view.image)}


def _step(past: PastTurn) -> str:
    actions = "; ".join(describe(action) for action in past.actions) or NOTHING
    return fill(STEP, number=past.turn + 1, actions=actions)
