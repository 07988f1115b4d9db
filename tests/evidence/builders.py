"""Records, chains and pictures for tests."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta

from PIL import Image, ImageDraw

from osworld_rollouts.contracts.desktop import Lease, MediaRef, Observation
from osworld_rollouts.contracts.evidence import (
    DesktopPrepared,
    EvaluationRecord,
    ExecutionStarted,
    ModelCallRecord,
    OperationsRecord,
    Terminated,
)
from osworld_rollouts.contracts.outcome import Outcome, OutcomeKind
from osworld_rollouts.contracts.steps import HistoryWindow
from osworld_rollouts.evidence import chain

EXECUTION = "camp/task/0/x1"
START = datetime(2026, 1, 1, tzinfo=UTC)
ZERO = "0" * 64


def png(width=64, height=48, colour=(20, 60, 90), mark=None) -> bytes:
    image = Image.new("RGB", (width, height), colour)
    if mark is not None:
        ImageDraw.Draw(image).rectangle((mark, mark, mark + 8, mark + 8), fill=(250, 10, 10))
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def media(sha=ZERO, width=64, height=48) -> MediaRef:
    return MediaRef(sha256=sha, pixel_sha256=sha, bytes=10, width=width, height=height)


def observation(shot: MediaRef | None = None) -> Observation:
    return Observation(screenshot=shot or media(), captured_at=START, stable=True, settle_ms=300)


def lease() -> Lease:
    return Lease(
        lease_id="l", provider="local", host_id="h", task_queue="q", fence=1, width=64, height=48, image_identity="i",
        created_at=START, expires_at=START + timedelta(hours=1),
    )  # fmt: skip


class Chain:
    """Appends records, keeping head and every earlier head."""

    def __init__(self, store, execution_id=EXECUTION, number=1):
        self.store, self.execution_id, self.head, self.heads, self.index = store, execution_id, None, [], 0
        self.number = number

    def add(self, kind, **fields):
        record = kind(
            execution_id=self.execution_id, index=self.index, previous=self.head,
            recorded_at=START + timedelta(seconds=self.index), **fields,
        )  # fmt: skip
        self.head = chain.append(self.store, self.head, record)
        self.heads.append(self.head)
        self.index += 1
        return record

    def start(self, **fields):
        rollout, _, _ = self.execution_id.rpartition("/")
        base = {
            "rollout_id": rollout, "number": self.number, "campaign_id": "camp", "purpose": None, "request_digest": ZERO,
            "request": self.store.put(b'{"rollout":{"task":{"task_id":"task"}}}'), "workflow_id": f"rollout/{self.execution_id}", "run_id": "run", "adapter": "a",
            "adapter_version": "1", "history": "full", "history_params": {}, "provenance": {},
        }  # fmt: skip
        return self.add(ExecutionStarted, **{**base, **fields})

    def prepare(self, shot=None):
        return self.add(
            DesktopPrepared, lease=lease(), exchanges=self.store.put(b"[]"), steps=0, observation=observation(shot)
        )

    def call(self, turn, call=0, **fields):
        base = {
            "turn": turn, "call": call, "activity_attempt": 1, "request_id": f"r{turn}-{call}", "window": HistoryWindow(),
            "sent": self.store.put(b"{}"), "received": self.store.put(b'{"a":1}'), "status": 200,
        }  # fmt: skip
        return self.add(ModelCallRecord, **{**base, **fields})

    def operate(self, turn, shot=None):
        return self.add(OperationsRecord, turn=turn, operations=(), outcomes=(), observation=observation(shot))

    def evaluate(self, score=1.0):
        return self.add(
            EvaluationRecord,
            score=score,
            last_action="DONE",
            exchanges=self.store.put(b"[]"),
            log=self.store.put(b""),
            duration_ms=5,
        )

    def end(self, kind=OutcomeKind.AGENT_DONE, score=1.0, eligible=True):
        return self.add(
            Terminated,
            outcome=Outcome(
                kind=kind, score=score, eligible=eligible, admission_reason=str(kind), admission_policy="p"
            ),
        )
