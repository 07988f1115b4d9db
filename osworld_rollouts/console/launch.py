"""Run a program so that it can always be found again: write who it is, then become it.

Run as a plain script (`python -I -S launch.py RECORD LOG PARENT FACTS -- PROGRAM ARGUMENT…`), because the record must exist before
the program does: were it written by the parent, a parent killed in between would leave a process nobody knows of.
Standard library only. PARENT is the parent's pid when the program must end with it, otherwise 0.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def identity(pid: int) -> dict[str, str | int]:
    """What makes a pid unmistakable: its start time (proc(5), field 22, clock ticks), the boot, the pid namespace."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return {
        "pid": pid,
        "started": int(stat.rpartition(")")[2].split()[19]),
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
        "pid_namespace": str(Path("/proc/self/ns/pid").readlink()),
    }


def write_record(path: Path, record: dict[str, object]) -> None:
    """Replace the file at once: readers see the old or the new one, never half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)


def main(arguments: list[str]) -> None:
    """Become the program."""
    record, log, parent, facts, _, *program = arguments
    if int(parent):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != int(parent):
            raise SystemExit("the parent is gone")
    write_record(Path(record), {**identity(os.getpid()), "argv": program, "log": log, "facts": json.loads(facts)})
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    try:
        os.execvp(program[0], program)  # noqa: S606  (becoming the program is the purpose)
    except OSError as error:
        sys.exit(f"cannot run {program[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
