"""`rollouts view`."""

from __future__ import annotations

import signal
import threading
from pathlib import Path  # noqa: TC003  (cyclopts reads annotations)
from typing import TYPE_CHECKING
from urllib.parse import quote

from osworld_rollouts.console.embedded import free_port
from osworld_rollouts.console.errors import ConsoleError, ExitCode
from osworld_rollouts.console.links import Links
from osworld_rollouts.console.output import Output
from osworld_rollouts.console.processes import Registry
from osworld_rollouts.console.viewer.export import export_rollout
from osworld_rollouts.console.viewer.server import make_server
from osworld_rollouts.evidence.store import open_store
from osworld_rollouts.logs import configure_logging
from osworld_rollouts.settings import load_settings

if TYPE_CHECKING:
    from osworld_rollouts.settings import Settings


def view(rollout: str = "", /, *, export: Path | None = None, port: int | None = None, json: bool = False) -> int:
    """Show rollouts turn by turn: the address of the page that runs, else a page served until Ctrl-C; or one rollout's page as files.

    Parameters
    ----------
    rollout
        Whose page; without it, the list's. When the page of `rollouts up` runs, only its address is printed; otherwise it is served
        until Ctrl-C.
    export
        Write the rollout's page into this directory instead.
    port
        Serve on this port of 127.0.0.1, also when a page runs. Without it, the next free one from viewer.port.
    json
        Print JSON.
    """
    out = Output(as_json=json)
    settings = load_settings()
    rollout = rollout.removeprefix("rollout/")
    if export is not None:
        if not rollout:
            raise ConsoleError("--export needs a rollout", remedy="`rollouts list` shows them")
        page = export_rollout(
            open_store(settings.store.url), rollout, export.expanduser().absolute(), Links.of(settings)
        )
        out.record({"page": str(page), "url": page.as_uri()})
        out.line(page.as_uri())
        return ExitCode.OK
    path = f"/rollout/{quote(rollout)}" if rollout else ""
    running = _running_page(settings) if port is None else None
    if running:
        out.record({"url": running + path, "served": False})
        out.line(running + path)
        return ExitCode.OK
    configure_logging(settings)
    server = make_server(settings, free_port(settings.viewer.port) if port is None else port)
    url = f"http://127.0.0.1:{server.server_address[1]}{path}"
    out.record({"url": url, "served": True})
    out.line(url)

    def end(_number: int, _frame: object) -> None:
        threading.Thread(
            target=server.shutdown
        ).start()  # shutdown waits for serve_forever, which this handler interrupts

    signal.signal(signal.SIGTERM, end)
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        return ExitCode.OK
    finally:
        server.server_close()
    return ExitCode.OK


def _running_page(settings: Settings) -> str | None:
    """Address of the page that `rollouts up` started, when it shows this store."""
    process = Registry(settings.state_dir).find("viewer")
    if process is None or process.facts.get("store") != settings.store.url:
        return None
    return str(process.facts["url"])
