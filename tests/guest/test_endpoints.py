"""OSWorld's endpoints on a real desktop, in the formats its client reads."""

from __future__ import annotations

import asyncio
import io
import json
import time

import aiohttp
import pytest
from PIL import Image, ImageChops

from osworld_rollouts.desktops.guest_client import GuestClient, GuestRefused
from osworld_rollouts.desktops.png_check import png_fault

pytestmark = pytest.mark.desktop


async def post(guest, path, body=None, **how):
    how = {"data": json.dumps(body or {}).encode(), "headers": {"Content-Type": "application/json"}, **how}
    return await guest.request("POST", path, **how)


def read(reply):
    return json.loads(reply.body)


async def gone(guest, title):
    """Close every window with this in its title and wait until it is away."""
    for _ in range(50):
        windows = (await guest.execute(["wmctrl", "-l"])).output
        if title not in windows:
            return
        await guest.execute(["wmctrl", "-c", title])
        await asyncio.sleep(0.1)
    raise AssertionError(f"{title} does not close: {windows}")


class TestToken:
    @pytest.mark.parametrize("token", [None, "", "wrong"])
    async def test_without_it_nothing_is_answered(self, desktop, token):
        async with GuestClient(socket=desktop.endpoints.server, token=token) as stranger:
            for method, path in (
                ("GET", "/screenshot"),
                ("POST", "/execute"),
                ("GET", "/health"),
                ("GET", "/operations"),
            ):
                reply = await stranger.request(method, path)
                assert reply.status == 401
                assert read(reply)["error"]["type"] == "unauthorized"

    async def test_programs_of_the_desktop_do_not_see_it(self, guest, desktop):
        token = desktop.token.get_secret_value()
        look = "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; env; ls -R /run/guest; cat /run/guest/log/* 2>/dev/null"
        seen = (await guest.execute(look, shell=True)).output
        assert token not in seen
        assert "guest server" in seen.replace("\n", " ")
        steal = "import glob\nfor p in glob.glob('/proc/[0-9]*/mem'):\n    try: open(p, 'rb').close(); print(open(p[:-3] + 'cmdline').read())\n    except OSError: pass"
        readable = (await guest.execute(["python3", "-B", "-c", steal])).output
        readable = readable.replace("\0", " ")
        assert "Xvfb" in readable
        assert "guest server" not in readable
        assert "guest session" not in readable


class TestScreen:
    async def test_screenshot(self, guest, desktop):
        data = await guest.screenshot()
        assert png_fault(data, desktop.width, desktop.height) == ""

    async def test_the_cursor_is_in_it(self, guest):
        await guest.execute(["python", "-c", "import pyautogui; pyautogui.moveTo(700, 500)"])
        there = Image.open(io.BytesIO(await guest.screenshot())).convert("RGB")
        await guest.execute(["python", "-c", "import pyautogui; pyautogui.moveTo(900, 300)"])
        away = Image.open(io.BytesIO(await guest.screenshot())).convert("RGB")
        left, top, right, bottom = ImageChops.difference(there, away).getbbox()
        assert 690 <= left <= 705
        assert 895 <= right <= 930
        assert 295 <= top <= 305
        assert 500 <= bottom <= 530

    async def test_at_once_and_while_it_changes(self, guest, desktop):
        async def move():
            for x in range(5):
                await guest.execute(
                    ["python", "-c", f"import pyautogui; pyautogui.PAUSE = 0; pyautogui.moveTo({100 + 50 * x}, 500)"]
                )

        shots = asyncio.gather(*(guest.screenshot() for _ in range(12)))
        await move()
        for data in await shots:
            assert png_fault(data, desktop.width, desktop.height) == ""

    async def test_size_cursor_platform(self, guest, desktop):
        assert read(await post(guest, "/screen_size")) == {"width": desktop.width, "height": desktop.height}
        await guest.execute(["python", "-c", "import pyautogui; pyautogui.moveTo(123, 456)"])
        assert read(await guest.request("GET", "/cursor_position")) == [123, 456]
        assert (await guest.request("GET", "/platform")).body == b"Linux"

    async def test_import_prints_nothing(self, guest):
        """An absent cookie makes python-xlib print on standard output, which ruins every getter that reads it."""
        for command in (["python", "-c", "import pyautogui"], ["python3", "-B", "-c", "import pyautogui"]):
            done = await guest.execute(command)
            assert (done.output, done.error, done.returncode) == ("", "", 0)


class TestFiles:
    async def test_there_and_back(self, guest):
        data = bytes(range(256)) * 5000
        await guest.write_file("/home/user/new folder/ü.bin", data)
        assert await guest.read_file("~/new folder/ü.bin") == data

    async def test_absent_and_folder(self, guest):
        for path, status, kind in (
            ("/nope", 404, "file_not_found"),
            ("/home", 400, "not_a_file"),
            ("", 400, "bad_request"),
        ):
            with pytest.raises(GuestRefused) as refused:
                await guest.read_file(path)
            assert (refused.value.status, refused.value.kind) == (status, kind)

    async def test_a_pipe_is_not_read(self, guest):
        await guest.execute(["mkfifo", "/tmp/pipe"])
        with pytest.raises(GuestRefused) as refused:
            await guest.read_file("/tmp/pipe", timeout=5)
        assert refused.value.kind == "not_a_file"

    async def test_where_nothing_can_be_written(self, guest):
        with pytest.raises(GuestRefused) as refused:
            await guest.write_file("/usr/x", b"")
        assert refused.value.kind == "write_failed"

    async def test_tree(self, guest):
        await guest.execute("mkdir -p /tmp/tree/sub && touch /tmp/tree/b /tmp/tree/sub/a", shell=True)
        tree = read(await post(guest, "/list_directory", {"path": "/tmp/tree"}))["directory_tree"]
        assert tree == {
            "type": "directory",
            "name": "tree",
            "children": [
                {"type": "file", "name": "b"},
                {"type": "directory", "name": "sub", "children": [{"type": "file", "name": "a"}]},
            ],
        }
        assert (await post(guest, "/list_directory", {"path": "/nope"})).status == 400

    async def test_desktop_path(self, guest):
        path = read(await post(guest, "/desktop_path"))["desktop_path"]
        assert path.endswith("/Desktop")

    async def test_download_inside_the_guest(self, guest):
        await guest.execute("mkdir -p /tmp/served && echo content > /tmp/served/f", shell=True)
        await guest.setup("launch", {"command": "cd /tmp/served && exec python3 -m http.server 8181", "shell": True})
        for _ in range(50):
            reply = await post(guest, "/setup/download_file", {"url": "http://127.0.0.1:8181/f", "path": "/tmp/got/f"})
            if reply.status == 200:
                break
            await asyncio.sleep(0.1)
        assert await guest.read_file("/tmp/got/f") == b"content\n"
        reply = await post(guest, "/setup/download_file", {"url": "http://127.0.0.1:8181/absent", "path": "/tmp/got/g"})
        assert reply.status == 500
        assert (await guest.execute(["ls", "/tmp/got"])).output == "f\n"
        await guest.execute(["pkill", "-f", "http.server 8181"])


class TestCommands:
    async def test_execute_as_client_sends_it(self, guest):
        reply = read(await post(guest, "/execute", {"command": "echo 'a b'", "shell": False}))
        assert reply == {"status": "success", "output": "a b\n", "error": "", "returncode": 0}
        assert (
            read(await post(guest, "/setup/execute", {"command": ["ls /tmp | wc -l"], "shell": True}))["returncode"]
            == 0
        )

    async def test_missing_program(self, guest):
        reply = await post(guest, "/execute", {"command": ["nope"]})
        assert (reply.status, read(reply)["status"]) == (500, "error")
        assert "nope" in read(reply)["message"]

    async def test_launch(self, guest):
        reply = await post(guest, "/setup/launch", {"command": ["sleep", "0.1"]})
        assert (reply.status, reply.body) == (200, b"sleep 0.1 launched successfully")
        assert (await post(guest, "/setup/launch", {"command": ["nope"]})).status == 500

    async def test_run_python(self, guest):
        good = read(await post(guest, "/run_python", {"code": "print('é')"}))
        assert good == {
            "status": "success",
            "message": "é\n",
            "need_more": False,
            "output": "é\n",
            "error": "",
            "return_code": 0,
        }
        bad = read(await post(guest, "/run_python", {"code": "1/0"}))
        assert (bad["status"], bad["return_code"]) == ("error", 1)
        assert "ZeroDivisionError" in bad["error"]
        assert (await post(guest, "/run_python", {})).status == 400

    async def test_run_bash_script_once(self, guest):
        reply = await post(
            guest, "/run_bash_script", {"script": "echo a; echo b >&2; echo x >> /tmp/bash-once; exit 4"}
        )
        assert reply.status == 200
        assert read(reply) == {"status": "error", "output": "a\nb\n", "error": "", "returncode": 4}
        assert await guest.read_file("/tmp/bash-once") == b"x\n"
        here = read(await post(guest, "/run_bash_script", {"script": "pwd", "working_dir": "/usr"}))
        assert here["output"] == "/usr\n"
        started = time.monotonic()
        late = read(await post(guest, "/run_bash_script", {"script": "sleep 20", "timeout": 1}))
        assert late["returncode"] == -1
        assert time.monotonic() - started < 5

    async def test_verification(self, guest):
        body = {"command": ["true"], "verification": {"command_success": "true"}, "max_wait_time": 2}
        assert (await post(guest, "/setup/execute_with_verification", body)).status == 200
        body["verification"] = {"window_exists": "no such window"}
        body["max_wait_time"] = 0.3
        reply = await post(guest, "/setup/execute_with_verification", body)
        assert (reply.status, read(reply)["error"]["type"]) == (500, "verification_failed")

    @pytest.mark.parametrize(
        ("method", "path", "status"), [("GET", "/nope", 404), ("GET", "/execute", 405), ("POST", "/screenshot", 405)]
    )
    async def test_wrong_door(self, guest, method, path, status):
        assert (await guest.request(method, path)).status == status

    async def test_body_that_is_no_json(self, guest):
        reply = await guest.request("POST", "/execute", data=b"{")
        assert (reply.status, read(reply)["error"]["type"]) == (400, "bad_request")


class TestWindows:
    async def test_open_activate_size_close(self, guest):
        await guest.write_file("/home/user/Desktop/letter.txt", b"text")
        assert (
            await post(guest, "/setup/open_file", {"path": "/home/user/Desktop/letter.txt"}, timeout=60)
        ).status == 200
        form = aiohttp.FormData({"app_class_name": "mousepad"})
        size = read(await guest.request("POST", "/window_size", data=form))
        assert size["width"] > 200
        assert (await post(guest, "/setup/activate_window", {"window_name": "letter"})).status == 200
        assert (
            await post(
                guest, "/setup/activate_window", {"window_name": "mousepad.Mousepad", "by_class": True, "strict": True}
            )
        ).status == 200
        assert (await post(guest, "/setup/close_window", {"window_name": "letter.txt"})).status == 200
        await gone(guest, "letter.txt")

    async def test_a_window_is_waited_for(self, guest):
        await guest.setup("launch", {"command": "sleep 1; exec mousepad", "shell": True})
        assert (await post(guest, "/setup/activate_window", {"window_name": "Mousepad"})).status == 200
        await gone(guest, "Mousepad")

    async def test_absent_window_and_file(self, guest):
        reply = await guest.request(
            "POST", "/setup/activate_window", data=b'{"window_name": "nope"}', headers={"X-Operation-Timeout": "0.3"}
        )
        assert (reply.status, read(reply)["error"]["type"]) == (404, "window_not_found")
        assert (await post(guest, "/setup/open_file", {"path": "/nope"})).status == 404

    async def test_terminal_text(self, guest):
        await guest.setup("launch", {"command": ["xfce4-terminal"]})
        assert (await post(guest, "/setup/activate_window", {"window_name": "Terminal"})).status == 200
        for _ in range(50):
            await asyncio.sleep(0.2)
            output = read(await guest.request("GET", "/terminal"))["output"]
            if output:
                break
        assert "$" in output
        await gone(guest, "Terminal")


class TestAccessibility:
    async def test_tree_of_what_shows(self, guest):
        await guest.write_file("/tmp/tree.txt", b"words in the editor")
        await guest.setup("launch", {"command": ["mousepad", "/tmp/tree.txt"]})
        await post(guest, "/setup/activate_window", {"window_name": "tree.txt"})
        for _ in range(25):
            tree = await guest.accessibility_tree()
            if "words in the editor" in tree:
                break
            await asyncio.sleep(0.2)
        assert tree.startswith("<desktop-frame")
        assert 'name="mousepad"' in tree
        assert 'st:showing="true"' in tree
        assert "cp:screencoord=" in tree
        assert "words in the editor" in tree
        await gone(guest, "tree.txt")


class TestTyping:
    async def test_all_of_ascii_and_more(self, guest):
        text = "".join(map(chr, range(32, 127))) + " naïve café ß € 文 🙂"
        await guest.write_file("/tmp/typed.txt", b"")
        await guest.setup("launch", {"command": ["mousepad", "/tmp/typed.txt"]})
        await post(guest, "/setup/activate_window", {"window_name": "typed.txt"})
        await asyncio.sleep(0.5)
        await guest.execute(
            ["python", "-c", f"import pyautogui; pyautogui.write({text!r}); pyautogui.hotkey('ctrl', 's')"]
        )
        await asyncio.sleep(0.5)
        assert (await guest.read_file("/tmp/typed.txt")).decode().rstrip("\n") == text
        await gone(guest, "typed.txt")

    async def test_less_than_in_a_cold_interpreter(self, guest):
        await guest.write_file("/tmp/cold.txt", b"")
        await guest.setup("launch", {"command": ["mousepad", "/tmp/cold.txt"]})
        await post(guest, "/setup/activate_window", {"window_name": "cold.txt"})
        await asyncio.sleep(0.5)
        code = "import pyautogui; pyautogui.write('a<b>c'); pyautogui.hotkey('ctrl', 's')"
        await guest.execute(["python3", "-B", "-c", code])
        await asyncio.sleep(0.5)
        assert await guest.read_file("/tmp/cold.txt") == b"a<b>c"
        await gone(guest, "cold.txt")


class TestSettings:
    async def test_gnome_settings_are_kept(self, guest):
        """Tasks set and read them, with the bus address written out."""
        bus = "export DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1000/bus;"
        if (await guest.execute(["printenv", "HOME"])).output != "/home/user\n":
            bus = ""
        key = "org.gnome.desktop.interface text-scaling-factor"
        done = await guest.execute(f"{bus} gsettings set {key} 1.25 && gsettings get {key}", shell=True)
        assert (done.output, done.error) == ("1.25\n", "")
        assert (await guest.execute(f"gsettings reset {key}", shell=True)).returncode == 0
        apps = await guest.execute("gsettings get org.gnome.shell favorite-apps", shell=True)
        assert apps.output.startswith("["), apps.error

    async def test_programs_tasks_name_are_there(self, guest):
        names = "google-chrome chromium libreoffice soffice gimp vlc python python3 pip3 socat wmctrl xdotool xclip unzip file sudo git"
        missing = [name for name in names.split() if (await guest.execute(["which", name])).returncode]
        assert set(missing) <= {"pip3", "git", "chromium"}


class TestRecording:
    async def test_a_film(self, guest):
        assert (await post(guest, "/start_recording")).status == 200
        assert (await post(guest, "/start_recording")).status == 400
        await asyncio.sleep(1.5)
        film = await post(guest, "/end_recording")
        assert film.status == 200
        assert film.body[4:8] == b"ftyp"
        assert (await post(guest, "/end_recording")).status == 400


class TestWallpaper:
    async def test_change_and_read(self, guest):
        buffer = io.BytesIO()
        Image.new("RGB", (64, 36), "darkgreen").save(buffer, "PNG")
        await guest.write_file("/home/user/Pictures/green.png", buffer.getvalue())
        assert (await post(guest, "/setup/change_wallpaper", {"path": "/home/user/Pictures/green.png"})).status == 200
        assert (await post(guest, "/wallpaper")).body == buffer.getvalue()
        for _ in range(30):
            shot = Image.open(io.BytesIO(await guest.screenshot())).convert("RGB")
            if shot.getpixel((1500, 500)) == (0, 100, 0):
                break
            await asyncio.sleep(0.1)
        assert shot.getpixel((1500, 500)) == (0, 100, 0)
        assert (await post(guest, "/setup/change_wallpaper", {"path": "/nope.png"})).status == 404
