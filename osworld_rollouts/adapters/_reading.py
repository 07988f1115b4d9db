"""Reading structured actions that a model wrote: JSON objects, their fields, points on the screen, keys.

Everything here may be given anything. What cannot be read raises `Rejected`, which `read_calls` turns into the reply's failure.
"""

from __future__ import annotations

import ast
import json
import math
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

from osworld_rollouts.actions.keys import UnknownKey, key_names
from osworld_rollouts.adapters._contract import FailureKind
from osworld_rollouts.contracts.action import Action, Hotkey, Point, Press
from osworld_rollouts.contracts.steps import ParseFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from osworld_rollouts.adapters._parts import Ledger
    from osworld_rollouts.contracts.model import ImageGeometry

MAX_NOTCHES = 1000
MAX_WAIT_S = 600.0


class Rejected(Exception):
    """Why something the model wrote is not an action."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    def failure(self) -> ParseFailure:
        """The same as a reply's failure."""
        return ParseFailure(kind=self.kind, message=str(self))


def unparseable(message: str) -> NoReturn:
    """Reject as unparseable."""
    raise Rejected(FailureKind.UNPARSEABLE, message)


def unknown(message: str) -> NoReturn:
    """Reject as an action, key or status that the protocol does not have."""
    raise Rejected(FailureKind.UNKNOWN_ACTION, message)


def read_json(text: str) -> Any:
    """A JSON value, or the same written as a Python literal; line breaks inside strings are allowed.

    Raises:
        Rejected: saying what is wrong.
    """
    try:
        return json.loads(text, strict=False)
    except RecursionError:
        unparseable("the JSON is nested too deeply")
    except ValueError as error:
        try:
            value = ast.literal_eval(text.strip()) if text.lstrip().startswith(("{", "[")) else None
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            value = None
        if not isinstance(value, dict | list):
            unparseable(f"not JSON: {error}")
        return value


class Fields:
    """The fields of one action, read with their type; `what` names the action in messages."""

    def __init__(self, value: object, what: str) -> None:
        if not isinstance(value, dict):
            unparseable(f"{what} needs an object with its arguments, not {_kind(value)}")
        self.values = cast("dict[str, Any]", value)
        self.what = what

    def has(self, *names: str) -> bool:
        """Whether all these fields are there and not null."""
        return all(self.values.get(name) is not None for name in names)

    def text(self, name: str, default: str | None = None) -> str:
        """A string; numbers are taken as they are written."""
        value = self.values.get(name, default)
        if isinstance(value, str):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        return unparseable(f"{self.what} needs a text {name!r}, not {_kind(value)}")

    def choice(self, name: str, choices: Iterable[str], default: str | None = None) -> str:
        """One of some words, in any case."""
        word, known = self.text(name, default).strip().lower(), tuple(choices)
        return word if word in known else unknown(f"{self.what} has no {name} {word!r}; it has {', '.join(known)}")

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number, also as text."""
        value = self.values.get(name, default)
        return as_number(value if value is not None else default, f"{self.what} needs a number {name!r}")

    def whole(self, name: str, default: float | None = None) -> int:
        """A number without its fraction."""
        return int(self.number(name, default))

    def pair(self, name: str) -> tuple[float, float]:
        """Two numbers: `[x, y]`, `{"x": x, "y": y}`, `"(x, y)"`, or a box `[x1, y1, x2, y2]` whose middle counts."""
        return as_pair(self.values.get(name), f"{self.what} needs a point {name!r}")

    def keys(self, name: str) -> tuple[str, ...]:
        """Key names that are pressed together."""
        value = self.values.get(name)
        if isinstance(value, list) and value and all(isinstance(item, str | int) for item in value):
            spellings = [str(item) for item in value]
        else:
            spellings = [self.text(name)]
        return as_keys(spellings, self.what)


def as_number(value: object, needs: str) -> float:
    """A finite number."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    return number if math.isfinite(number) else unparseable(f"{needs}, not {_kind(value)}")


def as_pair(value: object, needs: str) -> tuple[float, float]:
    """A point in one of the shapes models write."""
    if isinstance(value, str):
        value = [piece for piece in value.strip().strip("()[]").replace(",", " ").split() if piece]
    if isinstance(value, dict):
        value = [value.get("x"), value.get("y")]
    if not isinstance(value, list | tuple) or len(value) not in {2, 4}:
        unparseable(f"{needs}, not {_kind(value)}")
    numbers = [as_number(item, needs) for item in value]
    if len(numbers) == 2:
        return numbers[0], numbers[1]
    return (numbers[0] + numbers[2]) / 2, (numbers[1] + numbers[3]) / 2


def as_keys(spellings: list[str], what: str) -> tuple[str, ...]:
    """Key names, or a rejection that names the unknown one."""
    try:
        names = key_names([spelling for spelling in spellings if spelling])
    except UnknownKey as error:
        raise Rejected(FailureKind.UNKNOWN_ACTION, f"{what}: {error}") from None
    return names or unparseable(f"{what} needs at least one key")


def press(names: tuple[str, ...]) -> Action:
    """One key, or several together."""
    return Press(key=names[0]) if len(names) == 1 else Hotkey(keys=names)


class Screen:
    """Points on a screen: clamped or rejected when they are off it, and noted either way."""

    def __init__(self, geometry: ImageGeometry, off_screen: Literal["clamp", "reject"]) -> None:
        self.width = geometry.screen_width
        self.height = geometry.screen_height
        self.off_screen = off_screen
        self.notes: list[str] = []

    def point(self, x: float, y: float, scale: tuple[float, float] = (1, 1)) -> Point:
        """The pixel at (x, y) times `scale`, fractions cut off. The far edge, one pixel too far, is always clamped."""
        if max(abs(x), abs(y)) > 1e9:
            raise Rejected(FailureKind.OFF_SCREEN, f"({x:g}, {y:g}) is off the screen")
        off = f"({x:g}, {y:g}) is off the {self.width / scale[0]:g}x{self.height / scale[1]:g} screen"
        x, y = x * scale[0], y * scale[1]
        column, row = int(x), int(y)
        inside = Point(x=min(max(column, 0), self.width - 1), y=min(max(row, 0), self.height - 1))
        if (inside.x, inside.y) != (column, row):
            edge = 0 <= column <= self.width and 0 <= row <= self.height
            if self.off_screen == "reject" and not edge:
                raise Rejected(FailureKind.OFF_SCREEN, off)
            self.notes.append(f"{off}, clamped to pixel ({inside.x}, {inside.y})")
        return inside

    def notches(self, clicks: float) -> int:
        """Wheel notches within reason."""
        whole = int(clicks)
        if abs(whole) > MAX_NOTCHES:
            self.notes.append(f"{whole} wheel notches, limited to {MAX_NOTCHES}")
        return min(max(whole, -MAX_NOTCHES), MAX_NOTCHES)

    def seconds(self, seconds: float) -> float:
        """A waiting time within reason."""
        if not 0 <= seconds <= MAX_WAIT_S:
            self.notes.append(f"waiting {seconds:g} s, limited to 0..{MAX_WAIT_S:g}")
        return min(max(seconds, 0.0), MAX_WAIT_S)


class Written:
    """Something in the reply that claims to be actions: where it stands, and how to read it."""

    def __init__(self, ledger: Ledger, span: tuple[int, int], read: Callable[[], list[Action]]) -> None:
        self.ledger = ledger
        self.span = span
        self.read = read


def read_calls(calls: Iterable[Written]) -> tuple[list[Action], ParseFailure | None]:
    """The actions of the calls in order, up to the first that cannot be read; its failure if nothing came before it.

    What follows an unreadable call was meant for a screen that will not come about, so it is left out.
    """
    actions: list[Action] = []
    refused: Rejected | None = None
    for call in calls:
        if refused is not None:
            call.ledger.dropped(*call.span, "follows a call that could not be read")
            continue
        try:
            read = call.read()
        except Rejected as rejected:
            refused = rejected
            call.ledger.dropped(*call.span, f"{rejected.kind}: {rejected}")
            continue
        call.ledger.took(*call.span, len(actions))
        actions += read
    return actions, refused.failure() if refused and not actions else None


def _kind(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case dict():
            return "an object"
        case list():
            return "a list"
        case str():
            return f"the text {value[:40]!r}"
        case _:
            return f"{value!r}"[:40]
