"""One internal, typed form for what an agent does, whatever protocol it spoke.

Coordinates are screen pixels, origin top left, x to the right, y down; adapters project into them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from osworld_rollouts.contracts._base import Contract

Button = Literal["left", "right", "middle", "back", "forward"]


class Point(Contract):
    """A pixel of the screen."""

    x: int
    y: int


class Click(Contract):
    """Press and release a button `count` times; without a point, where the pointer is."""

    kind: Literal["click"] = "click"
    point: Point | None = None
    button: Button = "left"
    count: int = Field(default=1, ge=1, le=3)
    modifiers: tuple[str, ...] = ()


class Move(Contract):
    """Move the pointer."""

    kind: Literal["move"] = "move"
    point: Point
    duration_s: float = Field(default=0, ge=0, le=10)


class Drag(Contract):
    """Press the button at the first point (or where the pointer is, if the path has one point), follow the path, release."""

    kind: Literal["drag"] = "drag"
    path: tuple[Point, ...] = Field(min_length=1)
    button: Button = "left"
    duration_s: float = Field(default=0.5, ge=0, le=30)
    modifiers: tuple[str, ...] = ()


class MouseDown(Contract):
    """Press a button and keep it pressed."""

    kind: Literal["mouse_down"] = "mouse_down"
    button: Button = "left"
    point: Point | None = None


class MouseUp(Contract):
    """Release a button."""

    kind: Literal["mouse_up"] = "mouse_up"
    button: Button = "left"
    point: Point | None = None


class Scroll(Contract):
    """Turn the wheel: `clicks_y` notches, positive is up (as pyautogui); `clicks_x` notches, positive is right."""

    kind: Literal["scroll"] = "scroll"
    point: Point | None = None
    clicks_x: int = 0
    clicks_y: int = 0
    modifiers: tuple[str, ...] = ()


class TypeText(Contract):
    """Type text exactly, character by character, newlines and tabs as keys."""

    kind: Literal["type_text"] = "type_text"
    text: str


class Press(Contract):
    """Press one key (pyautogui's key names) `count` times."""

    kind: Literal["press"] = "press"
    key: str
    count: int = Field(default=1, ge=1, le=100)


class Hotkey(Contract):
    """Press keys together, release in reverse order."""

    kind: Literal["hotkey"] = "hotkey"
    keys: tuple[str, ...] = Field(min_length=1)
    hold_s: float = Field(default=0, ge=0, le=100)


class KeyDown(Contract):
    """Press a key and keep it pressed."""

    kind: Literal["key_down"] = "key_down"
    key: str


class KeyUp(Contract):
    """Release a key."""

    kind: Literal["key_up"] = "key_up"
    key: str


class PythonCode(Contract):
    """Python that the model wrote, run as it is in the guest with `pyautogui` and `time` imported before it."""

    kind: Literal["python"] = "python"
    code: str


class Wait(Contract):
    """Do nothing for a while; `seconds` None means the request's settle policy decides."""

    kind: Literal["wait"] = "wait"
    seconds: float | None = Field(default=None, ge=0, le=600)


class Observe(Contract):
    """The model asked for a fresh observation and nothing else."""

    kind: Literal["observe"] = "observe"


class Done(Contract):
    """The agent says that the task is done."""

    kind: Literal["done"] = "done"
    answer: str | None = None


class Fail(Contract):
    """The agent says that the task cannot be done (what OSWorld's infeasible tasks ask for)."""

    kind: Literal["fail"] = "fail"
    reason: str | None = None


class CallUser(Contract):
    """The agent asks for a person."""

    kind: Literal["call_user"] = "call_user"
    message: str | None = None


Action = Annotated[
    Click
    | Move
    | Drag
    | MouseDown
    | MouseUp
    | Scroll
    | TypeText
    | Press
    | Hotkey
    | KeyDown
    | KeyUp
    | PythonCode
    | Wait
    | Observe
    | Done
    | Fail
    | CallUser,
    Field(discriminator="kind"),
]
"""Any action."""

TERMINAL_KINDS = frozenset({"done", "fail", "call_user"})
EFFECT_KINDS = frozenset(
    {
        "click",
        "move",
        "drag",
        "mouse_down",
        "mouse_up",
        "scroll",
        "type_text",
        "press",
        "hotkey",
        "key_down",
        "key_up",
        "python",
    }
)


def describe(action: Action) -> str:
    """A short line for people: `click(640, 380)`, `type "hello"`."""
    match action:
        case Click():
            name = {1: "click", 2: "double click", 3: "triple click"}[action.count]
            where = f"({action.point.x}, {action.point.y})" if action.point else "here"
            button = "" if action.button == "left" else f" {action.button}"
            keys = "".join(f" +{key}" for key in action.modifiers)
            return f"{name}{where if where != 'here' else ' here'}{button}{keys}"
        case Move():
            return f"move({action.point.x}, {action.point.y})"
        case Drag():
            return "drag " + " to ".join(f"({point.x}, {point.y})" for point in action.path)
        case Scroll():
            where = f" at ({action.point.x}, {action.point.y})" if action.point else ""
            return f"scroll x {action.clicks_x}, y {action.clicks_y}{where}"
        case TypeText():
            return f"type {_short(action.text)}"
        case Press():
            return f"press {action.key}" + (f" x{action.count}" if action.count > 1 else "")
        case Hotkey():
            return "hotkey " + "+".join(action.keys)
        case KeyDown() | KeyUp():
            return f"{action.kind.replace('_', ' ')} {action.key}"
        case PythonCode():
            return f"python {_short(action.code)}"
        case Wait():
            return "wait" if action.seconds is None else f"wait {action.seconds:g} s"
        case _:
            return action.kind.replace("_", " ")


def _short(text: str, limit: int = 60) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= limit else line[: limit - 1] + "…")
