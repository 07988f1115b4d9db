"""OSWorld's DesktopEnv attached to a lease: its setup steps, getters, metrics and verdict, without its machines.

Only the evaluator's own process imports this module; importing `desktop_env` costs seconds and 300 MB. Nothing of the package is replaced:
the subclasses have their own constructor and their own loop over setup steps, and every step is the inherited method. What the loop
of the package does besides (polling `/terminal` for 100 s, then going on without the machine) is the gateway's task here.
"""

from __future__ import annotations

import copy
import logging
from typing import TYPE_CHECKING, Any

from desktop_env.controllers.python import PythonController
from desktop_env.controllers.setup import SetupController
from desktop_env.desktop_env import DesktopEnv
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Callable

StepFailure = dict[str, Any]
"""What the gateway says about a step that failed: kind, message, command, output."""

_PAGE_WARNING = "exceeds time limit"


class StepFailed(Exception):
    """A setup step failed: it raised (`cause`), or the gateway found that it did not do what it says (`failure`)."""

    def __init__(self, number: int, step_type: str, cause: BaseException | None, failure: StepFailure | None) -> None:
        message = failure["message"] if failure else f"{type(cause).__name__}: {cause}"
        super().__init__(message)
        self.number = number
        self.step_type = step_type
        self.cause = cause
        self.failure = failure


class LeasedSetupController(SetupController):
    """OSWorld's setup steps, each announced before it runs and judged after it."""

    announce: Callable[[int, dict[str, Any]], None]
    judge: Callable[[int], StepFailure | None]

    def setup(self, config: list[dict[str, Any]], use_proxy: bool = False) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride] - the package's own has no usable types
        """Run the steps in order; the first that fails ends it.

        Raises:
            StepFailed: naming the step.
        """
        self.use_proxy = use_proxy
        for number, step in enumerate(config, start=1):
            self.announce(number, step)
            cause: BaseException | None = None
            try:
                # Steps change their parameters (`launch` appends to the command), and the task file is evidence.
                getattr(self, f"_{step['type']}_setup")(**copy.deepcopy(step.get("parameters", {})))
            except Exception as error:  # noqa: BLE001 - attributed to its step below, with its traceback
                cause = error
            failure = self.judge(number)
            if failure is not None or cause is not None:
                raise StepFailed(number, step["type"], cause, failure) from cause
        return True

    def _chrome_open_tabs_setup(self, urls_to_open: list[str]) -> Any:
        """The inherited step, which only logs a page that could not be loaded, and then a look at what the tabs show.

        Raises:
            RuntimeError: a tab shows Chrome's error page. A page that is merely slow is accepted, as by the package.
        """
        slow = _Remembered(logging.getLogger("desktopenv.setup"), _PAGE_WARNING)
        with slow:
            result = super()._chrome_open_tabs_setup(urls_to_open)
        if slow.records:
            broken = sum(url.startswith("chrome-error://") for url in self._tab_addresses())
            if broken:
                raise RuntimeError(
                    f"{broken} of {len(urls_to_open)} tabs could not be loaded: {', '.join(slow.records)}"
                )
        return result

    def _tab_addresses(self) -> list[str]:
        """What the tabs' own documents call themselves; the list of tabs (`/json/list`) names what was asked for instead."""
        with sync_playwright() as driver:
            browser = driver.chromium.connect_over_cdp(f"http://{self.vm_ip}:{self.chromium_port}")
            pages = [page for context in browser.contexts for page in context.pages]
            return [str(page.evaluate("location.href")) for page in pages]


class LeasedDesktopEnv(DesktopEnv):
    """DesktopEnv of one task on one leased desktop, reached through the gateway's ports on the loopback address."""

    def __init__(  # pyright: ignore[reportMissingSuperCall] - the inherited one boots a machine
        self,
        *,
        ports: dict[str, int],
        cache_dir: str,
        screen_size: tuple[int, int],
        client_password: str,
        last_action: str | None,
    ) -> None:
        # What the inherited constructor sets, as far as reset, setup, getters and evaluate read it.
        self.region = None
        self.provider_name = "lease"
        self.enable_proxy = False
        self.current_use_proxy = False
        self.client_password = client_password
        self.screen_width, self.screen_height = screen_size
        self.os_type = "Ubuntu"
        self.manager = None
        self.provider = None
        self.is_environment_used = False
        self.path_to_vm = ""
        self.snapshot_name = ""
        self.cache_dir_base = cache_dir
        self.headless = True
        self.require_a11y_tree = False
        self.require_terminal = False
        self.instruction = None
        self.action_space = "pyautogui"  # pyright: ignore[reportAttributeAccessIssue] - the package gives gym's name to a text
        self._traj_no = 0
        self._step_no = 0
        # The package asks only whether the last one is the text FAIL.
        self.action_history = [] if last_action is None else [last_action]  # pyright: ignore[reportAttributeAccessIssue]
        self.vm_ip = "127.0.0.1"
        self.server_port = ports["server"]
        self.chromium_port = ports["chromium"]
        self.vlc_port = ports["vlc"]
        self.vnc_port = 0
        self.controller = PythonController(vm_ip=self.vm_ip, server_port=self.server_port)
        self.setup_controller = LeasedSetupController(
            vm_ip=self.vm_ip,
            server_port=self.server_port,
            chromium_port=self.chromium_port,
            vlc_port=self.vlc_port,
            cache_dir=self.cache_dir_base,
            client_password=self.client_password,
            screen_width=self.screen_width,
            screen_height=self.screen_height,
        )

    def _start_emulator(self) -> None:
        raise NotImplementedError("a leased desktop is made and removed by its provider")

    def _revert_to_snapshot(self) -> None:
        raise NotImplementedError("a leased desktop is not reverted; a new execution gets a new one")

    def close(self) -> None:
        """Nothing: the lease is the provider's."""

    def attach(
        self,
        task: dict[str, Any],
        announce: Callable[[int, dict[str, Any]], None],
        judge: Callable[[int], StepFailure | None],
    ) -> None:
        """Take the task, as the inherited `reset` does."""
        self._set_task_info(task)
        self.setup_controller.reset_cache_dir(self.cache_dir)
        self.setup_controller.announce = announce
        self.setup_controller.judge = judge


class _Remembered(logging.Handler):
    """Remembers log messages that contain a text, while used as a context manager."""

    def __init__(self, logger: logging.Logger, text: str) -> None:
        super().__init__()
        self._logger = logger
        self._text = text
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if self._text in message:
            self.records.append(message)

    def __enter__(self) -> None:
        self._logger.addHandler(self)

    def __exit__(self, *_error: object) -> None:
        self._logger.removeHandler(self)
