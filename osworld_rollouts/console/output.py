"""What a command prints: one JSON document for programs, or text for people. Never both.

Model output, task text and names come from outside. `clean` takes every control character out of them, so that none can write to
the terminal on its own account (move the cursor, set the title, hide a line).
"""

from __future__ import annotations

import json
import sys
import unicodedata
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from osworld_rollouts.console.errors import ConsoleError

_PIPE_WIDTH = 240  # a file or a pipe has no width; folded cells would be hard to read back

STYLES = {"good": "green", "bad": "red", "waiting": "yellow", "running": "cyan", "dim": "dim"}


class Output:
    """Standard output for results; standard error for errors and progress."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
        self.errors = Console(stderr=True, highlight=False)

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None where nobody looks: what is piped is never shortened."""
        return self.console.width if self.console.is_terminal else None

    def record(self, value: Any) -> None:
        """The command's result as one JSON document; nothing for people."""
        if self.as_json:
            sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=_plain) + "\n")

    def line(self, text: str | Text = "", style: str | None = None) -> None:
        """One line for people."""
        if not self.as_json:
            self.console.print(
                clean(text) if isinstance(text, str) else text, style=style, markup=False, soft_wrap=True
            )

    def paragraph(self, text: str, style: str = "") -> None:
        """Text for people, wrapped between words. Lines with addresses are not wrapped, so that they can be clicked."""
        if not self.as_json:
            self.console.print(Text(clean(text), style=style))

    def note(self, text: str, style: str | None = "dim") -> None:
        """A line about what goes on, on standard error."""
        if not self.as_json:
            self.errors.print(clean(text), style=style, markup=False, soft_wrap=True)

    def table(
        self,
        columns: Iterable[str],
        rows: Iterable[Iterable[str | Text]],
        *,
        right: Iterable[str] = (),
        wrapped: Iterable[str] | None = None,
    ) -> None:
        """A table for people; columns in `right` are numbers, and where room is short only those in `wrapped` give way."""
        if not self.as_json:
            self.console.print(make_table(columns, rows, right=right, wrapped=wrapped))


def make_table(
    columns: Iterable[str],
    rows: Iterable[Iterable[str | Text]],
    *,
    right: Iterable[str] = (),
    wrapped: Iterable[str] | None = None,
) -> Table:
    """A table without frames: what is read is the content. By default every column but the first may wrap."""
    columns, numbers = tuple(columns), set(right)
    soft = set(columns[1:] if wrapped is None else wrapped)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold dim", show_header=any(columns))
    for number, column in enumerate(columns):
        fixed = number == 0 or column not in soft
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold", no_wrap=fixed)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(clean(cell)) for cell in row))
    return table


def clean(text: str, limit: int = 4000) -> str:
    """Text without control and formatting characters, newlines kept; over-long text is cut."""
    kept = "".join(
        letter
        if letter in "\n\t" or unicodedata.category(letter) not in {"Cc", "Cf", "Cs", "Co"}
        else "\N{REPLACEMENT CHARACTER}"
        for letter in text[:limit]
    )
    return kept if len(text) <= limit else kept + "…"


def one_line(text: str, limit: int = 80) -> str:
    """Clean text on one line, cut to a width."""
    line = " ".join(clean(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def middle(text: str, width: int) -> str:
    """Text cut to a width in its middle: the ends of an id tell it from its neighbours."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 3
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def calls_left_open(unanswered: int, unseen: int) -> str:
    """What the model calls of an execution leave open, in words; empty when they leave nothing."""
    words = [f"{unanswered} model {'call' if unanswered == 1 else 'calls'} without a reply"] if unanswered else []
    if unseen:
        words.append(f"{unseen} {'attempt' if unseen == 1 else 'attempts'} may have left a sample nobody saw")
    return ", ".join(words)


def print_error(error: ConsoleError, *, as_json: bool) -> None:
    """One line for people, one object for programs, on standard error."""
    if as_json:
        record = {
            "error": {
                "message": error.message,
                "remedy": error.remedy,
                "exit_code": int(error.code),
                "kind": error.code.name.lower(),
            }
        }
        sys.stderr.write(json.dumps(record, ensure_ascii=False) + "\n")
        return
    line = Text("error: ", style="bold red")
    line.append(one_line(error.message, 2000), style="default")
    if error.remedy:
        line.append(f"; {one_line(error.remedy, 500)}", style="default")
    Console(stderr=True, highlight=False).print(line, soft_wrap=True)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return str(value)
