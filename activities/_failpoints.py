"""Places where a test may kill the worker. Without the environment variable every call is one dictionary look-up.

`ROLLOUTS_FAILPOINT=name=marker` kills this process with SIGKILL when it reaches `name`, unless the file `marker` exists, which is
created first: so it happens once, however often the worker is started again.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "ROLLOUTS_FAILPOINT"


def reach(name: str) -> None:
    """Die here if this is the place that the environment names."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    place, _, marker = wanted.partition("=")
    if place != name or not marker:
        return
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
