"""Start again what `rollouts up` started and something killed: a process of its own, standard library only, so that it is small.

`python -m osworld_rollouts.console.keeper STATE_DIR NAME… -- COMMAND…`: whenever one of the named processes is gone, run the command
(which starts what is missing and keeps what runs). A process that keeps dying is started less and less often.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

from osworld_rollouts.console.processes import Registry

NAME = "keeper"
LOOK_EVERY_S = 2.0
_CALM_S = 300.0
_LONGEST_PAUSE_S = 60.0


def pause_before(restarts: int) -> float:
    """Seconds to wait before the next restart, from how many there were in the last five minutes: 0, 2, 4, 8, … at most 60."""
    return 0.0 if restarts == 0 else min(2.0**restarts, _LONGEST_PAUSE_S)


def main(arguments: list[str]) -> None:
    """Keep until SIGTERM."""
    cut = arguments.index("--")
    state_dir, *names = arguments[:cut]
    command = arguments[cut + 1 :]
    registry = Registry(Path(state_dir))
    restarts: deque[float] = deque()
    starting: list[subprocess.Popen[bytes]] = []

    def end(_number: int, _frame: object) -> None:
        for child in starting:
            child.kill()  # otherwise it would start again what `rollouts down` is about to end
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    while True:
        time.sleep(LOOK_EVERY_S)
        gone = [name for name in names if registry.find(name) is None]
        if not gone:
            continue
        while restarts and time.monotonic() - restarts[0] > _CALM_S:
            restarts.popleft()
        time.sleep(pause_before(len(restarts)))
        restarts.append(time.monotonic())
        sys.stdout.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} gone: {', '.join(gone)}; starting again\n")
        sys.stdout.flush()
        starting[:] = [subprocess.Popen(command)]
        starting[0].wait()


if __name__ == "__main__":
    main(sys.argv[1:])
