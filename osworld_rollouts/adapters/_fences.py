"""Code blocks between triple backticks, the way models write them: with or without a language, on one line or many."""

from __future__ import annotations

import ast
import re
import warnings
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

TICKS = "```"
_ONE_LINE_TAG = re.compile(r"(python3?|py|code|json|pyautogui)[ \t]+(?=\S)", re.IGNORECASE)
_TAG_LINE = re.compile(r"[ \t]*(\w*)[ \t]*\r?\n")

MODEL_CODE = "<model code>"
warnings.filterwarnings("ignore", module=re.escape(MODEL_CODE))


class Fence(NamedTuple):
    """A block: `start`..`end` with its backticks, the body inside it, and the language it names."""

    start: int
    end: int
    body_start: int
    body_end: int
    tag: str


class Fences(NamedTuple):
    """All closed blocks in order, and where an unclosed one starts."""

    closed: tuple[Fence, ...]
    open_at: int | None


def find_fences(
    text: str, readable: Callable[[str], bool], words: frozenset[str] = frozenset(), start: int = 0
) -> Fences:
    """Blocks of a text, from `start` on.

    A block ends at the first backticks after which its body is `readable`, so that backticks inside a string do not cut
    it; when no end makes it readable, at the first. A word on the opening line is a language, unless it is one of `words`.
    """
    found: list[Fence] = []
    at = text.find(TICKS, start)
    while at >= 0:
        tag, body_start = _tag(text, at + len(TICKS), words)
        ends = _ends(text, body_start)
        if not ends:
            return Fences(tuple(found), at)
        end = next((end for end in ends if readable(text[body_start:end].strip())), ends[0])
        found.append(Fence(at, end + len(TICKS), body_start, end, tag))
        at = text.find(TICKS, end + len(TICKS))
    return Fences(tuple(found), None)


def is_python(code: str) -> bool:
    """Whether the text compiles as Python."""
    return python_error(code) is None


def python_error(code: str) -> str | None:
    """Why a text is not Python, or None when it is."""
    try:
        ast.parse(code, filename=MODEL_CODE)
    except SyntaxError as error:
        return f"{error.msg} (line {error.lineno}, column {error.offset})"
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error) or type(error).__name__
    return None


def _tag(text: str, at: int, words: frozenset[str]) -> tuple[str, int]:
    line = _TAG_LINE.match(text, at)
    if line and line[1] not in words:
        return line[1].lower(), line.end()
    same_line = _ONE_LINE_TAG.match(text, at)
    return (same_line[1].lower(), same_line.end()) if same_line else ("", at)


_MAX_ENDS = 20


def _ends(text: str, at: int) -> list[int]:
    ends: list[int] = []
    while len(ends) < _MAX_ENDS and (at := text.find(TICKS, at)) >= 0:
        ends.append(at)
        at += len(TICKS)
    return ends
