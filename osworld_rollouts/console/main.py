"""The command `rollouts`: which commands there are, and how every one of them ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, NoReturn

from cyclopts import App, CycloptsError, Parameter

from osworld_rollouts.console import adapters_commands, evidence_commands

if TYPE_CHECKING:
    from collections.abc import Sequence

_SUMMARY = "OSWorld rollouts as durable Temporal workflows: computer-use agents on real desktops, scored by OSWorld's own evaluator."
_COMMANDS = (
    ("demo", "demo_command:demo", "Run three tasks on a desktop of this machine and show everything that happened."),
    ("up", "service_commands:up", "Start Temporal server, worker and page on this machine, in the background."),
    ("down", "service_commands:down", "End what `up` started. Rollouts go on when it is up again."),
    ("status", "service_commands:status", "What runs on this machine, and what the Temporal server has."),
    ("submit", "submit_command:submit", "Submit tasks as rollouts."),
    ("list", "list_command:list_rollouts", "List rollouts."),
    ("score", "score_command:score", "The score of a campaign on a fixed denominator, in all and by domain."),
    ("show", "show_command:show", "One rollout: outcome, executions, causes, links."),
    ("pause", "control_commands:pause", "Pause a rollout after its current turn; its desktop is kept."),
    ("resume", "control_commands:resume", "Let a paused rollout go on."),
    ("stop", "control_commands:stop", "Let a rollout finish its turn, then evaluate what stands there."),
    ("cancel", "control_commands:cancel", "End rollouts now and remove their desktops."),
    ("view", "view_commands:view", "The page that shows rollouts turn by turn: its address, or the page itself."),
    ("tasks", "setup_commands:tasks", "List tasks: the shipped ones, or those of an OSWorld checkout."),
    ("config", "setup_commands:config", "Every setting with its value and where it came from."),
    ("machines", "machines_command:machines", "OSWorld machines of your own: who has them, which are dirty."),
    ("setup", "setup_commands:setup", "Register the search attributes that rollouts need in the Temporal namespace."),
)


def build_app() -> App:
    """The command tree. Commands are imported when they are called."""
    from osworld_rollouts.console.errors import MEANINGS  # noqa: PLC0415  (kept off the path of `--version`)

    codes = "\n".join(f"  {int(code):>3}  {meaning}" for code, meaning in MEANINGS.items())
    app = App(
        name="rollouts",
        help=_SUMMARY,
        help_format="plaintext",
        help_epilogue=f"Every command has --json. --debug shows tracebacks.\n\nExit codes:\n{codes}",
        version=version("osworld-rollouts"),
        default_parameter=Parameter(negative=()),
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
    )
    for name, target, summary in _COMMANDS:
        app.command(f"osworld_rollouts.console.{target}", name=name, help=summary, help_epilogue="")
    adapters_commands.register(app)
    evidence_commands.register(app)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit code. Errors are printed here and nowhere else."""
    from osworld_rollouts.console.errors import ConsoleError, ExitCode, as_console_error  # noqa: PLC0415
    from osworld_rollouts.console.output import print_error  # noqa: PLC0415

    debug = "--debug" in arguments
    as_json = "--json" in arguments
    tokens = [argument for argument in arguments if argument != "--debug"]
    try:
        result = build_app()(tokens)
        return int(result) if isinstance(result, int) else ExitCode.OK
    except (KeyboardInterrupt, asyncio.CancelledError):
        print_error(ConsoleError("interrupted", code=ExitCode.INTERRUPTED), as_json=as_json)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        return ExitCode.OK  # whoever reads us (head, less) has seen enough
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else ExitCode.USAGE
    except CycloptsError as error:
        print_error(ConsoleError(str(error), remedy="see `rollouts --help`"), as_json=as_json)
        return ExitCode.USAGE
    except Exception as error:
        if debug:
            raise
        known = as_console_error(error)
        if known is None:
            text = f"{type(error).__name__}: {error}"
            known = ConsoleError(
                f"unexpected: {text}",
                remedy="run it again with --debug and report the traceback",
                code=ExitCode.INTERNAL,
            )
        print_error(known, as_json=as_json)
        return known.code


def main() -> NoReturn:
    """Entry point of the console script.

    Leaves by `os._exit`, here and nowhere else: on CPython 3.11 the Temporal client's threads abort about one process in six during
    the interpreter's own shutdown (temporalio/sdk-python#300), after all work is done, with exit code 134.
    """
    code = 70
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # before `run` was ready for it, or while it was busy with another one
        code = 130
        sys.stderr.write("error: interrupted\n")
    except BaseException:  # noqa: BLE001  (a defect, or --debug: show it, and still leave with a code)
        import traceback  # noqa: PLC0415

        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
