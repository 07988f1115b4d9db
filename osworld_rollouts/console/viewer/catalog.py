"""Which executions there are to show: sealed ones from the evidence store, running ones from the Temporal server."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from osworld_rollouts.console.rollouts import Filter, execution_views, find_rollouts
from osworld_rollouts.console.viewer.trace import SCRIPTED
from osworld_rollouts.contracts.evidence import ModelCallRecord
from osworld_rollouts.contracts.identity import execution_id, split_execution_id
from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.errors import EvidenceError
from osworld_rollouts.evidence.index import list_pointers
from osworld_rollouts.evidence.store import get_json
from osworld_rollouts.temporal import TemporalUnreachableError, connect

if TYPE_CHECKING:
    from datetime import datetime

    from temporalio.client import Client

    from osworld_rollouts.contracts.execution import ExecutionView
    from osworld_rollouts.contracts.outcome import Outcome
    from osworld_rollouts.evidence.index import ExecutionPointer
    from osworld_rollouts.evidence.store import EvidenceStore
    from osworld_rollouts.settings import Settings

PAGE_SIZE = 300
_LIVE_SHOWN = 50
_LIVE_REFRESH_S = 1.5
_LIVE_IDLE_S = 15.0


@dataclass(frozen=True)
class Row:
    """One finished rollout: its last execution."""

    rollout_id: str
    outcome: Outcome
    attempts: int
    model: str
    scripted: bool
    sealed_at: datetime


@dataclass(frozen=True)
class LiveExecution:
    """A running execution, as it says itself."""

    execution_id: str
    rollout_id: str
    number: int
    phase: str
    turn: int
    max_turns: int
    paused: bool
    action: str
    head: str | None


@dataclass(frozen=True)
class Listing:
    """One page of the overview."""

    campaign: str | None
    rows: list[Row]
    total: int
    scored: int
    unscored: int
    mean: float | None
    live: list[LiveExecution]
    page: int
    pages: int


def last_executions(store: EvidenceStore) -> dict[str, list[ExecutionPointer]]:
    """Sealed executions by rollout, each list in the order of their numbers."""
    found: dict[str, list[ExecutionPointer]] = {}
    for pointer in list_pointers(store):
        found.setdefault(pointer.rollout_id, []).append(pointer)
    for pointers in found.values():
        pointers.sort(key=lambda pointer: pointer.number)
    return found


def list_page(
    by_rollout: dict[str, list[ExecutionPointer]],
    store: EvidenceStore,
    live: list[LiveExecution],
    *,
    campaign: str | None,
    page: int,
    models: ModelNames,
) -> Listing:
    """The newest finished rollouts first; counts are over all of them, not over the page."""
    chosen = [pointers for pointers in by_rollout.values() if campaign is None or pointers[-1].campaign_id == campaign]
    chosen.sort(key=lambda pointers: pointers[-1].sealed_at, reverse=True)
    scores = [pointers[-1].outcome.score for pointers in chosen if pointers[-1].outcome.score is not None]
    pages = max(1, -(-len(chosen) // PAGE_SIZE))
    page = min(max(page, 1), pages)
    rows: list[Row] = []
    for pointers in chosen[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]:
        end = pointers[-1]
        model, scripted = models.of(store, end)
        rows.append(Row(end.rollout_id, end.outcome, len(pointers), model, scripted, end.sealed_at))
    shown = [view for view in live if campaign is None or view.rollout_id.startswith(f"{campaign}/")]
    mean = sum(scores) / len(scores) if scores else None
    return Listing(campaign, rows, len(chosen), len(scores), len(chosen) - len(scores), mean, shown, page, pages)


class Sealed:
    """Sealed executions of a store, read again no more often than reading them is cheap."""

    def __init__(self, store: EvidenceStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._read_at = 0.0
        self._took_s = 0.0
        self._found: dict[str, list[ExecutionPointer]] = {}

    def by_rollout(self) -> dict[str, list[ExecutionPointer]]:
        """As `last_executions`, at most ten times as old as it takes to read.

        Raises:
            EvidenceError: the store cannot be read.
        """
        with self._lock:
            begun = time.monotonic()
            if not self._read_at or begun - self._read_at > 10 * self._took_s:
                self._found = last_executions(self._store)
                self._read_at = time.monotonic()
                self._took_s = self._read_at - begun
            return self._found


class ModelNames:
    """The model of an execution and whether it was a script, from its last model call, read once."""

    _LOOK_BACK = 12  # after the last call come at most its operations, post-steps, evaluation, recoveries and the end

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, bool]] = {}

    def of(self, store: EvidenceStore, pointer: ExecutionPointer) -> tuple[str, bool]:
        """(name as the server was asked for it, scripted); empty where no call was made or the evidence cannot be read."""
        if pointer.head not in self._known:
            self._known[pointer.head] = self._read(store, pointer.head)
        return self._known[pointer.head]

    def _read(self, store: EvidenceStore, head: str) -> tuple[str, bool]:
        name: str | None = head
        try:
            for _ in range(self._LOOK_BACK):
                if name is None:
                    break
                record = chain.read_record(store, name)
                if isinstance(record, ModelCallRecord):
                    sent = get_json(store, record.sent)
                    body = cast("dict[str, Any]", sent).get("body") if isinstance(sent, dict) else None
                    model = str(cast("dict[str, Any]", body).get("model") or "") if isinstance(body, dict) else ""
                    told = (model, record.served_model or "", record.system_fingerprint or "")
                    return model or record.served_model or "", any(text.startswith(SCRIPTED) for text in told)
                name = record.previous
        except (EvidenceError, ValueError):
            pass
        return "", False


class LiveExecutions:
    """Running executions, asked for in the background and only while somebody looks."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._views: list[LiveExecution] = []
        self._looked_at = 0.0
        self._fresh = threading.Event()
        self._wanted = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._follow()), name="live-executions", daemon=True).start()

    def now(self) -> list[LiveExecution]:
        """What runs, at most a few seconds old; empty when Temporal does not answer."""
        idle = time.monotonic() - self._looked_at > _LIVE_IDLE_S
        self._looked_at = time.monotonic()
        if idle:
            self._fresh.clear()
        self._wanted.set()
        self._fresh.wait(2.0)
        return self._views

    async def _follow(self) -> None:
        client: Client | None = None
        while True:
            await asyncio.to_thread(self._wanted.wait)
            if time.monotonic() - self._looked_at > _LIVE_IDLE_S:
                self._wanted.clear()
                continue
            try:
                client = client or await connect(self._settings)
                self._views = await _running(client)
            except (TemporalUnreachableError, RuntimeError):
                client, self._views = None, []
            except Exception:  # noqa: BLE001  (a page must not die of a server's hiccup; the list is empty until the next look)
                self._views = []
            self._fresh.set()
            await asyncio.sleep(_LIVE_REFRESH_S)


async def _running(client: Client) -> list[LiveExecution]:
    rows = await find_rollouts(client, Filter(running=True), _LIVE_SHOWN)
    names = [execution_id(row.rollout_id, row.execution) for row in rows if row.execution]
    views = await execution_views(client, names)
    return [_live(name, views.get(name)) for name in names]


def _live(name: str, view: ExecutionView | None) -> LiveExecution:
    rollout_id, number = split_execution_id(name)
    if view is None:
        return LiveExecution(name, rollout_id, number, "no worker answers", 0, 0, paused=False, action="", head=None)
    recent: Any = view.recent[-1] if view.recent else None
    action = recent.actions if recent else ""
    return LiveExecution(
        name, rollout_id, number, view.phase, view.turn, view.max_turns, view.paused, action, view.head
    )
