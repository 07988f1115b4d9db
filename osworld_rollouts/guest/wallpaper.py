"""The desktop's background picture."""

from __future__ import annotations

import subprocess
from pathlib import Path
from urllib.parse import unquote, urlparse

from .files import expand
from .wire import ApiError, Reply

SCHEMA, KEY = "org.gnome.desktop.background", "picture-uri"
TIMEOUT_S = 10


def current() -> Reply:
    """`POST /wallpaper`: the picture's bytes.

    Raises:
        ApiError: 404 when no picture is set or its file is gone.
    """
    path = Path(unquote(urlparse(_gsettings("get").strip().strip("'")).path))
    if not path.is_file():
        raise ApiError(404, "file_not_found", f"the wallpaper {path} is not a file")
    return Reply(content_type="image/png", file=path)


def change(name: str | None) -> Reply:
    """`POST /setup/change_wallpaper`: set the picture, in GNOME's settings (where tasks look) and in XFCE's (which paints).

    Raises:
        ApiError: 400 without a path, 404 without the file, 500 when it cannot be set.
    """
    if not name:
        raise ApiError(400, "bad_request", "path is required")
    path = Path(expand(name))
    if not path.is_file():
        raise ApiError(404, "file_not_found", f"there is no file {path}")
    _gsettings("set", f"file://{path}")
    for prop in _run(["xfconf-query", "-c", "xfce4-desktop", "-l"]).splitlines():
        if prop.endswith("/last-image"):
            _run(["xfconf-query", "-c", "xfce4-desktop", "-p", prop, "-s", str(path)])
            _run(["xfconf-query", "-c", "xfce4-desktop", "-p", prop.replace("last-image", "image-style"), "-s", "5"])
    return Reply.text("Wallpaper changed successfully")


def _gsettings(verb: str, *value: str) -> str:
    return _run(["gsettings", verb, SCHEMA, KEY, *value])


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", "") or "").strip()
        raise ApiError(500, "wallpaper_failed", f"{command[0]} failed: {said or error}") from error
    return done.stdout
