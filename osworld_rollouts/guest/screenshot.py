"""The screen as PNG, with the mouse cursor."""

from __future__ import annotations

import ctypes
import os
import threading

from .png import encode_bgrx
from .wire import ApiError

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8


def keep_frame_memory() -> None:
    """Let the allocator keep the memory of a frame for the next one.

    Frames are 8 MB; by default glibc gives such blocks back to the kernel at once, and clearing thousands of fresh pages for every
    screenshot takes three times as long as all the rest of it (mallopt(3)).
    """
    libc = ctypes.CDLL(None)
    for option, value in ((M_ARENA_MAX, 1), (M_MMAP_THRESHOLD, 32 * 2**20), (M_TRIM_THRESHOLD, 128 * 2**20)):
        libc.mallopt(option, value)


class Screen:
    """Grabs the root window through one lasting X connection. Safe to use from many threads.

    The last frame and its PNG are kept: a screen that did not change costs a comparison, not an encoding.
    """

    def __init__(self, display: str | None = None) -> None:
        self._display = display or os.environ["DISPLAY"]
        self._grab_lock = threading.Lock()
        self._grabber = None
        self._last: tuple[bytearray, bytes] | None = None

    def size(self) -> tuple[int, int]:
        """Width and height in pixels.

        Raises:
            ApiError: 503 `display_unavailable`.
        """
        with self._grab_lock:
            monitor = self._connect().monitors[0]
            return monitor["width"], monitor["height"]

    def png(self) -> bytes:
        """PNG of what is on the screen now.

        Raises:
            ApiError: 503 `display_unavailable`.
        """
        pixels, width, height = self.frame()
        last = self._last
        if last is not None and last[0] == pixels:
            return last[1]
        encoded = encode_bgrx(pixels, width, height)
        self._last = (pixels, encoded)
        return encoded

    def frame(self) -> tuple[bytearray, int, int]:
        """Pixels (4 bytes each: blue, green, red, unused), width and height.

        Raises:
            ApiError: 503 `display_unavailable`.
        """
        from mss.exception import ScreenShotError

        with self._grab_lock:
            for last in (False, True):
                grabber = self._connect()
                try:
                    shot = grabber.grab(grabber.monitors[0])
                except ScreenShotError as error:
                    # The screen has another size now, or the X server is another one: a new connection knows.
                    grabber.close()
                    self._grabber = None
                    if last:
                        raise ApiError(503, "display_unavailable", f"the screen cannot be read: {error}") from error
                else:
                    return shot.raw, shot.width, shot.height
            raise AssertionError("unreachable")

    def _connect(self):  # noqa: ANN202 - mss is imported late
        if self._grabber is None:
            from mss import MSS
            from mss.exception import ScreenShotError

            try:
                self._grabber = MSS(display=self._display, with_cursor=True)
            except ScreenShotError as error:
                raise ApiError(
                    503, "display_unavailable", f"no connection to display {self._display}: {error}"
                ) from error
        return self._grabber
