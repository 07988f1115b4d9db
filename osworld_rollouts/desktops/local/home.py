"""A desktop's own files: /home/user from the template, and the few files of /etc that differ from the host's."""

from __future__ import annotations

import shutil
from pathlib import Path

from osworld_rollouts.desktops.local.assets import HOME_TEMPLATE
from osworld_rollouts.desktops.local.sandbox import HOME, UID, USER

FOLDERS = ("Desktop", "Documents", "Downloads", "Music", "Pictures", "Public", "Templates", "Videos")
SKELETON = Path("/etc/skel")


def fill_home(home: Path) -> None:
    """Make `home` from the template. A name that begins with `dot-` there begins with a dot here."""
    home.mkdir(mode=0o755)
    for source in sorted(HOME_TEMPLATE.rglob("*")):
        names = source.relative_to(HOME_TEMPLATE).parts
        target = home.joinpath(*(f".{name[4:]}" if name.startswith("dot-") else name for name in names))
        if source.is_dir():
            target.mkdir(exist_ok=True)
        else:
            shutil.copyfile(source, target)
    for source in SKELETON.iterdir() if SKELETON.is_dir() else ():
        if source.is_file():
            shutil.copyfile(source, home / source.name)
    for name in FOLDERS:
        (home / name).mkdir()


def fill_etc(etc: Path, marker: str) -> None:
    """Accounts, names and machine id as the desktop sees them: one user, one group, one host."""
    etc.mkdir(mode=0o755)
    (etc / "passwd").write_text(
        f"root:x:0:0:root:/root:/usr/sbin/nologin\n{USER}:x:{UID}:{UID}:User:{HOME}:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    )
    (etc / "group").write_text(f"root:x:0:\n{USER}:x:{UID}:\nnogroup:x:65534:\n")
    (etc / "hosts").write_text("127.0.0.1 localhost desktop\n::1 localhost\n")
    (etc / "hostname").write_text("desktop\n")
    (etc / "machine-id").write_text(f"{marker:0>32}\n"[-33:])
