"""A scripted solution: what to do in which order, and what to look for on the screen before doing it.

One file per task, `solutions/<task id>.json`, and the small pictures the solutions look for in `solutions/pictures/`. A solution
speaks of gestures (click the Bold button, type, press), not of a model protocol; `player.py` turns the next step into a reply.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from osworld_rollouts.contracts._base import Contract
from osworld_rollouts.tasks import shipped_tasks

SOLUTIONS = Path(__file__).parent / "solutions"


class ScriptError(ValueError):
    """A script that cannot be read; the message names the file and the field."""


class Target(Contract):
    """Something on the screen. Pictures are alternatives, for instance of two versions of an application."""

    name: str = Field(description="for people: `the Bold button`")
    pictures: tuple[str, ...] = Field(min_length=1, description="file names beside the script")
    region: tuple[int, int, int, int] | None = Field(
        default=None, description="x, y, width, height to search in, pixels"
    )
    offset: tuple[int, int] = Field(
        default=(0, 0), description="from the picture's middle to the place to click, pixels"
    )
    at_least: float = Field(default=0.9, gt=0, le=1, description="likeness that counts as found")


class Click(Contract):
    """Click the named target, or a fixed place (x, y)."""

    click: str | tuple[int, int]
    count: int = Field(default=1, ge=1, le=3)
    button: Literal["left", "right"] = "left"


class Type(Contract):
    """Type text; newlines and tabs are keys."""

    type: str


class Keys(Contract):
    """Press keys together."""

    keys: tuple[str, ...] = Field(min_length=1)


class Press(Contract):
    """Press one key, `count` times."""

    press: str
    count: int = Field(default=1, ge=1)


class Pause(Contract):
    """Give the application time within one step, in seconds."""

    pause: float = Field(gt=0, le=10)


class Code(Contract):
    """Python as it is. Not for shipped solutions, which act through the GUI."""

    code: str


Gesture = Click | Type | Keys | Press | Pause | Code


class Step(Contract):
    """One turn's answer. It waits, for at most `patience` turns, until `see` and every target to be clicked are on the screen."""

    thought: str
    do: tuple[Gesture, ...] | Literal["DONE", "FAIL"]
    see: str | None = Field(default=None, description="target that must be visible first")
    patience: int = Field(default=3, ge=0, description="turns spent on WAIT before going on without")
    instead: tuple[Gesture, ...] = Field(default=(), description="when a target to be clicked is not found")

    def clicked(self) -> list[str]:
        """Names of the targets this step clicks."""
        gestures = self.do if isinstance(self.do, tuple) else ()
        clicks = [gesture.click for gesture in gestures if isinstance(gesture, Click)]
        return list(dict.fromkeys(click for click in clicks if isinstance(click, str)))

    def looks_for(self) -> list[str]:
        """Names of all targets that are to be on the screen."""
        return list(dict.fromkeys([*([self.see] if self.see else []), *self.clicked()]))


class Script(Contract):
    """The whole solution of one task, recognised by the task's instruction."""

    instruction: str = Field(min_length=1)
    steps: tuple[Step, ...] = Field(min_length=1)
    targets: dict[str, Target] = Field(default_factory=dict)
    directory: Path = Field(default=SOLUTIONS, description="where the pictures are")

    @model_validator(mode="after")
    def _complete(self) -> Script:
        for number, step in enumerate(self.steps):
            for name in step.looks_for():
                if name not in self.targets:
                    raise ValueError(f"steps[{number}] looks for {name!r}, which is not among the targets")
        for name, target in self.targets.items():
            for picture in target.pictures:
                if not (self.directory / picture).is_file():
                    raise ValueError(f"targets.{name}: there is no picture {self.directory / picture}")
        return self


def load_script(path: Path, instruction: str | None = None) -> Script:
    """Read one script file; `instruction` is for files that leave it to the task.

    Raises:
        ScriptError: when the file is not a script.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        fields = {
            "directory": path.parent,
            **({"instruction": instruction} if instruction is not None else {}),
            **content,
        }
        return Script.model_validate(fields)
    except (OSError, json.JSONDecodeError, TypeError) as error:
        raise ScriptError(f"cannot read the script {path}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ScriptError(f"{path}: {where}: {first['msg']}") from error


def shipped_scripts() -> dict[str, Script]:
    """The solution of every shipped task, by task id.

    Raises:
        ScriptError: for a shipped task without a solution.
    """
    return {task.task_id: load_script(SOLUTIONS / f"{task.task_id}.json", task.instruction) for task in shipped_tasks()}


def code_script(instruction: str, code: str) -> Script:
    """A script of one action, Python or FAIL, and then DONE: for OSWorld tasks whose solution is a piece of code."""
    if code.strip() == "FAIL":
        return Script(instruction=instruction, steps=(Step(thought="This cannot be done.", do="FAIL"),))
    act = Step(thought="I run the known solution of this task.", do=(Code(code=code),))
    return Script(instruction=instruction, steps=(act, Step(thought="That was all.", do="DONE")))
