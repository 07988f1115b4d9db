"""The accessibility tree as XML in OSWorld's format, without what nobody can see (AT-SPI 2 over D-Bus).

Objects that are not showing are left out below the windows, and of a spreadsheet with a million rows only the cells on the screen are asked
for. Questions are sent level by level, all of a level at once: one after the other, a spreadsheet takes five thousand round
trips.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

REGISTRY = ("org.a11y.atspi.Registry", "/org/a11y/atspi/accessible/root")
ATSPI = "org.a11y.atspi."
NOTHING = "/org/a11y/atspi/null"
MAX_DEPTH = 50
MAX_NODES = 5000
AT_ONCE = 1000
BUDGET_S = 20.0
"""After this long the tree is cut and says so: a toolkit may take a second for every object."""
ANSWER_S = 5.0
SCREEN = 0
"""Coordinates count from the corner of the screen (ATSPI_COORD_TYPE_SCREEN)."""

NAMESPACE = "https://accessibility.ubuntu.example.org/ns/"
NAMESPACES = {
    "st": NAMESPACE + "state",
    "attr": NAMESPACE + "attributes",
    "cp": NAMESPACE + "component",
    "doc": NAMESPACE + "document",
    "docattr": NAMESPACE + "document/attributes",
    "txt": NAMESPACE + "text",
    "val": NAMESPACE + "value",
    "act": NAMESPACE + "action",
}
STATES = ["invalid", "active", "armed", "busy", "checked", "collapsed", "defunct", "editable", "enabled", "expandable", "expanded", "focusable", "focused", "has_tooltip", "horizontal", "iconified", "modal", "multi_line", "multiselectable", "opaque", "pressed", "resizable", "selectable", "selected", "sensitive", "showing", "single_line", "stale", "transient", "vertical", "visible", "manages_descendants", "indeterminate", "required", "truncated", "animated", "invalid_entry", "supports_autocompletion", "selectable_text", "is_default", "visited", "checkable", "has_popup", "read_only"]  # fmt: skip
"""Names by bit (AtspiStateType)."""
VALUES = {"value": "CurrentValue", "min": "MinimumValue", "max": "MaximumValue", "step": "MinimumIncrement"}


@dataclass
class Node:
    """One object: its owner on the bus, its path, and what was learned about it."""

    owner: str
    path: str
    parent: Any
    depth: int
    cell: bool = False
    name: str = ""
    role: str = ""
    states: set[str] = field(default_factory=set)
    interfaces: set[str] = field(default_factory=set)
    element: Any = None


class Bus:
    """The accessibility bus, asked many questions at a time."""

    def __init__(self) -> None:
        from gi.repository import Gio, GLib

        self._glib = GLib
        session = Gio.bus_get_sync(Gio.BusType.SESSION)
        found = session.call_sync(
            "org.a11y.Bus", "/org/a11y/bus", "org.a11y.Bus", "GetAddress", None, None, 0, 5000, None
        )
        flags = Gio.DBusConnectionFlags
        self._connection = Gio.DBusConnection.new_for_address_sync(
            found.unpack()[0], flags.AUTHENTICATION_CLIENT | flags.MESSAGE_BUS_CONNECTION, None, None
        )

    def ask(self, questions: list[tuple[Node, str, str, str, tuple[Any, ...]]]) -> list[Any]:
        """Answers in the order of the questions (node, interface, method, argument types, arguments); None where there is none."""
        answers: list[Any] = [None] * len(questions)
        for start in range(0, len(questions), AT_ONCE):
            self._ask(questions, answers, start)
        return answers

    def properties(self, nodes: list[Node], interface: str, name: str) -> list[Any]:
        """One property of many objects."""
        asked = [(node, "org.freedesktop.DBus.Properties", "Get", "(ss)", (ATSPI + interface, name)) for node in nodes]
        return self.ask(asked)

    def call(self, nodes: list[Node], interface: str, method: str, types: str = "", *arguments: Any) -> list[Any]:
        """The same method of many objects."""
        return self.ask([(node, ATSPI + interface, method, types, arguments) for node in nodes])

    def _ask(
        self, questions: list[tuple[Node, str, str, str, tuple[Any, ...]]], answers: list[Any], start: int
    ) -> None:
        loop = self._glib.MainLoop()
        # Most questions of a batch have the same arguments, and making them is what takes longest.
        variants: dict[tuple[str, tuple[Any, ...]], Any] = {("", ()): None}
        stop = min(start + AT_ONCE, len(questions))
        left = stop - start

        def answered(connection: Any, result: Any, index: int) -> None:
            nonlocal left
            try:
                value = connection.call_finish(result).unpack()
                answers[index] = value[0] if len(value) == 1 else value
            except self._glib.Error:
                answers[index] = None
            left -= 1
            if left == 0:
                loop.quit()

        for index in range(start, stop):
            node, interface, method, types, arguments = questions[index]
            if (types, arguments) not in variants:
                variants[types, arguments] = self._glib.Variant(types, arguments)
            variant = variants[types, arguments]
            self._connection.call(
                node.owner, node.path, interface, method, variant, None, 0, int(ANSWER_S * 1000), None, answered, index
            )
        if left:
            loop.run()


class Tree:
    """Reads the whole desktop into lxml elements, level by level."""

    def __init__(self, bus: Bus, etree: Any) -> None:
        self._bus = bus
        self._etree = etree
        self._nodes = 0
        self._deadline = time.monotonic() + BUDGET_S
        self.cut = ""

    def read(self) -> Any:
        """The desktop as one element, `desktop-frame`, its applications below it."""
        root = self._etree.Element("desktop-frame", nsmap=NAMESPACES)
        (children,) = self._bus.call([Node(*REGISTRY, None, 0)], "Accessible", "GetChildren")
        level = [Node(owner, path, root, 1) for owner, path in children or ()]
        while level:
            self._learn(level)
            level = [node for node in level if node.role and (node.depth <= 2 or node.cell or "showing" in node.states)]
            if self._nodes + len(level) > MAX_NODES:
                self.cut = f"{MAX_NODES} objects"
                level = level[: MAX_NODES - self._nodes]
            self._nodes += len(level)
            self._describe(level)
            if time.monotonic() > self._deadline:
                self.cut = self.cut or f"{BUDGET_S:g} s"
            if self.cut:
                break
            level = self._children([node for node in level if node.depth < MAX_DEPTH and not node.cell])
        if self.cut:
            root.set("cut-after", self.cut)
        return root

    def _learn(self, nodes: list[Node]) -> None:
        """What decides whether an object is kept, and how it is asked further."""
        others = [node for node in nodes if not node.cell]
        roles = dict(zip(map(id, others), self._bus.call(others, "Accessible", "GetRoleName"), strict=True))
        states = self._bus.call(nodes, "Accessible", "GetState")
        names = self._bus.properties(nodes, "Accessible", "Name")
        for node, state, name in zip(nodes, states, names, strict=True):
            role = roles.get(id(node), "table cell") if state is not None else None
            node.role = "" if role is None else role.strip().replace(" ", "-") or "unknown"
            node.name = name or ""
            bits = sum(word << (32 * position) for position, word in enumerate(state or ()))
            node.states = {known for bit, known in enumerate(STATES) if bits >> bit & 1}

    def _describe(self, nodes: list[Node]) -> None:
        """Make the elements and append them to their parents."""
        for node in nodes:
            node.element = self._etree.SubElement(node.parent, _tag(node.role), nsmap=NAMESPACES)
            node.element.set("name", _clean(node.name))
            for state in sorted(node.states, key=STATES.index):
                self._set(node, "st", state, "true")
        self._text(nodes)
        # An empty cell is name and place: there are a thousand of them.
        full = [node for node in nodes if not node.cell or node.element.text]
        for node, interfaces in zip(full, self._bus.call(full, "Accessible", "GetInterfaces"), strict=True):
            node.interfaces = {name.removeprefix(ATSPI) for name in interfaces or ()}
            for name in ("Image", "Selection"):
                if name in node.interfaces:
                    node.element.set(name.lower(), "true")
        for node, attributes in zip(full, self._bus.call(full, "Accessible", "GetAttributes"), strict=True):
            for name, value in (attributes or {}).items():
                if name:
                    self._set(node, "attr", name, value)
        self._places([node for node in nodes if {"showing", "visible"} <= node.states])
        self._values([node for node in full if "Value" in node.interfaces])
        self._actions([node for node in full if "Action" in node.interfaces])

    def _text(self, nodes: list[Node]) -> None:
        # Asked of all: for an object without text the answer is an error, which costs no more than asking what it has.
        counts = self._bus.properties(nodes, "Text", "CharacterCount")
        asked = [(node, count) for node, count in zip(nodes, counts, strict=True) if count]
        texts = self._bus.ask([(node, ATSPI + "Text", "GetText", "(ii)", (0, count)) for node, count in asked])
        for (node, _), text in zip(asked, texts, strict=True):
            node.element.text = _clean((text or "").replace("\ufffc", "").replace("\ufffd", "")) or None

    def _places(self, nodes: list[Node]) -> None:
        for node, box in zip(nodes, self._bus.call(nodes, "Component", "GetExtents", "(u)", SCREEN), strict=True):
            if box is not None:
                self._set(node, "cp", "screencoord", str(tuple(box[:2])))
                self._set(node, "cp", "size", str(tuple(box[2:])))

    def _values(self, nodes: list[Node]) -> None:
        for name, prop in VALUES.items():
            for node, value in zip(nodes, self._bus.properties(nodes, "Value", prop), strict=True):
                if value is not None:
                    self._set(node, "val", name, str(value))

    def _actions(self, nodes: list[Node]) -> None:
        for node, actions in zip(nodes, self._bus.call(nodes, "Action", "GetActions"), strict=True):
            for name, description, keys in actions or ():
                self._set(node, "act", f"{name.replace(' ', '-')}_desc", description)
                self._set(node, "act", f"{name.replace(' ', '-')}_kb", keys)

    def _children(self, nodes: list[Node]) -> list[Node]:
        tables = {id(node): cells for node in nodes if (cells := self._shown_cells(node)) is not None}
        plain = [node for node in nodes if id(node) not in tables]
        listed = {
            id(node): children
            for node, children in zip(plain, self._bus.call(plain, "Accessible", "GetChildren"), strict=True)
        }
        return [
            Node(owner, path, node.element, node.depth + 1, cell=id(node) in tables)
            for node in nodes
            for owner, path in tables.get(id(node), listed.get(id(node))) or ()
            if path != NOTHING
        ]

    def _shown_cells(self, node: Node) -> list[tuple[str, str]] | None:
        """Cells from the one at the table's upper left corner to the one at its lower right; None for no such table."""
        if "manages_descendants" not in node.states or "Table" not in node.interfaces:
            return None
        (box,) = self._bus.call([node], "Component", "GetExtents", "(u)", SCREEN)
        if box is None:
            return None
        x, y, width, height = box
        corners = [(x + 1, y + 1), (x + width - 2, y + height - 2)]
        at = [(node, ATSPI + "Component", "GetAccessibleAtPoint", "(iiu)", (*corner, SCREEN)) for corner in corners]
        ends = [Node(*found, None, 0) for found in self._bus.ask(at) if found is not None and found[1] != NOTHING]
        indexes = self._bus.call(ends, "Accessible", "GetIndexInParent")
        if len(ends) != len(corners) or None in indexes:
            return None
        rows = self._bus.ask([(node, ATSPI + "Table", "GetRowAtIndex", "(i)", (index,)) for index in indexes])
        columns = self._bus.ask([(node, ATSPI + "Table", "GetColumnAtIndex", "(i)", (index,)) for index in indexes])
        if None in rows or None in columns:
            return None
        places = [(r, c) for r in range(rows[0], rows[1] + 1) for c in range(columns[0], columns[1] + 1)]
        cells = self._bus.ask(
            [(node, ATSPI + "Table", "GetAccessibleAt", "(ii)", place) for place in places[:MAX_NODES]]
        )
        return [cell for cell in cells if cell is not None]

    @staticmethod
    def _set(node: Node, space: str, name: str, value: str) -> None:
        node.element.set(f"{{{NAMESPACES[space]}}}{_tag(name)}", _clean(value))


def read_tree() -> Any:
    """The whole desktop as one lxml element, `desktop-frame`; its attribute `cut-after` says when it is not whole."""
    from lxml import etree

    return Tree(Bus(), etree).read()


def _tag(name: str) -> str:
    cleaned = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
    return cleaned if cleaned[:1].isalpha() or cleaned[:1] == "_" else f"_{cleaned}"


def _clean(text: str) -> str:
    """Without what XML 1.0 cannot carry."""
    return "".join(
        c for c in text if c in "\t\n\r" or (c >= " " and c not in "\ufffe\uffff" and not "\ud800" <= c <= "\udfff")
    )
