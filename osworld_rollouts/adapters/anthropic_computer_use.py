"""Anthropic's computer tool over the Messages API.

Format: Anthropic's computer use documentation and the types of its Python SDK (`BetaToolComputerUse20250124Param`,
`BetaToolComputerUse20251124Param`, `ComputerToolset20260801Param`); calls of the toolset carry the action as their name. Prompt: xlang-ai/OSWorld, `mm_agents/anthropic/utils.py` (SYSTEM_PROMPT), Apache-2.0, without its lines about a bash tool
and the date, which are not ours to give, and with the password and the word for infeasible tasks.

Coordinates are pixels of the image, 1280 wide as OSWorld resizes it; off the image they are rejected, as Anthropic's reference
implementation does, and the model is told so. A reply that ends its turn without a call ends the episode. `zoom` is not offered: what it would show is
not among a turn's observations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, cast

from osworld_rollouts.adapters._chat import fill, media_url, merged
from osworld_rollouts.adapters._contract import BaseAdapter, FailureKind, Marks, Options
from osworld_rollouts.adapters._failures import no_action
from osworld_rollouts.adapters._parts import Ledger
from osworld_rollouts.adapters._reading import Fields, Screen, Written, press, read_calls, unknown, unparseable
from osworld_rollouts.contracts.action import (
    Action,
    Click,
    Done,
    Drag,
    Fail,
    Hotkey,
    MouseDown,
    MouseUp,
    Move,
    Observe,
    Point,
    Press,
    Scroll,
    TypeText,
    Wait,
)
from osworld_rollouts.contracts.model import ImageGeometry, ModelRequest, ParsedReply, Reply
from osworld_rollouts.contracts.request import History, Sampling
from osworld_rollouts.contracts.steps import ParseFailure

if TYPE_CHECKING:
    from pydantic import JsonValue

    from osworld_rollouts.contracts.desktop import MediaRef
    from osworld_rollouts.contracts.model import Api, PastTurn, PromptInput, View

SYSTEM = """\
<SYSTEM_CAPABILITY>
* You are utilising an Ubuntu virtual machine using x86_64 architecture with internet access.
* To open browser, please just click on the Chrome icon.  Note, Chrome is what is installed on your system.
* When viewing a page it can be helpful to zoom out so that you can see everything on the page.  Either that, or make sure you scroll down to see everything before deciding something isn't available.
* DO NOT ask users for clarification during task execution. DO NOT stop to request more information from users. Always take action using available tools.
* When using your computer function calls, they take a while to run and send back to you.  Where possible/feasible, try to chain multiple of these calls all into one function calls request.
* Home directory of this Ubuntu system is '/home/user'.
* If you need a password for sudo, the password of the computer is '{password}'.
* If the task cannot be done, end your turn with a message that contains [INFEASIBLE].
</SYSTEM_CAPABILITY>"""
INFEASIBLE = "[INFEASIBLE]"
OMITTED = "(this screenshot is no longer shown)"
FEEDBACK = "Your last reply could not be used: {message}"
ERROR = "The last action ended with an error (exit code {code}):\n{error}"
CONTINUE = "This is the current screenshot."

TOOLSET = "computer_toolset_20260801"

_BETAS = {"computer_20250124": "computer-use-2025-01-24", "computer_20251124": "computer-use-2025-11-24"}
_WIRE_NAMES = {"stop": "stop_sequences"}
_CLICKS: dict[str, tuple[Literal["left", "right", "middle"], int]] = {
    "left_click": ("left", 1),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
}


class AnthropicComputerUseOptions(Options):
    """Options of `anthropic_computer_use`."""

    tool: Literal["computer_20250124", "computer_20251124", "computer_toolset_20260801"] = "computer_20250124"
    """Version of the tool, as the model wants it; it decides the beta header, which the toolset does without."""
    image_width: int = 1280
    """Widest image that is sent; a wider screen is scaled in proportion."""
    thinking_budget: int | None = None
    """Tokens for extended thinking; None: none."""
    prompt_caching: bool = True
    """Mark the last three user messages as cache breakpoints."""


class AnthropicComputerUseAdapter(BaseAdapter[AnthropicComputerUseOptions]):
    """Anthropic's computer tool."""

    name: ClassVar[str] = "anthropic_computer_use"
    version: ClassVar[str] = "1"
    api: ClassVar[Api] = "messages"
    options_type = AnthropicComputerUseOptions

    def geometry(self, screen_width: int, screen_height: int) -> ImageGeometry:
        """The screen in proportion, at most `image_width` wide."""
        width = min(screen_width, self.options.image_width)
        height = round(screen_height * width / screen_width)
        return ImageGeometry(
            screen_width=screen_width, screen_height=screen_height, image_width=width, image_height=height
        )

    def sampling_defaults(self) -> Sampling:
        """OSWorld's runner for this model; the API wants a limit."""
        return Sampling(max_tokens=4096)

    def history_default(self) -> History:
        """OSWorld's: ten screenshots, older ones dropped ten at a time."""
        return History(name="hysteresis", params={"low_water": 10, "high_water": 19})

    def prompts(self) -> dict[str, str]:
        """System prompt and the texts that may follow."""
        return {
            "system": SYSTEM, "omitted": OMITTED, "feedback": FEEDBACK, "error": ERROR, "continue": CONTINUE,
        }  # fmt: skip

    def actions(self) -> tuple[str, ...]:
        """The tool's actions."""
        return (
            *(f"{name}(coordinate, text)" for name in _CLICKS), "mouse_move(coordinate)",
            "left_click_drag(start_coordinate, coordinate)", "left_mouse_down()", "left_mouse_up()",
            "scroll(coordinate, scroll_direction, scroll_amount, text)", "key(text, repeat)", "hold_key(text, duration)",
            "type(text)", "wait(duration)", "screenshot()", "cursor_position()",
        )  # fmt: skip

    def render(self, prompt: PromptInput, model_name: str, sampling: Sampling) -> ModelRequest:
        """The instruction with the first screenshot, then each reply and the results of its calls."""
        media: list[MediaRef] = []
        views = [*(past.view for past in prompt.past), prompt.current]
        shown = [*(past.live for past in prompt.past), True]
        first = [*_image(views[0], media, shown=shown[0]), _text(prompt.instruction)]
        messages: list[dict[str, JsonValue]] = [{"role": "user", "content": first}]
        for index, past in enumerate(prompt.past):
            messages += self._exchange(past, views[index + 1], prompt.geometry, media, shown=shown[index + 1])
        for rejected in prompt.rejected:
            messages += self._exchange(rejected, prompt.current, prompt.geometry, media, shown=True)
        if self.options.prompt_caching:
            _mark(messages)
        given = merged(self.sampling_defaults(), sampling).model_dump(mode="json", exclude_none=True)
        body: dict[str, JsonValue] = {
            "model": model_name,
            "system": [_text(fill(SYSTEM, password=prompt.password))],
            "messages": cast("JsonValue", messages),
            "tools": [self._tool(prompt.geometry)],
            **{_WIRE_NAMES.get(name, name): value for name, value in given.items()},
        }
        if self.options.thinking_budget:
            body["thinking"] = {"type": "enabled", "budget_tokens": self.options.thinking_budget}
        headers = {"anthropic-beta": _BETAS[self.options.tool]} if self.options.tool in _BETAS else {}
        return ModelRequest(api=self.api, body=body, media=tuple(media), headers=headers)

    def parse(self, reply: Reply, geometry: ImageGeometry, marks: Marks = ()) -> ParsedReply:  # noqa: ARG002
        """The actions of every call, in order; without one, the end of the episode."""
        screen = Screen(geometry, "reject")
        ledger = Ledger(reply.text)
        ledgers: list[Ledger] = []
        calls: list[Written] = []
        for index, item in enumerate(reply.output):
            if item.get("type") == "tool_use":
                own = Ledger(" ", f"output[{index}]")
                ledgers.append(own)
                if reply.truncated:  # the last call of a cut reply may itself be cut
                    own.dropped(0, 1, "the reply was cut by the token limit")
                    continue
                calls.append(Written(own, (0, 1), lambda call=item: _actions(call, screen, geometry)))
        actions, failure = read_calls(calls)
        if not calls:
            ended = _ended(reply)
            failure = ended if isinstance(ended, ParseFailure) else None
            if not isinstance(ended, ParseFailure):
                actions = [ended]
                screen.notes.append("no tool_use: the model ended the episode")
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

    def _tool(self, size: ImageGeometry) -> dict[str, JsonValue]:
        if self.options.tool == TOOLSET:
            return {"type": TOOLSET, "configs": {"zoom": {"enabled": False}}}
        return {
            "type": self.options.tool,
            "name": "computer",
            "display_width_px": size.image_width,
            "display_height_px": size.image_height,
            "display_number": 1,
        }

    def _exchange(
        self, past: PastTurn, view: View, size: ImageGeometry, media: list[MediaRef], *, shown: bool
    ) -> list[dict[str, JsonValue]]:
        """A reply as it was, and a message with the result of each of its calls; the last one has the next screenshot."""
        parts = self.parse(Reply(api=self.api, output=past.output), size).parts
        refused = {part.source: fill(FEEDBACK, message=part.dropped) for part in parts if part.dropped}
        failed = [outcome for outcome in past.outcomes if outcome.returncode and self.options.show_errors]
        errors = [fill(ERROR, code=it.returncode, error=it.error.strip()[-1000:]) for it in failed]
        picture = _image(view, media, shown=shown)
        calls = [(f"output[{index}]", item) for index, item in enumerate(past.output) if item.get("type") == "tool_use"]
        results: list[JsonValue] = []
        for source, call in calls:
            words = [*([refused[source]] if source in refused else []), *errors]
            content = [_text(word) for word in words]
            if call is calls[-1][1]:
                content += picture or [_text(OMITTED)]
            results.append(
                {"type": "tool_result", "tool_use_id": call.get("id"), "content": content, "is_error": bool(words)}
            )
        replied = cast("JsonValue", [dict(item) for item in past.output])
        said = fill(FEEDBACK, message=past.failure.message) if past.failure else CONTINUE
        answer = results or [*picture, _text(said)]
        user: dict[str, JsonValue] = {"role": "user", "content": answer}
        return [{"role": "assistant", "content": replied}, user] if past.output else [user]


def _actions(call: dict[str, JsonValue], screen: Screen, geometry: ImageGeometry) -> list[Action]:
    """What one `tool_use` block asks for. A toolset's member carries its action as its name."""
    fields = Fields(call.get("input"), "a tool call")
    if call.get("toolset_name") == "computer":
        name = str(call.get("name"))
    elif call.get("name") == "computer":
        name = fields.text("action")
    else:
        unknown(f"there is no tool {call.get('name')!r}")
    fields.what = name

    def point(field: str) -> Point:
        scale = (screen.width / geometry.image_width, screen.height / geometry.image_height)
        return screen.point(*fields.pair(field), scale)

    at = point("coordinate") if fields.has("coordinate") else None
    if name == "key":
        return _repeated(press(fields.keys("text")), fields.whole("repeat", 1))
    if name in {"left_click_drag", "mouse_move"} and at is None:
        unparseable(f"{name} needs a point 'coordinate'")
    start = point("start_coordinate") if fields.has("start_coordinate") else None
    return [_pointer(name, at, start, fields, screen) or _other(name, fields, screen)]


def _pointer(name: str, at: Point | None, start: Point | None, fields: Fields, screen: Screen) -> Action | None:
    held = fields.keys("text") if fields.values.get("text") and name not in {"type", "hold_key"} else ()
    if name in _CLICKS:
        button, count = _CLICKS[name]
        return Click(point=at, button=button, count=count, modifiers=held)
    match name:
        case "mouse_move" if at:
            return Move(point=at)
        case "left_click_drag" if at:
            return Drag(path=(start, at) if start else (at,), modifiers=held)
        case "left_mouse_down":
            return MouseDown(point=at)
        case "left_mouse_up":
            return MouseUp(point=at)
        case "scroll":
            direction = fields.choice("scroll_direction", ("up", "down", "left", "right"))
            amount = screen.notches(fields.number("scroll_amount"))
            across = {"left": -amount, "right": amount}.get(direction, 0)
            along = {"up": amount, "down": -amount}.get(direction, 0)
            return Scroll(point=at, clicks_x=across, clicks_y=along, modifiers=held)
        case _:
            return None


def _other(name: str, fields: Fields, screen: Screen) -> Action:
    match name:
        case "type":
            return TypeText(text=fields.text("text"))
        case "hold_key":
            return Hotkey(keys=fields.keys("text"), hold_s=min(screen.seconds(fields.number("duration")), 100.0))
        case "wait":
            return Wait(seconds=screen.seconds(fields.number("duration")) if fields.has("duration") else None)
        case "screenshot":
            return Observe()
        case "cursor_position":
            screen.notes.append("cursor_position is answered by the screenshot, which shows the cursor")
            return Observe()
        case _:
            return unknown(f"there is no action {name!r}")


def _repeated(action: Action, times: int) -> list[Action]:
    if not 1 <= times <= 100:
        unknown(f"key cannot be repeated {times} times; 1 to 100")
    return [action.model_copy(update={"count": times})] if isinstance(action, Press) else [action] * times


def _ended(reply: Reply) -> Action | ParseFailure:
    """What a reply without a call means."""
    if reply.finish_reason == "refusal":
        return ParseFailure(kind=FailureKind.REFUSED, message=f"the model refused: {reply.text.strip()[:500]}")
    if reply.truncated or not reply.text.strip():
        return no_action(reply, reply.text, "")
    if INFEASIBLE in reply.text:
        return Fail(reason=reply.text.strip())
    return Done(answer=reply.text.strip())


def _text(text: str) -> JsonValue:
    return {"type": "text", "text": text}


def _image(view: View, media: list[MediaRef], *, shown: bool) -> list[JsonValue]:
    if view.image is None or not shown:
        return []
    media.append(view.image)
    return [
        {"type": "image", "source": {"type": "base64", "media_type": view.image.mime, "data": media_url(view.image)}}
    ]


def _mark(messages: list[dict[str, JsonValue]]) -> None:
    """Cache breakpoints at the end of the last three user messages (the API takes four)."""
    for message in [message for message in messages if message["role"] == "user"][-3:]:
        content = message["content"]
        if isinstance(content, list) and isinstance(last := content[-1], dict):
            content[-1] = {**last, "cache_control": {"type": "ephemeral"}}
