"""UI-TARS 1.5: `Thought: …`, then `Action:` with calls such as `click(start_box='(x,y)')`.

Format and prompt text: bytedance/UI-TARS (`codes/ui_tars/prompt.py`, `action_parser.py`) as OSWorld runs it
(xlang-ai/OSWorld, `mm_agents/uitars15_v1.py`, mode `qwen25vl_normal`), Apache-2.0.

Coordinates are pixels of the image as Qwen2.5-VL's processor resizes it (sides are multiples of 28), boxes may be points or
rectangles whose middle counts, `<point>x y</point>` is read too; fractions are cut off, off the screen is clamped. `wait` is 5 seconds, as
the prompt says; a scroll is 5 wheel notches in any of its four directions; `call_user` asks for a person and is never a failure.
"""

from __future__ import annotations

import ast
import math
import re
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from osworld_rollouts.adapters._chat import Chat, fill, merged
from osworld_rollouts.adapters._contract import BaseAdapter, Marks, Options
from osworld_rollouts.adapters._failures import no_action
from osworld_rollouts.adapters._fences import MODEL_CODE
from osworld_rollouts.adapters._image_size import smart_resize
from osworld_rollouts.adapters._parts import Ledger, without_thinking
from osworld_rollouts.adapters._reading import (
    Fields,
    Screen,
    Written,
    as_keys,
    as_pair,
    press,
    read_calls,
    unknown,
    unparseable,
)
from osworld_rollouts.contracts.action import (
    Action,
    CallUser,
    Click,
    Done,
    Drag,
    Fail,
    KeyDown,
    KeyUp,
    Move,
    Point,
    Scroll,
    TypeText,
    Wait,
)
from osworld_rollouts.contracts.model import ImageGeometry, ParsedReply
from osworld_rollouts.contracts.request import History, ParsePolicy, Sampling

if TYPE_CHECKING:
    from osworld_rollouts.contracts.model import ModelRequest, PastTurn, PromptInput, Reply

SYSTEM = "You are a helpful assistant."
USER = """\
You are a GUI agent. You are given a task and your action history, with screenshots. You need to perform the next action to complete the task. 

## Output Format
```
Thought: ...
Action: ...
```

## Action Space
{action_space}

## Note
- Use {language} in `Thought` part.
- Write a small plan and finally summarize your next action (with its target element) in one sentence in `Thought` part.

## User Instruction
{instruction}
"""  # noqa: W291 - as published
ACTION_SPACE = r"""
click(start_box='<|box_start|>(x1,y1)<|box_end|>')
left_double(start_box='<|box_start|>(x1,y1)<|box_end|>')
right_single(start_box='<|box_start|>(x1,y1)<|box_end|>')
drag(start_box='<|box_start|>(x1,y1)<|box_end|>', end_box='<|box_start|>(x3,y3)<|box_end|>')
hotkey(key='')
type(content='') #If you want to submit your input, use "\n" at the end of `content`.
scroll(start_box='<|box_start|>(x1,y1)<|box_end|>', direction='down or up or right or left')
wait() #Sleep for 5s and take a screenshot to check for any changes.
"""
FINISHED = {
    "normal": r"""finished(content='xxx') # Use escape characters \', \", and \n in content part to ensure we can parse the content in normal python string format.
""",
    "call_user": """finished()
call_user() # Submit the task and call the user when the task is unsolvable, or when you need the user's help.
""",
}
FEEDBACK = "Your last reply could not be used: {message}\nReply again for the same screenshot, in the required format."
ERROR = "The last action ended with an error (exit code {code}):\n{error}"
EMPTY_REPLY = "(empty reply)"

FACTOR = 28
"""Image sides are multiples of this: patch size 14 times merge size 2."""
WAIT_S = 5.0
NOTCHES = 5
_ACTION_AT = re.compile(r"^[ \t]*Action:[ \t]*", re.MULTILINE)
_ANYWHERE = re.compile(r"Action:[ \t]*")
_THOUGHT = re.compile(r"(?:Thought|Action_Summary):\s*(.+?)(?=^[ \t]*Action:|\Z)", re.DOTALL | re.MULTILINE)
_CALL_START = re.compile(r"^[ \t]*(?=[A-Za-z_]\w*\()", re.MULTILINE)
_ARGUMENT = re.compile(r"""(\w+)\s*=\s*(['"])(.*?)\2\s*(?=,\s*\w+\s*=\s*['"]|\)\s*\Z|\Z)""", re.DOTALL)
_PLAIN_BOX = re.compile(r"(start_box|end_box)='\((\d+),\s*(\d+)\)'")
_CLICKS: dict[str, tuple[Literal["left", "right"], int]] = {
    "click": ("left", 1),
    "left_single": ("left", 1),
    "left_double": ("left", 2),
    "right_single": ("right", 1),
}


class UITarsOptions(Options):
    """Options of `ui_tars`."""

    action_space: Literal["normal", "call_user"] = "normal"
    """Which ends the prompt offers: `finished(content)`, or `finished()` and `call_user()`. Both are always read."""
    language: str = "English"
    """Language of the thought."""
    max_pixels: int = 16384 * 28 * 28
    min_pixels: int = 100 * 28 * 28


class UITarsAdapter(BaseAdapter[UITarsOptions]):
    """ByteDance's UI-TARS 1.5."""

    name: ClassVar[str] = "ui_tars"
    version: ClassVar[str] = "1"
    options_type = UITarsOptions

    def geometry(self, screen_width: int, screen_height: int) -> ImageGeometry:
        """The screen as it is, scaled in proportion only where it leaves the pixel limits."""
        width, height = screen_width, screen_height
        if width * height > self.options.max_pixels:
            scale = math.sqrt(self.options.max_pixels / (width * height))
            width, height = int(width * scale), int(height * scale)
        if width * height < self.options.min_pixels:
            scale = math.sqrt(self.options.min_pixels / (width * height))
            width, height = math.ceil(width * scale), math.ceil(height * scale)
        return ImageGeometry(
            screen_width=screen_width, screen_height=screen_height, image_width=width, image_height=height
        )

    def sampling_defaults(self) -> Sampling:
        """OSWorld's runner for this model."""
        return Sampling(max_tokens=3000, temperature=0.0, frequency_penalty=1.0)

    def history_default(self) -> History:
        """OSWorld's `history_n` 5: five screenshots, every reply."""
        return History(name="fixed", params={"keep_images": 5})

    def parse_policy_default(self) -> ParsePolicy:
        """OSWorld's: three tries, the later ones at temperature 1."""
        return ParsePolicy(on_failure="resample", resamples=2, resample_temperature=1.0, max_failed_turns=1)

    def prompts(self) -> dict[str, str]:
        """System and user prompt, and the texts that may follow."""
        return {
            "system": SYSTEM,
            "user": USER.replace("{action_space}", self._space()),
            "feedback": FEEDBACK,
            "error": ERROR,
            "empty": EMPTY_REPLY,
        }

    def actions(self) -> tuple[str, ...]:
        """The calls."""
        return (
            *(f"{name}(start_box)" for name in _CLICKS), "hover(start_box)", "drag(start_box, end_box)", "hotkey(key)", "press(key)",
            "keydown(key)", "keyup(key)", "type(content)", "scroll(start_box, direction)", "wait()", "finished(content)",
            "call_user()",
        )  # fmt: skip

    def render(self, prompt: PromptInput, model_name: str, sampling: Sampling) -> ModelRequest:
        """The task, then every reply, with the screenshots that are still shown before theirs."""
        chat = Chat()
        chat.say("system", SYSTEM)
        fields = {"action_space": self._space(), "language": self.options.language, "instruction": prompt.instruction}
        chat.say("user", fill(USER, **fields))
        for past in prompt.past:
            if past.live:
                chat.say("user", past.view.image)
            chat.say("assistant", _PLAIN_BOX.sub(r"\1='<|box_start|>(\2,\3)<|box_end|>'", past.text) or EMPTY_REPLY)
            if (error := self._error(past)) is not None:
                chat.say("user", error)
        chat.say("user", prompt.current.image)
        for rejected in prompt.rejected:
            chat.say("assistant", rejected.text or EMPTY_REPLY)
            chat.say("user", fill(FEEDBACK, message=rejected.failure.message if rejected.failure else "no action"))
        return chat.request(model_name, merged(self.sampling_defaults(), sampling))

    def parse(self, reply: Reply, geometry: ImageGeometry, marks: Marks = ()) -> ParsedReply:  # noqa: ARG002
        """Every call after `Action:`, in order."""
        ledger = Ledger(reply.text)
        text = without_thinking(ledger)
        screen = Screen(geometry, "clamp")
        calls = [
            Written(ledger, span, lambda source=text[slice(*span)]: [self._action(source.strip(), screen, geometry)])
            for span in _calls(text)
        ]
        actions, failure = read_calls(calls)
        if not actions and (reply.truncated or not calls):
            failure = no_action(reply, text, "there is no call after Action: in the reply")
        thought = _THOUGHT.search(text)
        return self.checked(
            ParsedReply(
                actions=tuple(actions),
                failure=failure,
                parts=ledger.parts(),
                notes=tuple(screen.notes),
                thought=thought[1].strip() if thought else None,
            )
        )

    def _space(self) -> str:
        return ACTION_SPACE + FINISHED[self.options.action_space]

    def _error(self, past: PastTurn) -> str | None:
        for outcome in past.outcomes if self.options.show_errors else ():
            if outcome.returncode:
                return fill(ERROR, code=outcome.returncode, error=outcome.error.strip()[-1000:])
        return None

    def _action(self, source: str, screen: Screen, geometry: ImageGeometry) -> Action:
        name, fields = _read(source)

        def point(*names: str) -> Point:
            written = next((fields.values[key] for key in names if fields.has(key)), None)
            x, y = as_pair(_without_tokens(written), f"{name} needs a point {names[0]!r}")
            wide, high = smart_resize(
                geometry.image_width, geometry.image_height, FACTOR, self.options.min_pixels, self.options.max_pixels
            )
            return screen.point(x, y, (screen.width / wide, screen.height / high))

        if name in _CLICKS:
            button, count = _CLICKS[name]
            return Click(point=point("start_box", "point"), button=button, count=count)
        match name:
            case "hover":
                return Move(point=point("start_box", "point"))
            case "drag" | "select":
                return Drag(path=(point("start_box", "start_point"), point("end_box", "end_point")), duration_s=1.0)
            case "scroll":
                at = point("start_box", "point") if fields.has("start_box") or fields.has("point") else None
                direction = fields.choice("direction", ("up", "down", "left", "right"))
                across = {"left": -NOTCHES, "right": NOTCHES}.get(direction, 0)
                along = {"up": NOTCHES, "down": -NOTCHES}.get(direction, 0)
                return Scroll(point=at, clicks_x=across, clicks_y=along)
            case _:
                return _without_point(name, fields)


def _without_point(name: str, fields: Fields) -> Action:
    match name:
        case "type":
            return TypeText(text=fields.text("content"))
        case "hotkey" | "press":
            return press(_keys(fields))
        case "keydown":
            return KeyDown(key=_keys(fields)[0])
        case "keyup" | "release":
            return KeyUp(key=_keys(fields)[0])
        case "wait":
            return Wait(seconds=WAIT_S)
        case "finished":
            return Done(answer=fields.text("content", "") or None)
        case "error_env":
            return Fail()
        case "call_user":
            return CallUser(message=fields.text("content", "") or None)
        case _:
            return unknown(f"there is no action {name!r}")


def _calls(text: str) -> list[tuple[int, int]]:
    """Where the calls stand: after the first `Action:`, each from its name to the next call after a blank line."""
    start = _ACTION_AT.search(text) or _ANYWHERE.search(text)
    if start is None or not text[start.end() :].strip():
        return []
    starts = [start.end()]
    later = (found.start() for found in _CALL_START.finditer(text, start.end() + 1))
    starts += [at for at in later if text[:at].rstrip(" \t").endswith("\n\n")]
    ends = [*starts[1:], len(text)]
    return [(first, first + len(text[first:end].rstrip())) for first, end in zip(starts, ends, strict=True)]


def _read(source: str) -> tuple[str, Fields]:
    """Name and arguments of a call; quotes and line breaks inside an argument need not be escaped."""
    head = re.match(r"([A-Za-z_]\w*)\s*\(", source)
    if head is None:
        unparseable(f"not a call: {source[:80]!r}")
    name = head[1]
    try:
        tree = ast.parse(source.replace("\n", "\\n"), MODEL_CODE, mode="eval").body
        if isinstance(tree, ast.Call) and all(keyword.arg for keyword in tree.keywords):
            values = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in tree.keywords}
            return name, Fields(values, name)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        pass
    body = source[head.end() :]
    if not body.rstrip().endswith(")"):
        unparseable(f"the call is not closed: {source[:80]!r}")
    found = {item[1]: _unescaped(item[3]) for item in _ARGUMENT.finditer(body)}
    if not found and body.strip() != ")":
        unparseable(f"the arguments cannot be read: {source[:80]!r}")
    return name, Fields(found, name)


def _unescaped(text: str) -> str:
    escapes = {"n": "\n", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
    return re.sub(r"\\(.)", lambda found: escapes.get(found[1], found[0]), text)


def _without_tokens(value: Any) -> Any:
    return re.sub(r"<[^>]*>", " ", value) if isinstance(value, str) else value


def _keys(fields: Fields) -> tuple[str, ...]:
    """Keys separated by blanks or plus signs."""
    written = fields.text("key" if fields.has("key") else "hotkey")
    return as_keys(written.split() if written.strip() else [written], fields.what)
