"""The live display of `rollouts submit --wait` and `rollouts demo`: what each rollout does now, and how many are done."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Self

from rich.console import Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from osworld_rollouts.console.list_command import duration, outcome_text, score_text
from osworld_rollouts.console.output import STYLES, one_line
from osworld_rollouts.console.phases import state_words
from osworld_rollouts.console.rollouts import Filter, execution_views, find_rollouts, with_doing
from osworld_rollouts.contracts.identity import execution_id

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console, ConsoleOptions, RenderResult
    from temporalio.client import Client

    from osworld_rollouts.console.campaign import Progress
    from osworld_rollouts.console.rollouts import RolloutRow
    from osworld_rollouts.contracts.execution import ExecutionView

_SHOWN = 12
_REFRESH_S = 1.0


class LiveProgress:
    """A display that refreshes itself from the server while the `async with` lasts. Plain lines where there is no terminal."""

    def __init__(self, client: Client, console: Console, *, campaign: str, progress: Progress) -> None:
        self._client = client
        self._console = console
        self._campaign = campaign
        self._progress = progress
        self._rows: list[RolloutRow] = []
        self._views: dict[str, ExecutionView] = {}
        self._since = time.monotonic()
        self._spinner = Spinner("dots", style=STYLES["running"])
        self._live = Live(self, console=console, refresh_per_second=8, transient=True) if console.is_terminal else None
        self._task: asyncio.Task[None] | None = None
        self._told: dict[str, str] = {}

    def update(self, progress: Progress) -> None:
        """New counts."""
        self._progress = progress

    async def __aenter__(self) -> Self:
        """Start."""
        if self._live:
            self._live.start()
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; the display disappears, so that a table can take its place."""
        if self._task:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._live:
            self._live.stop()
        else:
            await self._look()

    async def _follow(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(_REFRESH_S)

    async def _look(self) -> None:
        with contextlib.suppress(
            Exception
        ):  # a server that is away for a moment must not end the wait; the wait itself reports it
            rows = await find_rollouts(self._client, Filter(campaign=self._campaign), 500)
            names = [
                execution_id(row.rollout_id, row.execution) for row in rows if row.status == "running" and row.execution
            ]
            self._views = await execution_views(self._client, names[:_SHOWN])
            ours = [row for row in rows if row.rollout_id in self._progress.submitted]
            self._rows = await with_doing(self._client, ours, _SHOWN)
            if not self._live:
                self._tell()

    def _tell(self) -> None:
        """Lines for a log: one when a rollout's phase or turn changes."""
        for row in self._rows:
            now = self._state(row)
            line = f"{row.rollout_id}: {now}"
            if self._told.get(row.rollout_id) != line:
                self._told[row.rollout_id] = line
                self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _state(self, row: RolloutRow) -> str:
        if row.status != "running":
            return f"{row.outcome or row.status}, score {'none' if row.score is None else format(row.score, 'g')}"
        view = self._views.get(execution_id(row.rollout_id, row.execution)) if row.execution else None
        words = state_words(view.phase if view else row.phase, row.doing, view)
        return f"{words}, turn {view.turn + 1}" if view and view.recent else words

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table and the counts."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold dim", expand=True)
        for name, justify in (
            ("", "left"),
            ("rollout", "left"),
            ("turn", "right"),
            ("now", "left"),
            ("last action", "left"),
            ("score", "right"),
            ("time", "right"),
        ):
            table.add_column(
                name,
                justify="right" if justify == "right" else "left",
                no_wrap=True,
                ratio=1 if name == "last action" else None,
                overflow="ellipsis",
            )
        running = [row for row in self._rows if row.status == "running"]
        closed = [row for row in self._rows if row.status != "running"]
        room = max(3, min(_SHOWN, console.height - 6))
        for row in sorted(running, key=lambda row: row.started_at)[:room]:
            table.add_row(*self._cells(row))
        for row in closed[: max(0, room - len(running))]:
            table.add_row(*self._cells(row))
        yield Group(table, Text(), self._counts(len(running), hidden=max(0, len(self._rows) - room)))

    def _cells(self, row: RolloutRow) -> list[Text | Spinner]:
        view = self._views.get(execution_id(row.rollout_id, row.execution)) if row.execution else None
        name = Text(one_line(row.rollout_id.removeprefix(f"{self._campaign}/"), 44))
        if row.status != "running":
            good = row.score is not None and row.score > 0
            mark = Text("✓" if good else "✗", style=STYLES["good"] if good else STYLES["bad"])
            return [
                mark,
                name,
                Text(),
                outcome_text(row.outcome or row.status, row.eligible),
                Text(),
                score_text(row.score),
                Text(duration(row.elapsed_s)),
            ]
        words = state_words(view.phase if view else row.phase, row.doing, view)
        attempt = f" · attempt {row.execution}" if (row.execution or 1) > 1 else ""
        last = view.recent[-1] if view and view.recent else None
        turn = f"{view.turn}/{view.max_turns}" if view else ""
        action = Text(one_line(last.actions, 70) if last else "", style=STYLES["dim"])
        return [
            self._spinner,
            name,
            Text(turn),
            Text(words + attempt, style=STYLES["running"]),
            action,
            Text(),
            Text(duration(row.elapsed_s)),
        ]

    def _counts(self, running: int, *, hidden: int) -> Text:
        progress = self._progress
        text = Text(f"{len(progress.ended)} of {progress.total} done", style="bold")
        text.append(
            f" · {running} running · {progress.scored} scored · {duration(time.monotonic() - self._since)}",
            style=STYLES["dim"],
        )
        if hidden:
            text.append(f" · {hidden} more not shown", style=STYLES["dim"])
        return text
