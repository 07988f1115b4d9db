"""OSWorld's accessibility tree as text and as marks.

Format: `/accessibility` of OSWorld's guest server answers XML; `mm_agents/agent.py` (`linearize_accessibility_tree`) and
`mm_agents/accessibility_tree_wrap/heuristic_retrieve.py` (`judge_node`) of xlang-ai/OSWorld, Apache-2.0, say which nodes
are shown and how: one row of tab-separated tag, name, text, class, description, position and size for each.
Row n is mark n. A line break or tab inside a value becomes a blank, so that a row stays a row.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER = "tag\tname\ttext\tclass\tdescription\tposition (top-left x&y)\tsize (w&h)"
NUMBERED_HEADER = "index\ttag\tname\ttext"

_NAMESPACE = "{https://accessibility.%s.example.org/ns/%s}"
_PLATFORMS = ("ubuntu", "windows")
_TAG_ENDS = (
    *("item", "button", "heading", "label", "scrollbar", "searchbox", "textbox", "link", "tabelement", "textfield"),
    *("textarea", "menu"),
)
_TAGS = frozenset(
    [
        "alert",
        "canvas",
        "check-box",
        "combo-box",
        "entry",
        "icon",
        "image",
        "paragraph",
        "scroll-bar",
        "section",
        "slider",
        "static",
        "table-cell",
        "terminal",
        "text",
        "netuiribbontab",
        "start",
        "trayclockwclass",
        "traydummysearchcontrol",
        "uiimage",
        "uiproperty",
        "uiribboncommandbar",
    ]
)
_PAIR = re.compile(r"^\s*\(\s*(-?\d+)\s*,\s*(-?\d+)\s*\)\s*$")


def accessibility_text(tree: str) -> str:
    """The shown nodes of a tree, one row each under a header."""
    try:
        rows = [_row(node) for node in _shown(tree)]
    except ET.ParseError as error:
        return f"{HEADER}\n(the accessibility tree could not be read: {error})"
    return "\n".join([HEADER, *rows])


def numbered(text: str) -> str:
    """A tree's text with the number of its mark before each row, reduced to tag, name and text."""
    rows = [row.split("\t") for row in text.split("\n")[1:]]
    return "\n".join([NUMBERED_HEADER, *("\t".join([str(index), *row[:3]]) for index, row in enumerate(rows, 1))])


def marks_of(tree: str, width: int, height: int) -> tuple[tuple[int, int, int, int], ...]:
    """(x, y, w, h) of each shown node, cut to a screen of that size; a tree that cannot be read has none."""
    try:
        boxes = [_box(node) for node in _shown(tree)]
    except ET.ParseError:
        return ()
    return tuple((x, y, max(0, min(w, width - x)), max(0, min(h, height - y))) for x, y, w, h in boxes)


def _shown(tree: str) -> Iterator[ET.Element]:
    for node in ET.fromstring(tree).iter():  # noqa: S314 - expat limits expansion, and the guest is ours
        if _is_kind(node.tag) and _is_usable(node) and (node.get("name") or node.text):
            x, y, w, h = _box(node)
            if x >= 0 and y >= 0 and w > 0 and h > 0:
                yield node


def _is_kind(tag: str) -> bool:
    return tag.startswith("document") or tag.endswith(_TAG_ENDS) or tag in _TAGS


def _is_usable(node: ET.Element) -> bool:
    states = {name for name in _STATES if _attribute(node, "state", name) == "true"}
    return {"showing", "visible"} <= states and bool(states & {"enabled", "editable", "expandable", "checkable"})


_STATES = ("showing", "visible", "enabled", "editable", "expandable", "checkable")


def _row(node: ET.Element) -> str:
    text = node.text or _attribute(node, "value", "value")
    quoted = '"{}"'.format(text.replace('"', '""')) if '"' in text or not text else text
    values = (
        *(node.tag, node.get("name", ""), quoted, _attribute(node, "attributes", "class")),
        *(_attribute(node, "attributes", "description"), _attribute(node, "component", "screencoord")),
        _attribute(node, "component", "size"),
    )
    return "\t".join(re.sub(r"[\t\r\n\v\f]+", " ", value) for value in values)


def _box(node: ET.Element) -> tuple[int, int, int, int]:
    at, size = (_PAIR.match(_attribute(node, "component", name)) for name in ("screencoord", "size"))
    return (int(at[1]), int(at[2]), int(size[1]), int(size[2])) if at and size else (-1, -1, -1, -1)


def _attribute(node: ET.Element, space: str, name: str) -> str:
    return next((value for platform in _PLATFORMS if (value := node.get(_NAMESPACE % (platform, space) + name))), "")
