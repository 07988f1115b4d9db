"""Evidence of executions that look like real ones, for pages: drawn desktops, replies, timings, failures."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta

from PIL import Image, ImageDraw

from osworld_rollouts.contracts.action import Click, Done, Drag, Hotkey, Point, Press, PythonCode, Scroll, TypeText
from osworld_rollouts.contracts.desktop import Lease, Observation
from osworld_rollouts.contracts.evidence import (
    DesktopPrepared,
    EvaluationRecord,
    ExecutionStarted,
    ModelCallRecord,
    OperationsRecord,
    PostStepsRecord,
    RecoveryRecord,
    Terminated,
)
from osworld_rollouts.contracts.outcome import Cause, Outcome, OutcomeKind
from osworld_rollouts.contracts.request import Model, Rollout, RolloutRequest, Task
from osworld_rollouts.contracts.steps import HistoryWindow, OperationOutcome, ParseFailure, RecoveredOperation
from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.index import ExecutionPointer, write_pointer
from osworld_rollouts.evidence.media import put_screenshot

START = datetime(2026, 3, 4, 9, 30, tzinfo=UTC)
SIZE = (1920, 1080)
HOSTILE = "<script>window.pwned=1</script><img src=x onerror=window.pwned=1>\u202e\x1b]0;pwned\x07"

ACTIONS = (
    (Click(point=Point(x=640, y=380)),),
    (PythonCode(code="import pyautogui\npyautogui.doubleClick(1010, 512)\npyautogui.write('budget', interval=0.02)"),),
    (TypeText(text="=SUM(B2:B7)"), Press(key="enter")),
    (Drag(path=(Point(x=300, y=300), Point(x=900, y=620))),),
    (Scroll(point=Point(x=960, y=700), clicks_y=-5),),
    (Hotkey(keys=("ctrl", "s")),),
    (Click(point=Point(x=1880, y=40), button="right"),),
)
WORDS = (
    "The spreadsheet is open. I click cell B8, next to Total.",
    "I need to open the file first; the file manager shows it in the second row, so a double click opens it, and then I type its name.",
    "Now I enter the formula that adds the amounts of all months and confirm it with Enter.",
    "I drag over the cells to select them.",
    "Scrolling down to see the rest of the sheet.",
    "Saving with Ctrl+S.",
    "Closing the window through its menu.",
)


def screenshot(seed: int, size=SIZE) -> bytes:
    """A drawn desktop: panel, window, rows that differ by seed."""
    width, _height = size
    image = Image.new("RGB", size, (38, 70 + seed % 60, 94))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, width, 34), fill=(45, 45, 48))
    draw.rectangle((220, 130, 1500, 900), fill=(250, 250, 250))
    draw.rectangle((220, 130, 1500, 168), fill=(228, 228, 230))
    draw.text((240, 142), f"budget.xlsx - frame {seed}", fill=(20, 20, 20))
    for row in range(18):
        draw.line((220, 200 + row * 38, 1500, 200 + row * 38), fill=(215, 215, 215))
        draw.text((240, 208 + row * 38), f"{row + 1}   {(seed * 37 + row * 113) % 997:>6}", fill=(60, 60, 60))
    out = io.BytesIO()
    image.save(out, "PNG", compress_level=1)
    return out.getvalue()


def request(
    rollout_id="demo/calc-total-formula/0", model="scripted-solver", max_turns=15, instruction=None
) -> RolloutRequest:
    campaign, task, sample = rollout_id.split("/")
    document = {
        "id": task,
        "instruction": instruction
        or 'The workbook budget.xlsx is open in LibreOffice Calc. Put a formula into cell B8, next to "Total".',
        "config": [],
        "evaluator": {"func": "infeasible"},
    }
    rollout = Rollout(
        task=Task.from_document(document, "libreoffice_calc"),
        model=Model(name=model, base_url="http://127.0.0.1:9/v1"),
        max_turns=max_turns,
    )
    return RolloutRequest(rollout=rollout, campaign_id=campaign, sample_index=int(sample))


class Sample:
    """Writes one execution, record by record."""

    def __init__(self, store, made: RolloutRequest, number=1, start=START):
        self.store, self.request, self.number = store, made, number
        self.execution_id = f"{made.rollout_id}/x{number}"
        self.head, self.index, self.now = None, 0, start
        self.heads = []

    def add(self, kind, after_s=0.0, **fields):
        self.now += timedelta(seconds=after_s)
        record = kind(
            execution_id=self.execution_id, index=self.index, previous=self.head, recorded_at=self.now, **fields
        )
        self.head = chain.append(self.store, self.head, record)
        self.heads.append(self.head)
        self.index += 1
        return record

    def observe(self, seed, size=SIZE):
        return Observation(
            screenshot=put_screenshot(self.store, screenshot(seed, size)),
            captured_at=self.now,
            stable=seed % 5 != 4,
            settle_ms=420,
        )

    def begin(self, seed=0, size=SIZE):
        self.add(
            ExecutionStarted, rollout_id=self.request.rollout_id, number=self.number, campaign_id=self.request.campaign_id, purpose=None,
            request_digest=self.request.request_digest(), request=self.store.put(self.request.model_dump_json().encode()),
            workflow_id=f"rollout/{self.execution_id}", run_id="0198-run", adapter="pyautogui", adapter_version="1", history="fixed",
            history_params={"images": 3},
            provenance={"version": "0.1.0", "source_revision": "5e451fd", "dirty": False, "python": "3.11.7", "temporal_server": "1.32.0"},
        )  # fmt: skip
        lease = Lease(
            lease_id=f"{self.execution_id}#0198abcd", provider="local", host_id="host-1a2b3c4d", task_queue="q", fence=1, width=1920, height=1080,
            image_identity="local", tier="bubblewrap", created_at=self.now, expires_at=self.now + timedelta(hours=1),
        )  # fmt: skip
        self.add(
            DesktopPrepared,
            3.4,
            lease=lease,
            exchanges=self.store.put(b"[]"),
            steps=2,
            observation=self.observe(seed, size),
            evaluator={"version": "1.0.2"},
        )
        return self

    def call(self, turn, actions=(), text="", call=0, latency_ms=1200, failure=None, **fields):
        sent = {"model": self.request.rollout.model.name, "messages": [{"role": "user", "content": "look"}]}
        return self.add(
            ModelCallRecord, latency_ms / 1000, turn=turn, call=call, activity_attempt=1, request_id=f"r{turn}-{call}", window=HistoryWindow(),
            sent=self.store.put(json.dumps(sent).encode()), received=self.store.put(json.dumps({"text": text}).encode()), status=200, text=text, actions=tuple(actions),
            latency_ms=latency_ms, finish_reason="stop", failure=failure, served_model=self.request.rollout.model.name,
            usage={"prompt_tokens": 2100 + turn * 40, "completion_tokens": 60}, **fields,
        )  # fmt: skip

    def operate(self, turn, actions, seed, problem="", size=SIZE):
        outcomes = tuple(
            OperationOutcome(
                operation_id=f"{self.execution_id}/t{turn}/o{index}",
                returncode=1 if problem else 0,
                error=problem,
                duration_ms=34,
            )
            for index, action in enumerate(actions)
            if action.kind != "done"
        )
        self.add(
            OperationsRecord, 0.6, turn=turn, operations=(), outcomes=outcomes, observation=self.observe(seed, size)
        )

    def turns(self, count, first=0, size=SIZE):
        for turn in range(first, first + count):
            actions = ACTIONS[turn % len(ACTIONS)]
            self.call(turn, actions, WORDS[turn % len(WORDS)])
            self.operate(turn, actions, turn + 1, size=size)
        return self

    def odd_turns(self, turn):
        """A rejected reply, hostile text, a failing program, a lost reply that was asked for."""
        self.call(
            turn,
            (),
            "I am not sure what to do.",
            failure=ParseFailure(kind="no_action", message="the reply holds no action"),
        )
        actions = (Click(point=Point(x=500, y=500)),)
        self.call(
            turn, actions, f"Click it. {HOSTILE}", call=1, reasoning="First I considered the menu.\nThen the toolbar."
        )
        self.add(
            RecoveryRecord,
            0.4,
            turn=turn,
            operations=(RecoveredOperation(operation_id=f"{self.execution_id}/t{turn}/o0", state="finished"),),
        )
        self.operate(turn, actions, turn + 1)
        actions = (PythonCode(code=f"raise ValueError({HOSTILE!r})"),)
        self.call(turn + 1, actions, "```python\nraise ValueError()\n```")
        self.operate(turn + 1, actions, turn + 2, problem=f"ValueError: {HOSTILE}")
        return self

    def score(self, turn, score=1.0, log="metric is_expected_formula -> 1"):
        self.call(turn, (Done(),), "The formula is there and the file is saved. DONE")
        self.add(PostStepsRecord, 1.1, exchanges=self.store.put(b"[]"), steps=3)
        self.add(
            EvaluationRecord, 0.9, score=score, last_action="DONE", exchanges=self.store.put(b"[]"),
            log=self.store.put(json.dumps({"stdout": log, "stderr": "", "log": ""}).encode()), files={"budget.xlsx": self.store.put(b"PK\x03\x04\xff")},
            duration_ms=870, evaluator={"version": "1.0.2"},
        )  # fmt: skip
        return self.end(
            Outcome(
                kind=OutcomeKind.AGENT_DONE,
                score=score,
                eligible=True,
                admission_reason="agent_done",
                admission_policy="p",
                turns=turn + 1,
            )
        )

    def fail(self, kind=OutcomeKind.DESKTOP_LOST, message="the desktop's guest server is gone", turns=0):
        cause = Cause(kind=kind, message=message, remedy="look at the host's log", phase="acting")
        return self.end(Outcome(kind=kind, turns=turns, cause=cause, admission_reason=str(kind), admission_policy="p"))

    def end(self, outcome: Outcome):
        self.add(Terminated, 0.7, outcome=outcome)
        pointer = ExecutionPointer(
            execution_id=self.execution_id, rollout_id=self.request.rollout_id, number=self.number, campaign_id=self.request.campaign_id,
            task_id=self.request.rollout.task.task_id, request_digest=self.request.request_digest(), workflow_id=f"rollout/{self.execution_id}", run_id="0198-run",
            head=self.head, outcome=outcome, sealed_at=self.now,
        )  # fmt: skip
        write_pointer(self.store, pointer)
        return self


def gallery(store):
    """A store with a good rollout, one that was retried after a lost desktop, an odd one, and a failed one."""
    Sample(store, request()).begin().turns(7).score(7)
    retried = request("night-1/files-rename/0", model="qwen3-vl-32b", instruction="Rename photos.zip to lisbon.zip.")
    Sample(store, retried, 1).begin().turns(2).fail(turns=2)
    Sample(store, retried, 2, START + timedelta(minutes=2)).begin().turns(5).score(5, 0.0)
    Sample(store, request("night-1/odd/0", model="qwen3-vl-32b", instruction=f"Do it {HOSTILE}")).begin().turns(
        1
    ).odd_turns(1).score(3, 0.5, HOSTILE)
    Sample(store, request("night-1/lost/0", model="qwen3-vl-32b")).begin().turns(1).fail(turns=1)
