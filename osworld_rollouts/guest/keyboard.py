"""What pyautogui types wrongly under X, put right.

- `<` comes out as `>`: X lists `less` also on keycode 94 without Shift, pyautogui takes that one and adds Shift. The session
  clears keycode 94 (`xmodmap -e 'keycode 94 ='`); here the mapping is corrected as well, in case a later `setxkbmap` brings it back.
- Characters without a key (é, 中, emoji) are dropped silently by `write`/`typewrite`. They are typed by `xdotool`, which maps
  a spare key for each; 60 ms between characters is what LibreOffice Writer needs to lose none.
"""

from __future__ import annotations

import itertools
import subprocess
from typing import Any

XDOTOOL_DELAY_MS = 60


def fix_keyboard(pyautogui: Any, x11: Any) -> None:
    """Correct the `<` key and let `write` and `typewrite` type every character."""
    x11.keyboardMapping["<"] = x11.keyboardMapping[","]
    native = pyautogui.typewrite

    def typewrite(message: Any, interval: float = 0.0, logScreenshot: Any = None, _pause: bool = True) -> None:  # noqa: N803
        """Performs a keyboard key press down, followed by a release, for each of the characters in message."""
        if not isinstance(message, str) or all(map(has_key, message)):
            native(message, interval=interval, logScreenshot=logScreenshot, _pause=_pause)
            return
        for typable, run in itertools.groupby(message, has_key):
            text = "".join(run)
            if typable:
                native(text, interval=interval, logScreenshot=logScreenshot, _pause=False)
            else:
                delay = max(XDOTOOL_DELAY_MS, round(interval * 1000))
                subprocess.run(["xdotool", "type", "--delay", str(delay), "--", text], check=True)
        if _pause:
            pyautogui.sleep(pyautogui.PAUSE)

    def has_key(character: str) -> bool:
        return x11.keyboardMapping.get(character) is not None or character.lower() in pyautogui.KEY_NAMES

    pyautogui.typewrite = pyautogui.write = typewrite
