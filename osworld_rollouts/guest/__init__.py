"""The OSWorld-compatible server that runs inside our own desktops.

It is bound or copied into the guest and started by path (`python3 <this folder> session`), under the guest's own
Python 3.11 or newer. It imports nothing else of this project: only the standard library, Debian's `python3-xlib`,
`python3-pil`, `python3-gi`, and the packages of the guest requirements (pyautogui, mss, isal).

`session` starts the display, the session bus, the window manager and the server, and reaps what dies. `server` answers HTTP.
`zygote` holds pyautogui imported and forks one process per action. `accessibility` reads the AT-SPI tree.
"""

VERSION = "1"
"""Version of the HTTP contract, reported by `GET /health`."""
