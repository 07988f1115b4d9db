"""`rollouts machines`: OSWorld machines of your own that this host leases (provider `attached`), and which of them are dirty."""

from __future__ import annotations

from osworld_rollouts.console.errors import ConsoleError, ExitCode
from osworld_rollouts.console.output import Output
from osworld_rollouts.desktops._provider import DesktopError
from osworld_rollouts.desktops.attached_machines import MachineBook, parse_machines
from osworld_rollouts.settings import load_settings


def machines(*, clear: str | None = None, json: bool = False) -> None:
    """List the attached machines of this host, or say that one has been put back.

    Parameters
    ----------
    clear
        A dirty machine that you have put back yourself (its snapshot reverted): it may be leased again.
    json
        Print JSON.
    """
    out = Output(as_json=json)
    settings = load_settings()
    try:
        known = parse_machines(settings.attached)
        book = MachineBook.of(settings.state_dir)
        if clear is not None:
            if clear not in known and clear not in book.names():
                raise ConsoleError(
                    f"there is no machine {clear!r}",
                    remedy="`rollouts machines` lists them",
                    code=ExitCode.NOT_FOUND,
                )
            book.clear(clear)
    except DesktopError as error:
        raise ConsoleError(str(error)) from error
    rows = {name: (known.get(name), book.entry(name)) for name in sorted({*known, *book.names()})}
    if not rows:
        out.line("no machines: name them in ROLLOUTS_ATTACHED=name=host:server:chromium:vnc:vlc,...")
    for name, (machine, entry) in rows.items():
        where = f"{machine.host}:{machine.server}" if machine else "no longer in ROLLOUTS_ATTACHED"
        out.record({"name": name, "address": where if machine else None, **entry.model_dump(mode="json")})
        out.line(f"{name}  {where}  {entry}")
