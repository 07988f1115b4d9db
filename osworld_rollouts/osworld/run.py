"""One job from start to end: files, gateway, process, deadline; and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import aiohttp

from osworld_rollouts.osworld.exchanges import command_text, redact_text
from osworld_rollouts.osworld.gateway import Gateway, GatewayLimits
from osworld_rollouts.osworld.job import EvaluationFailed, FailureKind, OSWorldJob, PrepareFailed, as_score
from osworld_rollouts.osworld.operations import OperationNames
from osworld_rollouts.osworld.task_files import TaskFiles, TaskFileUnavailable, task_files
from osworld_rollouts.osworld.verdicts import Phase, Step, Verdict
from osworld_rollouts.osworld.zygote import EvaluatorUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from osworld_rollouts.osworld.zygote import JobProcess, Zygote

LOG_HEAD, LOG_TAIL = 256 * 1024, 768 * 1024
"""Bytes kept of a longer log."""

_PARTS = {Phase.SETUP: "config", Phase.POST: "postconfig", Phase.EVALUATE: "evaluator"}


@dataclass(slots=True)
class Ran:
    """What a job left: its result, and the record of how it came about."""

    score: float | None = None
    next_seq: int = 0
    exchanges: list[dict[str, Any]] = field(default_factory=list)
    log: bytes = b""
    notes: tuple[str, ...] = ()
    duration_ms: int = 0


@dataclass
class JobRun:
    """One run of OSWorld's code. `execute` may be called once."""

    zygote: Zygote
    files: TaskFiles
    job: OSWorldJob
    phase: Phase
    limits: GatewayLimits
    work_dir: Path
    heartbeat: Callable[[str], None]
    heartbeat_every_s: float = 2.0
    last_action: str | None = None
    _notes: list[str] = field(default_factory=list)
    _started: float = field(default_factory=time.monotonic)
    _doing: str = "starting"

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The steps this job runs: the task's setup, the evaluator's post-steps, or none."""
        if self.phase is Phase.SETUP:
            return self.job.task_document.get("config") or []
        if self.phase is Phase.POST:
            return self.job.task_document["evaluator"].get("postconfig") or []
        return []

    async def execute(self) -> Ran:
        """Run the job within its deadline.

        Raises:
            PrepareFailed: setup and post-steps.
            EvaluationFailed: evaluation.
        """
        job = self.job
        names = OperationNames(job.operation_prefix, job.first_seq, number_by_seq=self.phase is Phase.EVALUATE)
        async with Gateway(job.guest, self.phase, names, fence=job.fence, limits=self.limits) as gateway:
            try:
                score = await self._within_deadline(gateway)
            except _Failed as failed:
                self._fail(gateway, failed)
            return Ran(score=score, **self._record(gateway))

    async def _within_deadline(self, gateway: Gateway) -> float | None:
        work = asyncio.ensure_future(self._inside(gateway))
        try:
            while True:
                self.heartbeat(f"{self.phase}: {self._doing or gateway.activity}")
                left = self._started + self.job.timeout_s - time.monotonic()
                done, _ = await asyncio.wait([work], timeout=max(0, min(self.heartbeat_every_s, left)))
                if done:
                    return work.result()
                if left <= self.heartbeat_every_s:
                    message = f"not done within {self.job.timeout_s:g} s; it was waiting for: {self._doing or gateway.activity}"
                    raise _Failed(FailureKind.TIMEOUT, message)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _inside(self, gateway: Gateway) -> float | None:
        await self._place_files()
        if self.phase is Phase.EVALUATE:
            await self._follow_sequence(gateway)
        self._doing = "starting the evaluator's process"
        try:
            process = await self.zygote.fork(self.work_dir / "job.log")
        except EvaluatorUnavailable as error:
            raise _Failed(FailureKind.CRASH, str(error)) from error
        except OSError as error:
            raise _Failed(FailureKind.UNREACHABLE, f"no job can be started: {error}") from error
        try:
            await process.send(self._specification(gateway))
            self._doing = ""
            score = await self._converse(gateway, process)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(process.exited), 5)
        finally:
            await self.zygote.kill(process)
        if self.phase is Phase.EVALUATE:
            await self._check_guest_was_there(gateway)
        return score

    async def _place_files(self) -> None:
        self._doing = "fetching the task's files"
        document = self.job.task_document
        try:
            await self.files.place(task_files(document, [_PARTS[self.phase]]), self.job.cache_dir / self.job.task_id)
            if self.phase is Phase.SETUP:
                # A gold file that cannot be had is better known before the agent is paid for than after.
                await asyncio.gather(
                    *(self.files.fetch(file.url) for file in task_files(document, ["postconfig", "evaluator"]))
                )
        except (TaskFileUnavailable, OSError) as error:
            raise _Failed(FailureKind.UNREACHABLE, str(error)) from error

    async def _follow_sequence(self, gateway: Gateway) -> None:
        """Number the getters' commands after whatever the ledger holds: an earlier evaluation may have been cut short."""
        self._doing = "asking the guest for its ledger"
        if not self.job.guest.ledger:
            return
        try:
            last = (await gateway.ask("/health")).get("last_seq")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            message = f"the guest does not answer before evaluation: {error or type(error).__name__}"
            raise _Failed(FailureKind.UNREACHABLE, message) from error
        if isinstance(last, int):
            gateway.names.skip_to(last + 1)

    async def _check_guest_was_there(self, gateway: Gateway) -> None:
        """A browser port that could not be reached is the agent's doing if the desktop is alive, and ours if not."""
        if not gateway.forwards_refused:
            return
        try:
            await gateway.ask("/health") if self.job.guest.ledger else await gateway.ask("/terminal", timeout_s=60)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            message = (
                f"the desktop's ports could not be reached during evaluation, and the guest does not answer: {error}"
            )
            raise _Failed(FailureKind.UNREACHABLE, message) from error

    async def _converse(self, gateway: Gateway, process: JobProcess) -> float | None:
        while True:
            reading = asyncio.ensure_future(process.read())
            try:
                await asyncio.wait([reading, gateway.failure], return_when=asyncio.FIRST_COMPLETED)
                if gateway.failure.done():
                    raise _Failed.of(gateway.failure.result())
                message = reading.result()
            finally:
                reading.cancel()
            if message is None:
                await asyncio.wait([process.exited], timeout=5)
                code = process.exited.result() if process.exited.done() else "unknown"
                raise _Failed(FailureKind.CRASH, f"the evaluator's process died (exit code {code}) without a result")
            match message["event"]:
                case "begin":
                    await process.send(self._begin(gateway, message["number"]))
                case "end":
                    await process.send({"failure": self._end(gateway)})
                case "result":
                    self._end(gateway)
                    return self._score(message)
                case "error":
                    self._end(gateway)
                    raise _Failed.reported(message)
                case _:
                    raise _Failed(FailureKind.CRASH, f"the evaluator's process said {message!r}")

    def _score(self, message: dict[str, Any]) -> float | None:
        if self.phase is not Phase.EVALUATE:
            return None
        try:
            return as_score(message.get("score"))
        except ValueError as error:
            raise _Failed(FailureKind.EXCEPTION, str(error)) from error

    def _begin(self, gateway: Gateway, number: int) -> dict[str, Any]:
        step = self.steps[number - 1]
        gateway.begin_step(Step(number, step["type"], step.get("parameters") or {}, self.job.task_id))
        return {}

    def _end(self, gateway: Gateway) -> dict[str, Any] | None:
        failure: Verdict | None = None
        for verdict in gateway.end_step():
            if verdict.fails:
                failure = failure or verdict
            else:
                self._notes.append(verdict.message)
        if failure is None:
            return None
        exchange = failure.exchange
        return {
            "kind": failure.kind,
            "message": failure.message,
            "command": command_text(exchange),
            "output": exchange.output,
        }

    def _specification(self, gateway: Gateway) -> dict[str, Any]:
        document = copy.deepcopy(self.job.task_document)
        if self.phase is Phase.EVALUATE:
            # They ran in a job of their own, and the package's evaluate would run them again.
            document["evaluator"]["postconfig"] = []
        return {
            "phase": self.phase,
            "task": document,
            "steps": self.steps,
            "ports": {"server": gateway.server_port, "chromium": gateway.chromium_port, "vlc": gateway.vlc_port},
            "cache_dir": str(self.job.cache_dir.absolute()),
            "work_dir": str(self.work_dir.absolute()),
            "screen_width": self.job.screen_width,
            "screen_height": self.job.screen_height,
            "client_password": self.job.client_password,
            "last_action": self.last_action,
        }

    def _record(self, gateway: Gateway) -> dict[str, Any]:
        return {
            "next_seq": gateway.names.next_seq,
            "exchanges": [exchange.as_dict() for exchange in gateway.exchanges],
            "log": read_log(self.work_dir / "job.log"),
            "notes": tuple(self._notes),
            "duration_ms": round((time.monotonic() - self._started) * 1000),
        }

    def _fail(self, gateway: Gateway, failed: _Failed) -> NoReturn:
        record = self._record(gateway)
        record.pop("duration_ms")
        message = redact_text(failed.message)
        if self.phase is Phase.EVALUATE:
            raise EvaluationFailed(failed.kind, message, traceback=failed.traceback, **record) from failed
        number = failed.step or gateway.step.number
        kind = failed.step_type or (self.steps[number - 1]["type"] if number else "")
        raise PrepareFailed(
            failed.kind,
            message,
            step=number,
            step_type=kind,
            command=redact_text(failed.command),
            output=failed.output,
            traceback=failed.traceback,
            **record,
        ) from failed


class _Failed(Exception):
    """Why a job stopped, before it is known whether that is a failed preparation or evaluation."""

    def __init__(self, kind: FailureKind, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.traceback: str = facts.get("traceback", "")
        self.step: int = facts.get("step", 0)
        self.step_type: str = facts.get("step_type", "")
        self.command: str = facts.get("command", "")
        self.output: str = facts.get("output", "")

    @classmethod
    def of(cls, verdict: Verdict) -> _Failed:
        exchange = verdict.exchange
        return cls(
            verdict.kind, verdict.message, step=exchange.step, command=command_text(exchange), output=exchange.output
        )

    @classmethod
    def reported(cls, message: dict[str, Any]) -> _Failed:
        """What the job's process said of the exception that ended it."""
        failure = message["failure"] or {}
        kind = FailureKind(failure.get("kind", FailureKind.EXCEPTION))
        if message["download"]:
            kind = FailureKind.UNREACHABLE
        elif message["step"] and not failure:
            kind = FailureKind.STEP_FAILED
        return cls(
            kind,
            message["message"],
            traceback=redact_text(message["traceback"]),
            step=message["step"],
            step_type=message["step_type"],
            command=failure.get("command", ""),
            output=failure.get("output", ""),
        )


def read_log(path: Path) -> bytes:
    """A job's log without secrets; the middle of a very long one is left out."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return b""
    if len(data) > LOG_HEAD + LOG_TAIL:
        left_out = f"\n[{len(data) - LOG_HEAD - LOG_TAIL} bytes left out]\n".encode()
        data = data[:LOG_HEAD] + left_out + data[-LOG_TAIL:]
    return redact_text(data.decode("utf-8", "replace")).encode()
