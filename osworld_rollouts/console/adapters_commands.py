"""The commands about model protocols: the family `adapters`, `render` and `parse`. Each is imported when it is called."""

from __future__ import annotations

from cyclopts import App

_ADAPTERS = (
    ("list", "adapters_list:list_adapters", "Every installed model protocol."),
    ("show", "adapters_list:show_adapter", "One protocol: options, defaults, action space, prompts."),
)
_COMMANDS = (
    (
        "render",
        "render_command:render",
        "Print the exact request a task begins with, one a rollout sent, or another adapter's of it.",
    ),
    ("parse", "parse_command:parse", "Read a reply from standard input and show what becomes of it."),
)


def register(app: App) -> None:
    """Add the commands to the tree. The bare noun lists."""
    adapters = App(name="adapters", help="Model protocols: list, show.")
    adapters.default(_list)
    for name, target, summary in _ADAPTERS:
        adapters.command(f"osworld_rollouts.console.{target}", name=name, help=summary, help_epilogue="")
    app.command(adapters)
    for name, target, summary in _COMMANDS:
        app.command(f"osworld_rollouts.console.{target}", name=name, help=summary, help_epilogue="")


def _list(*, json: bool = False) -> None:
    from osworld_rollouts.console.adapters_list import list_adapters  # noqa: PLC0415 - imported when it is called

    list_adapters(json=json)
