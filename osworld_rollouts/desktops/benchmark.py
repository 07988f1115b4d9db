"""Measure a desktop of this host: `python -m osworld_rollouts.desktops.benchmark [--json] [--runs 3] [--state-dir DIR]`.

Prints medians with their targets. Nothing is kept; every desktop made is removed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from osworld_rollouts.contracts.desktop import DesktopSpec, LeaseOwner
from osworld_rollouts.desktops._provider import DesktopError
from osworld_rollouts.desktops.guest_client import GuestClient, Operation
from osworld_rollouts.desktops.local import LocalDesktopProvider, processes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from osworld_rollouts.desktops._provider import DesktopRecord

PYAUTOGUI_PAUSE_MS = 100.0
"""What `pyautogui.click` waits by itself (`pyautogui.PAUSE`)."""
SETTLE_S = 3.0


@dataclass(frozen=True)
class Measure:
    """One figure: median, worst and number of readings, in `unit`; `target` is what it should stay below."""

    name: str
    median: float
    worst: float
    readings: int
    unit: str
    target: float | None = None

    def line(self) -> str:
        """The figure as one line of the table."""
        limit = (
            ""
            if self.target is None
            else f"  target < {self.target:g}: {'ok' if self.median < self.target else 'MISSED'}"
        )
        return f"{self.name:<46}{self.median:9.1f} {self.unit:<3} worst {self.worst:9.1f}  n={self.readings}{limit}"


async def measure(provider: LocalDesktopProvider, runs: int) -> list[Measure]:
    """Make `runs` desktops one after the other and measure them.

    Raises:
        DesktopError: a desktop could not be made.
    """
    await _one(provider, [], [], lambda _: _nothing())
    ready: list[float] = []
    teardown: list[float] = []
    found: list[Measure] = []

    async def inside(record: DesktopRecord) -> None:
        found.extend(await _inside(record))

    for run in range(runs):
        await _one(provider, ready, teardown, inside if run == runs - 1 else lambda _: _nothing())
    return [
        _measure("create to ready (panel painted)", ready, "ms", 2000),
        *found,
        _measure("teardown", teardown, "ms"),
    ]


async def _one(
    provider: LocalDesktopProvider,
    ready: list[float],
    teardown: list[float],
    inside: Callable[[DesktopRecord], Awaitable[None]],
) -> None:
    lease = f"benchmark/{uuid.uuid4()}"
    owner = LeaseOwner(workflow_id=f"benchmark/{os.getpid()}", run_id="", execution_id="")
    try:
        started = time.perf_counter()
        record = await provider.create(DesktopSpec(), lease, owner)
        ready.append((time.perf_counter() - started) * 1000)
        await inside(record)
    finally:
        started = time.perf_counter()
        await provider.destroy(lease)
        teardown.append((time.perf_counter() - started) * 1000)


async def _nothing() -> None:
    return


async def _inside(record: DesktopRecord) -> list[Measure]:
    async with GuestClient.of(record) as guest:
        await guest.execute(["python", "-c", "import pyautogui"])
        await asyncio.sleep(SETTLE_S)
        memory = _memory(record.marker)
        clicks = await _times(
            20, lambda i: guest.execute(["python", "-c", f"import pyautogui; pyautogui.click({700 + i}, 500)"])
        )
        recorded = await _times(
            20,
            lambda i: guest.execute(
                ["python", "-c", f"import pyautogui; pyautogui.click({700 + i}, 520)"],
                operation=Operation(f"click/{i}", i, 1),
            ),
        )
        cold = await _times(
            5, lambda i: guest.execute(["python3", "-B", "-c", f"import pyautogui; pyautogui.click({700 + i}, 500)"])
        )
        same = await _times(20, lambda _: guest.screenshot())
        changed = [await _changed_screenshot(guest, i) for i in range(20)]
        await guest.setup("launch", {"command": ["libreoffice", "--calc"]})
        await guest.setup("activate_window", {"window_name": "LibreOffice Calc"}, timeout=60)
        await asyncio.sleep(SETTLE_S)
        calc = [await _changed_screenshot(guest, i) for i in range(20)]
        tree = await _times(3, lambda _: guest.accessibility_tree())
        return [
            Measure("memory, idle (PSS)", memory, memory, 1, "MB", 250),
            _measure("screenshot over HTTP, unchanged screen", same, "ms", 40),
            _measure("screenshot over HTTP, changed screen", changed, "ms", 40),
            _measure("screenshot over HTTP, changed, Calc open", calc, "ms", 40),
            _measure("click besides pyautogui's pause", [t - PYAUTOGUI_PAUSE_MS for t in clicks], "ms", 30),
            _measure(
                "click as a recorded operation, besides the pause", [t - PYAUTOGUI_PAUSE_MS for t in recorded], "ms", 30
            ),
            _measure("click by a cold interpreter, besides the pause", [t - PYAUTOGUI_PAUSE_MS for t in cold], "ms"),
            _measure("accessibility tree, Calc open", tree, "ms"),
        ]


async def _changed_screenshot(guest: GuestClient, step: int) -> float:
    await guest.execute(
        ["python", "-c", f"import pyautogui; pyautogui.PAUSE = 0; pyautogui.moveTo({300 + 7 * step}, {300 + step})"]
    )
    started = time.perf_counter()
    await guest.screenshot()
    return (time.perf_counter() - started) * 1000


async def _times(count: int, do: Callable[[int], Awaitable[object]]) -> list[float]:
    times: list[float] = []
    for index in range(count):
        started = time.perf_counter()
        await do(index)
        times.append((time.perf_counter() - started) * 1000)
    return times


def _memory(marker: str) -> float:
    """Proportional set size of a desktop's processes in MB (pages shared with other processes count in part)."""
    total = 0
    for pid in processes.tree(marker):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def _measure(name: str, readings: list[float], unit: str, target: float | None = None) -> Measure:
    return Measure(name, statistics.median(readings), max(readings), len(readings), unit, target)


def main() -> int:
    """Run the benchmark; exit code 1 when a target is missed, 2 when no desktop can be made."""
    parser = argparse.ArgumentParser(prog="osworld_rollouts.desktops.benchmark", description="Measure a local desktop.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--runs", type=int, default=3, help="desktops made for the create and teardown figures")
    parser.add_argument("--tier", default="auto", choices=["auto", "bubblewrap", "process"])
    parser.add_argument(
        "--state-dir", type=Path, default=Path(tempfile.gettempdir()) / f"osworld-benchmark-{os.getuid()}"
    )
    options = parser.parse_args()
    provider = LocalDesktopProvider(options.state_dir, tier=options.tier)
    try:
        measures = asyncio.run(measure(provider, options.runs))
    except DesktopError as error:
        sys.stderr.write(f"no desktop can be measured: {error}\n")
        return 2
    load = os.getloadavg()[0]
    if options.json:
        facts = {"load": load, "cpus": os.cpu_count(), "measures": [asdict(one) for one in measures]}
        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        sys.stdout.write("".join(f"{one.line()}\n" for one in measures))
        sys.stdout.write(f"{os.cpu_count()} CPUs, load at the end {load:.1f}\n")
    return int(any(one.target is not None and one.median >= one.target for one in measures))


if __name__ == "__main__":
    sys.exit(main())
