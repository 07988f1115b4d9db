"""OSWorld's `computer_13` action space: one JSON object for each action, in a code block.

Format and prompt text: xlang-ai/OSWorld, `mm_agents/prompts.py` (SYS_PROMPT_IN_*_OUT_ACTION), `mm_agents/agent.py`
(`parse_actions_from_string`) and `desktop_env/actions.py`, Apache-2.0. The prompt describes more spellings than the action space
has (MOUSE_MOVE, TYPE, KEY, `click_type`, WHEEL_UP, flat arguments); all are read, as NeMo Gym's normaliser does.

Coordinates are screen pixels; off the screen they are rejected, as the prompt announces, except the far edge.
With marks (`som`), for which OSWorld has no structured prompt, `"tag": n` may stand for `x` and `y`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from osworld_rollouts.adapters import _osworld
from osworld_rollouts.adapters._chat import merged
from osworld_rollouts.adapters._contract import BaseAdapter, FailureKind, Marks
from osworld_rollouts.adapters._failures import no_action
from osworld_rollouts.adapters._fences import find_fences
from osworld_rollouts.adapters._parts import Ledger, without_thinking
from osworld_rollouts.adapters._reading import (
    Fields,
    Rejected,
    Screen,
    Written,
    press,
    read_calls,
    read_json,
    unknown,
    unparseable,
)
from osworld_rollouts.contracts.action import (
    Action,
    Button,
    Click,
    Done,
    Drag,
    Fail,
    Hotkey,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    Move,
    Point,
    Scroll,
    TypeText,
    Wait,
)
from osworld_rollouts.contracts.model import ParsedReply
from osworld_rollouts.contracts.steps import ParseFailure

if TYPE_CHECKING:
    from osworld_rollouts.contracts.model import ImageGeometry, ModelRequest, ObservationNeeds, PromptInput, Reply
    from osworld_rollouts.contracts.request import History, Sampling

INTRODUCTION = """\
You will act as an agent which follow my instruction and perform desktop computer tasks as instructed. You must have good knowledge of computer and good internet connection.
{observation}

HERE is the description of the action space you need to predict, follow the format and choose the correct action type and parameters:
"""
RULES = """\
Firstly you need to predict the class of your action, then you need to predict the parameters of your action:
- For MOUSE_MOVE, you need to predict the x and y coordinate of the mouse cursor, the left top corner of the screen is (0, 0), the right bottom corner of the screen is (1920, 1080)
for example, format as:
```
{
  "action_type": "MOUSE_MOVE",
  "x": 1319.11,
  "y": 65.06
}
```
- For [CLICK, MOUSE_DOWN, MOUSE_UP], you need to specify the click_type as well, select from [LEFT, MIDDLE, RIGHT, WHEEL_UP, WHEEL_DOWN], which means you click the left button, middle button, right button, wheel up or wheel down of your mouse:
for example, format as:
```
{
  "action_type": "CLICK",
  "click_type": "LEFT"
}
```
- For [KEY, KEY_DOWN, KEY_UP], you need to choose a(multiple) key(s) from the keyboard
for example, format as:
```
{
  "action_type": "KEY",
  "key": "ctrl+c"
}
```
- For TYPE, you need to specify the text you want to type
for example, format as:
```
{
  "action_type": "TYPE",
  "text": "hello world"
}
```
{tags}
REMEMBER:
For every step, you should only RETURN ME THE action_type AND parameters I ASKED FOR. NEVER EVER RETURN ME ANYTHING ELSE.
You MUST wrap the dict with backticks (\\`).
You MUST choose and ONLY CHOOSE from the action space above, otherwise your action will be considered as invalid and you will get a penalty.
You CAN predict multiple actions at one step, but you should only return one action for each step."""
TAGS = """\
- Instead of x and y you can give the tag of an element
for example, format as:
```
{
  "action_type": "CLICK",
  "tag": 3
}
```
"""

_SPACE: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("MOVE_TO", "move the cursor to the specified position", {"x": "X", "y": "Y"}),
    ("CLICK", "click the left button if the button not specified, otherwise click the specified button; click at the current position if x and y are not specified, otherwise click at the specified position", {"button": "button?", "x": "X?", "y": "Y?", "num_clicks": "clicks?"}),
    ("MOUSE_DOWN", "press the left button if the button not specified, otherwise press the specified button", {"button": "button?"}),
    ("MOUSE_UP", "release the left button if the button not specified, otherwise release the specified button", {"button": "button?"}),
    ("RIGHT_CLICK", "right click at the current position if x and y are not specified, otherwise right click at the specified position", {"x": "X?", "y": "Y?"}),
    ("DOUBLE_CLICK", "double click at the current position if x and y are not specified, otherwise double click at the specified position", {"x": "X?", "y": "Y?"}),
    ("DRAG_TO", "drag the cursor to the specified position with the left button pressed", {"x": "X", "y": "Y"}),
    ("SCROLL", "scroll the mouse wheel up or down", {"dx": "int", "dy": "int"}),
    ("TYPING", "type the specified text", {"text": "text"}),
    ("PRESS", "press the specified key and release it", {"key": "key"}),
    ("KEY_DOWN", "press the specified key", {"key": "key"}),
    ("KEY_UP", "release the specified key", {"key": "key"}),
    ("HOTKEY", "press the specified key combination", {"keys": "keys"}),
    ("WAIT", "wait until the next action", {}),
    ("FAIL", "decide the task can not be performed", {}),
    ("DONE", "decide the task is done", {}),
)  # fmt: skip
_TYPES = {
    "X": ("float", "[0, X_MAX]"), "Y": ("float", "[0, Y_MAX]"), "button": ("str", '["left", "right", "middle"]'),
    "clicks": ("int", "[1, 2, 3]"), "int": ("int", "None"), "text": ("str", "None"), "key": ("str", "KEYBOARD_KEYS"),
    "keys": ("list", "[KEYBOARD_KEYS]"),
}  # fmt: skip
OBSERVATION = {
    **_osworld.OBSERVATION,
    "screenshot": "For each step, you will get an observation of an image, which is the screenshot of the computer screen. And you will predict the action of the computer based on the image.",
}

_ALIASES = {
    "LEFT_CLICK": "CLICK", "TRIPLE_CLICK": "CLICK", "MIDDLE_CLICK": "CLICK", "MOUSE_MOVE": "MOVE_TO", "TYPE": "TYPING", "KEY": "PRESS",
    "DRAG": "DRAG_TO",
}  # fmt: skip
_WORDS: dict[str, Action] = {"WAIT": Wait(), "DONE": Done(), "FAIL": Fail()}
_BUTTONS = ("left", "right", "middle")


class Computer13Adapter(BaseAdapter[_osworld.OSWorldOptions]):
    """OSWorld's structured action space."""

    name: ClassVar[str] = "computer_13"
    version: ClassVar[str] = "1"
    options_type = _osworld.OSWorldOptions

    def needs(self) -> ObservationNeeds:
        """What the chosen observation variant shows."""
        return _osworld.needs(self.options.observation)

    def sampling_defaults(self) -> Sampling:
        """OSWorld's."""
        return _osworld.SAMPLING

    def history_default(self) -> History:
        """OSWorld's: three earlier turns and the current one."""
        return _osworld.HISTORY

    def prompts(self) -> dict[str, str]:
        """System prompt of the variant and the texts around each observation."""
        return {"system": self._system() + _osworld.TASK, **_osworld.prompts(self.options)}

    def actions(self) -> tuple[str, ...]:
        """The sixteen action types with their parameters."""
        return tuple(f"{name}({', '.join(parameters)})" for name, _, parameters in _SPACE)

    def render(self, prompt: PromptInput, model_name: str, sampling: Sampling) -> ModelRequest:
        """System message, the kept turns, the current observation."""
        chat = _osworld.conversation(prompt, self._system(), self.options)
        return chat.request(model_name, merged(self.sampling_defaults(), sampling))

    def parse(self, reply: Reply, geometry: ImageGeometry, marks: Marks = ()) -> ParsedReply:
        """Each code block is an object or a list of them; without a block, the whole reply is; a bare word is an action."""
        ledger = Ledger(reply.text)
        text = without_thinking(ledger)
        screen = Screen(geometry, "reject")
        fences = find_fences(text, _is_json, frozenset(_WORDS))
        spans = [(fence.start, fence.end, fence.body_start, fence.body_end) for fence in fences.closed]
        whole = text.strip()
        if not spans and whole:
            start = text.index(whole)
            spans = [(start, start + len(whole), start, start + len(whole))]
        calls = [
            Written(ledger, (start, end), lambda body=text[first:last]: _read(body, screen, marks))
            for start, end, first, last in spans
        ]
        actions, failure = read_calls(calls)
        if not actions and (reply.truncated or "{" not in whole or (fences.open_at is not None and not fences.closed)):
            failure = _failure(reply, whole)
        thought = text[: spans[0][0]].strip() if fences.closed else None
        return self.checked(
            ParsedReply(
                actions=tuple(actions),
                failure=failure,
                parts=ledger.parts(),
                notes=tuple(screen.notes),
                thought=thought,
            )
        )

    def _system(self) -> str:
        variant = self.options.observation
        rules = RULES.replace("{tags}", TAGS if variant == "som" else "")
        return INTRODUCTION.replace("{observation}", OBSERVATION[variant]) + _action_space() + rules


def _action_space() -> str:
    """The action space in the notation of the published prompt."""
    entries: list[str] = []
    for name, note, parameters in _SPACE:
        lines = [f'        "action_type": "{name}",', f'        "note": "{note}",']
        if parameters:
            comma = "," if name == "CLICK" else ""  # as published
            lines += [
                '        "parameters": {',
                ",\n".join(_parameter(*item) for item in parameters.items()) + comma,
                "        }",
            ]
        entries.append("    {\n" + "\n".join(lines) + "\n    }")
    effects = ",\n".join(entries[:-3])
    return f"ACTION_SPACE = [\n{effects},\n    {'#' * 108}\n" + ",\n".join(entries[-3:]) + "\n]\n"


def _parameter(name: str, kind: str) -> str:
    of_type, allowed = _TYPES[kind.rstrip("?")]
    optional = kind.endswith("?")
    return (
        f'            "{name}": {{\n                "type": {of_type},\n                "range": {allowed},\n'
        f'                "optional": {optional},\n            }}'
    )


def _is_json(text: str) -> bool:
    try:
        read_json(text)
    except Rejected:
        return False
    return True


def _read(text: str, screen: Screen, marks: Marks) -> list[Action]:
    """The actions of one block."""
    if text.strip() in _WORDS:
        return [_WORDS[text.strip()]]
    value = read_json(text)
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    return [_action(item, screen, marks) for item in items] or unparseable("the block holds no action")


def _action(value: object, screen: Screen, marks: Marks) -> Action:
    if isinstance(value, str):
        value = {"action_type": value}
    outer = Fields(value, "an action")
    written = outer.text("action_type").strip().upper()
    nested = outer.values.get("parameters")
    flat = {key: item for key, item in outer.values.items() if key not in {"action_type", "parameters"}}
    name = _ALIASES.get(written, written)
    fields = Fields({**flat, **(cast("dict[str, Any]", nested) if isinstance(nested, dict) else {})}, written)
    if "varies" in fields.values and "y" not in fields.values:
        fields.values["y"] = fields.values["varies"]
    wheel = {"wheel_up": 1, "wheel_down": -1}.get(str(fields.values.get("click_type", "")).lower())
    if wheel is not None and name in {"CLICK", "MOUSE_DOWN", "MOUSE_UP"}:
        return Scroll(point=_point(fields, screen, marks), clicks_y=wheel)
    return _WORDS.get(name) or _pointer(name, written, fields, screen, marks)


def _pointer(name: str, written: str, fields: Fields, screen: Screen, marks: Marks) -> Action:
    match name:
        case "MOVE_TO":
            return Move(point=_needed(_point(fields, screen, marks), fields))
        case "CLICK" | "RIGHT_CLICK" | "DOUBLE_CLICK":
            default = {"TRIPLE_CLICK": 3, "DOUBLE_CLICK": 2}.get(written, 1)
            count = fields.whole("num_clicks", default)
            if not 1 <= count <= 3:
                unknown(f"{written} has no num_clicks {count}; it has 1, 2, 3")
            button = {"RIGHT_CLICK": "right", "MIDDLE_CLICK": "middle"}.get(written, "left")
            return Click(point=_point(fields, screen, marks), button=_button(fields, button), count=count)
        case "MOUSE_DOWN":
            return MouseDown(button=_button(fields, "left"), point=_point(fields, screen, marks))
        case "MOUSE_UP":
            return MouseUp(button=_button(fields, "left"), point=_point(fields, screen, marks))
        case "DRAG_TO":
            return Drag(path=(_needed(_point(fields, screen, marks), fields),))
        case "SCROLL":
            return Scroll(
                point=_point(fields, screen, marks), clicks_x=screen.notches(fields.number("dx", 0)),
                clicks_y=screen.notches(fields.number("dy", 0)),
            )  # fmt: skip
        case _:
            return _keyboard(name, written, fields)


def _keyboard(name: str, written: str, fields: Fields) -> Action:
    match name:
        case "TYPING":
            return TypeText(text=fields.text("text"))
        case "PRESS":
            return press(fields.keys("key" if fields.has("key") else "keys"))
        case "HOTKEY":
            return Hotkey(keys=fields.keys("keys" if fields.has("keys") else "key"))
        case "KEY_DOWN":
            return KeyDown(key=_single(fields))
        case "KEY_UP":
            return KeyUp(key=_single(fields))
        case _:
            return unknown(f"there is no action type {written!r}")


def _point(fields: Fields, screen: Screen, marks: Marks) -> Point | None:
    if fields.has("tag"):
        number = fields.whole("tag")
        if not 1 <= number <= len(marks):
            unknown(f"{fields.what}: there is no tag {number}; the last one is {len(marks)}")
        x, y, w, h = marks[number - 1]
        return screen.point(x + w // 2, y + h // 2)
    if not fields.has("x") and not fields.has("y"):
        return None
    return screen.point(fields.number("x"), fields.number("y"))


def _needed(point: Point | None, fields: Fields) -> Point:
    return point or unparseable(f"{fields.what} needs x and y")


def _button(fields: Fields, default: str) -> Button:
    name = "click_type" if fields.has("click_type") else "button"
    return cast("Button", fields.choice(name, _BUTTONS, default))


def _single(fields: Fields) -> str:
    names = fields.keys("key")
    return names[0] if len(names) == 1 else unparseable(f"{fields.what} takes one key, not {len(names)}")


def _failure(reply: Reply, whole: str) -> ParseFailure:
    if "```" in whole and not reply.truncated:
        return ParseFailure(kind=FailureKind.UNPARSEABLE, message="a code block starts with ``` and never ends")
    return no_action(reply, whole, "there is no JSON object and no WAIT, DONE or FAIL in the reply")
