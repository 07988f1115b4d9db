"""The AT-SPI tree as XML in OSWorld's format, without what nobody can see.

Objects that are not showing are left out below the windows: OSWorld's own server walks a thousand columns of every spreadsheet
row (18 s and 1 MB for an empty sheet), this one takes about a second. Runs as its own process because a toolkit that hangs would hang its caller:
`TreeReader` starts it when first asked, kills it when it is late, and lets it go after a while.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from .wire import ApiError

TIMEOUT_S = 60.0
IDLE_S = 60.0
MAX_DEPTH = 50
MAX_NODES = 5000
BUDGET_S = 20.0
"""After this long the tree is cut and says so: a toolkit may take a second for every object."""

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
TERMINALS = ("gnome-terminal-server", "xfce4-terminal", "mate-terminal", "xterm")


class TreeReader:
    """Asks the reader process; one question at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._used = 0.0
        self._reaper: threading.Thread | None = None

    def ask(self, question: str, timeout: float = TIMEOUT_S) -> str | None:
        """`tree` or `terminal`: the XML, or the text of the focused terminal (None when there is none).

        Raises:
            ApiError: 500 `accessibility_failed`, 504 `accessibility_timeout`.
        """
        with self._lock:
            process = self._start()
            expired = threading.Event()

            def expire() -> None:
                expired.set()
                process.kill()

            timer = threading.Timer(timeout, expire)
            timer.start()
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(question.encode() + b"\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except OSError:
                line = b""
            finally:
                timer.cancel()
            self._used = time.monotonic()
            if line:
                answer = json.loads(line)
                if "error" in answer:
                    raise ApiError(500, "accessibility_failed", answer["error"])
                return answer["value"]
            self._stop()
            if expired.is_set():
                raise ApiError(504, "accessibility_timeout", f"the accessibility tree took longer than {timeout:g} s")
            raise ApiError(500, "accessibility_failed", "the accessibility reader died")

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).parent), "accessibility"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            if self._reaper is None or not self._reaper.is_alive():
                self._reaper = threading.Thread(target=self._let_go, name="accessibility", daemon=True)
                self._reaper.start()
        return self._process

    def _let_go(self) -> None:
        while True:
            time.sleep(IDLE_S / 4)
            with self._lock:
                if self._process is None or time.monotonic() - self._used > IDLE_S:
                    self._stop()
                    return

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Tree:
    """Reads AT-SPI objects into lxml elements."""

    def __init__(self, atspi: Any, etree: Any) -> None:
        self._atspi = atspi
        self._etree = etree
        self._nodes = 0
        self._deadline = time.monotonic() + BUDGET_S
        self.cut = ""

    def element(self, node: Any, depth: int) -> Any:
        """The object and what shows below it."""
        self._nodes += 1
        states = self._states(node)
        role = (node.get_role_name() or "").strip().replace(" ", "-") or "unknown"
        element = self._etree.Element(_tag(role), nsmap=NAMESPACES)
        element.set("name", _clean(node.get_name() or ""))
        for state in states:
            element.set(f"{{{NAMESPACES['st']}}}{state}", "true")
        self._attributes(node, element)
        if "showing" in states and "visible" in states:
            self._component(node, element)
        self._text(node, element)
        self._value(node, element)
        self._actions(node, element)
        interfaces = node.get_interfaces()
        if "Image" in interfaces:
            element.set("image", "true")
        if "Selection" in interfaces:
            element.set("selection", "true")
        if depth < MAX_DEPTH:
            self._children(node, element, depth, manages="manages_descendants" in states)
        return element

    def cell(self, node: Any) -> Any:
        """A cell of a spreadsheet: everything for one with content, name and place for an empty one (there are a thousand)."""
        self._nodes += 1
        element = self._etree.Element("table-cell", nsmap=NAMESPACES)
        element.set("name", _clean(node.get_name() or ""))
        for state in self._states(node):
            element.set(f"{{{NAMESPACES['st']}}}{state}", "true")
        self._component(node, element)
        self._text(node, element)
        if element.text:
            self._attributes(node, element)
            self._value(node, element)
        return element

    def _children(self, node: Any, element: Any, depth: int, *, manages: bool) -> None:
        cells = self._shown_cells(node) if manages else None
        for child in cells if cells is not None else self._each_child(node):
            if self._nodes >= MAX_NODES or time.monotonic() > self._deadline:
                self.cut = self.cut or f"{self._nodes} objects" if self._nodes >= MAX_NODES else f"{BUDGET_S:g} s"
                return
            try:
                if depth > 1 and not child.get_state_set().contains(self._atspi.StateType.SHOWING):
                    continue
                element.append(self.element(child, depth + 1) if cells is None else self.cell(child))
            except Exception:  # noqa: BLE001 - an object that vanished while it was read
                continue

    def _each_child(self, node: Any) -> Any:
        for index in range(node.get_child_count()):
            try:
                child = node.get_child_at_index(index)
            except Exception:  # noqa: BLE001 - vanished
                continue
            if child is not None:
                yield child

    def _shown_cells(self, node: Any) -> Any:
        """Cells of a table with a million rows: from the one at its upper left corner to the one at its lower right.

        None when this is not such a table.
        """
        component, table = node.get_component_iface(), node.get_table_iface()
        if component is None or table is None:
            return None
        box = component.get_extents(self._atspi.CoordType.SCREEN)
        first = component.get_accessible_at_point(box.x + 1, box.y + 1, self._atspi.CoordType.SCREEN)
        last = component.get_accessible_at_point(
            box.x + box.width - 2, box.y + box.height - 2, self._atspi.CoordType.SCREEN
        )
        if first is None or last is None:
            return None
        start, end = first.get_index_in_parent(), last.get_index_in_parent()
        return (
            table.get_accessible_at(row, column)
            for row in range(table.get_row_at_index(start), table.get_row_at_index(end) + 1)
            for column in range(table.get_column_at_index(start), table.get_column_at_index(end) + 1)
        )

    def _states(self, node: Any) -> list[str]:
        return [state.value_nick.replace("-", "_") for state in node.get_state_set().get_states()]

    def _attributes(self, node: Any, element: Any) -> None:
        for name, value in (node.get_attributes() or {}).items():
            if name:
                element.set(f"{{{NAMESPACES['attr']}}}{_tag(name)}", _clean(value or ""))

    def _component(self, node: Any, element: Any) -> None:
        component = node.get_component_iface()
        if component is None:
            return
        box = component.get_extents(self._atspi.CoordType.SCREEN)
        element.set(f"{{{NAMESPACES['cp']}}}screencoord", str((box.x, box.y)))
        element.set(f"{{{NAMESPACES['cp']}}}size", str((box.width, box.height)))

    def _text(self, node: Any, element: Any) -> None:
        text = node.get_text_iface()
        length = 0 if text is None else self._atspi.Text.get_character_count(text)
        if length:
            value = self._atspi.Text.get_text(text, 0, length) or ""
            value = _clean(value.replace("\ufffc", "").replace("\ufffd", ""))
            if value:
                element.text = value

    def _value(self, node: Any, element: Any) -> None:
        value = node.get_value_iface()
        if value is None:
            return
        readings = {
            "value": value.get_current_value,
            "min": value.get_minimum_value,
            "max": value.get_maximum_value,
            "step": value.get_minimum_increment,
        }
        for name, read in readings.items():
            try:
                element.set(f"{{{NAMESPACES['val']}}}{name}", str(read()))
            except Exception:  # noqa: BLE001 - a toolkit that lacks this one
                continue

    def _actions(self, node: Any, element: Any) -> None:
        action = node.get_action_iface()
        if action is None:
            return
        for index in range(action.get_n_actions()):
            name = _tag((action.get_action_name(index) or "").replace(" ", "-"))
            element.set(f"{{{NAMESPACES['act']}}}{name}_desc", _clean(action.get_action_description(index) or ""))
            element.set(f"{{{NAMESPACES['act']}}}{name}_kb", _clean(action.get_key_binding(index) or ""))


def read_tree() -> Any:
    """The whole desktop as one element, `desktop-frame`."""
    import gi

    gi.require_version("Atspi", "2.0")
    from gi.repository import Atspi
    from lxml import etree

    tree = Tree(Atspi, etree)
    root = etree.Element("desktop-frame", nsmap=NAMESPACES)
    for application in tree._each_child(Atspi.get_desktop(0)):  # noqa: SLF001
        try:
            root.append(tree.element(application, 1))
        except Exception:  # noqa: BLE001 - an application that vanished while it was read
            continue
    if tree.cut:
        root.set("cut-after", tree.cut)
    return root


def read_terminal() -> str | None:
    """Text of the focused terminal in the active window, or None."""
    root = read_tree()
    for application in root:
        if application.get("name") not in TERMINALS:
            continue
        found = application.xpath('./frame[@st:active="true"]//terminal[@st:focused="true"]', namespaces=NAMESPACES)
        if len(found) == 1:
            return (found[0].text or "").rstrip()
    return None


def _tag(name: str) -> str:
    cleaned = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
    return cleaned if cleaned[:1].isalpha() or cleaned[:1] == "_" else f"_{cleaned}"


def _clean(text: str) -> str:
    return "".join(
        c for c in text if c in "\t\n\r" or (c >= " " and c not in "\ufffe\uffff" and not 0xD800 <= ord(c) < 0xE000)
    )


def main() -> int:
    """Answer `tree` and `terminal`, one JSON line each, until standard input ends."""
    from lxml import etree

    for line in sys.stdin:
        try:
            terminal = line.strip() == "terminal"
            answer = {"value": read_terminal() if terminal else etree.tostring(read_tree(), encoding="unicode")}
        except Exception as error:  # noqa: BLE001 - told to the asker
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return 0
