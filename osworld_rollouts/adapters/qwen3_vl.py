"""Qwen3-VL's `computer_use` tool, called in text: `Action: <one sentence>`, then one `<tool_call>` block.

Format and prompt text: QwenLM/Qwen3-VL's computer-use cookbook as OSWorld runs it (xlang-ai/OSWorld,
`mm_agents/qwen3vl_agent.py`, Apache-2.0); `smart_resize` from QwenLM's `qwen_vl_utils`. Native `tool_calls` of a server with a
tool parser and Qwen3-Coder's XML functions are read as well.

Coordinates are thousandths of the screen (`relative`, a grid of 0..999) or pixels of the resized image (`absolute`); fractions are
cut off, and what is off the screen is clamped: 999 is one pixel past the edge. `pixels` of a scroll are wheel notches, as
OSWorld counts them. `triple_click`, `hscroll` and `answer` are in the prompt's list and therefore read.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from osworld_rollouts.adapters._chat import Chat, fill, merged
from osworld_rollouts.adapters._contract import BaseAdapter, Marks, Options
from osworld_rollouts.adapters._failures import no_action
from osworld_rollouts.adapters._image_size import smart_resize
from osworld_rollouts.adapters._parts import Ledger, without_thinking
from osworld_rollouts.adapters._reading import Fields, Screen, Written, as_keys, press, read_calls, unknown, unparseable
from osworld_rollouts.adapters._tool_calls import Named, as_text, find_calls, named, read_call
from osworld_rollouts.contracts.action import Action, Click, Done, Drag, Fail, Move, Point, Scroll, TypeText, Wait
from osworld_rollouts.contracts.model import ImageGeometry, ParsedReply
from osworld_rollouts.contracts.request import History, Sampling

if TYPE_CHECKING:
    from osworld_rollouts.contracts.model import ModelRequest, PastTurn, PromptInput, Reply

DESCRIPTION = """\
Use a mouse and keyboard to interact with a computer, and take screenshots.
* This is an interface to a desktop GUI. You do not have access to a terminal or applications menu. You must click on desktop icons to start applications.
* Some applications may take time to start or process actions, so you may need to wait and take successive screenshots to see the results of your actions. E.g. if you click on Firefox and a window doesn't open, try wait and taking another screenshot.
* The screen's resolution is {resolution}.
* Whenever you intend to move the cursor to click on an element like an icon, you should consult a screenshot to determine the coordinates of the element before moving the cursor.
* If you tried clicking on a program or link but it failed to load even after waiting, try adjusting your cursor position so that the tip of the cursor visually falls on the element that you want to click.
* Make sure to click any buttons, links, icons, etc with the cursor tip in the center of the element. Don't click boxes on their edges unless asked."""
ACTIONS = """
* `key`: Performs key down presses on the arguments passed in order, then performs key releases in reverse order.
* `type`: Type a string of text on the keyboard.
* `mouse_move`: Move the cursor to a specified (x, y) pixel coordinate on the screen.
* `left_click`: Click the left mouse button at a specified (x, y) pixel coordinate on the screen.
* `left_click_drag`: Click and drag the cursor to a specified (x, y) pixel coordinate on the screen.
* `right_click`: Click the right mouse button at a specified (x, y) pixel coordinate on the screen.
* `middle_click`: Click the middle mouse button at a specified (x, y) pixel coordinate on the screen.
* `double_click`: Double-click the left mouse button at a specified (x, y) pixel coordinate on the screen.
* `triple_click`: Triple-click the left mouse button at a specified (x, y) pixel coordinate on the screen (simulated as double-click since it's the closest action).
* `scroll`: Performs a scroll of the mouse scroll wheel.
* `hscroll`: Performs a horizontal scroll (mapped to regular scroll).
* `wait`: Wait specified seconds for the change to happen.
* `terminate`: Terminate the current task and report its completion status.
* `answer`: Answer a question.
        """
SYSTEM = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>

# Response format

Response format for every step:
1) Action: a short imperative describing what to do in the UI.
2) A single <tool_call>...</tool_call> block containing only the JSON: {"name": <function-name>, "arguments": <args-json-object>}.

Rules:
- Output exactly in the order: Action, <tool_call>.
- Be brief: one sentence for Action.
- Do not output anything else outside those parts.
- If finishing, use action=terminate in the tool call."""
INSTRUCTION = """
Please generate the next move according to the UI screenshot, instruction and previous actions.

Instruction: {instruction}

Previous actions:
{previous}"""
STEP = "Step {number}: {action}"
LATER_STEPS = "Previous actions:\n{previous}"
FEEDBACK = "Your last reply could not be used: {message}\nReply again for the same screenshot, in the required format."
ERROR = "The last action ended with an error (exit code {code}):\n{error}"
EMPTY_REPLY = "(empty reply)"
NO_ACTION = "No action"

FACTOR = 32
"""Image sides are multiples of this: patch size 16 times merge size 2."""
MIN_PIXELS = 56 * 56

_SENTENCE = re.compile(r"^[ \t]*action:[ \t]*(.*)$", re.MULTILINE | re.IGNORECASE)
_CLICKS: dict[str, tuple[Literal["left", "right", "middle"], int]] = {
    "left_click": ("left", 1),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
}


class Qwen3VLOptions(Options):
    """Options of `qwen3_vl`."""

    coordinates: Literal["relative", "absolute"] = "relative"
    """A grid of 0..999 over the screen, or pixels of the resized image."""
    max_pixels: int = 16 * 16 * 4 * 1280
    """Largest image that is sent."""


class Qwen3VLAdapter(BaseAdapter[Qwen3VLOptions]):
    """Qwen's textual tool-call protocol."""

    name: ClassVar[str] = "qwen3_vl"
    version: ClassVar[str] = "1"
    options_type = Qwen3VLOptions

    def geometry(self, screen_width: int, screen_height: int) -> ImageGeometry:
        """Qwen's smart resize."""
        width, height = smart_resize(screen_width, screen_height, FACTOR, MIN_PIXELS, self.options.max_pixels)
        return ImageGeometry(
            screen_width=screen_width, screen_height=screen_height, image_width=width, image_height=height
        )

    def sampling_defaults(self) -> Sampling:
        """OSWorld's runner for this model."""
        return Sampling(max_tokens=32768, temperature=0.0, top_p=0.9)

    def history_default(self) -> History:
        """OSWorld's `history_n` 4: four earlier screenshots and the current one, older turns as one line each."""
        return History(name="fixed", params={"keep_images": 5})

    def prompts(self) -> dict[str, str]:
        """System prompt with its tool, and the texts around each screenshot."""
        return {
            "system": SYSTEM.replace("{tools}", json.dumps(_tool("{resolution}"))),
            "instruction": INSTRUCTION,
            "step": STEP,
            "later_steps": LATER_STEPS,
            "feedback": FEEDBACK,
            "error": ERROR,
            "empty": EMPTY_REPLY + NO_ACTION,
        }

    def actions(self) -> tuple[str, ...]:
        """The tool's actions."""
        return (
            *(f"{name}(coordinate)" for name in _CLICKS), "mouse_move(coordinate)", "left_click_drag(coordinate)",
            "key(keys)", "type(text)", "scroll(pixels)", "hscroll(pixels)", "wait(time)", "terminate(status)", "answer(text)",
        )  # fmt: skip

    def render(self, prompt: PromptInput, model_name: str, sampling: Sampling) -> ModelRequest:
        """The first screenshot comes with the instruction and older actions, the following ones alone."""
        geometry = prompt.geometry
        absolute = f"{geometry.image_width}x{geometry.image_height}"
        resolution = absolute if self.options.coordinates == "absolute" else "1000x1000"
        chat = Chat()
        chat.say("system", SYSTEM.replace("{tools}", json.dumps(_tool(resolution))))
        folded: list[str] = []
        before: PastTurn | None = None
        first = True
        for past in prompt.past:
            if past.live:
                chat.say("user", past.view.image, self._text(prompt.instruction, folded, before, first=first))
                chat.say("assistant", _raw(past))
                folded, first = [], False
            else:
                folded.append(fill(STEP, number=past.turn + 1, action=self._sentence(past)))
            before = past
        chat.say("user", prompt.current.image, self._text(prompt.instruction, folded, before, first=first))
        for rejected in prompt.rejected:
            chat.say("assistant", _raw(rejected))
            chat.say(
                "user", FEEDBACK.replace("{message}", rejected.failure.message if rejected.failure else "no action")
            )
        return chat.request(model_name, merged(self.sampling_defaults(), sampling))

    def parse(self, reply: Reply, geometry: ImageGeometry, marks: Marks = ()) -> ParsedReply:  # noqa: ARG002
        """Every call in the text, then every native call, in order."""
        ledger = Ledger(reply.text)
        text = without_thinking(ledger)
        screen = Screen(geometry, "clamp")
        in_text = [
            Written(ledger, (call.start, call.end), lambda body=call.body: [self._action(read_call(body), screen)])
            for call in find_calls(text)
        ]
        ledgers = [Ledger(call.arguments, f"tool_calls[{index}]") for index, call in enumerate(reply.tool_calls)]
        native = [
            Written(own, (0, len(own.text)), lambda call=call: [self._action(named(call.name, call.arguments), screen)])
            for own, call in zip(ledgers, reply.tool_calls, strict=True)
        ]
        actions, failure = read_calls([*in_text, *native])
        if not actions and (reply.truncated or not (in_text or native)):
            failure = no_action(reply, text, "there is no <tool_call> in the reply")
        sentence = _SENTENCE.search(text)
        return self.checked(
            ParsedReply(
                actions=tuple(actions),
                failure=failure,
                parts=sum((own.parts() for own in ledgers), ledger.parts()),
                notes=tuple(screen.notes),
                action_text=sentence[1].strip() if sentence else _fallback(actions),
            )
        )

    def _action(self, call: Named, screen: Screen) -> Action:
        if call.name != "computer_use":
            unknown(f"there is no function {call.name!r}; the only one is computer_use")
        fields = call.arguments
        name = fields.text("action").strip()
        fields.what = name
        if name in _CLICKS:
            button, count = _CLICKS[name]
            point = self._point(fields, screen) if fields.has("coordinate") else None
            return Click(point=point, button=button, count=count)
        match name:
            case "mouse_move":
                return Move(point=self._point(fields, screen))
            case "left_click_drag":
                return Drag(
                    path=(self._point(fields, screen),), duration_s=min(max(fields.number("duration", 0.5), 0.0), 30.0)
                )
            case "scroll" | "hscroll":
                point = self._point(fields, screen) if fields.has("coordinate") else None
                notches = screen.notches(fields.number("pixels"))
                return (
                    Scroll(point=point, clicks_y=notches) if name == "scroll" else Scroll(point=point, clicks_x=notches)
                )
            case _:
                return _without_point(name, fields, screen)

    def _point(self, fields: Fields, screen: Screen) -> Point:
        if self.options.coordinates == "relative":
            return screen.point(*fields.pair("coordinate"), (screen.width / 999, screen.height / 999))
        size = self.geometry(screen.width, screen.height)
        scale = (screen.width / size.image_width, screen.height / size.image_height)
        return screen.point(*fields.pair("coordinate"), scale)

    def _text(self, instruction: str, folded: list[str], before: PastTurn | None, *, first: bool) -> str | None:
        """What stands beside a screenshot: the instruction beside the first, later steps without a screenshot, an error."""
        steps = "\n".join(folded)
        if first:
            text = fill(INSTRUCTION, previous=steps or "None", instruction=instruction)
        else:
            text = fill(LATER_STEPS, previous=steps) if steps else None
        for outcome in before.outcomes if before and self.options.show_errors else ():
            if outcome.returncode:
                error = ERROR.replace("{code}", str(outcome.returncode)).replace(
                    "{error}", outcome.error.strip()[-1000:]
                )
                return f"{error}\n{text}" if text else error
        return text

    def _sentence(self, past: PastTurn) -> str:
        found = _SENTENCE.search(without_thinking(Ledger(past.text)))
        return found[1].strip() if found else _fallback(list(past.actions)) or NO_ACTION


def _tool(resolution: str) -> dict[str, Any]:
    properties = {
        "action": {
            "description": ACTIONS,
            "enum": [
                "key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click", "double_click",
                "scroll", "wait", "terminate",
            ],
            "type": "string",
        },
        "keys": {"description": "Required only by `action=key`.", "type": "array"},
        "text": {"description": "Required only by `action=type`.", "type": "string"},
        "coordinate": {"description": "The x,y coordinates for mouse actions.", "type": "array"},
        "pixels": {"description": "The amount of scrolling.", "type": "number"},
        "time": {"description": "The seconds to wait.", "type": "number"},
        "status": {"description": "The status of the task.", "type": "string", "enum": ["success", "failure"]},
    }  # fmt: skip
    return {
        "type": "function",
        "function": {
            "name_for_human": "computer_use",
            "name": "computer_use",
            "description": DESCRIPTION.replace("{resolution}", resolution),
            "parameters": {"properties": properties, "required": ["action"], "type": "object"},
            "args_format": "Format the arguments as a JSON object.",
        },
    }


def _without_point(name: str, fields: Fields, screen: Screen) -> Action:
    match name:
        case "type":
            return TypeText(text=fields.text("text"))
        case "key":
            return press(_keys(fields))
        case "wait":
            return Wait(seconds=screen.seconds(fields.number("time")) if fields.has("time") else None)
        case "terminate":
            if not fields.has("status"):
                screen.notes.append("terminate without a status, taken as success")
            status = fields.choice("status", ("success", "failure"), "success")
            words = fields.text("text", "") or None
            return Done(answer=words) if status == "success" else Fail(reason=words)
        case "answer":
            return Done(answer=fields.text("text"))
        case _:
            return unknown(f"there is no action {name!r}")


def _keys(fields: Fields) -> tuple[str, ...]:
    """Keys, also in the broken spellings the model is known for (`keys=['ctrl'`, `'c']`)."""
    value = fields.values.get("keys", fields.values.get("text"))
    items = value if isinstance(value, list) else [value] if isinstance(value, str) else []
    pieces = [piece for item in items for piece in (str(item).split(",") if len(str(item)) > 1 else [str(item)])]
    cleaned = [
        re.sub(r"^keys=", "", piece.strip()).strip("[]'\" ") if len(piece.strip()) > 1 else piece for piece in pieces
    ]
    return as_keys([key for key in cleaned if key], "key") if cleaned else unparseable("key needs a list 'keys'")


def _fallback(actions: list[Action]) -> str | None:
    return f"Performing {actions[0].kind.replace('_', ' ')} action" if actions else None


def _raw(past: PastTurn) -> str:
    """The reply as it was; a native call, which the server took out of the text, in its textual form again."""
    calls = [item["function"] for item in past.output if isinstance(item.get("function"), dict)]
    blocks = [as_text(str(call.get("name")), str(call.get("arguments"))) for call in calls if isinstance(call, dict)]
    return "\n".join([piece for piece in (past.text, *blocks) if piece.strip()]) or EMPTY_REPLY
