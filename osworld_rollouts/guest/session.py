"""The first process of a desktop: display, session bus, window manager, panel, server; reaps what dies, ends what it started.

Configuration comes as JSON in the first argument (see `Settings`), the lease token through standard input, so that it is in
no program's environment or arguments.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from .hardening import adopt_orphans, end_with_parent, hide_from_same_user
from .xauth import write_cookie

DISPLAY_TIMEOUT_S = 20
RESTARTS_PER_MINUTE = 5
PYTHON = "/usr/bin/python3"


@dataclass(frozen=True)
class Settings:
    """How this desktop is laid out. `display` None lets the X server choose; paths are as seen by the session."""

    width: int
    height: int
    sockets: str
    ledger: str
    logs: str
    runtime: str
    display: str | None = ":0"
    token_on_stdin: bool = False
    relays: list[str] = field(default_factory=list)
    marker: str = ""
    """In every program's environment as OSWORLD_DESKTOP, so that the host finds what an ended session left."""


@dataclass
class Service:
    """A program that is kept running. `feed` is written to its standard input."""

    name: str
    command: list[str]
    feed: str = ""
    process: subprocess.Popen[bytes] | None = None
    starts: list[float] = field(default_factory=list)


class Session:
    """Starts the services and keeps them running until the display or the session ends."""

    def __init__(self, settings: Settings, token: str) -> None:
        self._settings = settings
        self._token = token
        self._services: list[Service] = []
        self._stopping = False

    def run(self) -> int:
        """Bring the desktop up and stay until it ends; 0 when asked to stop, 1 when the display ended."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        Path(self._settings.runtime).mkdir(parents=True, exist_ok=True, mode=0o700)
        Path("/tmp/.X11-unix").mkdir(mode=0o1777, exist_ok=True)
        bus = f"unix:path={self._settings.runtime}/bus"
        os.environ["OSWORLD_DESKTOP"] = self._settings.marker
        os.environ["XDG_RUNTIME_DIR"] = self._settings.runtime
        os.environ["DBUS_SESSION_BUS_ADDRESS"] = bus
        os.chdir(os.environ["HOME"])
        display = self._start_display()
        # Programs the bus starts get its environment, so it needs to know the display: at once if that is fixed, else when chosen.
        start_bus = ["dbus-daemon", "--session", "--nofork", "--nopidfile", f"--address={bus}"]
        if self._settings.display is not None:
            os.environ["DISPLAY"] = self._settings.display
            self._keep("bus", start_bus)
            self._wait_for_display(display)
        else:
            os.environ["DISPLAY"] = self._wait_for_display(display)
            self._keep("bus", start_bus)
        subprocess.run(["xmodmap", "-e", "keycode 94 ="], check=False)
        folder = str(Path(__file__).parent)
        server = [PYTHON, folder, "server", "--ledger", self._settings.ledger, "--sockets", self._settings.sockets]
        server += [f"--relay={relay}" for relay in self._settings.relays]
        self._keep("server", [*server, "--token-stdin"], feed=self._token + "\n")
        self._wait_for(Path(self._settings.runtime, "bus"))
        self._keep("settings", ["xfsettingsd", "--no-daemon", "--disable-wm-check"])
        self._keep("window-manager", ["xfwm4", "--compositor=off"])
        self._keep("panel", ["xfce4-panel", "--disable-wm-check"])
        self._keep("background", ["xfdesktop", "--disable-wm-check"])
        self._keep("accessibility-bus", ["/usr/libexec/at-spi-bus-launcher", "--launch-immediately"])
        try:
            return self._watch(display)
        finally:
            # Asked, not killed, so that it removes its lock and its socket.
            display.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                display.wait(2)

    def _start_display(self) -> subprocess.Popen[bytes]:
        size = f"{self._settings.width}x{self._settings.height}x24"
        cookie = secrets.token_bytes(16)
        self._authority = Path(os.environ["HOME"], ".Xauthority")
        write_cookie(self._authority, cookie, socket.gethostname(), self._settings.display)
        os.environ["XAUTHORITY"] = str(self._authority)
        self._cookie = cookie
        self._display_reader, writer = os.pipe()
        command = ["Xvfb", *([self._settings.display] if self._settings.display else []), "-displayfd", str(writer)]
        command += ["-screen", "0", size, "-dpi", "96", "-nolisten", "tcp", "-noreset", "-auth", str(self._authority)]
        command += ["-extension", "GLX"]
        process = subprocess.Popen(
            command,
            pass_fds=[writer],
            stdin=subprocess.DEVNULL,
            stderr=self._log("display"),
            preexec_fn=end_with_parent,  # noqa: PLW1509 - one thread
        )
        os.close(writer)
        return process

    def _wait_for_display(self, display: subprocess.Popen[bytes]) -> str:
        signal.alarm(DISPLAY_TIMEOUT_S)
        with os.fdopen(self._display_reader) as reader:
            # To the end of the line: the X server writes number and newline apart, and dies if nobody reads the second.
            number = reader.readline().strip()
        signal.alarm(0)
        if not number:
            raise RuntimeError(f"Xvfb ended with {display.wait()}; see its log")
        write_cookie(self._authority, self._cookie, socket.gethostname(), f":{number}")
        return f":{number}"

    @staticmethod
    def _wait_for(path: Path) -> None:
        deadline = time.monotonic() + 10
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.005)

    def _keep(self, name: str, command: list[str], feed: str = "") -> None:
        service = Service(name, command, feed)
        self._services.append(service)
        self._start(service)

    def _start(self, service: Service) -> None:
        service.starts.append(time.monotonic())
        try:
            service.process = subprocess.Popen(
                service.command,
                stdin=subprocess.PIPE if service.feed else subprocess.DEVNULL,
                stdout=(log := self._log(service.name)),
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - one thread
            )
        except OSError as error:
            self._say(f"{service.name} cannot be started: {error}")
            return
        if service.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                service.process.stdin.write(service.feed.encode())
                service.process.stdin.close()

    def _log(self, name: str) -> int:
        return os.open(Path(self._settings.logs, f"{name}.log"), os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def _say(self, text: str) -> None:
        sys.stderr.write(f"session: {text}\n")
        sys.stderr.flush()

    def _watch(self, display: subprocess.Popen[bytes]) -> int:
        while not self._stopping:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                return 1
            except InterruptedError:
                continue
            if pid == display.pid:
                self._say(f"the display ended with status {status}")
                return 1
            for service in self._services:
                if service.process is not None and service.process.pid == pid:
                    self._restart(service, status)
        return 0

    def _restart(self, service: Service, status: int) -> None:
        if self._stopping:
            return
        self._say(f"{service.name} ended with status {status}; starting it again")
        recent = [start for start in service.starts if time.monotonic() - start < 60]
        if len(recent) > RESTARTS_PER_MINUTE:
            self._say(f"{service.name} ended {len(recent)} times within a minute and is left alone")
            return
        self._start(service)

    def _stop(self, *_: object) -> None:
        self._stopping = True
        raise InterruptedError


def end_descendants() -> None:
    """Kill what is left below this process, also what took a session of its own."""
    for _ in range(50):
        children = _children(os.getpid())
        if not children:
            return
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def _children(ancestor: int) -> list[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found, layer = [], [ancestor]
    while layer:
        layer = [pid for pid, parent in parents.items() if parent in layer and pid != ancestor]
        found += layer
    return found


def main() -> int:
    """Run the session described by the JSON in the first argument."""
    settings = Settings(**json.loads(sys.argv[1]))
    token = ""
    if settings.token_on_stdin:
        token = sys.stdin.read().strip()
    hide_from_same_user()
    adopt_orphans()
    try:
        return Session(settings, token).run()
    except InterruptedError:
        return 0
    except (OSError, RuntimeError) as error:
        sys.stderr.write(f"session: {error}\n")
        return 1
    finally:
        end_descendants()
