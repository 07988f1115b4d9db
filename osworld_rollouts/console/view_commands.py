"""`rollouts view`."""

from __future__ import annotations

import signal
import threading
from pathlib import Path  # noqa: TC003  (cyclopts reads annotations)

from osworld_rollouts.console.embedded import free_port
from osworld_rollouts.console.errors import ConsoleError, ExitCode
from osworld_rollouts.console.links import Links
from osworld_rollouts.console.output import Output
from osworld_rollouts.console.viewer.export import export_rollout
from osworld_rollouts.console.viewer.server import make_server
from osworld_rollouts.evidence.store import open_store
from osworld_rollouts.logs import configure_logging
from osworld_rollouts.settings import load_settings


def view(rollout: str = "", /, *, export: Path | None = None, port: int | None = None, json: bool = False) -> int:
    """Serve the page that shows rollouts turn by turn, until Ctrl-C; or write one rollout's page as files.

    Parameters
    ----------
    rollout
        Only its address is printed then; or, with --export, what to write.
    export
        Write the rollout's page into this directory instead of serving.
    port
        On 127.0.0.1; taken exactly. Without it, the next free one from viewer.port.
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
    configure_logging(settings)
    server = make_server(settings, free_port(settings.viewer.port) if port is None else port)
    url = f"http://127.0.0.1:{server.server_address[1]}" + (f"/rollout/{rollout}" if rollout else "")
    out.record({"url": url})
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
