"""OSWorld's endpoints, in the formats `desktop-env` 1.0.2 and the canonical tasks rely on."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import files, wallpaper
from .accessibility import TreeReader
from .execute import CommandTimeout, Outcome, parse_command, run_command, start_in_background
from .forkserver import ForkServer, ForkServerDied, ForkServerUnavailable, python_code
from .readiness import Readiness
from .recording import Recorder
from .screenshot import Screen
from .windows import Windows
from .wire import ApiError, Reply, Request

if TYPE_CHECKING:
    from collections.abc import Callable

ACTIVATE_WAIT_S = 10.0
"""How long a window is waited for: tasks ask to activate windows of programs they launched a moment before."""
OPEN_TIMEOUT_S = 1800.0
PYTHON_TIMEOUT_S = 30.0
BASH_TIMEOUT_S = 100.0


@dataclass(frozen=True)
class Route:
    """One endpoint. `effect` says whether it may change the desktop, so that its operation headers count."""

    answer: Callable[[Request, float], Reply]
    effect: bool


class Endpoints:
    """The desktop as the endpoints see it: screen, windows, fork server, recorder, accessibility."""

    def __init__(self) -> None:
        self.screen = Screen()
        self.windows = Windows()
        self.fork_server = ForkServer()
        self.recorder = Recorder()
        self.tree = TreeReader()
        self.readiness = Readiness(self.screen, self.windows)
        reads = {
            ("GET", "/screenshot"): self._screenshot,
            ("GET", "/terminal"): self._terminal,
            ("GET", "/accessibility"): self._accessibility,
            ("GET", "/platform"): lambda _request, _timeout: Reply.text(platform.system()),
            ("GET", "/cursor_position"): lambda _request, _timeout: Reply.json(list(self.windows.cursor())),
            ("POST", "/file"): lambda request, _timeout: files.send_file(request),
            ("POST", "/screen_size"): self._screen_size,
            ("POST", "/window_size"): self._window_size,
            ("POST", "/wallpaper"): lambda _request, _timeout: wallpaper.current(),
            ("POST", "/desktop_path"): self._desktop_path,
            ("POST", "/list_directory"): self._list_directory,
        }
        effects = {
            "/execute": self._execute,
            "/setup/execute": self._execute,
            "/execute_with_verification": self._execute_verified,
            "/setup/execute_with_verification": self._execute_verified,
            "/setup/launch": self._launch,
            "/setup/upload": lambda request, _timeout: files.receive_file(request),
            "/setup/download_file": self._download,
            "/setup/open_file": self._open_file,
            "/setup/activate_window": self._activate_window,
            "/setup/close_window": self._close_window,
            "/setup/change_wallpaper": lambda request, _timeout: wallpaper.change(request.json_object().get("path")),
            "/run_python": self._run_python,
            "/run_bash_script": self._run_bash_script,
            "/start_recording": lambda _request, _timeout: self.recorder.start(*self.screen.size()),
            "/end_recording": lambda _request, _timeout: self.recorder.stop(),
        }
        self._routes = {key: Route(answer, effect=False) for key, answer in reads.items()}
        self._routes |= {("POST", path): Route(answer, effect=True) for path, answer in effects.items()}

    def route(self, method: str, path: str) -> Route:
        """The endpoint for this request.

        Raises:
            ApiError: 404 for an unknown path, 405 for a known one with another method.
        """
        route = self._routes.get((method, path))
        if route is not None:
            return route
        allowed = sorted(known for known, known_path in self._routes if known_path == path)
        if allowed:
            raise ApiError(405, "method_not_allowed", f"{path} takes {' or '.join(allowed)}, not {method}")
        raise ApiError(404, "unknown_endpoint", f"there is no endpoint {path}")

    def health(self) -> dict[str, Any]:
        """Whether the desktop can be worked on, and what is missing."""
        return self.readiness.report()

    def warm_up(self) -> None:
        """Import pyautogui before the first action asks for it."""

        def start() -> None:
            with contextlib.suppress(ForkServerUnavailable):
                self.fork_server.start()

        threading.Thread(target=start, name="warm-up", daemon=True).start()

    def _screenshot(self, _request: Request, _timeout: float) -> Reply:
        return Reply(body=self.screen.png(), content_type="image/png")

    def _terminal(self, _request: Request, _timeout: float) -> Reply:
        return Reply.json({"output": self.tree.ask("terminal"), "status": "success"})

    def _accessibility(self, _request: Request, _timeout: float) -> Reply:
        return Reply.json({"AT": self.tree.ask("tree")})

    def _screen_size(self, _request: Request, _timeout: float) -> Reply:
        width, height = self.screen.size()
        return Reply.json({"width": width, "height": height})

    def _window_size(self, request: Request, _timeout: float) -> Reply:
        name = request.form.get("app_class_name")
        if not name:
            raise ApiError(400, "bad_request", "form field app_class_name is required")
        window = self.windows.find(name, by_class=True)
        if window is None:
            raise ApiError(404, "window_not_found", f"no window has the class {name!r}")
        return Reply.json({"width": window.width, "height": window.height})

    def _desktop_path(self, _request: Request, _timeout: float) -> Reply:
        path = Path.home() / "Desktop"
        if not path.is_dir():
            raise ApiError(404, "file_not_found", f"there is no folder {path}")
        return Reply.json({"desktop_path": str(path)})

    def _list_directory(self, request: Request, _timeout: float) -> Reply:
        path = request.json_object().get("path")
        if not path:
            raise ApiError(400, "bad_request", "path is required")
        return Reply.json({"directory_tree": files.directory_tree(path)})

    def _execute(self, request: Request, timeout: float) -> Reply:
        command, shell = parse_command(request.json_object())
        outcome = self._run(command, shell, timeout)
        return Reply.json({"status": "success", **_streams(outcome)})

    def _run(self, command: list[str] | str, shell: bool, timeout: float) -> Outcome:
        try:
            code = python_code(command, shell)
            if code is not None:
                with contextlib.suppress(ForkServerUnavailable):
                    return self.fork_server.run(code, timeout)
            return run_command(command, shell=shell, timeout=timeout)
        except CommandTimeout as late:
            raise ApiError(500, "command_timeout", str(late), **_partial(late.outcome)) from late
        except ForkServerDied as error:
            raise ApiError(500, "operation_interrupted", str(error)) from error
        except (OSError, ValueError) as error:
            raise ApiError(500, "command_not_started", f"{command!r} could not be started: {error}") from error

    def _execute_verified(self, request: Request, timeout: float) -> Reply:
        data = request.json_object()
        command, shell = parse_command(data)
        outcome = self._run(command, shell, timeout)
        verification = data.get("verification") or {}
        deadline = time.monotonic() + float(data.get("max_wait_time", 10))
        interval = float(data.get("check_interval", 1))
        while (lacks := self._lacks(verification, timeout)) is not None:
            if time.monotonic() >= deadline:
                raise ApiError(500, "verification_failed", lacks, **_partial(outcome))
            time.sleep(interval)
        return Reply.json({"status": "success", **_streams(outcome), "verification": "passed"})

    def _lacks(self, verification: dict[str, Any], timeout: float) -> str | None:
        window = verification.get("window_exists")
        if window and self.windows.find(window) is None:
            return f"no window has {window!r} in its title"
        command = verification.get("command_success")
        if command:
            try:
                check = run_command(command, shell=isinstance(command, str), timeout=min(timeout, 10))
            except (CommandTimeout, OSError) as error:
                return f"the check {command!r} did not run: {error}"
            if check.returncode != 0:
                return f"the check {command!r} returned {check.returncode}"
        return None

    def _launch(self, request: Request, _timeout: float) -> Reply:
        command, shell = parse_command(request.json_object())
        try:
            start_in_background(command, shell=shell)
        except OSError as error:
            raise ApiError(500, "command_not_started", f"{command!r} could not be started: {error}") from error
        return Reply.text(f"{command if shell else ' '.join(command)} launched successfully")

    def _download(self, request: Request, _timeout: float) -> Reply:
        data = request.json_object()
        return files.download(data.get("url", ""), data.get("path", ""))

    def _open_file(self, request: Request, timeout: float) -> Reply:
        name = request.json_object().get("path")
        if not name:
            raise ApiError(400, "bad_request", "path is required")
        path = Path(files.expand(name))
        if path.exists():
            command = ["xdg-open", str(path)]
        elif shutil.which(name):
            command = [name]
        else:
            raise ApiError(404, "file_not_found", f"there is no file or program {name}")
        start_in_background(command)
        wait = OPEN_TIMEOUT_S if "X-Operation-Timeout" not in request.headers else timeout
        window = self.windows.wait_for(lambda: self.windows.showing(path), wait)
        if window is None:
            raise ApiError(500, "window_not_found", f"no window with {path.name!r} in its title within {wait:g} s")
        self.windows.activate(window)
        return Reply.text("File opened and window activated successfully")

    def _activate_window(self, request: Request, timeout: float) -> Reply:
        window = self._requested_window(request, min(timeout, ACTIVATE_WAIT_S))
        self.windows.activate(window)
        return Reply.text("Window activated successfully")

    def _close_window(self, request: Request, timeout: float) -> Reply:
        window = self._requested_window(request, min(timeout, ACTIVATE_WAIT_S))
        self.windows.close(window)
        return Reply.text("Window closed successfully.")

    def _requested_window(self, request: Request, wait: float) -> Any:
        data = request.json_object()
        name = data.get("window_name")
        if not name:
            raise ApiError(400, "bad_request", "window_name is required")
        strict, by_class = bool(data.get("strict")), bool(data.get("by_class"))
        window = self.windows.wait_for(lambda: self.windows.find(name, strict=strict, by_class=by_class), wait)
        if window is None:
            what = "class" if by_class else "title"
            raise ApiError(404, "window_not_found", f"no window with the {what} {name!r} appeared within {wait:g} s")
        return window

    def _run_python(self, request: Request, timeout: float) -> Reply:
        data = request.json_object()
        code = data.get("code")
        if not code:
            raise ApiError(400, "bad_request", "code is required")
        limit = float(data.get("timeout") or min(timeout, PYTHON_TIMEOUT_S))
        handle, path = tempfile.mkstemp(prefix="python_exec_", suffix=".py")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(code)
            outcome = run_command(["python3", path], timeout=limit)
        except CommandTimeout as late:
            raise ApiError(500, "command_timeout", str(late), need_more=False, **_partial(late.outcome)) from late
        finally:
            Path(path).unlink()
        streams = _streams(outcome, "return_code")
        if outcome.returncode != 0 and not outcome.error:
            streams["error"] = f"Process exited with code {outcome.returncode}"
        message = "\n".join(text for text in (streams["output"], streams["error"]) if text)
        status = "success" if outcome.returncode == 0 else "error"
        return Reply.json({"status": status, "message": message, "need_more": False, **streams})

    def _run_bash_script(self, request: Request, _timeout: float) -> Reply:
        data = request.json_object()
        script = data.get("script")
        if not script:
            raise ApiError(400, "bad_request", "script is required")
        folder = data.get("working_dir")
        if folder and not Path(folder := files.expand(folder)).is_dir():
            raise ApiError(400, "not_a_directory", f"there is no folder {folder}", returncode=-1)
        limit = float(data.get("timeout") or BASH_TIMEOUT_S)
        handle, path = tempfile.mkstemp(prefix="bash_exec_", suffix=".sh")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(script)
            outcome = run_command(["/bin/bash", path], timeout=limit, cwd=folder or None, merge=True)
        except CommandTimeout:
            # OSWorld answers 500 here, which its client takes for a lost request and runs the script again.
            text = f"Script execution timed out after {limit:g} seconds"
            return Reply.json({"status": "error", "output": text, "error": "", "returncode": -1})
        finally:
            Path(path).unlink()
        status = "success" if outcome.returncode == 0 else "error"
        return Reply.json({"status": status, **_streams(outcome)})


def _partial(outcome: Outcome) -> dict[str, Any]:
    # "error" of an error reply says what went wrong, so what was printed there is called `stderr`.
    return {"output": outcome.output, "stderr": outcome.error, "returncode": outcome.returncode}


def _streams(outcome: Outcome, code_name: str = "returncode") -> dict[str, Any]:
    return {"output": outcome.output, "error": outcome.error, code_name: outcome.returncode}
