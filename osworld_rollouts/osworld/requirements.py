"""What OSWorld's metrics, getters and tasks need beyond the package itself: tables, with the source of each entry.

Names as in desktop-env 1.0.2. Only what fails *silently* or late is listed: a package that the metrics import at the top is missed
when the evaluator starts.
"""

from __future__ import annotations

METRIC_MODULES: dict[str, tuple[tuple[str, str], ...]] = {
    "compare_image_text": (("easyocr", "it turns every error into a score of 0 (metrics/docs.py)"),),
    "compare_audios": (
        ("numba", "without it any two files score 1.0, because the error is swallowed (metrics/vlc.py)"),
    ),
    "check_html_background_image": (("bs4", "imported when called (metrics/vscode.py)"),),
}
"""Metric -> Python packages without which its score is wrong, and why."""

METRIC_TOOLS: dict[str, tuple[tuple[str, str], ...]] = {
    "compare_image_text": (
        ("file", "it asks `file` for the image's format and turns its absence into 0 (metrics/docs.py)"),
    ),
}
"""Metric -> programs on the evaluator's own machine, and why."""

RUNS_AGENT_CODE = frozenset({"check_python_file_by_test_suite"})
"""Metrics that execute Python files which the agent wrote, in the evaluator's process (metrics/vscode.py)."""

WEB_GETTERS = frozenset({
    "info_from_website", "pdf_from_url", "page_info", "gotoRecreationPage_and_get_html_content", "number_of_search_results",
    "googledrive_file",
})  # fmt: skip
"""Getters that visit the public web themselves (getters/chrome.py)."""

CHROME_NAME_GETTERS = frozenset({
    "active_url_from_accessTree", "active_tab_info", "active_tab_url_parse", "active_tab_html_parse", "url_dashPart", "url_path_parse",
})  # fmt: skip
"""Getters that find the browser in the accessibility tree by the name `Google Chrome` (getters/chrome.py)."""

GOOGLE_STEPS = frozenset({"googledrive", "login"})
GOOGLE_GETTERS = frozenset({"googledrive_file"})

APP_PROGRAMS: dict[str, str] = {
    "chrome": "google-chrome", "browser": "google-chrome", "gimp": "gimp", "vlc": "vlc", "thunderbird": "thunderbird",
    "vscode": "code", "vs_code": "code", "libreoffice_calc": "libreoffice", "libreoffice_impress": "libreoffice",
    "libreoffice_writer": "libreoffice", "libreoffice calc": "libreoffice", "libreoffice": "libreoffice", "calc": "libreoffice",
    "writer": "libreoffice", "picard": "picard",
}  # fmt: skip
"""`related_apps` of the canonical tasks, in lower case -> the program that must be on the desktop."""

GETTER_PROGRAMS: dict[str, str] = {
    "vlc_playing_info": "vlc", "vscode_config": "code", "default_video_player": "xdg-mime", "vm_terminal_output": "gnome-terminal",
}  # fmt: skip

KNOWN_PROGRAMS = (
    "apt", "apt-get", "code", "conda", "eog", "evince", "expect", "ffmpeg", "gedit", "gimp", "gio", "git", "gnome-terminal",
    "google-chrome", "gsettings", "jq", "killall", "libreoffice", "nautilus", "pactl", "pdftotext", "picard", "pip", "pkill", "pulseaudio", "python",
    "python3", "snap", "socat", "soffice", "sudo", "tar", "thunderbird", "timedatectl", "unzip", "update-desktop-database", "vlc",
    "wmctrl", "xdg-mime", "xdg-open", "xsel", "zip",
)  # fmt: skip
"""Programs that are looked for in the tasks' command lines."""

PROBED = frozenset({*KNOWN_PROGRAMS, *APP_PROGRAMS.values(), *GETTER_PROGRAMS.values()})
"""Every program a desktop is asked for; about others nothing is known."""
