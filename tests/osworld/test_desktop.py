"""OSWorld's code on a real desktop where the canonical tasks do not reach: files, office documents, tabs, and a desktop that goes away."""

from __future__ import annotations

import asyncio
import json

import pytest

from osworld_rollouts.desktops.guest_client import GuestClient, Operation
from osworld_rollouts.osworld.job import EvaluationFailed, FailureKind, PrepareFailed
from tests.osworld.rig import EXECUTION, step, task

pytestmark = pytest.mark.desktop

CHROME = (
    step("launch", command=["google-chrome", "--remote-debugging-port=1337"]),
    step("launch", command=["socat", "tcp-listen:9222,fork", "tcp:localhost:1337"]),
)
PAGE = "file:///home/user/page.html"


async def in_guest(rig, code: str, seq: int) -> None:
    async with GuestClient(socket=rig.guest.server_socket, token=rig.guest.token) as client:
        done = await client.execute(["python", "-c", code], operation=Operation(f"{EXECUTION}/t0/o{seq}", seq, 1))
    assert done.returncode == 0, done


async def settled(rig) -> None:
    """Wait until the screen no longer changes; LibreOffice shows its window some seconds before its document."""
    async with GuestClient(socket=rig.guest.server_socket, token=rig.guest.token) as client:
        frames = [await client.screenshot()]
        for _ in range(30):
            await asyncio.sleep(1)
            frames.append(await client.screenshot())
            if len(frames) > 5 and frames[-1] == frames[-2] == frames[-3]:
                return


def spreadsheet(path, value) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active["A1"] = value
    book.save(path)


async def test_a_spreadsheet_is_downloaded_opened_edited_saved_and_compared(real_rig, tmp_path):
    """The whole way of the office tasks, offline: the store is filled beforehand, as `fetch` would."""
    urls = {name: f"https://files.invalid/{name}.xlsx" for name in ("book", "gold")}
    for name, value in (("book", 1), ("gold", 5)):
        spreadsheet(tmp_path / f"{name}.xlsx", value)
        real_rig.evaluator.files.add(urls[name], tmp_path / f"{name}.xlsx")
    window = {"window_name": "book.xlsx - LibreOffice Calc", "strict": True}
    keep_format = (
        "import pyautogui, time; pyautogui.hotkey('ctrl', 's'); time.sleep(2); pyautogui.press('enter'); time.sleep(2)"
    )
    document = task(
        [
            step("download", files=[{"url": urls["book"], "path": "/home/user/book.xlsx"}]),
            step("open", path="/home/user/book.xlsx"),
            step("activate_window", **window),
        ],
        func="compare_table",
        postconfig=[step("activate_window", **window), step("execute", command=["python", "-c", keep_format])],
        result={"type": "vm_file", "path": "/home/user/book.xlsx", "dest": "book.xlsx"},
        expected={"type": "cloud_file", "path": urls["gold"], "dest": "gold.xlsx"},
        options={"rules": [{"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}]},
    )
    prepared = await real_rig.prepare(document)
    await settled(real_rig)
    await in_guest(
        real_rig,
        "import pyautogui; pyautogui.hotkey('ctrl', 'home'); pyautogui.write('5'); pyautogui.press('enter')",
        prepared.next_seq,
    )
    posted = await real_rig.post_steps(document, first_seq=prepared.next_seq + 1)
    assert posted.notes == ()
    report = await real_rig.evaluate(document)
    assert report.score == 1.0, report.log.decode()
    assert report.files.keys() >= {"book.xlsx", "gold.xlsx"}


async def test_tabs_are_opened_and_read_through_the_gateway(real_rig):
    document = task(
        [
            step("execute", command="echo '<title>a page</title>' > /home/user/page.html", shell=True),
            *CHROME,
            step("chrome_open_tabs", urls_to_open=[PAGE]),
        ],
        func="is_expected_tabs",
        result={"type": "open_tabs_info"},
        expected={"type": "rule", "rules": {"type": "url", "urls": [PAGE]}},
    )
    prepared = await real_rig.prepare(document)
    report = await real_rig.evaluate(document)
    assert report.score == 1.0, report.log.decode()
    await in_guest(
        real_rig, "import subprocess, time; subprocess.run(['pkill', 'chrome']); time.sleep(1)", prepared.next_seq
    )
    closed = await real_rig.evaluate(document)
    assert closed.score == 0.0, "the agent closed the browser: that is its own doing"


async def test_a_page_that_cannot_be_loaded_fails_the_setup(real_rig):
    with pytest.raises(PrepareFailed) as caught:
        await real_rig.prepare(task([*CHROME, step("chrome_open_tabs", urls_to_open=["https://example.com/"])]))
    assert (caught.value.step, caught.value.step_type) == (3, "chrome_open_tabs")
    assert "could not be loaded" in caught.value.message


async def test_a_program_the_desktop_does_not_have_fails_the_setup(real_rig):
    with pytest.raises(PrepareFailed) as caught:
        await real_rig.prepare(task([step("launch", command=["no-such-program"])]))
    assert caught.value.kind is FailureKind.STEP_FAILED
    assert "no-such-program" in caught.value.command


async def test_an_action_that_kills_what_runs_it_is_indeterminate(real_rig):
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(PrepareFailed) as caught:
        await real_rig.prepare(task([step("execute", command=["python", "-c", code])]))
    assert caught.value.kind in {FailureKind.STEP_FAILED, FailureKind.INDETERMINATE}
    assert caught.value.step == 1


async def test_a_desktop_that_goes_away_during_evaluation_is_no_zero(real_rig, desktop):
    from osworld_rollouts.desktops.local import LocalDesktopProvider

    provider = LocalDesktopProvider(desktop.state_dir.parents[1])
    document = task(
        func="exact_match",
        result={"type": "vm_command_line", "command": ["sleep", "20"]},
        expected={"type": "rule", "rules": {"expected": "x"}},
    )
    evaluating = asyncio.ensure_future(real_rig.evaluate(document))
    while not any("/execute" in beat for beat in real_rig.beats):
        await asyncio.sleep(0.1)
    await provider.destroy(desktop.lease_id)
    with pytest.raises(EvaluationFailed) as caught:
        await evaluating
    assert caught.value.kind is FailureKind.UNREACHABLE


async def test_the_ledger_of_the_desktop_holds_every_setup_step_once(real_rig):
    await real_rig.prepare(task([step("execute", command=["true"]), step("execute", command=["true"])]))
    async with GuestClient(socket=real_rig.guest.server_socket, token=real_rig.guest.token) as client:
        entries = json.loads((await client.ask("GET", "/operations")).body)["operations"]
    assert [(entry["operation_id"], entry["seq"], entry["state"]) for entry in entries] == [
        (f"{EXECUTION}/setup/o{number}", number, "finished") for number in (0, 1)
    ]
