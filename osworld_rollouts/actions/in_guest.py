# Source that travels with every command that presses keys or types, and runs there as `python -c`: Python 3.8, X11, pyautogui.
#
# pyautogui knows keys, not characters: what has no key on the layout (an accent, an emoji) is dropped, `<` comes out as `>`,
# and a name it does not know is ignored, all in silence. Here a character without a key is lent a spare key code for as long
# as it is needed, `<` gets its own key, and what still cannot be typed is reported: one JSON line on stderr, exit code 3.
#
# ruff: noqa: ANN001, ANN201, ANN204, ARG001, B905, N803, S102, SLF001, T201, UP031, PTH123, PTH208
# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
import json
import os
import sys
import time

import pyautogui
from Xlib import X
from Xlib.error import XError
from Xlib.ext.xtest import fake_input
from Xlib.protocol.event import ClientMessage

x11 = pyautogui.platformModule
ANSWER_S = 3.0  # longest wait for a program to say that it has handled its input
QUIET_S = 0.3  # what a program is given that does not say so, and 0.02 for each changed key code
CHARACTER_S = 0.002  # between characters
UNICODE = 0x01000000  # the keysym of a code point is this plus the code point (X11 protocol, appendix A)
REPORTED = 3  # exit code: everything else was done, but not this
untypable, unknown_keys = [], []


def keysym(character):
    """The X keysym of a character; None for what no key types: controls, surrogates, noncharacters."""
    code = ord(character)
    if character in "\n\t\b":
        return {"\n": 0xFF0D, "\t": 0xFF09, "\b": 0xFF08}[character]
    if 0x20 <= code <= 0x7E or 0xA0 <= code <= 0xFF:
        return code
    nobody = code < 0xA0 or 0xD800 <= code <= 0xDFFF or code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    return None if nobody else UNICODE + code


def path(symbol):
    """Which way a program takes a symbol in: as a key, as a character outside the basic plane, or as any other character."""
    return "key" if 0xFF00 <= symbol <= 0xFFFF else "wide" if symbol > UNICODE + 0xFFFF else "text"


def focused():
    """The focused program's main window if it answers a _NET_WM_PING (EWMH), else None."""
    root, ping = x11._display.screen().root, x11._display.intern_atom("_NET_WM_PING")
    try:
        window = x11._display.get_input_focus().focus
        while getattr(window, "id", root.id) != root.id:
            if ping in window.get_wm_protocols():
                return window
            window = window.query_tree().parent
    except XError:  # it closed while we looked
        pass
    return None


def caught_up(changes=0):
    """Wait until the focused program has handled all input so far, which is when it answers a ping."""
    display, window = x11._display, focused()
    if window is None:
        time.sleep(QUIET_S + 0.02 * changes)
        return
    root, until, token = display.screen().root, time.monotonic() + ANSWER_S, time.monotonic_ns() & 0x7FFFFFFF
    question = (32, [display.intern_atom("_NET_WM_PING"), X.CurrentTime, window.id, token, 0])
    root.change_attributes(event_mask=X.SubstructureNotifyMask)
    window.send_event(ClientMessage(window=window, client_type=display.intern_atom("WM_PROTOCOLS"), data=question))
    answered = False
    while not answered and time.monotonic() < until:
        events = [display.next_event() for _ in range(display.pending_events())]
        answered = any(event.type == X.ClientMessage and event.data[1][3] == token for event in events)
        time.sleep(0.005)
    root.change_attributes(event_mask=0)
    display.sync()


def delicate(symbol):
    """How long LibreOffice must do nothing around a symbol, in hundredths of a second.

    It puts text off for a fifth of a second, and lets keys and characters outside the basic plane overtake what it has put off
    or not got round to. On a machine with no time to spare an emoji can still come out one place too early.
    """
    return 25 if symbol > UNICODE + 0xFFFF else 6 if 0xFF00 <= symbol <= 0xFFFF else 0


def busy(pid):
    """Nanoseconds a process has run, and whether one of its threads wants to."""
    spent, states = 0, set()
    for task in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/schedstat" % (pid, task)) as facts:
            spent += int(facts.read().split()[0])
        with open("/proc/%d/task/%s/stat" % (pid, task)) as facts:
            states.add(facts.read().rpartition(")")[2].split()[0])
    return spent, bool(states - {"S", "I"})


def idle(window, looks):
    """Wait until a program of this machine had nothing to do in so many looks in a row, a hundredth of a second apart."""
    found = window.get_full_property(x11._display.intern_atom("_NET_WM_PID"), X.AnyPropertyType)
    until, quiet, before = time.monotonic() + ANSWER_S, 0, None
    while quiet < looks and time.monotonic() < until:
        try:
            now = busy(found.value[0])
        except (AttributeError, OSError):
            time.sleep(QUIET_S)
            return
        quiet = quiet + 1 if now == before and not now[1] else 0
        before = now
        time.sleep(0.01)


def is_lent(symbol):
    """Whether a key that has this symbol alone was lent by an earlier command."""
    return 0xA0 <= symbol <= 0xFF or UNICODE < symbol <= UNICODE + 0x10FFFF


class Keyboard:
    """Keysyms to (key code, needs Shift) on the current layout, and the spare codes that can be lent."""

    def __init__(self):
        info = x11._display.display.info
        rows = x11._display.get_keyboard_mapping(info.min_keycode, info.max_keycode - info.min_keycode + 1)
        self.fixed, self.lent, free = {}, {}, []
        for code, row in enumerate(rows, info.min_keycode):
            first = row[0]
            if not any(row):
                free.append(code)
            elif set(row) <= {0, first} and is_lent(first) and row[1] in (0, first):
                self.lent.setdefault(first, code)
            else:
                for level, symbol in enumerate(row[:2]):
                    self.fixed.setdefault(symbol, (code, level == 1))
        self.spare = free + sorted(self.lent.values())

    def lend(self, symbols):
        """Give each symbol a key code; at most as many as there are spare ones."""
        missing = [symbol for symbol in symbols if symbol not in self.lent]
        if not missing:
            return
        busy = {self.lent[symbol] for symbol in symbols if symbol in self.lent}
        codes = [code for code in self.spare if code not in busy]
        caught_up()
        for symbol, code in zip(missing, codes):
            x11._display.change_keyboard_mapping(code, [(symbol, symbol)])
            self.lent = {other: used for other, used in self.lent.items() if used != code}
            self.lent[symbol] = code
        x11._display.sync()
        caught_up(len(missing))

    def tap(self, symbol):
        """Press and release the key of a symbol that has one, undoing Caps Lock for letters."""
        code, shift = self.fixed.get(symbol) or (self.lent[symbol], False)
        letter = symbol < UNICODE and chr(symbol & 0xFF).isalpha() and symbol < 0x100
        if letter and x11._display.screen().root.query_pointer().mask & X.LockMask:
            shift = not shift
        if shift:
            fake_input(x11._display, X.KeyPress, x11.keyboardMapping["shift"])
        fake_input(x11._display, X.KeyPress, code)
        fake_input(x11._display, X.KeyRelease, code)
        if shift:
            fake_input(x11._display, X.KeyRelease, x11.keyboardMapping["shift"])
        x11._display.sync()


keyboard = Keyboard()


def type_text(text, interval=0.0, controls="\n\t"):
    """Type text character by character; new lines and tabs are keys."""
    todo = []
    for position, character in enumerate(text.replace("\r\n", "\n").replace("\r", "\n")):
        symbol = keysym(character)
        lost = symbol is None or not (symbol in keyboard.fixed or keyboard.spare)
        if lost or (ord(character) < 0x20 and character not in controls):
            untypable.append({"position": position, "character": "U+%04X" % ord(character)})
        else:
            todo.append(symbol)
    window = focused()
    name = "".join(window.get_wm_class() or ()) if window else ""
    office = window if "office" in name.lower() else None
    while todo:
        needed, end = [], 0
        for symbol in todo:
            if symbol not in keyboard.fixed and symbol not in needed:
                if len(needed) == len(keyboard.spare):
                    break
                needed.append(symbol)
            end += 1
        keyboard.lend(needed)
        for at, symbol in enumerate(todo[:end]):
            keyboard.tap(symbol)
            time.sleep(max(interval, CHARACTER_S))
            if office and (looks := max(map(delicate, todo[at : at + 2]))):
                idle(office, looks)
        todo = todo[end:]


class KeyNames(dict):
    """pyautogui's key names, which it asks for with `in`: finds a key for every character and notes unknown names."""

    def __contains__(self, name):
        if self.get(name):
            return True
        symbol = keysym(name) if isinstance(name, str) and len(name) == 1 else None
        if symbol is None:
            if name not in unknown_keys:
                unknown_keys.append(name)
            return False
        if symbol not in keyboard.fixed:
            keyboard.lend([symbol])
            time.sleep(QUIET_S)  # Chromium looks up keys with modifiers in a layout that it refreshes later
        self[name] = keyboard.fixed.get(symbol, (keyboard.lent.get(symbol), False))[0]
        return True


def typewrite(message, interval=0.0, logScreenshot=None, _pause=True):
    """pyautogui.typewrite with every character."""
    if isinstance(message, str):
        type_text(message, float(interval), "\n\t\b")
    else:
        pyautogui.press(list(message), interval=float(interval), _pause=False)
    if _pause:
        time.sleep(pyautogui.PAUSE)


def report():
    """Say what could not be typed or pressed; True if there was anything."""
    if untypable or unknown_keys:
        facts = {"untypable": untypable[:100], "untypable_count": len(untypable), "unknown_keys": unknown_keys[:100]}
        print(json.dumps(facts), file=sys.stderr)
    return bool(untypable or unknown_keys)


def hold(keys):
    """Press keys in order; those that have to be lent a code first, because Chromium is slow to notice under a modifier."""
    for key in keys:
        x11.keyboardMapping.__contains__(key)
    for key in keys:
        pyautogui.keyDown(key)
        time.sleep(0.02)


def release(keys):
    """Release keys, the last one first."""
    for key in reversed(keys):
        pyautogui.keyUp(key)


def finish():
    """End of a typed action."""
    sys.exit(REPORTED if report() else 0)


def run(code):
    """The model's own Python, in its own namespace, so that it may start with anything and its errors name its own lines."""
    try:
        exec(compile(code, "<action>", "exec"), {"__name__": "__main__", "pyautogui": pyautogui, "time": time})
    except BaseException:
        report()
        raise
    finish()


x11.keyboardMapping = KeyNames(x11.keyboardMapping)
for character in map(chr, range(0x20, 0x7F)):
    code, shift = keyboard.fixed.get(ord(character), (0, False))
    if code and shift == pyautogui.isShiftCharacter(character):
        x11.keyboardMapping[character] = code
pyautogui.FAILSAFE = False
pyautogui.typewrite = pyautogui.write = typewrite
