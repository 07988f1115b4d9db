"""Small things that make a runaway program or a curious one less of a problem. Not a wall: see `desktops/local`."""

from __future__ import annotations

import ctypes
import logging
import signal

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36


def hide_from_same_user() -> None:
    """Keep programs of the same user from reading this process's memory, where the lease token is."""
    _prctl(PR_SET_DUMPABLE, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """Be asked to end when the process that started this one ends; to be called between fork and exec."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        logging.getLogger("guest").warning("prctl %d failed with errno %d", option, ctypes.get_errno())
