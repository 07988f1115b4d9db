"""Names of keys: pyautogui's, and the other spellings that models use for them.

Source: `pyautogui.KEY_NAMES` (0.9.54) as far as X11 has a key for them; spellings from the OpenAI and Anthropic
computer-use documentation (X keysym names as `xdotool` takes them), UI-TARS and OSWorld's agents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMED = """
    add alt altleft altright apps backspace capslock ctrl ctrlleft ctrlright decimal delete divide down end enter esc execute
    help home insert left multiply numlock pagedown pageup pause printscreen right scrolllock select separator shift shiftleft
    shiftright space subtract tab up win winleft winright
"""
KEY_NAMES = frozenset(
    {
        *_NAMED.split(),
        *map(chr, range(0x20, 0x7F)),
        *(f"f{number}" for number in range(1, 25)),
        *(f"num{number}" for number in range(10)),
    }
)
"""Keys that can be pressed; a single character outside it can be, too (it is lent a key code)."""

_SPELLINGS = {
    "alt": "alt_l option optionleft opt",
    "altright": "alt_r option_r optionright altgr iso_level3_shift",
    "apps": "menu contextmenu",
    "backspace": "back_space bksp",
    "capslock": "caps_lock caps",
    "ctrl": "control control_l ctrl_l",
    "ctrlright": "control_r ctrl_r",
    "delete": "del forwarddelete",
    "down": "arrowdown arrow_down down_arrow downarrow kp_down",
    "enter": "return kp_enter linefeed",
    "esc": "escape",
    "help": "",
    "insert": "ins",
    "left": "arrowleft arrow_left left_arrow leftarrow kp_left",
    "numlock": "num_lock",
    "pagedown": "page_down pgdn pgdown next kp_next",
    "pageup": "page_up pgup prior kp_prior",
    "pause": "break",
    "printscreen": "print prtsc prtscr prntscrn print_screen sysreq",
    "right": "arrowright arrow_right right_arrow rightarrow kp_right",
    "scrolllock": "scroll_lock",
    "shift": "shift_l",
    "shiftright": "shift_r",
    "space": "spacebar",
    "up": "arrowup arrow_up up_arrow uparrow kp_up",
    "win": "super super_l meta meta_l cmd command windows window hyper",
    "winright": "super_r meta_r cmd_r command_r",
    "add": "kp_add",
    "subtract": "kp_subtract",
    "multiply": "kp_multiply",
    "divide": "kp_divide",
    "decimal": "kp_decimal",
    "&": "ampersand",
    "'": "apostrophe",
    "*": "asterisk",
    "@": "at",
    "\\": "backslash",
    "|": "bar",
    "{": "braceleft",
    "}": "braceright",
    "[": "bracketleft",
    "]": "bracketright",
    ":": "colon",
    ",": "comma",
    "$": "dollar",
    "=": "equal equals",
    "!": "exclam",
    "`": "grave backtick",
    ">": "greater",
    "<": "less",
    "-": "minus hyphen dash",
    "#": "numbersign hash",
    "(": "parenleft",
    ")": "parenright",
    "%": "percent",
    ".": "period dot",
    "+": "plus",
    "?": "question",
    '"': "quotedbl",
    ";": "semicolon",
    "/": "slash",
    "~": "asciitilde tilde",
    "_": "underscore",
}
_NAME_OF = {
    **{spelling: name for name, spellings in _SPELLINGS.items() for spelling in spellings.split()},
    **{f"kp_{number}": f"num{number}" for number in range(10)},
}

MODIFIERS = frozenset(
    {
        "ctrl",
        "ctrlleft",
        "ctrlright",
        "shift",
        "shiftleft",
        "shiftright",
        "alt",
        "altleft",
        "altright",
        "win",
        "winleft",
        "winright",
    }
)
"""Keys that change what other keys mean."""


def key_name(spelling: str) -> str | None:
    """The name pyautogui has for a key, however it was spelt (`Control_L`, `ArrowDown`, `CMD`), or None when there is no such key.

    A single character is its own name, in its case; a newline is `enter`, a tab `tab`.
    """
    if spelling in {"\n", "\r", "\t", " "}:
        return {"\t": "tab", " ": "space"}.get(spelling, "enter")
    if len(spelling) == 1:
        return spelling if spelling.isprintable() else None
    name = spelling.strip().lower().replace(" ", "_").removeprefix("key.")
    if len(name) == 1:
        return name
    for candidate in (name, name.replace("-", "_"), name.replace("_", "")):
        if candidate in KEY_NAMES:
            return candidate
        if candidate in _NAME_OF:
            return _NAME_OF[candidate]
    return None


def key_names(spellings: str | Sequence[str]) -> tuple[str, ...]:
    """Pyautogui's names of keys pressed together, from `ctrl+shift+T`, `["CTRL", "c"]` or a mixture.

    In a combination a letter means its key, so `ctrl+C` is `ctrl`, `c`; Shift has to be named.

    Raises:
        UnknownKey: naming the first one that does not exist.
    """
    parts = [spellings] if isinstance(spellings, str) else list(spellings)
    names: list[str] = []
    for part in (piece for spelling in parts for piece in _split(spelling)):
        name = key_name(part)
        if name is None:
            raise UnknownKey(part)
        names.append(name)
    return tuple(name.lower() if len(name) == 1 and len(names) > 1 else name for name in names)


class UnknownKey(ValueError):
    """A name that no key has."""

    def __init__(self, spelling: str) -> None:
        super().__init__(f"there is no key {spelling!r}")


def _split(spelling: str) -> list[str]:
    """`ctrl+c` at its plus signs; a plus sign that is itself the key stays."""
    if len(spelling) < 2 or key_name(spelling) is not None:
        return [spelling]
    head = spelling.removesuffix("++")
    pieces = [piece.strip() for piece in head.split("+")]
    return [*pieces, "+"] if head != spelling else pieces
