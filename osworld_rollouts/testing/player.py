"""Playing a script: which step comes next in a conversation, and whether the screen is ready for it.

The history of OSWorld's pyautogui protocol holds no assistant turns, so the place in the script is remembered here: by
(execution, turn) where the request names them in its headers, else by the instruction, one conversation at a time. Asking
again for the same turn plays the same step again. After a restart of the server, turn n is taken to be step n.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from osworld_rollouts.testing.locate import Match, Screen, load_template
from osworld_rollouts.testing.scripts import Click, Code, Gesture, Keys, Pause, Press, Script, Type

if TYPE_CHECKING:
    from collections.abc import Iterable

_REMEMBERED = 4096


@dataclass(frozen=True)
class Place:
    """Where a conversation stands: the step to play next, how many turns were spent waiting for it, and whether waiting was in vain before."""

    step: int = 0
    waits: int = 0
    gave_up: bool = False


@dataclass(frozen=True)
class Answer:
    """A reply's text, the place after it, and what was looked for on the screenshot (None: not found)."""

    text: str
    after: Place
    seen: dict[str, Match | None]
    ends: bool = False


@dataclass
class _Conversation:
    after_turn: dict[int, Place] = field(default_factory=dict)
    images: int = 0
    ended: bool = False

    def before(self, turn: int) -> Place:
        earlier = [known for known in self.after_turn if known < turn]
        return self.after_turn[max(earlier)] if earlier else Place(step=turn)


class Player:
    """All scripts, and the place of every conversation."""

    def __init__(self, scripts: Iterable[Script]) -> None:
        self._scripts = sorted(scripts, key=lambda script: -len(script.instruction))
        self._conversations: OrderedDict[str, _Conversation] = OrderedDict()

    @property
    def instructions(self) -> list[str]:
        """Every instruction a script is known for."""
        return [script.instruction for script in self._scripts]

    def recognise(self, texts: Iterable[str]) -> Script | None:
        """The script whose instruction stands in one of the texts; of several, the longest instruction."""
        joined = "\n".join(texts)
        return next((script for script in self._scripts if script.instruction in joined), None)

    def turn_without_headers(self, key: str, images: int) -> int:
        """The turn a request without headers is taken for: the next one, or the first when the conversation began anew."""
        conversation = self._conversation(key)
        if conversation.ended or images == 1 < conversation.images:
            self._conversations[key] = conversation = _Conversation()
        conversation.images = images
        return max(conversation.after_turn, default=-1) + 1

    def play(self, script: Script, key: str, turn: int, screenshot: bytes | None) -> Answer:
        """The reply for this turn. Nothing is remembered until `remember`."""
        place = self._conversation(key).before(turn)
        place = replace(place, step=min(place.step, len(script.steps) - 1))
        return _answer(script, place, Screen(screenshot) if screenshot else None)

    def remember(self, key: str, turn: int, answer: Answer | None) -> None:
        """Go on after `answer`, or stay where the conversation was when the reply sent was none of the script's (None)."""
        conversation = self._conversation(key)
        conversation.after_turn[turn] = answer.after if answer else conversation.before(turn)
        conversation.ended = bool(answer and answer.ends)

    def _conversation(self, key: str) -> _Conversation:
        found = self._conversations.setdefault(key, _Conversation())
        self._conversations.move_to_end(key)
        while len(self._conversations) > _REMEMBERED:
            self._conversations.popitem(last=False)
        return found


def _answer(script: Script, place: Place, screen: Screen | None) -> Answer:
    step = script.steps[place.step]
    seen = {name: _look(script, name, screen) for name in step.looks_for()}
    missing = [script.targets[name].name for name, match in seen.items() if match is None]
    onward = Place(place.step + 1, gave_up=place.gave_up or bool(missing))
    # On a desktop that looks unlike the pictures, waiting long at every step would use up the horizon.
    if missing and place.waits < (min(step.patience, 1) if place.gave_up else step.patience):
        text = reply(f"I do not see {missing[0]} yet, so I wait.", "WAIT")
        return Answer(text, replace(place, waits=place.waits + 1), seen)
    if isinstance(step.do, str):
        return Answer(reply(step.thought, step.do), place, seen, ends=True)
    if not all(seen[name] for name in step.clicked()):
        if not step.instead:
            return Answer(reply(f"I cannot find {missing[0]}, and know no other way.", "FAIL"), place, seen, ends=True)
        return Answer(
            reply(f"{step.thought} I cannot find {missing[0]}, so I take another way.", step.instead), onward, seen
        )
    points = {name: match.centre for name, match in seen.items() if match}
    points = {
        name: (x + script.targets[name].offset[0], y + script.targets[name].offset[1])
        for name, (x, y) in points.items()
    }
    return Answer(reply(step.thought, step.do, points), onward, seen)


def _look(script: Script, name: str, screen: Screen | None) -> Match | None:
    if screen is None:
        return None
    target = script.targets[name]
    found = [
        screen.find(load_template(script.directory / picture), target.region, at_least=target.at_least)
        for picture in target.pictures
    ]
    return max((match for match in found if match), key=lambda match: match.likeness, default=None)


def reply(thought: str, do: tuple[Gesture, ...] | str, points: dict[str, tuple[int, int]] | None = None) -> str:
    """A reply in OSWorld's pyautogui format: a thought, then one fenced block of code or a special code."""
    if isinstance(do, str):
        return f"{thought}\n```\n{do}\n```"
    code = "\n".join(_code(gesture, points or {}) for gesture in do)
    return f"{thought}\n```python\n{code}\n```"


def _code(gesture: Gesture, points: dict[str, tuple[int, int]]) -> str:
    match gesture:
        case Click():
            x, y = points[gesture.click] if isinstance(gesture.click, str) else gesture.click
            name = {1: "click", 2: "doubleClick", 3: "tripleClick"}[gesture.count]
            button = "" if gesture.button == "left" else f', button="{gesture.button}"'
            return f"pyautogui.{name}({x}, {y}{button})"
        case Type():
            return f"pyautogui.write({gesture.type!r}, interval=0.02)"
        case Keys():
            return f"pyautogui.hotkey({', '.join(repr(key) for key in gesture.keys)})"
        case Press():
            return f"pyautogui.press({gesture.press!r}" + (
                f", presses={gesture.count}, interval=0.05)" if gesture.count > 1 else ")"
            )
        case Pause():
            return f"time.sleep({gesture.pause:g})"
        case Code():
            return gesture.code
