"""The command that starts a desktop's first process, in a bubblewrap sandbox or as a plain process."""

from __future__ import annotations

import functools
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from osworld_rollouts.desktops.local.confinement import Tier

USER, UID = "user", 1000
HOME = "/home/user"
PYTHON = "/usr/bin/python3"
ETC = [
    "X11",
    "alternatives",
    "at-spi2",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "chromium",
    "chromium.d",
    "dbus-1",
    "dconf",
    "default/locale",
    "emacs",
    "fonts",
    "gimp",
    "glvnd",
    "gnome",
    "gtk-2.0",
    "gtk-3.0",
    "host.conf",
    "inputrc",
    "java-17-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "libpaper.d",
    "libreoffice",
    "locale.alias",
    "localtime",
    "magic",
    "mailcap",
    "mime.types",
    "mke2fs.conf",
    "nsswitch.conf",
    "openal",
    "papersize",
    "pki",
    "profile",
    "profile.d",
    "protocols",
    "python3",
    "python3.11",
    "pulse",
    "rc.local",
    "services",
    "shells",
    "skel",
    "ssl",
    "terminfo",
    "timezone",
    "vdpau_wrapper.cfg",
    "vulkan",
    "xdg",
]
"""Entries of the host's /etc that programs need; the rest (accounts, keys, mounts) stays outside."""
TMP_BYTES = 4 * 2**30
"""Most that may lie in the desktop's /tmp, which is memory."""
_MEMORY_FOLDERS = [
    *("--proc", "/proc", "--dev", "/dev", "--size", str(TMP_BYTES)),
    *("--tmpfs", "/tmp", "--tmpfs", "/run", "--tmpfs", "/home"),  # noqa: S108 - the sandbox's own
]
VAR = [
    "/var/cache/fontconfig",
    "/var/lib/libreoffice",
    "/var/lib/dictionaries-common",
    "/var/lib/ghostscript",
    "/var/lib/dpkg",
]


@dataclass(frozen=True)
class Layout:
    """Where on the host the pieces of a desktop are."""

    desktop: Path
    guest: Path
    guest_python: Path
    programs: Path
    chrome: Path

    def moved(self, seen: Callable[[Path], Path]) -> Layout:
        """The same pieces at the places `seen` gives."""
        return Layout(**{name: seen(getattr(self, name)) for name in Layout.__dataclass_fields__})


def session_settings(
    tier: Tier, layout: Layout, *, width: int, height: int, network: str, marker: str
) -> dict[str, Any]:
    """The settings of `guest/session.py`, with paths as the session sees them."""
    own = tier == "bubblewrap"
    isolated = own and network == "none"
    base = "/run/guest" if own else str(layout.desktop)
    return {
        "width": width,
        "height": height,
        "sockets": f"{base}/sock",
        "ledger": f"{base}/ledger",
        "logs": f"{base}/log",
        "runtime": f"/run/user/{UID}" if own else f"{base}/run",
        "display": ":0" if isolated else None,
        "token_on_stdin": True,
        "marker": marker,
    }


def environment(tier: Tier, layout: Layout) -> dict[str, str]:
    """The environment every program of the desktop starts with; nothing of the worker's own."""
    own = tier == "bubblewrap"
    programs = "/usr/local/bin" if own else str(layout.programs)
    values = {
        "HOME": HOME,
        "USER": USER,
        "LOGNAME": USER,
        "SHELL": "/bin/bash",
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "XDG_CURRENT_DESKTOP": "XFCE",
        "XDG_SESSION_DESKTOP": "xfce",
        "DESKTOP_SESSION": "xfce",
        "XDG_SESSION_TYPE": "x11",
        "XDG_MENU_PREFIX": "xfce-",
        "XDG_CONFIG_DIRS": "/etc/xdg",
        "XDG_DATA_DIRS": "/usr/local/share:/usr/share",
        "GTK_MODULES": "gail:atk-bridge",
        "GNOME_ACCESSIBILITY": "1",
        "QT_ACCESSIBILITY": "1",
        "QT_LINUX_ACCESSIBILITY_ALWAYS_ON": "1",
        "SAL_USE_VCLPLUGIN": "gtk3",
        "LIBGL_ALWAYS_SOFTWARE": "1",
    }
    if not own:
        values["PYTHONPATH"] = str(layout.guest_python)
        values["OSWORLD_CHROME"] = str(layout.chrome / "chrome")
        values["OSWORLD_CHROME_FLAGS"] = "--no-sandbox --test-type"
        values["TMPDIR"] = str(layout.desktop / "tmp")
    return values


def command(tier: Tier, layout: Layout, settings: dict[str, Any], *, network: str) -> list[str]:
    """The words that start the desktop; the session's settings are the last one, which is how it is found again."""
    own = tier == "bubblewrap"
    guest = "/opt/osworld-guest/guest" if own else str(layout.guest)
    session = [PYTHON, guest, "session", json.dumps(settings, sort_keys=True)]
    if not own:
        return session
    bound: list[str] = []
    for source, target in {
        layout.desktop / "etc/passwd": "/etc/passwd",
        layout.desktop / "etc/group": "/etc/group",
        layout.desktop / "etc/hosts": "/etc/hosts",
        layout.desktop / "etc/hostname": "/etc/hostname",
        layout.desktop / "etc/machine-id": "/etc/machine-id",
        layout.guest: guest,
        layout.guest_python: f"/usr/local/lib/{python_version()}/dist-packages",
        layout.programs: "/usr/local/bin",
        layout.chrome: "/opt/google/chrome",
    }.items():
        bound += ["--ro-bind", str(source), target]
    bound += ["--ro-bind-try", "/usr/lib/chromium/chromium", "/opt/google/chrome/chrome"]
    for source, target in {
        layout.desktop / "home": HOME,
        layout.desktop / "sock": "/run/guest/sock",
        layout.desktop / "ledger": "/run/guest/ledger",
        layout.desktop / "log": "/run/guest/log",
    }.items():
        bound += ["--bind", str(source), target]
    if network == "host":
        bound += ["--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"]
    variables = [word for item in environment(tier, layout).items() for word in ("--setenv", *item)]
    return [
        "bwrap",
        *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *(() if network == "host" else ("--unshare-net",)),
        *("--uid", str(UID), "--gid", str(UID), "--hostname", "desktop", "--cap-drop", "ALL"),
        *(word for name in ("/etc", "/opt") for word in ("--perms", "0755", "--dir", name)),
        *_system(),
        *_MEMORY_FOLDERS,
        *(word for name in ("/run/guest", "/run/user") for word in ("--perms", "0755", "--dir", name)),
        *("--perms", "0700", "--dir", f"/run/user/{UID}"),
        *bound,
        *("--chdir", HOME, "--clearenv", *variables, "--as-pid-1", "--"),
        *session,
    ]


def _system() -> list[str]:
    words = ["--ro-bind", "/usr", "/usr", "--tmpfs", "/usr/local"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), str(path)]
        elif path.exists():
            words += ["--ro-bind", str(path), str(path)]
    for name in ETC:
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    words += ["--tmpfs", "/var", "--symlink", "/run", "/var/run", "--dir", "/var/tmp", "--dir", "/var/lib"]  # noqa: S108
    for name in VAR:
        words += ["--ro-bind-try", name, name]
    return words


@functools.cache
def python_version() -> str:
    """Name of the folder of Debian's own Python below /usr/local/lib, such as `python3.11`."""
    asked = [PYTHON, "-c", "import sys; print('python%d.%d' % sys.version_info[:2])"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
