"""A task that counts for itself: a full-screen program in the desktop writes one line for every click and every key it gets.

Every setup step and every post-step appends a line to a log of its own. The evaluator fetches the three logs, so after the run the
evidence store holds the guest's own count of effects; while the desktop lives, they lie in its home folder on this host. The
task's score is 1 only if every line is there exactly once and in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from osworld_rollouts.contracts.request import Task
from osworld_rollouts.testing.scripts import Click, Pause, Press, Script, Step

INSTRUCTION = "Click and press the keys that the counter asks for, in their order."
TURNS = 3
LOGS = ("counts.log", "setup.log", "post.log")
HOME = "/home/user"

COUNTER = f"""
import os, tkinter
log = os.open("{HOME}/counts.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
window = tkinter.Tk()
window.attributes("-fullscreen", True)
window.configure(background="navy")
window.bind("<ButtonPress>", lambda event: os.write(log, f"click {{event.x_root}} {{event.y_root}}\\n".encode()))
window.bind("<KeyPress>", lambda event: os.write(log, f"key {{event.keysym}}\\n".encode()))
window.bind("<FocusIn>", lambda event: open("{HOME}/ready", "w").close())
window.after(100, window.focus_force)
window.mainloop()
"""


def counts(turns: int = TURNS) -> list[str]:
    """What the counter has to have seen after so many turns."""
    return [
        line for turn in range(turns) for line in (f"click {_place(turn)[0]} {_place(turn)[1]}", f"key {_key(turn)}")
    ]


SETUP = ["setup 1", "setup 2", "setup 3"]
POST = ["post 1", "post 2"]


@dataclass(frozen=True)
class Counts:
    """The guest's three logs, line by line."""

    gui: list[str]
    setup: list[str]
    post: list[str]

    @classmethod
    def of(cls, texts: dict[str, str]) -> Counts:
        """From the logs' texts by file name; a missing one is empty."""
        return cls(*(texts.get(name, "").split("\n")[:-1] for name in LOGS))

    @classmethod
    def beside(cls, home: Path) -> Counts:
        """From a living desktop's home folder on this host."""
        return cls.of({name: (home / name).read_text() for name in LOGS if (home / name).exists()})


def counting_script(turns: int = TURNS, pause_s: float = 0.0) -> Script:
    """The policy: each turn one click and one key, `pause_s` apart; then DONE."""
    between = (Pause(pause=pause_s),) if pause_s else ()
    acts = [
        Step(thought=f"Turn {turn}.", do=(Click(click=_place(turn)), *between, Press(press=_key(turn))))
        for turn in range(turns)
    ]
    return Script(instruction=_instruction(turns, pause_s), steps=(*acts, Step(thought="All done.", do="DONE")))


def counting_task(turns: int = TURNS, pause_s: float = 0.0, *, gated: bool = False) -> Task:
    """The task. `gated` makes its setup wait, at first, for a file `go` in the home folder, so that a test can prepare its fault."""
    expected = {"counts.log": counts(turns), "setup.log": SETUP, "post.log": POST}
    files = {"counter.py": COUNTER, **{f"expected-{name}": "\n".join(lines) + "\n" for name, lines in expected.items()}}
    write = f"import pathlib\nfor name, text in {files!r}.items(): pathlib.Path('{HOME}', name).write_text(text)"
    gate = [_shell(f"until [ -e {HOME}/go ]; do sleep 0.05; done")] if gated else []
    config = [
        *gate,
        {"type": "execute", "parameters": {"command": ["python3", "-c", write]}},
        _shell(f"echo setup 1 >> {HOME}/setup.log"),
        {"type": "launch", "parameters": {"command": ["python3", f"{HOME}/counter.py"]}},
        _shell(f"until [ -e {HOME}/ready ]; do sleep 0.05; done; echo setup 2 >> {HOME}/setup.log"),
        _shell(f"echo setup 3 >> {HOME}/setup.log"),
    ]
    evaluator = {
        "postconfig": [_shell(f"echo {line} >> {HOME}/post.log") for line in POST],
        "func": ["compare_text_file"] * 3,
        "conj": "and",
        "result": [{"type": "vm_file", "path": f"{HOME}/{name}", "dest": name} for name in LOGS],
        "expected": [
            {"type": "vm_file", "path": f"{HOME}/expected-{name}", "dest": f"expected-{name}"} for name in LOGS
        ],
    }
    document = {
        "id": f"counting-{turns}-{round(pause_s * 10)}{'-gated' if gated else ''}",
        "snapshot": "os",
        "instruction": _instruction(turns, pause_s),
        "config": config,
        "evaluator": evaluator,
        "related_apps": ["os"],
    }
    return Task.from_document(document, "os")


def _instruction(turns: int, pause_s: float) -> str:
    return f"{INSTRUCTION} ({turns} turns, {pause_s:g} s between click and key.)"


def _shell(command: str) -> dict[str, object]:
    return {"type": "execute", "parameters": {"command": ["sh", "-c", command]}}


def _place(turn: int) -> tuple[int, int]:
    return 200 + 10 * (turn % 100), 400 + turn // 100


def _key(turn: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[turn % 26]
