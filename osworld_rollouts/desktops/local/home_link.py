"""`/home/user` for a desktop of plain processes: a link to its home folder, held by one desktop of this machine at a time.

OSWorld's tasks name files below `/home/user`. In a sandbox every desktop has its own; without one there is only the machine's. The link
is also what makes such desktops take turns, so that Chrome's and VLC's ports, which are the machine's too, belong to one of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from osworld_rollouts.desktops._provider import DesktopUnavailable
from osworld_rollouts.desktops.local import processes
from osworld_rollouts.desktops.local.sandbox import HOME

if TYPE_CHECKING:
    from collections.abc import Generator

LINK = Path(HOME)


def fault(link: Path = LINK) -> str:
    """Why no desktop of this user could ever hold the link, or an empty string."""
    if link.is_symlink() and _folder(link) is None:
        return f"{link} is a link to {link.readlink()}, which is no desktop's"
    if link.exists() and not link.is_symlink():
        return f"{link} exists and is somebody's own"
    if not os.access(link.parent, os.W_OK):
        return f"{link} cannot be made by this user"
    return ""


def hold(home: Path, link: Path = LINK) -> None:
    """Make the link point to the folder `home` of a desktop; one that points to a desktop that is gone is taken over.

    Raises:
        DesktopUnavailable: another desktop has it, or it cannot be made.
    """
    reason = fault(link)
    if reason:
        raise DesktopUnavailable(f"{reason}, and a desktop of plain processes needs it as its home")
    with _turn(link):
        holder = _folder(link)
        if holder is not None and holder != home.parent and _lives(holder):
            raise DesktopUnavailable(
                f"{link} belongs to the desktop in {holder}: without user namespaces a machine has one desktop at a time"
            )
        link.unlink(missing_ok=True)
        link.symlink_to(home)


def release(home: Path, link: Path = LINK) -> None:
    """Remove the link if it is this desktop's; does nothing otherwise."""
    if link.is_symlink() and link.readlink() == home:
        with _turn(link):
            if link.is_symlink() and link.readlink() == home:
                link.unlink()


@contextlib.contextmanager
def _turn(link: Path) -> Generator[None]:
    handle = os.open(link.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _folder(link: Path) -> Path | None:
    """The desktop's folder a link leads to; None when there is no link, or it leads elsewhere."""
    if not link.is_symlink():
        return None
    home = link.readlink()
    return home.parent if home.name == "home" and home.parent.parent.name == "desktops" else None


def _lives(folder: Path) -> bool:
    """Whether a desktop is in use or on its way there. One without a readable record is no more than files."""
    try:
        record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return record["state"] == "making" or processes.alive(record["marker"])
