"""Reading the Python a model wrote without running it: repair of escaped line breaks, coordinates, top-level calls."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

from osworld_rollouts.adapters._fences import MODEL_CODE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from osworld_rollouts.contracts.model import ImageGeometry

POINT_ARGUMENTS = {
    **dict.fromkeys(
        (
            "click",
            "rightClick",
            "middleClick",
            "doubleClick",
            "tripleClick",
            "moveTo",
            "dragTo",
            "mouseDown",
            "mouseUp",
        ),
        0,
    ),
    **dict.fromkeys(("scroll", "hscroll", "vscroll"), 1),
}
"""pyautogui functions that take a point, and the position of its x among their arguments."""

_PIECES = re.compile(
    r"""(?P<keep>'''(?:\\.|.)*?'''|\"\"\"(?:\\.|.)*?\"\"\"|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|\#(?:(?!\\n|\\r\\n)[^\n])*)"""
    r"""|(?P<line>\\r\\n|\\n)""",
    re.DOTALL,
)


class Call(NamedTuple):
    """A call that is a statement of its own, with its constant arguments."""

    name: str
    arguments: tuple[object, ...]
    keywords: dict[str, object]


def repair_line_breaks(code: str) -> str:
    r"""The code with `\n` written as two characters turned into a line break, except inside strings."""
    return _PIECES.sub(lambda piece: "\n" if piece["line"] else piece[0], code)


def read_python(code: str) -> ast.Module | None:
    """The syntax tree, or None when the text is no Python."""
    try:
        return ast.parse(code, filename=MODEL_CODE)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def project_points(code: str, project: Callable[[float, float], tuple[int, int]]) -> tuple[str, list[tuple[int, int]]]:
    """The code with the literal points of pyautogui calls projected, and the points it now has.

    Only the numbers change: `click(x=0.5, y=0.25)`, `click(0.5, 0.25)`, `click((0.5, 0.25))`, `scroll(-5, 0.5, 0.25)`.
    Variables, expressions, strings and comments stay as they are.
    """
    tree = read_python(code)
    if tree is None:
        return code, []
    points: list[tuple[int, int]] = []
    edits: list[tuple[ast.expr, int]] = []
    for node in ast.walk(tree):
        pair = _point(node)
        if pair and (x := _number(pair[0])) is not None and (y := _number(pair[1])) is not None:
            try:
                points.append(project(x, y))
            except (OverflowError, ValueError):  # 1e999 and its like stay as written
                continue
            edits += zip(pair, points[-1], strict=True)
    return _edited(code, edits), points


def off_screen(points: Iterable[tuple[int, int]], geometry: ImageGeometry) -> list[str]:
    """A note for each point of code that lies off the screen: code is left as written, and the record says so."""
    wide, high = geometry.screen_width, geometry.screen_height
    return [
        f"({x}, {y}) is off the screen, left as written" for x, y in points if not (0 <= x < wide and 0 <= y < high)
    ]


def split_calls(code: str, owner: str) -> list[str | Call]:
    """The code in order, cut at its top-level statements `owner.name(...)`; comments alone are no code."""
    tree = read_python(code)
    if tree is None:
        return [code]
    lines = [line.encode() for line in _lines(code)]
    starts = [sum(map(len, lines[:row])) for row in range(len(lines) + 1)]
    source, pieces, at = b"".join(lines), list[str | Call](), 0
    for statement in tree.body:
        call = _call(statement, owner)
        if call is not None:
            start = starts[statement.lineno - 1] + statement.col_offset
            pieces += [source[at:start].decode(), call]
            at = starts[(statement.end_lineno or statement.lineno) - 1] + (statement.end_col_offset or 0)
    pieces.append(source[at:].decode())
    trimmed = [
        piece.strip().strip(";").strip() if isinstance(piece, str) and len(pieces) > 1 else piece for piece in pieces
    ]
    return [piece for piece in trimmed if not isinstance(piece, str) or _does_something(piece)]


def _does_something(code: str) -> bool:
    tree = read_python(code)
    return tree is None or bool(tree.body)


def _call(statement: ast.stmt, owner: str) -> Call | None:
    if isinstance(statement, ast.AnnAssign) and isinstance(
        statement.target, ast.Attribute
    ):  # `owner.name: {"key": "value"}`
        holder, given = statement.target.value, _constant(statement.annotation)
        named = {str(key): value for key, value in given.items()} if isinstance(given, dict) else {}
        return Call(statement.target.attr, (), named) if isinstance(holder, ast.Name) and holder.id == owner else None
    expression = statement.value if isinstance(statement, ast.Expr) else None
    function = expression.func if isinstance(expression, ast.Call) else expression
    if not (
        isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == owner
    ):
        return None
    if not isinstance(expression, ast.Call):
        return Call(function.attr, (), {})
    named = {keyword.arg: _constant(keyword.value) for keyword in expression.keywords if keyword.arg}
    return Call(function.attr, tuple(map(_constant, expression.args)), named)


def _point(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """The expressions of x and y of a pyautogui call that takes a point."""
    if not (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
    ):
        return None
    if node.func.value.id != "pyautogui" or node.func.attr not in POINT_ARGUMENTS:
        return None
    at = POINT_ARGUMENTS[node.func.attr]
    named = {keyword.arg: keyword.value for keyword in node.keywords}
    given = node.args[at:]
    first = given[0] if given else named.get("x")
    if isinstance(first, ast.Tuple | ast.List) and len(first.elts) == 2:
        return first.elts[0], first.elts[1]
    second = given[1] if len(given) > 1 else named.get("y")
    return (first, second) if first is not None and second is not None else None


def _number(node: ast.expr) -> float | None:
    value = _constant(node)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9 else None


def _constant(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _edited(code: str, edits: list[tuple[ast.expr, int]]) -> str:
    """The code with expressions replaced; syntax trees count columns in UTF-8 bytes."""
    lines = [line.encode() for line in _lines(code)]
    for node, value in sorted(edits, key=lambda edit: (edit[0].lineno, edit[0].col_offset), reverse=True):
        row, end = node.lineno - 1, node.end_col_offset or 0
        if node.end_lineno == node.lineno:
            lines[row] = lines[row][: node.col_offset] + str(value).encode() + lines[row][end:]
    return b"".join(lines).decode()


def _lines(code: str) -> list[str]:
    """Lines as Python's parser counts them: form feeds and other separators end none."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", code)
