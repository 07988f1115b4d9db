# ruff: noqa: F811 - fixtures are imported
"""What actions do on a real desktop, character by character and event by event."""

from __future__ import annotations

import asyncio
import json
import random
import re
import xml.etree.ElementTree as ET
import zipfile
from io import BytesIO

import pytest

from osworld_rollouts.actions import REPORTED, guest_code
from osworld_rollouts.contracts.action import (
    Click,
    Drag,
    Hotkey,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    Move,
    Point,
    Press,
    PythonCode,
    Scroll,
    TypeText,
)
from tests.desktops.conftest import desktop, guest  # noqa: F401 - fixtures

pytestmark = pytest.mark.desktop
ASCII = "".join(map(chr, range(0x20, 0x7F)))
NOISE = random.Random(5)
TEXTS = {
    "ascii": ASCII,
    "symbols": 'a<b>c "quoted" \'single\' \\back\\slash `tick` $HOME ${x} %d {curly} <tag attr="v">&amp;</tag>',
    "lines": "first line\n\tindented\n\n  two spaces\nlast",
    "scripts": "naïve café ß ñ € 中文字 日本語 한국어 Привет Ελληνικά עברית 🙂🚀👩\u200d💻 ½ … “quotes” e\u0301",
    "five thousand": "".join(NOISE.choice(ASCII) for _ in range(5000)),
    "mixed thousand": "".join(NOISE.choice(ASCII + "éüß€中文字🙂") for _ in range(1000)),
    "no emoji": "".join(NOISE.choice(ASCII + "éüß€中文字Пλ") for _ in range(1000)),
    "many signs": "".join(chr(0x4E00 + NOISE.randrange(5000)) for _ in range(200)),
}
PAGE = """<!doctype html><textarea id=t autofocus spellcheck=false style="position:fixed;left:0;top:0;width:900px;height:400px"></textarea>
<div id=d style="position:fixed;left:0;top:420px;width:900px;height:300px;background:#ddd"></div><script>
let events = [], timer;
function note(what) { events.push(what); clearTimeout(timer); timer = setTimeout(() => fetch('/', {method: 'POST', body: JSON.stringify({text: t.value, events})}), 150) }
t.oninput = () => note('input');
t.onkeydown = e => { if (e.key == 'Tab') { e.preventDefault(); t.setRangeText('\\t', t.selectionStart, t.selectionEnd, 'end'); note('tab') } else note(['key', e.key, e.ctrlKey, e.shiftKey]) };
for (const name of ['mousedown', 'mouseup', 'dblclick', 'contextmenu'])
  d.addEventListener(name, e => { e.preventDefault(); note([name, e.button, e.detail, e.ctrlKey, e.shiftKey, Math.round(e.clientX), Math.round(e.clientY)]) });
d.addEventListener('wheel', e => { e.preventDefault(); note(['wheel', Math.sign(e.deltaX), Math.sign(e.deltaY)]) }, {passive: false});
window.clear_all = () => { events = []; t.value = '' };
</script>"""
SERVER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header('Content-Type', 'text/html; charset=utf-8'); self.end_headers()
        self.wfile.write(open('/tmp/page.html', 'rb').read())
    def do_POST(self):
        data = self.rfile.read(int(self.headers['Content-Length']))
        open('/tmp/dom.json', 'wb').write(data); self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(('127.0.0.1', 8765), Handler).serve_forever()
"""


async def act(guest, action):
    """Run an action in the guest."""
    return await guest.execute(["python3", "-c", guest_code(action)])


async def launch(guest, command, title):
    """Start a program and wait for its window."""
    await guest.setup("launch", {"command": command})
    for _ in range(120):
        windows = (await guest.execute(["wmctrl", "-l"])).output
        if title in windows:
            await asyncio.sleep(1.0)
            return
        await asyncio.sleep(0.25)
    raise AssertionError(f"no window {title!r} in {windows}")


async def until(read, wanted, limit_s=30):
    """What `read` gives, once it is what is wanted or time is up: a busy machine is slow, not wrong."""
    for _ in range(int(limit_s / 0.5)):
        await asyncio.sleep(0.5)
        if (found := await read()) == wanted:
            break
    return found


async def read(guest, path):
    """A file's text."""
    return (await guest.read_file(path)).decode()


async def open_editor(guest):
    """The text editor with an empty file, and no memory of an earlier one that was killed; gives a function that reads the file."""
    await guest.execute(["rm", "-rf", "/home/user/.local/share/Mousepad"])
    await guest.write_file("/home/user/typed.txt", b"")
    await launch(guest, ["mousepad", "--disable-server", "/home/user/typed.txt"], "typed.txt")

    async def saved():
        return (await read(guest, "/home/user/typed.txt")).removesuffix("\n")

    return saved


async def kill(guest, name):
    await guest.execute(["pkill", "-f", name])
    await asyncio.sleep(0.5)


@pytest.mark.parametrize("name", TEXTS)
async def test_an_editor_gets_every_character(guest, name):
    saved = await open_editor(guest)
    result = await act(guest, TypeText(text=TEXTS[name]))
    assert (result.returncode, result.error) == (0, "")
    await act(guest, Hotkey(keys=("ctrl", "s")))
    written = await until(saved, TEXTS[name])
    await kill(guest, "mousepad --disable-server")
    assert written == TEXTS[name]


@pytest.mark.parametrize("name", TEXTS)
async def test_a_terminal_gets_every_character(guest, name):
    size = len(TEXTS[name].encode())
    shell = f"stty -echo -icanon -ixon -isig -iexten; head -c {size} > /tmp/terminal.txt"
    await launch(
        guest,
        ["env", "LANG=C.UTF-8", "xfce4-terminal", "--disable-server", "-T", "typing", "-x", "sh", "-c", shell],
        "typing",
    )
    result = await act(guest, TypeText(text=TEXTS[name]))
    assert result.returncode == 0, result.error
    written = await until(lambda: read(guest, "/tmp/terminal.txt"), TEXTS[name])
    await kill(guest, "xfce4-terminal --disable-server")
    assert written == TEXTS[name]


@pytest.fixture
async def browser(guest):
    """Chromium with a page that reports its text and its events; gives a function that reads them."""
    await guest.write_file("/tmp/page.html", PAGE.encode())
    await guest.setup("launch", {"command": ["python3", "-c", SERVER]})
    await asyncio.sleep(0.7)
    await launch(
        guest,
        [
            "chromium",
            "--no-first-run",
            "--password-store=basic",
            "--app=http://127.0.0.1:8765/",
            "--window-position=0,0",
            "--window-size=1000,800",
            "--user-data-dir=/tmp/chromium-typing",
        ],
        "127.0.0.1",
    )

    async def seen(fact):
        return json.loads(await read(guest, "/tmp/dom.json"))[fact]

    yield seen
    await kill(guest, "chromium-typing")
    await kill(guest, "HTTPServer")


async def test_a_web_page_gets_every_character(guest, browser):
    for name, text in TEXTS.items():
        await act(guest, Hotkey(keys=("ctrl", "a")))
        await act(guest, Press(key="delete"))
        result = await act(guest, TypeText(text=text))
        assert result.returncode == 0, result.error
        assert await until(lambda: browser("text"), text) == text, name


async def test_a_web_page_sees_the_pointer_and_the_keys(guest, browser):
    place, other = Point(x=300, y=620), Point(x=500, y=650)
    steps = [
        Click(point=place), Click(point=place, count=2), Click(point=place, button="right", modifiers=("ctrl",)), Click(point=place, button="middle"),
        Click(point=place, button="back"), Drag(path=(place, other), duration_s=0.2, modifiers=("shift",)), Move(point=place), MouseDown(), MouseUp(point=other),
        Scroll(point=place, clicks_y=-2), Scroll(clicks_x=1), Click(point=Point(x=300, y=200)), Press(key="F2", count=2), Hotkey(keys=("ctrl", "b")),
        KeyDown(key="shift"), Press(key="left"), KeyUp(key="shift"), TypeText(text="x"), Press(key="é"),
    ]  # fmt: skip
    for step in steps:
        result = await act(guest, step)
        assert (result.returncode, result.error) == (0, ""), step
        await asyncio.sleep(0.7)
    await until(lambda: browser("text"), "xé", 10)
    events = [event for event in await browser("events") if isinstance(event, list)]
    pressed = [event for event in events if event[0] == "mousedown"]
    assert [(event[1], event[2]) for event in pressed] == [
        (0, 1),
        (0, 1),
        (0, 2),
        (2, 1),
        (1, 1),
        (3, 1),
        (0, 1),
        (0, 1),
    ]
    assert [event[0] for event in events].count("dblclick") == 1
    right = pressed[3]
    assert (right[3], right[4]) == (True, False)
    released = [event for event in events if event[0] == "mouseup"]
    assert (released[6][5] - pressed[6][5], released[6][6] - pressed[6][6]) == (200, 30)
    assert (pressed[6][4], released[6][4]) == (True, True)
    assert [event[1:] for event in events if event[0] == "wheel"] == [[0, 1], [0, 1], [1, 0]]
    keys = [event[1:] for event in events if event[0] == "key"]
    assert keys.count(["F2", False, False]) == 2
    assert ["b", True, False] in keys
    assert (
        await browser("text") == "xé"
    )  # lent a key code: Chromium inserts it, though it names the key event otherwise
    assert ["ArrowLeft", False, True] in keys
    assert keys[-2] == ["x", False, False]


WRITER_OFF = {
    "/org.openoffice.Office.Common/AutoCorrect": (
        "CapitalAtStartSentence TwoCapitalsAtStart UseReplacementTable ChangeDash SetInetAttr SetDOIAttr ReplaceSingleQuote ReplaceDoubleQuote"
        " ChangeOrdinalNumber AddNonBreakingSpace ChangeUnderlineWeight RemoveDoubleSpaces CorrectAccidentalCapsLock TransliterateRTL ChangeAngleQuotes"
    ),
    "/org.openoffice.Office.Writer/AutoFunction/Format/ByInput": "Enable",
    "/org.openoffice.Office.Writer/AutoFunction/Completion": "Enable",
    "/org.openoffice.Office.Common/Misc": "ShowTipOfTheDay",
}
MIMETYPE = "application/vnd.oasis.opendocument.text"
TEXT_NS = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"


@pytest.fixture
async def writer(guest):
    """LibreOffice Writer with an empty document and no automatic corrections; gives a function that saves and reads it."""
    items = "".join(
        f'<item oor:path="{path}"><prop oor:name="{name}" oor:op="fuse"><value>false</value></prop></item>'
        for path, names in WRITER_OFF.items()
        for name in names.split()
    )
    items += '<item oor:path="/org.openoffice.Setup/Product"><prop oor:name="ooSetupLastVersion" oor:op="fuse"><value>7.4</value></prop></item>'
    settings = f'<?xml version="1.0"?><oor:items xmlns:oor="http://openoffice.org/2001/registry">{items}</oor:items>'
    await guest.execute(["mkdir", "-p", "/tmp/lo/user"])
    await guest.write_file("/tmp/lo/user/registrymodifications.xcu", settings.encode())
    await guest.write_file(
        "/home/user/typed.fodt",
        b'<?xml version="1.0"?><office:document xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" office:version="1.3" office:mimetype="'
        + MIMETYPE.encode()
        + b'"><office:body><office:text/></office:body></office:document>',
    )
    await guest.execute(
        [
            "soffice",
            "-env:UserInstallation=file:///tmp/lo",
            "--headless",
            "--convert-to",
            "odt",
            "--outdir",
            "/home/user",
            "/home/user/typed.fodt",
        ]
    )
    await launch(
        guest,
        ["soffice", "-env:UserInstallation=file:///tmp/lo", "--norestore", "--writer", "/home/user/typed.odt"],
        "typed.odt",
    )
    await asyncio.sleep(2)

    async def saved():
        await asyncio.sleep(1.5)
        await act(guest, Hotkey(keys=("ctrl", "s")))
        await asyncio.sleep(2.5)
        content = zipfile.ZipFile(BytesIO(await guest.read_file("/home/user/typed.odt"))).read("content.xml")
        return "\n".join(
            _text(node) for node in ET.fromstring(content).iter() if node.tag in {f"{TEXT_NS}p", f"{TEXT_NS}h"}
        )

    yield saved
    await kill(guest, "UserInstallation=file:///tmp/lo")


def _text(node):
    out = node.text or ""
    for child in node:
        if child.tag == f"{TEXT_NS}s":
            out += " " * int(child.get(f"{TEXT_NS}c", "1"))
        else:
            out += {f"{TEXT_NS}tab": "\t"}.get(child.tag) or _text(child)
        out += child.tail or ""
    return out


@pytest.mark.parametrize("name", ["ascii", "symbols", "lines", "scripts", "five thousand", "no emoji"])
async def test_writer_gets_every_character(guest, writer, name):
    result = await act(guest, TypeText(text=TEXTS[name]))
    assert result.returncode == 0, result.error
    assert await until(writer, TEXTS[name], 5) == TEXTS[name]


async def test_what_cannot_be_typed_or_pressed_is_reported(guest):
    result = await act(guest, TypeText(text="a\x07\x1bb"))
    report = json.loads(result.error.strip().splitlines()[-1])
    assert result.returncode == REPORTED
    assert report["untypable"] == [{"position": 1, "character": "U+0007"}, {"position": 2, "character": "U+001B"}]
    result = await act(guest, Hotkey(keys=("ctrl", "nokey")))
    assert result.returncode == REPORTED
    assert json.loads(result.error.strip().splitlines()[-1])["unknown_keys"] == ["nokey"]
    result = await act(guest, PythonCode(code="pyautogui.press('nokey')\nprint('on')"))
    assert (result.returncode, result.output) == (REPORTED, "on\n")


@pytest.mark.parametrize(
    ("code", "returncode", "output", "error"),
    [
        ("for i in range(2):\n    print(i)", 0, "0\n1\n", ""),
        ("if True: print('yes')", 0, "yes\n", ""),
        ("def f():\n    return time.time() > 0\nprint(f())", 0, "True\n", ""),
        ("with open('/tmp/x', 'w') as f: f.write('é')\nprint(open('/tmp/x').read())", 0, "é\n", ""),
        ("if", 1, "", "SyntaxError"),
        ("1/0", 1, "", r"line 1, in <module>\nZeroDivisionError"),
        ("import sys; sys.exit(7)", 7, "", ""),
    ],
)
async def test_the_models_python_runs_as_it_is(guest, code, returncode, output, error):
    result = await act(guest, PythonCode(code=code))
    assert (result.returncode, result.output) == (returncode, output)
    assert re.search(error, result.error)


async def test_the_models_own_typing_is_exact_too(guest):
    saved = await open_editor(guest)
    code = (
        "pyautogui.write('a<b é🙂', interval=0.01)\npyautogui.typewrite(['enter', 'x'])\npyautogui.hotkey('ctrl', 's')"
    )
    result = await act(guest, PythonCode(code=code))
    assert (result.returncode, result.error) == (0, "")
    written = await until(saved, "a<b é🙂\nx")
    await kill(guest, "mousepad --disable-server")
    assert written == "a<b é🙂\nx"
