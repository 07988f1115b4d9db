"""The system under attack: workers that are started again when they die, places to kill them at, and what is left afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from osworld_rollouts.contracts.evidence import EvaluationRecord
from osworld_rollouts.contracts.identity import execution_workflow_id
from osworld_rollouts.contracts.outcome import ExecutionResult, RolloutResult
from osworld_rollouts.contracts.request import Settle, Task
from osworld_rollouts.desktops._provider import DesktopRecord
from osworld_rollouts.desktops.lease_registry import LeaseRegistry
from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.store import EvidenceStore, open_store
from osworld_rollouts.evidence.verify import history_heads, verify_execution
from osworld_rollouts.failpoints import VARIABLE
from osworld_rollouts.submit import Submitted
from tests.chaos.counting import POST, SETUP, TURNS, Counts, counts
from tests.chaos.fault_proxy import FaultProxy
from tests.stack import Stack, wait_until

BRISK = Settle(min_s=0.1, max_s=1.0, poll_s=0.1, after_setup_s=2.0, before_evaluation_s=0.2)


@dataclass
class Played:
    """A rollout that ended, as Temporal, the evidence and the guest tell it."""

    result: RolloutResult
    failure: str | None
    counts: Counts | None
    generations: list[int]

    @property
    def kinds(self) -> list[str]:
        """Outcome of each execution."""
        return [str(item.outcome.kind) for item in self.result.executions]


@dataclass
class Fleet:
    """Worker processes, each started again as soon as it ends."""

    stack: Stack
    roles: str = "workflows,models,desktops"
    environment: dict[str, str] = field(default_factory=dict)
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    deaths: int = 0
    _keeper: asyncio.Task[None] | None = None

    async def start(self, count: int = 1) -> None:
        """Start workers, and keep them."""
        self.workers = [self.stack.start_worker(self.roles, **self.environment) for _ in range(count)]
        self._keeper = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        while True:
            for place, process in enumerate(self.workers):
                if process.poll() is not None:
                    self.deaths += 1
                    self.workers[place] = self.stack.start_worker(self.roles, **self.environment)
            await asyncio.sleep(0.05)

    def wake(self) -> None:
        """SIGCONT to every worker."""
        for process in self.workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)

    def kill_all(self) -> None:
        """SIGKILL to every worker at once; they are started again."""
        for process in self.workers:
            self.stack.kill_worker(process)

    async def stop(self) -> None:
        """End them all, for good, and at once."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self.wake()
        for process in self.workers:
            self.stack.kill_worker(process)
        self.workers = []


class System:
    """A stack with a fleet."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._failpoint = stack.settings.state_dir / "failpoint"
        self.fleet = Fleet(stack, environment={VARIABLE: str(self._failpoint)})
        self._samples = 0
        self._before = set(_displays())

    @property
    def store(self) -> EvidenceStore:
        """The evidence store."""
        return open_store(self.stack.settings.store.url)

    # --- faults ---

    def arm(self, place: str, ending: str = "", *, signal_name: str = "KILL") -> None:
        """The first worker that reaches this place gets this signal, once."""
        self._failpoint.with_suffix(".fired").unlink(missing_ok=True)
        new = self._failpoint.with_suffix(".new")
        new.write_text(f"{signal_name} {place} {ending}")
        new.rename(self._failpoint)

    @property
    def fired(self) -> bool:
        """Whether the armed failpoint was reached."""
        return self._failpoint.with_suffix(".fired").exists()

    async def until_fired(self, limit_s: float = 60) -> None:
        """Wait until the armed failpoint was reached."""
        await wait_until(lambda: self.fired, limit_s)

    async def proxy(self, submitted: Submitted) -> FaultProxy:
        """A fault proxy at the desktop of a gated rollout, in place before the first effect."""
        record = await self.desktop(f"{submitted.rollout_id}/x1")
        proxy = FaultProxy(record.endpoints.server)
        await proxy.start()
        return proxy

    def open_gate(self, record: DesktopRecord) -> None:
        """Let a gated task's setup go on."""
        (record.state_dir / "home" / "go").touch()

    # --- rollouts ---

    async def submit(self, task: Task, **how: object) -> Submitted:
        """Start one rollout; every call is another sample."""
        self._samples += 1
        return await self.stack.submit(task, sample=self._samples, **{"settle": BRISK, "executions": 2, **how})

    async def play(self, task: Task, **how: object) -> Played:
        """Start one and wait for its end."""
        return await self.ended(await self.submit(task, **how))

    async def ended(self, submitted: Submitted) -> Played:
        """Wait for the end of a rollout."""
        failure = None
        try:
            result = await submitted.handle.result()
        except WorkflowFailureError as error:
            failure = error.cause.type
            result = RolloutResult.model_validate(error.cause.details[0])
        last = result.executions[-1]
        return Played(result, failure, self._counts(last), self.generations(last.execution_id))

    def asked(self, submitted: Submitted, *, turn: int) -> bool:
        """Whether the policy was asked for this turn of the first execution."""
        wanted = (f"{submitted.rollout_id}/x1", turn)
        return any((call["execution_id"], call["turn"]) == wanted for call in self.stack.policy.stats()["calls"])

    async def pending(self, submitted: Submitted, activity: str) -> bool:
        """Whether a worker has begun this activity of the first execution and not ended it."""
        described = await self._first(submitted).describe()
        return any(
            item.activity_type.name == activity and item.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
            for item in described.raw_description.pending_activities
        )

    async def scheduled(self, submitted: Submitted, activity: str, times: int) -> bool:
        """Whether this activity of the first execution was scheduled so often."""
        try:
            history = await self._first(submitted).fetch_history()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:  # the execution has not begun
                return False
            raise
        kinds = (event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events)
        return sum(kind == activity for kind in kinds) >= times

    def _first(self, submitted: Submitted) -> WorkflowHandle:
        return self.stack.client.get_workflow_handle(execution_workflow_id(f"{submitted.rollout_id}/x1"))

    def generations(self, execution_id: str) -> list[int]:
        """How often a reply was generated for each turn of an execution."""
        calls = [call for call in self.stack.policy.stats()["calls"] if call["execution_id"] == execution_id]
        return [call["generations"] for call in sorted(calls, key=lambda call: call["turn"])]

    def _counts(self, execution: ExecutionResult) -> Counts | None:
        if execution.evidence_head is None:
            return None
        records = chain.walk(self.store, execution.evidence_head)
        evaluation = chain.last(records, EvaluationRecord)
        if evaluation is None:
            return None
        return Counts.of({name: self.store.get(sha256).decode() for name, sha256 in evaluation.files.items()})

    # --- desktops ---

    def records(self) -> list[DesktopRecord]:
        """Desktops that exist now."""
        return LeaseRegistry(self.stack.settings.state_dir / "desktops").all()

    async def desktop(self, execution_id: str, limit_s: float = 60) -> DesktopRecord:
        """The desktop of an execution, as soon as it is ready."""

        def found() -> DesktopRecord | None:
            mine = (record for record in self.records() if record.owner.execution_id == execution_id)
            return next((record for record in mine if record.state == "ready"), None)

        await wait_until(lambda: found() is not None, limit_s)
        record = found()
        assert record is not None
        return record

    def counts_now(self, record: DesktopRecord) -> Counts:
        """The guest's own count while its desktop lives."""
        return Counts.beside(record.state_dir / "home")

    # --- afterwards ---

    async def exactly_once(self, played: Played, turns: int = TURNS) -> None:
        """The episode was scored by the guest's own count, every effect is there once, evidence is whole, nothing is left."""
        assert played.counts is not None, played.result
        assert (played.counts.gui, played.counts.setup, played.counts.post) == (counts(turns), SETUP, POST)
        assert played.result.outcome.score == 1.0
        await self.verified(played)
        await self.nothing_left()

    async def verified(self, played: Played) -> None:
        """Every execution's evidence is whole, ended, and what Temporal's history says it is."""
        for item in played.result.executions:
            assert item.evidence_head, item
            heads = await history_heads(self.stack.client, item.workflow_id)
            report = await asyncio.to_thread(verify_execution, self.store, item.evidence_head, heads)
            assert report.intact, report
            assert report.ended, report
            assert report.witnessed >= len(set(heads)) - 1, report

    async def nothing_left(self, limit_s: float = 30) -> None:
        """No process, mount, port, folder or display is left of any desktop."""
        try:
            await wait_until(lambda: self.leftovers() == [], limit_s)
        except TimeoutError:
            raise AssertionError(self.leftovers()) from None

    def leftovers(self) -> list[str]:
        """Whatever remains; workers that live are not leftovers."""
        state_dir = str(self.stack.settings.state_dir)
        mounts = [
            line for line in Path("/proc/self/mounts").read_text().splitlines() if f"{state_dir}/desktops" in line
        ]
        alive = {process.pid for process in self.stack.processes if process.poll() is None}
        return [
            *self.stack.leftovers(),
            *(str(path) for path in Path(state_dir, "evaluator", "workers").glob("worker-*/*-*") if path.is_dir()),
            *mounts,
            *(f"display {name}" for name in set(_displays()) - self._before),
            *(f"process {pid} of a dead worker" for pid in _orphans(state_dir, alive)),
            *(f"port {port} of worker {pid}" for pid in alive for port in _listening(pid)),
        ]


def once(counts: list[str]) -> bool:
    """Whether no effect happened twice."""
    return all(number == 1 for number in Counter(counts).values())


def _listening(pid: int) -> list[int]:
    """TCP ports a process listens on: a worker does so only while OSWorld's code runs behind a gateway."""
    sockets = set()
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                sockets.add(str(entry.readlink()).removeprefix("socket:[").removesuffix("]"))
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return [int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in sockets]


def _displays() -> list[str]:
    return [path.name for path in Path("/tmp/.X11-unix").glob("X*")] + [
        path.name for path in Path("/tmp").glob(".X*-lock")
    ]


def _orphans(state_dir: str, alive: set[int]) -> list[int]:
    """Processes that were started by a worker of this state directory and have no living worker above them."""
    mark, parents = f"ROLLOUTS_STATE_DIR={state_dir}\0".encode(), {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if mark in (entry / "environ").read_bytes():
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])

    def owned(pid: int) -> bool:
        while pid in parents:
            if pid in alive:
                return True
            pid = parents[pid]
        return False

    return sorted(pid for pid in parents if not owned(pid))
