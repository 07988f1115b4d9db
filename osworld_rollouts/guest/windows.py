"""Windows of the guest's screen: list, find, activate, close; and whether the desktop has come up.

Speaks the window manager's own protocol (Extended Window Manager Hints 1.5) through python-xlib. Matching follows `wmctrl`, which
OSWorld's server calls: a part of the title in any case, or with `strict` the whole title exactly.
"""

from __future__ import annotations

import os
import re
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .wire import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

POLL_S = 0.1
_NOT_APPLICATIONS = ("_NET_WM_WINDOW_TYPE_DOCK", "_NET_WM_WINDOW_TYPE_DESKTOP", "_NET_WM_WINDOW_TYPE_SPLASH")


@dataclass(frozen=True)
class Window:
    """A managed window: X id, title, WM_CLASS as `instance.Class`, outer position and size in pixels."""

    id: int
    title: str
    wm_class: str
    x: int
    y: int
    width: int
    height: int
    kind: str = ""


class Windows:
    """One X connection for questions about windows. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._display: Any = None

    def all(self) -> list[Window]:
        """Managed windows, oldest first.

        Raises:
            ApiError: 503 `display_unavailable`.
        """
        return self._ask(self._all)

    def find(self, name: str, *, strict: bool = False, by_class: bool = False) -> Window | None:
        """The first window that matches, or None."""
        for window in self.all():
            text = window.wm_class if by_class else window.title
            if text == name if strict else name.lower() in text.lower():
                return window
        return None

    def showing(self, path: Path) -> Window | None:
        """The application window whose title names this file, with or without its ending, or None."""
        # A whole word, and no panel or background: `t.csv` is not shown by the window "Desktop", nor `n.pdf` by "n.txt".
        names = [re.compile(rf"(?<!\w){re.escape(name)}(?!\.?\w)") for name in (path.name, path.stem) if name]
        windows = [window for window in self.all() if window.kind not in _NOT_APPLICATIONS]
        return next((window for name in names for window in windows if name.search(window.title)), None)

    def wait_for(self, match: Callable[[], Window | None], timeout: float) -> Window | None:
        """Ask `match` again and again until it finds a window or `timeout` seconds are over."""
        deadline = time.monotonic() + timeout
        while (window := match()) is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return window

    def activate(self, window: Window) -> None:
        """Raise and focus the window, like a click in the task list."""
        self._ask(lambda: self._message(window.id, "_NET_ACTIVE_WINDOW", [2, 0, 0, 0, 0]))

    def close(self, window: Window) -> None:
        """Ask the window to close, like its close button; the program may ask back."""
        self._ask(lambda: self._message(window.id, "_NET_CLOSE_WINDOW", [0, 2, 0, 0, 0]))

    def cursor(self) -> tuple[int, int]:
        """Position of the mouse pointer in pixels."""
        pointer = self._ask(self._pointer)
        return pointer.root_x, pointer.root_y

    def missing(self) -> list[str]:
        """What the desktop still lacks: a window manager, a panel, a desktop background. Empty when all are mapped."""
        return self._ask(self._missing)

    def panels(self) -> list[Window]:
        """The panels on the screen."""
        return [window for window in self.all() if window.kind == "_NET_WM_WINDOW_TYPE_DOCK"]

    def _pointer(self) -> Any:
        return self._display.screen().root.query_pointer()

    def _missing(self) -> list[str]:
        missing = []
        root = self._display.screen().root
        check = self._property(root, "_NET_SUPPORTING_WM_CHECK")
        if not check:
            missing.append("window manager")
        kinds = {window.kind for window in self._all()}
        if "_NET_WM_WINDOW_TYPE_DOCK" not in kinds:
            missing.append("panel")
        if "_NET_WM_WINDOW_TYPE_DESKTOP" not in kinds:
            missing.append("desktop background")
        return missing

    def _all(self) -> list[Window]:
        from Xlib.error import BadDrawable, BadWindow

        found = []
        for window_id in self._property(self._display.screen().root, "_NET_CLIENT_LIST") or []:
            window = self._display.create_resource_object("window", window_id)
            try:
                found.append(self._describe(window))
            except (BadWindow, BadDrawable):
                continue
        return found

    def _describe(self, window: Any) -> Window:
        geometry = window.get_geometry()
        origin = window.translate_coords(self._display.screen().root, 0, 0)
        title = self._property(window, "_NET_WM_NAME")
        name = title.decode("utf-8", "replace") if title else (window.get_wm_name() or "")
        if isinstance(name, bytes):
            name = name.decode("latin-1")
        wm_class = window.get_wm_class() or ("", "")
        kinds = self._property(window, "_NET_WM_WINDOW_TYPE") or []
        kind = self._display.get_atom_name(kinds[0]) if len(kinds) else ""
        return Window(window.id, name, ".".join(wm_class), -origin.x, -origin.y, geometry.width, geometry.height, kind)

    def _property(self, window: Any, name: str) -> Any:
        from Xlib import X

        value = window.get_full_property(self._display.intern_atom(name), X.AnyPropertyType)
        return None if value is None else value.value

    def _message(self, window_id: int, kind: str, data: list[int]) -> None:
        from Xlib import X
        from Xlib.protocol.event import ClientMessage

        root = self._display.screen().root
        window = self._display.create_resource_object("window", window_id)
        event = ClientMessage(window=window, client_type=self._display.intern_atom(kind), data=(32, data))
        root.send_event(event, event_mask=X.SubstructureRedirectMask | X.SubstructureNotifyMask)
        self._display.sync()

    def _ask(self, question: Callable[[], Any]) -> Any:
        from Xlib.display import Display
        from Xlib.error import ConnectionClosedError, DisplayError

        with self._lock:
            try:
                if self._display is None:
                    self._display = Display(os.environ["DISPLAY"])
                return question()
            except (ConnectionClosedError, DisplayError, OSError) as error:
                self._display = None
                raise ApiError(503, "display_unavailable", f"the display does not answer: {error}") from error
