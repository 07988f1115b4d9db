"""What a command ends with: exit codes, and one line for every error.

Vocabulary. A command *fails* when what it was asked for cannot be done; it prints one line, `error: what happened; what to do`, and
leaves with the code of that family. A rollout that ends without a score is data, not an error of the command, and so is evidence that a
verification finds changed; commands that wait or check report it by code 1 all the same, so that scripts notice. Tracebacks appear
only with `--debug`.
"""

from __future__ import annotations

import errno
from enum import IntEnum

from pydantic import ValidationError
from temporalio.client import WorkflowUpdateFailedError
from temporalio.service import RPCError, RPCStatusCode

from osworld_rollouts.console.embedded import EmbeddedServerError
from osworld_rollouts.console.processes import BusyError, ProcessError
from osworld_rollouts.evidence.errors import EvidenceError
from osworld_rollouts.settings import SettingsError
from osworld_rollouts.submit import RequestConflictError, RequestTooLargeError
from osworld_rollouts.tasks.catalog import TaskError
from osworld_rollouts.temporal import SEARCH_ATTRIBUTES, TemporalUnreachableError


class ExitCode(IntEnum):
    """Documented in the README and in `rollouts --help`."""

    OK = 0
    UNSCORED = 1
    USAGE = 2
    CONFLICT = 3
    NOT_FOUND = 4
    UNREACHABLE = 5
    ENVIRONMENT = 6
    INTERNAL = 70
    INTERRUPTED = 130


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done",
    ExitCode.UNSCORED: "the answer is no: a rollout that was waited for or counted has no score, evidence is not intact or not exact, a reply holds no action",
    ExitCode.USAGE: "wrong arguments, settings or task files",
    ExitCode.CONFLICT: "the rollout id exists with a different request, or the rollout's state does not allow it",
    ExitCode.NOT_FOUND: "no such rollout, campaign, execution or machine, or no evidence of it",
    ExitCode.UNREACHABLE: "no Temporal server answers, or no worker, or no model's server",
    ExitCode.ENVIRONMENT: "this machine lacks something: a package, a port, disk space, a permission",
    ExitCode.INTERNAL: "a defect of this program",
    ExitCode.INTERRUPTED: "interrupted (Ctrl-C)",
}


class ConsoleError(Exception):
    """Ends a command: what happened, what to do about it, and the exit code."""

    def __init__(self, message: str, *, remedy: str = "", code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code


def as_console_error(error: BaseException) -> ConsoleError | None:
    """The error as a command's end, or None when it is a defect of ours."""
    match error:
        case ConsoleError():
            return error
        case SettingsError():
            return ConsoleError(f"settings: {error}", code=ExitCode.USAGE)
        case TaskError() | RequestTooLargeError():
            return ConsoleError(str(error), code=ExitCode.USAGE)
        case ValidationError():
            return ConsoleError("; ".join(_field_problems(error)))
        case RequestConflictError():
            return ConsoleError(str(error), code=ExitCode.CONFLICT)
        case TemporalUnreachableError():
            return ConsoleError(error.what, remedy=error.remedy, code=ExitCode.UNREACHABLE)
        case EmbeddedServerError():
            return ConsoleError(str(error), remedy=error.remedy, code=ExitCode.ENVIRONMENT)
        case BusyError():
            return ConsoleError(
                str(error), remedy="wait for it, or end it with `rollouts down`", code=ExitCode.CONFLICT
            )
        case ProcessError():
            return ConsoleError(str(error), code=ExitCode.ENVIRONMENT)
        case EvidenceError():
            return ConsoleError(str(error), code=ExitCode.ENVIRONMENT)
        case WorkflowUpdateFailedError():
            return ConsoleError(str(error.cause), code=ExitCode.CONFLICT)
        case RPCError():
            return _from_rpc(error)
        case OSError():
            return _from_os(error)
        case _:
            return None


def _field_problems(error: ValidationError) -> list[str]:
    """Each field with what is wrong; the rollout id is made of the campaign's, and the same complaint is not made twice."""
    found = {
        ".".join(map(str, item["loc"])) or "request": item
        for item in error.errors(include_input=False, include_url=False)
    }
    if "campaign_id" in found:
        found.pop("rollout_id", None)
    return [
        f"{where}: {_NAME if item['type'] == 'string_pattern_mismatch' else item['msg'].removeprefix('Value error, ')}"
        for where, item in found.items()
    ]


_NAME = "must begin with a letter or digit and hold nothing but letters, digits, '.', '_' and '-'"


def _from_rpc(error: RPCError) -> ConsoleError:
    match error.status:
        case RPCStatusCode.NOT_FOUND:
            return ConsoleError(error.message, remedy="`rollouts list` shows what there is", code=ExitCode.NOT_FOUND)
        case RPCStatusCode.PERMISSION_DENIED | RPCStatusCode.UNAUTHENTICATED:
            return ConsoleError(
                f"Temporal refused: {error.message}",
                remedy="check TEMPORAL_API_KEY and the namespace",
                code=ExitCode.UNREACHABLE,
            )
        case RPCStatusCode.INVALID_ARGUMENT:
            if any(name in error.message for name in SEARCH_ATTRIBUTES):
                remedy = "run `rollouts setup`, which registers what rollouts search by"
                return ConsoleError(f"Temporal refused: {error.message}", remedy=remedy, code=ExitCode.ENVIRONMENT)
            return ConsoleError(f"Temporal refused: {error.message}", code=ExitCode.USAGE)
        case RPCStatusCode.DEADLINE_EXCEEDED | RPCStatusCode.UNAVAILABLE | RPCStatusCode.CANCELLED:
            return ConsoleError(
                f"Temporal does not answer: {error.message}",
                remedy="look at `rollouts status`",
                code=ExitCode.UNREACHABLE,
            )
        case _:
            return ConsoleError(f"Temporal: {error.message}", code=ExitCode.UNREACHABLE)


def _from_os(error: OSError) -> ConsoleError:
    place = f" {error.filename}" if error.filename else ""
    remedy = {
        errno.ENOSPC: "free space there, or set ROLLOUTS_STATE_DIR to another disk",
        errno.EACCES: "give this user the permission, or set ROLLOUTS_STATE_DIR to a directory of its own",
        errno.EROFS: "set ROLLOUTS_STATE_DIR to a writable directory",
    }.get(error.errno or 0, "")
    return ConsoleError(
        f"{error.strerror or error}:{place}" if place else str(error), remedy=remedy, code=ExitCode.ENVIRONMENT
    )
