"""What the Temporal server knows: every rollout it has, what the running ones do now, and everything about one."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from temporalio.service import RPCError

from osworld_rollouts.console.errors import ConsoleError
from osworld_rollouts.console.pending import doing_of
from osworld_rollouts.console.phases import state_words
from osworld_rollouts.console.rollouts import (
    Filter,
    RolloutDetails,
    RolloutRow,
    describe_rollout,
    execution_views,
    find_rollouts,
)
from osworld_rollouts.contracts.identity import execution_id, execution_workflow_id
from osworld_rollouts.temporal import TemporalUnreachableError, connect

if TYPE_CHECKING:
    from collections.abc import Iterable

    from temporalio.client import Client

    from osworld_rollouts.console.pending import Doing, PendingActivity
    from osworld_rollouts.contracts.execution import ExecutionView
    from osworld_rollouts.settings import Settings

_SHOWN = 50
_ALL = 1_000_000
_REFRESH_S = 1.5
_IDLE_S = 15.0
_PATIENCE_S = 2.0
_DETAILS_S = 8.0


@dataclass(frozen=True)
class LiveExecution:
    """A running execution, as it and the server say. `number` is 0 while the rollout has none: before the first and between two.

    `max_turns` is 0 when no worker answers; `head`, the evidence so far, is then the last one known.
    """

    execution_id: str
    rollout_id: str
    number: int
    state: str
    turn: int
    max_turns: int
    action: str
    head: str | None
    activities: tuple[PendingActivity, ...] = ()

    @property
    def trouble(self) -> PendingActivity | None:
        """The step under way that failed before, if there is one."""
        return next((step for step in self.activities if step.attempt > 1), None)


@dataclass(frozen=True)
class Known:
    """What the server said last. `rollouts` are all it has, by id; `running` the newest running ones, with what they do."""

    answers: bool = False
    rollouts: dict[str, RolloutRow] = field(default_factory=dict[str, RolloutRow])
    running: tuple[LiveExecution, ...] = ()

    def live(self, rollout_id: str) -> LiveExecution | None:
        """The running execution of a rollout."""
        return next((view for view in self.running if view.rollout_id == rollout_id), None)


class LiveExecutions:
    """Asks the server in the background, and only while somebody looks."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known = Known()
        self._client: Client | None = None
        self._listed_at = 0.0
        self._listing_took_s = 0.0
        self._heads: dict[str, str] = {}
        self._looked_at = 0.0
        self._fresh = threading.Event()
        self._wanted = asyncio.Event()  # waited for on the loop: a pool's thread would keep the process from ending
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, name="live-executions", daemon=True).start()

    def now(self) -> Known:
        """What the server knows, at most a few seconds old; `answers` is false when it does not answer."""
        idle = time.monotonic() - self._looked_at > _IDLE_S
        self._looked_at = time.monotonic()
        if idle:
            self._fresh.clear()
        self._loop.call_soon_threadsafe(self._wanted.set)
        self._fresh.wait(_PATIENCE_S)
        return self._known

    def details(self, rollout_id: str) -> tuple[RolloutDetails, LiveExecution | None] | None:
        """Everything about one rollout, asked for now; None for one the server does not have, or when it does not answer."""
        asked = asyncio.run_coroutine_threadsafe(self._details(rollout_id), self._loop)
        try:
            return asked.result(_DETAILS_S)
        except (ConsoleError, TemporalUnreachableError, RPCError, TimeoutError):
            asked.cancel()
            return None

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._follow())

    async def _follow(self) -> None:
        while True:
            await self._wanted.wait()
            if time.monotonic() - self._looked_at > _IDLE_S:
                self._wanted.clear()
                continue
            try:
                client = await self._connected()
                rollouts = await self._list(client)
                running = await find_rollouts(client, Filter(running=True), _SHOWN)
                rollouts = rollouts | {row.rollout_id: row for row in running}
                self._known = Known(answers=True, rollouts=rollouts, running=await self._views(client, running))
            except TemporalUnreachableError:
                self._client, self._known = None, Known()
            except Exception:  # noqa: BLE001  (a page must not die of a server's hiccup; it says that the server does not answer)
                self._known = Known()
            self._fresh.set()
            await asyncio.sleep(_REFRESH_S)

    async def _connected(self) -> Client:
        self._client = self._client or await connect(self._settings)
        return self._client

    async def _list(self, client: Client) -> dict[str, RolloutRow]:
        """Every rollout, listed again no more often than ten times as long as it takes."""
        begun = time.monotonic()
        if self._known.answers and begun - self._listed_at < 10 * self._listing_took_s:
            return self._known.rollouts
        found: dict[str, RolloutRow] = {}
        for row in await find_rollouts(client, Filter(), _ALL):
            found.setdefault(row.rollout_id, row)  # the newest run of an id comes first
        self._listed_at = time.monotonic()
        self._listing_took_s = self._listed_at - begun
        return found

    async def _details(self, rollout_id: str) -> tuple[RolloutDetails, LiveExecution | None]:
        client = await self._connected()
        details = await describe_rollout(client, rollout_id)
        running = details.row.status == "running"
        return details, (await self._views(client, [details.row]))[0] if running else None

    async def _views(self, client: Client, rows: Iterable[RolloutRow]) -> tuple[LiveExecution, ...]:
        named = [(row, execution_id(row.rollout_id, row.execution) if row.execution else "") for row in rows]
        names = [name for _, name in named if name]
        views, steps = await asyncio.gather(
            execution_views(client, names), doing_of(client, map(execution_workflow_id, names))
        )
        self._heads |= {name: view.head for name, view in views.items() if view.head}
        return tuple(
            _live(row, name, views.get(name), steps.get(execution_workflow_id(name)), self._heads.get(name))
            for row, name in named
        )


def _live(row: RolloutRow, name: str, view: ExecutionView | None, now: Doing | None, head: str | None) -> LiveExecution:
    phase = view.phase if view else row.phase
    activities = now.activities if now else ()
    if view is None:
        state = state_words(phase, now)
        return LiveExecution(name, row.rollout_id, row.execution or 0, state, row.turn or 0, 0, "", head, activities)
    action = view.recent[-1].actions if view.recent else ""
    state = state_words(phase, now, view)
    return LiveExecution(
        name, row.rollout_id, row.execution or 0, state, view.turn, view.max_turns, action, view.head, activities
    )
