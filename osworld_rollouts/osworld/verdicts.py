"""What a guest's reply means: a failure of the machine, a failed step, the agent's own doing, or nothing.

`desktop-env` only logs most of this and goes on. The rules, and why:

- *Setup* puts a fresh desktop into the state the task asks for, and nobody has acted yet. So every effect must succeed: status 200,
  return code 0. Exceptions: an `until` step is judged by its own condition, because polling is what it is for; and the few
  steps in `TOLERATED`, which return non-zero on OSWorld's own image too.
- *Post-steps* run on what the agent left. A window it closed, a file it did not write, a program it ended make `activate_window`, `zip`,
  `grep` or `killall` fail: that is the agent's doing, noted, and the evaluator decides. But a command that the guest does
  not have (126, 127), an installation that fails, and any HTTP error of a command are the machine's: they fail the step, because the
  evaluator would score their consequences as the agent's.
- *Evaluation* only reads. An HTTP error, a lost connection or a timeout means that the evaluator did not see the desktop, so its
  number is worthless even if it is one. Only 400, 403 and 404 of a read speak of what the agent left (a folder where a file should
  be, a file nobody may read, none at all): then the evaluator's number counts. A getter's command that ran into the guest's limit
  is no verdict either, but asking again would not help.
- In every phase a refused operation (401, 409) or a ledger that cannot be written (507) ends the job at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from osworld_rollouts.osworld.exchanges import Exchange, command_text
from osworld_rollouts.osworld.job import FailureKind


class Phase(StrEnum):
    """Which part of an execution a job is."""

    SETUP = "setup"
    POST = "post"
    EVALUATE = "evaluate"


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the task file; `number` counts from 1, 0 stands for what happens outside any step."""

    number: int = 0
    type: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    task_id: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A failure, or with `fails` false a note for the record."""

    kind: FailureKind
    message: str
    exchange: Exchange
    fails: bool = True


READS = frozenset(
    {"/file", "/screen_size", "/window_size", "/wallpaper", "/desktop_path", "/list_directory", "/cursor_position"}
)
"""POST endpoints without an effect on the desktop; GET never has one."""
COMMANDS = frozenset(
    {"/execute", "/setup/execute", "/setup/execute_with_verification", "/run_python", "/run_bash_script"}
)
WINDOWS = frozenset({"/setup/activate_window", "/setup/close_window"})

TOLERATED: dict[tuple[str, int], str] = {
    ("a462a795-fdc7-4b23-b689-e8b6df786b78", 1): "`su - charles`: no such user on OSWorld's image; the task is infeasible because of it",
    ("5812b315-e7bd-4265-b51f-863c02174c28", 1): "`mkdir /home/test1`: only root may, and the agent is asked to",
    ("48c46dc7-fe04-4505-ade7-723cba1aa6f6", 5): "`update-desktop-database`: system folders are not the user's to write; the copy made before is what counts",
}  # fmt: skip
"""Setup steps of canonical tasks (task id, step from 1) that return non-zero on OSWorld's own image, with the reason."""

_INSTALLER = re.compile(r"\b(apt|apt-get|pip3?|npm|snap)\b[^|;&]*\binstall\b")
_NOT_FOUND = frozenset({126, 127})
_AGENTS = frozenset({400, 403, 404})


def is_effect(method: str, path: str) -> bool:
    """Whether a request changes the desktop. What is not known to be a read is an effect."""
    return method not in {"GET", "HEAD"} and path not in READS


def at_once(phase: Phase, exchange: Exchange) -> Verdict | None:
    """What ends the job now, whatever the package would make of it."""
    what = f"{exchange.method} {exchange.path}"
    if exchange.status is None:
        kind = FailureKind.TIMEOUT if exchange.error_type == "timeout" else FailureKind.UNREACHABLE
        if exchange.error_type == "indeterminate":
            kind = FailureKind.INDETERMINATE
        return Verdict(kind, f"{what}: {exchange.error}", exchange)
    if exchange.status == 401 or exchange.error_type in {"stale_fence", "stale_sequence", "operation_mismatch"}:
        return Verdict(FailureKind.REFUSED, f"the guest refused {what}: {exchange.output}", exchange)
    if exchange.error_type in {"operation_interrupted", "operation_unknown"}:
        return Verdict(FailureKind.INDETERMINATE, f"{what}: {exchange.output}", exchange)
    if exchange.error_type == "operation_running":
        return Verdict(FailureKind.TIMEOUT, f"{what}: {exchange.output}", exchange)
    if exchange.status == 507:
        return Verdict(FailureKind.UNREACHABLE, f"{what}: {exchange.output}", exchange)
    agents = exchange.status in _AGENTS and exchange.path in READS
    if phase is Phase.EVALUATE and exchange.status >= 400 and not agents:
        kind = FailureKind.TIMEOUT if exchange.error_type == "command_timeout" else FailureKind.UNREACHABLE
        message = f"the guest answered {what} with HTTP {exchange.status} during evaluation: {exchange.output}"
        return Verdict(kind, message, exchange)
    return None


def of_step(phase: Phase, step: Step, exchanges: list[Exchange]) -> list[Verdict]:
    """The verdicts on a step that has ended, from the requests it made, in their order."""
    effects = _last_of_each([exchange for exchange in exchanges if exchange.operation_id and not exchange.superseded])
    if phase is Phase.SETUP and step.parameters.get("until"):
        commands = [exchange for exchange in effects if exchange.path in COMMANDS]
        others = [exchange for exchange in effects if exchange.path not in COMMANDS]
        return _until(step, commands) + [found for exchange in others if (found := _setup(step, exchange))]
    judge = {Phase.SETUP: _setup, Phase.POST: _post, Phase.EVALUATE: _evaluate}[phase]
    return [found for exchange in effects if (found := judge(step, exchange))]


def waits_for_window(phase: Phase, exchange: Exchange) -> bool:
    """Whether a reply says that a window is not there (yet), so that asking again later makes sense."""
    return phase is not Phase.EVALUATE and exchange.path in WINDOWS and exchange.status in {404, 500}


def _last_of_each(exchanges: list[Exchange]) -> list[Exchange]:
    return list({exchange.operation_id: exchange for exchange in exchanges}.values())


def _setup(step: Step, exchange: Exchange) -> Verdict | None:
    if exchange.status != 200:
        return _http_failure(exchange)
    if not exchange.returncode:
        return None
    reason = TOLERATED.get((step.task_id, step.number))
    if step.type == "update_browse_history" and "sudo chown" in exchange.request:
        reason = "the history file was uploaded by the desktop's user and is its own already"
    return _returncode(exchange, fails=reason is None, why=reason or "")


def _post(step: Step, exchange: Exchange) -> Verdict | None:
    if exchange.status != 200:
        if exchange.path in WINDOWS:
            name = step.parameters.get("window_name", "?")
            message = f"no window {name!r} to {exchange.path.rsplit('/', 1)[-1].replace('_', ' ')}: the agent may have closed it"
            return Verdict(FailureKind.STEP_FAILED, message, exchange, fails=False)
        return _http_failure(exchange)
    if not exchange.returncode:
        return None
    command = command_text(exchange)
    if exchange.returncode in _NOT_FOUND:
        return _returncode(exchange, fails=True, why="the guest does not have this command")
    if _INSTALLER.search(command):
        return _returncode(exchange, fails=True, why="the evaluator needs what could not be installed")
    return _returncode(exchange, fails=False, why="it may be what the agent left")


def _evaluate(_step: Step, exchange: Exchange) -> Verdict | None:
    if exchange.status is not None and exchange.status >= 400:
        message = f"{exchange.method} {exchange.path} answered HTTP {exchange.status}: {exchange.output}"
        return Verdict(FailureKind.STEP_FAILED, message, exchange, fails=False)
    return None


def _until(step: Step, commands: list[Exchange]) -> list[Verdict]:
    if not commands:
        return []
    last, until = commands[-1], step.parameters["until"]
    reply = last.json
    met = last.status == 200 and (
        ("returncode" in until and reply.get("returncode") == until["returncode"])
        or ("stdout" in until and until["stdout"] in str(reply.get("output")))
        or ("stderr" in until and until["stderr"] in str(reply.get("error")))
    )
    if met:
        return []
    return [Verdict(FailureKind.STEP_FAILED, f"gave up waiting until {until}: {last.output}", last)]


def _http_failure(exchange: Exchange) -> Verdict:
    what = f"{exchange.path} answered HTTP {exchange.status}"
    return Verdict(FailureKind.STEP_FAILED, f"{what}: {exchange.output}", exchange)


def _returncode(exchange: Exchange, *, fails: bool, why: str) -> Verdict:
    reason = f" ({why})" if why else ""
    message = f"return code {exchange.returncode} of `{command_text(exchange)}`{reason}: {exchange.output}"
    return Verdict(FailureKind.STEP_FAILED, message, exchange, fails=fails)
