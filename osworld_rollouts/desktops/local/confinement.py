"""How a desktop's processes are held back on this machine: sandbox or not, which user, which limits.

Run by root, a desktop gets a user id of its own from a range nobody uses, so that inside the sandbox it is `user` and
outside it is no one: it can read nothing of root's, and the kernel's process limit counts for it alone. The state directory may be
one that only root may enter; a private mount namespace shows it to the sandbox at another place.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Tier = Literal["bubblewrap", "process"]

MAX_PROCESSES = 2048
"""Processes and threads of one desktop; Chromium and LibreOffice together use several hundred."""
OOM_SCORE = 500
"""When memory runs out the kernel ends desktops before workers."""
UNUSED_UIDS = range(0x70000000, 0x7FFFFFFF)
"""User ids that neither distributions, containers nor systemd hand out (systemd, "Users, Groups, UIDs and GIDs")."""
NOBODY = 65534
"""User id of plain-process desktops made by root: the session bus wants one with a name."""
SHOWN_AT = Path("/mnt")
"""Where the private mount namespace shows the state directory; the desktop itself does not see this folder."""
_AT = 'mount --bind "$0" "$1" && shift && exec "$@"'
_SCORED = f'echo {OOM_SCORE} >/proc/self/oom_score_adj; exec "$0" "$@"'


@dataclass(frozen=True)
class Confinement:
    """`uid` is the host's id of the desktop's processes, None for the worker's own."""

    tier: Tier
    uid: int | None
    fault: str = ""

    def seen(self, path: Path, root: Path) -> Path:
        """Where the desktop's starter finds a path below the state directory `root`."""
        if self.tier == "bubblewrap" and self.uid is not None:
            return SHOWN_AT / path.relative_to(root)
        return path

    def around(self, command: list[str], root: Path) -> list[str]:
        """The words that run `command` confined like this."""
        words = ["sh", "-c", _SCORED, "prlimit", f"--nproc={MAX_PROCESSES}", "--core=0", *command]
        if self.uid is None:
            return words
        drop = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups", "--inh-caps=-all", *words]
        if self.tier == "process":
            return drop
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", _AT, str(root), str(SHOWN_AT), *drop]

    def own(self, path: Path) -> None:
        """Give `path` and all below it to the desktop."""
        if self.uid is None:
            return
        os.chown(path, self.uid, self.uid)
        for folder, folders, files in os.walk(path):
            for name in (*folders, *files):
                os.chown(Path(folder, name), self.uid, self.uid, follow_symlinks=False)


def choose(wanted: str, root: Path, number: int) -> Confinement:
    """The best confinement this machine allows for a desktop below `root`; `number` picks its user id.

    `wanted` is "auto", "bubblewrap" or "process". When the choice falls short of what was wanted, `fault` says why.
    """
    uid = UNUSED_UIDS[number % len(UNUSED_UIDS)] if os.geteuid() == 0 else None
    fault = ""
    if wanted != "process":
        if uid is not None and not _sandbox_fault(dropped=True):
            return Confinement("bubblewrap", uid)
        fault = _sandbox_fault(dropped=False)
        if not fault:
            return Confinement("bubblewrap", None)
    if uid is not None and not _may_enter(root):
        return Confinement("process", None, fault or f"{root} is closed to others, so desktops run as root")
    return Confinement("process", None if uid is None else NOBODY, fault)


@functools.cache
def _sandbox_fault(*, dropped: bool) -> str:
    """Why bubblewrap cannot be used on this machine, or an empty string. Tried, not guessed."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    probe = [
        *("bwrap", "--unshare-user", "--unshare-pid", "--unshare-net", "--uid", "1000", "--gid", "1000"),
        *("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"),
    ]
    if dropped:
        probe = Confinement("bubblewrap", UNUSED_UIDS[0]).around(probe, Path("/usr"))
    done = subprocess.run(probe, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return "" if done.returncode == 0 else f"bwrap cannot make a sandbox here: {done.stderr.strip()}"


def _may_enter(path: Path) -> bool:
    """Whether users other than the owner may pass through every folder above `path`."""
    return all(folder.stat().st_mode & 0o001 for folder in path.parents if folder.exists())
