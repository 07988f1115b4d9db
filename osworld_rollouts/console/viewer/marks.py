"""Where an action touched the screen, as shapes to draw over the screenshot.

Actions of the typed form say it themselves. Python the model wrote is read, never run: calls of `pyautogui` with literal arguments
are understood, everything else is left unmarked.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from osworld_rollouts.contracts import action as actions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MAX_CODE = 20_000
_MAX_CALLS = 200
_ARROWS = {"up": "↑", "down": "↓", "left": "←", "right": "→"}


@dataclass(frozen=True)
class Mark:
    """One shape. `points` are screen pixels; `kind` is click, move, drag, scroll or keys (no point: a label only)."""

    kind: str
    number: int
    points: tuple[tuple[int, int], ...] = ()
    label: str = ""


@dataclass
class _Pointer:
    """Where the pointer is, as far as the actions so far tell."""

    at: tuple[int, int] | None = None
    marks: list[Mark] = field(default_factory=list["Mark"])

    def add(self, kind: str, number: int, point: tuple[int, int] | None, label: str = "") -> None:
        self.at = point or self.at
        self.marks.append(Mark(kind, number, (self.at,) if self.at and kind != "keys" else (), label))

    def drag(self, number: int, path: Sequence[tuple[int, int]], label: str) -> None:
        points = tuple(path) if len(path) > 1 or self.at is None else (self.at, *path)
        self.at = points[-1]
        self.marks.append(Mark("drag", number, points, label))


def marks_of(done: Iterable[actions.Action]) -> tuple[Mark, ...]:
    """Shapes for one turn's actions, numbered from 1 in their order."""
    pointer = _Pointer()
    for number, action in enumerate(done, start=1):
        _mark(pointer, number, action)
    return tuple(pointer.marks)


def summary_of(action: actions.Action) -> str:
    """A short line for people. Python is told by its calls of pyautogui, where it is nothing but such calls."""
    if isinstance(action, actions.PythonCode):
        calls = _calls(action.code)
        if calls:
            return "; ".join(ast.unparse(call).removeprefix("pyautogui.") for call in calls)
    return actions.describe(action)


def _mark(pointer: _Pointer, number: int, action: actions.Action) -> None:
    match action:
        case actions.Click():
            label = " ".join(
                part
                for part in (
                    "+".join(action.modifiers),
                    "" if action.button == "left" else action.button,
                    f"x{action.count}" if action.count > 1 else "",
                )
                if part
            )
            pointer.add("click", number, _xy(action.point), label)
        case actions.MouseDown() | actions.MouseUp():
            pointer.add("click", number, _xy(action.point), "down" if action.kind == "mouse_down" else "up")
        case actions.Move():
            pointer.add("move", number, _xy(action.point))
        case actions.Drag():
            pointer.drag(
                number, [(point.x, point.y) for point in action.path], "" if action.button == "left" else action.button
            )
        case actions.Scroll():
            pointer.add("scroll", number, _xy(action.point), _scroll_label(action.clicks_x, action.clicks_y))
        case actions.TypeText():
            pointer.add("keys", number, None, f"type {action.text!r}")
        case actions.Press():
            pointer.add("keys", number, None, action.key + (f" x{action.count}" if action.count > 1 else ""))
        case actions.Hotkey():
            pointer.add("keys", number, None, " + ".join(action.keys))
        case actions.KeyDown() | actions.KeyUp():
            pointer.add("keys", number, None, f"{action.key} {'down' if action.kind == 'key_down' else 'up'}")
        case actions.PythonCode():
            _mark_code(pointer, number, action.code)
        case _:
            pass


def _mark_code(pointer: _Pointer, number: int, code: str) -> None:
    for call in _calls(code):
        if isinstance(call.func, ast.Attribute):
            values = [_literal(item) for item in call.args]
            _mark_call(
                pointer,
                number,
                call.func.attr,
                values,
                {item.arg: _literal(item.value) for item in call.keywords if item.arg},
            )


def _calls(code: str) -> list[ast.Call]:
    """Calls of `pyautogui.<function>` in the order written; none for code that cannot be read."""
    if len(code) > _MAX_CODE:
        return []
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    calls = [
        node
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_pyautogui(node.func.value)
    ]
    return sorted(calls, key=lambda node: (node.lineno, node.col_offset))[:_MAX_CALLS]


def _is_pyautogui(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "pyautogui"


def _mark_call(pointer: _Pointer, number: int, name: str, values: list[Any], named: dict[str, Any]) -> None:
    point = _point(values, named)
    first: Any = values[0] if values else next(iter(named.values()), None)
    match name:
        case "click" | "leftClick" | "doubleClick" | "tripleClick" | "rightClick" | "middleClick":
            words = {"doubleClick": "x2", "tripleClick": "x3", "rightClick": "right", "middleClick": "middle"}
            clicks, button = named.get("clicks"), named.get("button")
            more = [
                words.get(name, ""),
                str(button) if button and button != "left" else "",
                f"x{clicks}" if clicks and clicks != 1 else "",
            ]
            pointer.add("click", number, point, " ".join(part for part in more if part))
        case "mouseDown" | "mouseUp":
            pointer.add("click", number, point, "down" if name == "mouseDown" else "up")
        case "moveTo" if point:
            pointer.add("move", number, point)
        case "dragTo" if point:
            pointer.drag(number, [point], "")
        case "scroll" | "vscroll" | "hscroll" if isinstance(first, int | float):
            clicks = int(first)
            label = _scroll_label(clicks, 0) if name == "hscroll" else _scroll_label(0, clicks)
            pointer.add("scroll", number, _point(values[1:], named), label)
        case "write" | "typewrite" if isinstance(first, str):
            pointer.add("keys", number, None, f"type {first!r}")
        case "press" | "keyDown" | "keyUp" if first is not None:
            pointer.add("keys", number, None, str(first) + {"keyDown": " down", "keyUp": " up"}.get(name, ""))
        case "hotkey" if values:
            parts: list[Any] = list(first) if isinstance(first, list | tuple) else values
            pointer.add("keys", number, None, " + ".join(str(key) for key in parts))
        case _:
            pass


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None


def _point(values: list[Any], named: dict[str, Any]) -> tuple[int, int] | None:
    if values and isinstance(values[0], list | tuple):
        values = list(values[0])  # pyautogui takes (x, y) as one argument too
    x = named.get("x", values[0] if values else None)
    y = named.get("y", values[1] if len(values) > 1 else None)
    if isinstance(x, int | float) and isinstance(y, int | float) and abs(x) < 1e6 and abs(y) < 1e6:
        return int(x), int(y)
    return None


def _xy(point: actions.Point | None) -> tuple[int, int] | None:
    return (point.x, point.y) if point else None


def _scroll_label(clicks_x: int, clicks_y: int) -> str:
    parts = [f"{_ARROWS['up' if clicks_y > 0 else 'down']}{abs(clicks_y)}"] if clicks_y else []
    parts += [f"{_ARROWS['right' if clicks_x > 0 else 'left']}{abs(clicks_x)}"] if clicks_x else []
    return " ".join(parts)
