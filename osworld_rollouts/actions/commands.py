"""What an action is in the guest: self-contained Python source for `python -c`, with pyautogui on an X display.

Works in a stock OSWorld guest and in ours. The exit code is the truth: 0 done; 1 the model's own Python failed; 3 done as far
as possible, with a JSON line on stderr that lists characters that cannot be typed and keys that do not exist.
"""

from __future__ import annotations

import base64
import zlib
from functools import cache
from importlib import resources

from osworld_rollouts.actions.keys import key_name
from osworld_rollouts.contracts.action import (
    Action,
    Button,
    Click,
    Drag,
    Hotkey,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    Move,
    Point,
    Press,
    PythonCode,
    Scroll,
    TypeText,
)

MAX_COMMAND_BYTES = 120_000
"""Limit of one argument of a Linux command is 131,072 bytes (MAX_ARG_STRLEN); longer source is compressed first."""

REPORTED = 3
"""Exit code of a command that did what it could and lists on stderr what it could not type or press."""

_HEAD = "import time\n\nimport pyautogui\n\npyautogui.FAILSAFE = False\npyautogui.PAUSE = 0\n"
_GAP_S = 0.05
_BUTTON_NUMBERS: dict[Button, int] = {"left": 1, "middle": 2, "right": 3, "back": 8, "forward": 9}


class ActionTooLarge(ValueError):
    """An action whose source does not fit into one command, even compressed."""


def guest_code(action: Action) -> str | None:
    """Python source that carries out an action in the guest; None for what has no effect there (wait, observe, the terminal ones).

    Raises:
        ActionTooLarge: when the source cannot be passed to `python -c`.
    """
    match action:
        case Click() | Move() | Drag() | MouseDown() | MouseUp() | Scroll():
            code = _HEAD + _pointer(action)
            if isinstance(action, Click | Drag | Scroll) and action.modifiers:
                code = _with_keys(_held(action.modifiers, _pointer(action)))
        case TypeText():
            code = _with_keys(f"type_text({action.text!a})")
        case Press():
            code = _with_keys(f"pyautogui.press({_key(action.key)}, presses={action.count}, interval=0.02)")
        case Hotkey():
            code = _with_keys(_held(action.keys, f"time.sleep({max(action.hold_s, 0.02):g})"))
        case KeyDown():
            code = _with_keys(f"pyautogui.keyDown({_key(action.key)})")
        case KeyUp():
            code = _with_keys(f"pyautogui.keyUp({_key(action.key)})")
        case PythonCode():
            code = f"{_in_guest()}\nrun({action.code!a})\n"
        case _:
            return None
    return _fitting(code)


def _pointer(action: Click | Move | Drag | MouseDown | MouseUp | Scroll) -> str:
    match action:
        case Move():
            return f"pyautogui.moveTo({action.point.x}, {action.point.y}, {action.duration_s:g})\n"
        case Click():
            once = _button("down", action.button) + _button("up", action.button)
            return _move(action.point) + (once + f"time.sleep({_GAP_S})\n") * action.count
        case MouseDown():
            return _move(action.point) + _button("down", action.button)
        case MouseUp():
            return _move(action.point) + _button("up", action.button)
        case Scroll():
            turns = f"pyautogui.scroll({action.clicks_y})\n" if action.clicks_y else ""
            return _move(action.point) + turns + (f"pyautogui.hscroll({action.clicks_x})\n" if action.clicks_x else "")
        case Drag():
            first, *rest = action.path if len(action.path) > 1 else (None, *action.path)
            each = action.duration_s / len(rest)
            follow = "".join(f"pyautogui.moveTo({point.x}, {point.y}, {each:g})\n" for point in rest if point)
            gap = f"time.sleep({_GAP_S})\n"
            return _move(first) + _button("down", action.button) + gap + follow + gap + _button("up", action.button)


def _move(point: Point | None) -> str:
    return f"pyautogui.moveTo({point.x}, {point.y})\ntime.sleep({_GAP_S})\n" if point else ""


def _button(way: str, button: Button) -> str:
    """Source that presses or releases a button; pyautogui knows three under X, which numbers back 8 and forward 9."""
    number = _BUTTON_NUMBERS[button]
    if number <= 3:
        return f"pyautogui.mouse{way.capitalize()}(button={button!r})\n"
    event = "ButtonPress" if way == "down" else "ButtonRelease"
    display = "pyautogui.platformModule._display"
    return (
        "from Xlib import X\nfrom Xlib.ext.xtest import fake_input\n"
        f"fake_input({display}, X.{event}, {number})\n{display}.sync()\n"
    )


def _held(keys: tuple[str, ...], inside: str) -> str:
    """Press keys in order, do something, release them in reverse order whatever happens."""
    names = "[" + ", ".join(map(_key, keys)) + "]"
    body = "".join(f"    {line}\n" for line in inside.splitlines())
    return f"keys = {names}\ntry:\n    hold(keys)\n{body}finally:\n    release(keys)\n"


def _key(spelling: str) -> str:
    """Source of a key's name; an unknown one is passed on and reported by the guest."""
    return ascii(key_name(spelling) or spelling)


def _with_keys(code: str) -> str:
    return f"{_in_guest()}\npyautogui.PAUSE = 0\n{code.rstrip()}\nfinish()\n"


def _fitting(code: str) -> str:
    if len(code.encode()) <= MAX_COMMAND_BYTES:
        return code
    packed = base64.b85encode(zlib.compress(code.encode(), 9)).decode()
    short = f"import base64, zlib\nexec(zlib.decompress(base64.b85decode({packed!r})).decode())\n"
    if len(short) > MAX_COMMAND_BYTES:
        raise ActionTooLarge(
            f"the action's source is {len(code)} bytes; a command holds {MAX_COMMAND_BYTES} even compressed"
        )
    return short


@cache
def _in_guest() -> str:
    return resources.files("osworld_rollouts.actions").joinpath("in_guest.py").read_text(encoding="utf-8")
