"""What the tests of this folder share: jobs against a guest, and one episode from setup to score."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osworld_rollouts.desktops.guest_client import GuestClient, Operation
from osworld_rollouts.osworld.evaluator import OSWorldEvaluator
from osworld_rollouts.osworld.job import EvaluationReport, GuestEndpoint, OSWorldJob, PrepareReport

EXECUTION = "tests/task/0/x1"


def task(config: list[dict[str, Any]] | None = None, **evaluator: Any) -> dict[str, Any]:
    """A task document; without an evaluator it is an infeasible one."""
    return {
        "id": "a-task",
        "instruction": "Do it",
        "config": config or [],
        "evaluator": evaluator or {"func": "infeasible"},
    }


def command_task(command: Any = ("cat", "/etc/hostname"), **evaluator: Any) -> dict[str, Any]:
    """A task scored by what a command in the guest prints: `yes` is 1."""
    result = {"type": "vm_command_line", "command": list(command)}
    rules = {"type": "rule", "rules": {"expected": "yes\n"}}
    return task(func="exact_match", result=result, expected=rules, **evaluator)


def step(kind: str, **parameters: Any) -> dict[str, Any]:
    """One setup step."""
    return {"type": kind, "parameters": parameters}


@dataclass
class Rig:
    """An evaluator and a guest."""

    evaluator: OSWorldEvaluator
    guest: GuestEndpoint
    cache: Path
    beats: list[str]

    def job(
        self,
        document: dict[str, Any],
        part: str = "setup",
        *,
        first_seq: int = 0,
        fence: int = 1,
        timeout_s: float = 120,
    ) -> OSWorldJob:
        return OSWorldJob(
            execution_id=EXECUTION,
            task_document=document,
            cache_dir=self.cache,
            guest=self.guest,
            fence=fence,
            first_seq=first_seq,
            operation_prefix=f"{EXECUTION}/{part}",
            timeout_s=timeout_s,
        )

    async def prepare(self, document: dict[str, Any], **how: Any) -> PrepareReport:
        return await self.evaluator.prepare(self.job(document, **how), heartbeat=self.beats.append)

    async def post_steps(self, document: dict[str, Any], **how: Any) -> PrepareReport:
        return await self.evaluator.post_steps(self.job(document, "post", **how), heartbeat=self.beats.append)

    async def evaluate(self, document: dict[str, Any], last_action: str | None = None, **how: Any) -> EvaluationReport:
        job = self.job(document, "evaluate", **how)
        return await self.evaluator.evaluate(job, last_action, heartbeat=self.beats.append)

    async def episode(self, document: dict[str, Any], solution: str | None, *, look_s: float = 0) -> EvaluationReport:
        """Setup, the solution as one action after `look_s`, post-steps, evaluation: what an execution does."""
        prepared = await self.prepare(document)
        await asyncio.sleep(look_s)
        seq, last_action = prepared.next_seq, None
        if solution == "FAIL":
            last_action = "FAIL"
        elif solution is not None:
            last_action = "DONE"
            async with GuestClient(socket=self.guest.server_socket, token=self.guest.token) as client:
                done = await client.execute(
                    ["python", "-c", solution], operation=Operation(f"{EXECUTION}/t0/o0", seq, 1)
                )
            assert done.returncode == 0, done
            seq += 1
        posted = await self.post_steps(document, first_seq=seq)
        return await self.evaluate(document, last_action, first_seq=posted.next_seq)
