"""The commands about evidence: `verify`, `export`, `probe` and the family `store`. Each is imported when it is called."""

from __future__ import annotations

from cyclopts import App

_STORE = (
    ("verify", "store_commands:verify", "Re-hash every sealed execution's records and blobs."),
    (
        "gc",
        "store_commands:collect_garbage",
        "Remove blobs that no kept execution reaches; says only what it would do.",
    ),
    ("stats", "store_commands:show_stats", "What is in the store, and what a turn costs."),
)
_COMMANDS = (
    ("verify", "verify_command:verify", "Prove a rollout's evidence against Temporal's history, or check an export."),
    ("export", "export_command:export", "Write a campaign's rollouts as JSON Lines, Parquet or NeMo Gym rows."),
    ("probe", "probe_command:probe_model", "Ask a model's server what evidence it can give."),
)


def register(app: App) -> None:
    """Add the commands to the tree."""
    for name, target, summary in _COMMANDS:
        app.command(f"osworld_rollouts.console.{target}", name=name, help=summary, help_epilogue="")
    store = App(name="store", help="The evidence store: verify, gc, stats.")
    for name, target, summary in _STORE:
        store.command(f"osworld_rollouts.console.{target}", name=name, help=summary, help_epilogue="")
    app.command(store)
