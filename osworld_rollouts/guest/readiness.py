"""Whether the desktop has come up: window manager, panel and background are there, and painted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .wire import ApiError

if TYPE_CHECKING:
    from .screenshot import Screen
    from .windows import Window, Windows

PANEL_COLOURS = 24
"""A panel whose launchers have their icons shows more colours than this; an empty one shows a few."""


class Readiness:
    """Answers `GET /health`. Once ready, the costly look at the pixels is not repeated."""

    def __init__(self, screen: Screen, windows: Windows) -> None:
        self._screen = screen
        self._windows = windows
        self._painted = False

    def report(self) -> dict[str, Any]:
        """`ok`, `ready`, `screen` and `detail`: what is missing, in words."""
        try:
            width, height = self._screen.size()
        except ApiError as error:
            return {"ok": True, "ready": False, "screen": None, "detail": error.message}
        detail = self._detail()
        return {
            "ok": True,
            "ready": not detail,
            "screen": {"width": width, "height": height},
            "detail": detail or "ready",
        }

    def _detail(self) -> str:
        try:
            missing = self._windows.missing()
            if missing:
                return "waiting for: " + ", ".join(missing)
            if not self._painted:
                unpainted = self._unpainted()
                if unpainted:
                    return unpainted
                self._painted = True
        except ApiError as error:
            return error.message
        return ""

    def _unpainted(self) -> str:
        pixels, width, _ = self._screen.frame()
        for panel in self._windows.panels():
            if len(_colours(pixels, width, panel)) <= PANEL_COLOURS:
                return "waiting for: panel icons"
        return ""


def _colours(pixels: bytearray, width: int, window: Window) -> set[int]:
    """The colours within the window, as the screen's 32-bit pixels."""
    every = memoryview(pixels).cast("I")
    left, right = max(window.x, 0), min(window.x + window.width, width)
    rows = range(max(window.y, 0), min(window.y + window.height, len(every) // width))
    return {colour for row in rows for colour in set(every[row * width + left : row * width + right])}
