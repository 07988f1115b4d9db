"""What all desktops of a state root share and what is made once: guest packages, guest server, program wrappers."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from osworld_rollouts.desktops._provider import DesktopUnavailable
from osworld_rollouts.desktops.local.sandbox import PYTHON, python_version

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from osworld_rollouts.desktops.local.confinement import Tier

FOLDER = Path(__file__).parent
GUEST = FOLDER.parent.parent / "guest"
REQUIREMENTS = FOLDER / "guest-requirements.txt"
HOME_TEMPLATE = FOLDER / "template"
PROGRAMS = FOLDER / "programs"
CHROMIUM = Path("/usr/lib/chromium")
INSTALL_TIMEOUT_S = 300


@functools.cache
def tree_digest(folder: Path) -> str:
    """Sha256 (hex) over names, modes and contents of a folder, without caches."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(folder)}\0{path.stat().st_mode & 0o111}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def guest_python(root: Path) -> Path:
    """The folder with the guest's Python packages, installed from the hashed requirements when it is not there yet.

    Raises:
        DesktopUnavailable: the packages cannot be installed; the message carries the installer's last words.
    """
    key = hashlib.sha256(REQUIREMENTS.read_bytes() + python_version().encode()).hexdigest()[:12]
    return _made_once(root / f"guest-python-{key}", _install_packages)


def guest_server(root: Path) -> Path:
    """A copy of the guest server with its bytecode, so that a desktop does not compile it at every start."""

    def make(target: Path) -> None:
        shutil.copytree(GUEST, target / "guest", ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run([PYTHON, "-m", "compileall", "-q", str(target)], check=True, capture_output=True)

    return _made_once(root / f"guest-{tree_digest(GUEST)[:12]}-{python_version()}", make) / "guest"


def programs(root: Path) -> Path:
    """Wrappers that come first on the desktop's PATH: `google-chrome`, `python`."""

    def make(target: Path) -> None:
        shutil.copytree(PROGRAMS, target, dirs_exist_ok=True)
        for wrapper in target.iterdir():
            wrapper.chmod(0o755)
        for name in ("google-chrome-stable", "chromium-browser"):
            (target / name).symlink_to("google-chrome")
        (target / "python").symlink_to(PYTHON)

    return _made_once(root / f"programs-{tree_digest(PROGRAMS)[:12]}", make)


def chrome(root: Path, tier: Tier) -> Path:
    """Chromium's folder with a browser program called `chrome`, so that the tasks' `pkill chrome` finds every process of it.

    Chromium starts its children by its own resolved path, so a symbolic link would not do. In the sandbox the program is bound over an
    empty file; plain processes get a hard link, or a copy (300 MB, once) where the file system allows none.
    """

    def make(target: Path) -> None:
        if not CHROMIUM.is_dir():
            return
        for entry in CHROMIUM.iterdir():
            if entry.name != "chromium":
                (target / entry.name).symlink_to(entry)
        if tier == "bubblewrap":
            (target / "chrome").touch(mode=0o755)
            return
        try:
            (target / "chrome").hardlink_to(CHROMIUM / "chromium")
        except OSError:
            shutil.copy2(CHROMIUM / "chromium", target / "chrome")

    files = sorted((entry.name, entry.stat().st_mtime_ns) for entry in CHROMIUM.iterdir()) if CHROMIUM.is_dir() else []
    return _made_once(root / f"chrome-{tier}-{hashlib.sha256(repr(files).encode()).hexdigest()[:12]}", make)


def _install_packages(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="osworld-guest-") as scratch:
        venv = Path(scratch, "venv")
        steps = [
            [PYTHON, "-m", "venv", str(venv)],
            [
                *(str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
                *("--no-deps", "--require-hashes", "--use-pep517", "--target", str(target), "-r", str(REQUIREMENTS)),
            ],
        ]
        for step in steps:
            try:
                done = subprocess.run(step, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise DesktopUnavailable(f"the guest's Python packages cannot be installed: {error}") from error
            if done.returncode != 0:
                raise DesktopUnavailable(
                    "the guest's Python packages cannot be installed "
                    f"(is python3-venv there, and a package index reachable?): {(done.stderr or done.stdout).strip()[-800:]}"
                )


def _made_once(target: Path, make: Callable[[Path], None]) -> Path:
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.parent / ".assets.lock"):
        if not target.is_dir():
            made = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
            try:
                make(made)
                _open_to_all(made)
                made.rename(target)
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise
    return target


def _open_to_all(folder: Path) -> None:
    """Let every user read what is in `folder`, whatever the umask was: a desktop has a user id of its own."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        kind = path.lstat()
        if stat.S_ISDIR(kind.st_mode) or (stat.S_ISREG(kind.st_mode) and kind.st_nlink == 1):
            passable = stat.S_ISDIR(kind.st_mode) or kind.st_mode & 0o100
            path.chmod(kind.st_mode | (0o555 if passable else 0o444))


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold an exclusive lock on `path`, which is created and stays."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
