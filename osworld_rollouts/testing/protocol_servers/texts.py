"""Typed actions in the words of each textual protocol: what a model would write to ask for them.

The inverse of the adapters' parsers, written independently of them. Coordinates are rounded to the protocol's own grid.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from osworld_rollouts.contracts.action import (
    Action,
    Click,
    Done,
    Drag,
    Fail,
    Hotkey,
    Move,
    Point,
    Press,
    PythonCode,
    Scroll,
    TypeText,
    Wait,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from osworld_rollouts.contracts.model import ImageGeometry

_FENCE = "```"


class Unspeakable(ValueError):
    """The protocol has no words for the action."""


def python(action: Action) -> str:
    """Pyautogui code."""
    match action:
        case Click(point=Point(x=x, y=y)):
            return f"pyautogui.click({x}, {y}, clicks={action.count}, button={action.button!r})"
        case Move(point=Point(x=x, y=y)):
            return f"pyautogui.moveTo({x}, {y})"
        case Scroll():
            return f"pyautogui.scroll({action.clicks_y})"
        case TypeText():
            return f"pyautogui.write({action.text!r})"
        case Press():
            return f"pyautogui.press({action.key!r}, presses={action.count})"
        case Hotkey():
            return f"pyautogui.hotkey({', '.join(map(repr, action.keys))})"
        case PythonCode():
            return action.code
        case _:
            raise Unspeakable(action.kind)


def pyautogui(actions: Sequence[Action], geometry: ImageGeometry) -> str:  # noqa: ARG001 - one form for all
    """A reflection and code blocks."""
    words = {"done": "DONE", "fail": "FAIL", "wait": "WAIT"}
    blocks = [
        f"{_FENCE}\n{words[it.kind]}\n{_FENCE}" if it.kind in words else f"{_FENCE}python\n{python(it)}\n{_FENCE}"
        for it in actions
    ]
    return "I know what to do.\n" + "\n".join(blocks)


def nemotron_nano_omni(actions: Sequence[Action], geometry: ImageGeometry) -> str:
    """Action and Code section; points as fractions of the screen."""
    lines: list[str] = []
    for it in actions:
        match it:
            case Done():
                lines.append("computer.terminate(status='success')")
            case Fail():
                lines.append("computer.terminate(status='failure')")
            case Wait():
                lines.append("computer.wait()")
            case Click(point=Point(x=x, y=y)):
                at = f"{x / geometry.screen_width}, {y / geometry.screen_height}"
                lines.append(f"pyautogui.click({at}, clicks={it.count}, button={it.button!r})")
            case _:
                lines.append(python(it))
    code = "\n".join(lines)
    return f"<think>\nI know what to do.\n</think>\n## Action:\nDo it.\n## Code:\n{_FENCE}python\n{code}\n{_FENCE}"


def computer_13(actions: Sequence[Action], geometry: ImageGeometry) -> str:  # noqa: ARG001 - one form for all
    """One object in a block for each action."""

    def fields(it: Action) -> dict[str, Any]:
        match it:
            case Click(point=Point(x=x, y=y)):
                return {"action_type": "CLICK", "x": x, "y": y, "button": it.button, "num_clicks": it.count}
            case Move(point=Point(x=x, y=y)):
                return {"action_type": "MOVE_TO", "parameters": {"x": x, "y": y}}
            case Drag():
                return {"action_type": "DRAG_TO", "x": it.path[-1].x, "y": it.path[-1].y}
            case Scroll():
                return {"action_type": "SCROLL", "dx": it.clicks_x, "dy": it.clicks_y}
            case TypeText():
                return {"action_type": "TYPING", "text": it.text}
            case Press(count=1):
                return {"action_type": "PRESS", "key": it.key}
            case Hotkey():
                return {"action_type": "HOTKEY", "keys": list(it.keys)}
            case Wait() | Done() | Fail():
                return {"action_type": it.kind.upper()}
            case _:
                raise Unspeakable(it.kind)

    return "\n".join(f"{_FENCE}json\n{json.dumps(fields(it))}\n{_FENCE}" for it in actions)


def qwen3_vl(actions: Sequence[Action], geometry: ImageGeometry) -> str:
    """An action sentence and a tool call for each action, on the grid of 0..999."""

    def at(point: Point) -> list[int]:
        return [_ceil(point.x * 999, geometry.screen_width), _ceil(point.y * 999, geometry.screen_height)]

    calls = [
        json.dumps({"name": "computer_use", "arguments": _arguments(it, at)}, ensure_ascii=False) for it in actions
    ]
    return "Action: Do it.\n" + "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


def _arguments(it: Action, at: Callable[[Point], list[int]]) -> dict[str, Any]:
    names = {
        ("left", 1): "left_click",
        ("left", 2): "double_click",
        ("left", 3): "triple_click",
        ("right", 1): "right_click",
    }
    match it:
        case Click(point=Point() as point):
            return {"action": names[it.button, it.count], "coordinate": at(point)}
        case Move():
            return {"action": "mouse_move", "coordinate": at(it.point)}
        case Scroll():
            return {"action": "scroll", "pixels": it.clicks_y}
        case TypeText():
            return {"action": "type", "text": it.text}
        case Press(count=1):
            return {"action": "key", "keys": [it.key]}
        case Hotkey():
            return {"action": "key", "keys": list(it.keys)}
        case Wait():
            return {"action": "wait", "time": it.seconds or 1}
        case Done() | Fail():
            return {"action": "terminate", "status": "success" if it.kind == "done" else "failure"}
        case _:
            raise Unspeakable(it.kind)


def ui_tars(actions: Sequence[Action], geometry: ImageGeometry) -> str:
    """A thought and calls, in pixels of an image whose sides are multiples of 28."""
    wide, high = (round(side / 28) * 28 for side in (geometry.image_width, geometry.image_height))

    def at(point: Point) -> str:
        return f"'({_ceil(point.x * wide, geometry.screen_width)},{_ceil(point.y * high, geometry.screen_height)})'"

    def call(it: Action) -> str:
        names = {("left", 1): "click", ("left", 2): "left_double", ("right", 1): "right_single"}
        match it:
            case Click(point=Point() as point):
                return f"{names[it.button, it.count]}(start_box={at(point)})"
            case Drag():
                return f"drag(start_box={at(it.path[0])}, end_box={at(it.path[-1])})"
            case TypeText():
                escaped = it.text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
                return f"type(content='{escaped}')"
            case Press(count=1):
                return f"hotkey(key='{it.key}')"
            case Hotkey():
                return f"hotkey(key='{' '.join(it.keys)}')"
            case Wait():
                return "wait()"
            case Done():
                return "finished(content='')"
            case _:
                raise Unspeakable(it.kind)

    return "Thought: I know what to do.\nAction: " + "\n\n".join(map(call, actions))


def _ceil(value: int, by: int) -> int:
    """Division rounded up, so that the parser's cut-off fraction gives the pixel back where the grid is fine enough."""
    return -(-value // by)


SPEAKERS: dict[str, Callable[[Sequence[Action], ImageGeometry], str]] = {
    "computer_13": computer_13,
    "nemotron_nano_omni": nemotron_nano_omni,
    "pyautogui": pyautogui,
    "qwen3_vl": qwen3_vl,
    "ui_tars": ui_tars,
}
"""How each textual protocol says a list of actions."""


def chat_completion(model: str, text: str) -> dict[str, Any]:
    """A `chat.completion` object as OpenAI's API sends it."""
    message = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [choice],
        "usage": usage,
    }
