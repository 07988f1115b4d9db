"""The Debian packages a local desktop is made of, and which of them this machine lacks."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from osworld_rollouts.desktops._provider import Problem

LIST = Path(__file__).with_name("packages.txt")
MUST = ("Xvfb", "xfwm4", "xfce4-panel", "xfdesktop", "xfsettingsd", "dbus-daemon", "xmodmap", "setsid")
"""Programs without which no desktop comes up."""


@dataclass(frozen=True)
class Installed:
    """Versions by package name, and the names of listed packages that are absent."""

    versions: dict[str, str]
    absent: list[str]


def wanted() -> list[str]:
    """Package names of `packages.txt`."""
    lines = (line.partition("#")[0] for line in LIST.read_text().splitlines())
    return sorted({name for line in lines for name in line.split()})


def installed() -> Installed:
    """What dpkg knows about the wanted packages; without dpkg everything counts as absent."""
    names = wanted()
    if shutil.which("dpkg-query") is None:
        return Installed({}, names)
    query = ["dpkg-query", "-W", "-f", "${Package}\t${Version}\t${db:Status-Abbrev}\n", *names]
    lines = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    rows = [line.split("\t") for line in lines]
    versions = {row[0]: row[1] for row in rows if len(row) == 3 and row[2].startswith("ii")}
    return Installed(versions, [name for name in names if name not in versions])


def install_command(names: list[str]) -> str:
    """The exact command that installs `names`."""
    return f"sudo apt-get update && sudo apt-get install -y --no-install-recommends {' '.join(names)}"


def problems() -> list[Problem]:
    """What is missing. A missing program a desktop cannot do without is fatal; a missing application is not."""
    state = installed()
    if state.absent and state.versions:
        lost = [program for program in MUST if shutil.which(program) is None]
        return [
            Problem(
                subject="system packages",
                message=f"missing Debian packages: {', '.join(state.absent)}",
                remedy=install_command(state.absent),
                fatal=bool(lost) or not Path("/usr/bin/python3").exists(),
            )
        ]
    lost = [program for program in MUST if shutil.which(program) is None]
    if lost:
        return [
            Problem(
                subject="system packages",
                message=f"missing programs: {', '.join(lost)}; the local desktop is made for Debian 12 and its relatives",
                remedy=install_command(state.absent),
            )
        ]
    return []
