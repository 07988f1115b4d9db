# ruff: noqa: T201  (a program that prints)
"""What an export needs in memory: `python -m tests.evidence.bench_export [calls]`.

A campaign of that many model calls, 20 a rollout, is recorded into a temporary store by the recorder's own functions: request as
sent, journal left out, reply in vLLM's format read and checked, segment, ids, log probabilities, records, pointer. A prompt holds the last 4
screenshots and about 1,100 ids, a reply 60. Pictures are small and few, so that the disk is not what is measured. Then each format is
written, and read back, by a process of its own, whose peak of resident memory is printed.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

from osworld_rollouts.contracts._base import canonical_json
from osworld_rollouts.contracts.action import Click, Point
from osworld_rollouts.contracts.model import ModelRequest
from osworld_rollouts.contracts.outcome import Outcome, OutcomeKind
from osworld_rollouts.contracts.steps import HistoryWindow
from osworld_rollouts.evidence import chain, open_campaign, open_store
from osworld_rollouts.evidence.export.campaign import ExportReport, export_campaign
from osworld_rollouts.evidence.index import ExecutionPointer, write_pointer
from osworld_rollouts.evidence.local_store import LocalStore
from osworld_rollouts.evidence.media import put_screenshot
from osworld_rollouts.evidence.profile import ImageTokens, ServerProfile
from osworld_rollouts.evidence.store import put_json
from osworld_rollouts.serving.exact import PROFILE_KEY, ask_for_evidence, judge, sent_sampling
from osworld_rollouts.serving.journal import put_request
from osworld_rollouts.serving.reply import read_reply
from tests.evidence.builders import START, Chain, png
from tests.evidence.exact import AFTER, BEFORE, END, IMAGE, make_request, vllm_reply

CAMPAIGN, TURNS, RUN, LIVE = "bench", 20, 252, 4
COPIED = 10_000  # calls up to which the export that copies its blobs is measured too; it doubles the store
FORMATS = ("jsonl", "parquet", "nemo-gym")
PROFILE = ServerProfile(
    server="vllm", model="m", image_token=IMAGE, image_before=BEFORE, image_after=AFTER, end_tokens=(END,),
    images=(ImageTokens(width=64, height=48, tokens=RUN),), logprobs_mode="processed", special_texts=("<|image_pad|>",),
)  # fmt: skip


def record_rollout(store: LocalStore, number: int, shots: list) -> None:
    """One rollout of TURNS calls."""
    rollout_id = f"{CAMPAIGN}/task/{number}"
    request = make_request(rollout_id, CAMPAIGN)
    made = Chain(store, f"{rollout_id}/x1")
    made.start(
        request=store.put(canonical_json(request.model_dump(mode="json"))), request_digest=request.request_digest(),
        campaign_id=CAMPAIGN, rollout_id=rollout_id, provenance={PROFILE_KEY: put_json(store, PROFILE.model_dump(mode="json"))},
    )  # fmt: skip
    made.prepare(shots[0])
    for turn in range(TURNS):
        media = tuple(shots[(number + at) % len(shots)] for at in range(max(0, turn - LIVE + 1), turn + 1))
        text = f"rollout {number} turn {turn}: " + "the quick brown fox jumps over the lazy dog. " * 20
        parts = [{"type": "image_url", "image_url": {"url": f"media://{item.sha256}"}} for item in media]
        messages = [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]
        body = {"model": "m", "messages": messages, "max_tokens": 64, "temperature": 1.0}
        asked = ask_for_evidence(ModelRequest(api="chat_completions", body=body, media=media))
        prompt = [100 + (number * 31 + turn * 7 + at) % 3900 for at in range(90)]
        for _ in media:
            prompt += [BEFORE, *[IMAGE] * RUN, AFTER]
        generated = [*(100 + (number * 17 + turn * 5 + at) % 3900 for at in range(59)), END]
        raw = vllm_reply(prompt, generated)
        reply = read_reply("chat_completions", raw, max_tokens=64, eos=(END,))
        sampling, unsent = sent_sampling(asked)
        arrays = {
            "prompt_token_ids": reply.prompt_token_ids,
            "generated_token_ids": reply.generated_token_ids,
            "logprobs": reply.logprobs,
        }
        made.call(
            turn, sent=put_request(store, asked), received=store.put(raw), media=media, text=reply.text, evidence="exact",
            finish_reason=reply.finish_reason, sampling=sampling, usage=reply.usage, missing=(*unsent, *reply.missing),
            actions=(Click(point=Point(x=1, y=2)),),
            **{name: put_json(store, list(value or ())) for name, value in arrays.items()},
            **judge(store, chain.walk(store, str(made.head)), asked, reply, exact=True, window=HistoryWindow()),
        )  # fmt: skip
        made.operate(turn, shots[(number + turn + 1) % len(shots)])
    made.evaluate(1.0)
    made.end()
    outcome = Outcome(
        kind=OutcomeKind.AGENT_DONE, score=1.0, eligible=True, admission_reason="agent_done", admission_policy="p"
    )
    write_pointer(
        store,
        ExecutionPointer(
            execution_id=f"{rollout_id}/x1", rollout_id=rollout_id, number=1, campaign_id=CAMPAIGN, task_id="task",
            request_digest=request.request_digest(), workflow_id="w", run_id="r", head=str(made.head), outcome=outcome, sealed_at=START,
        ),
    )  # fmt: skip


def record(path: str, first: int, last: int) -> None:
    """Rollouts `first` to `last` into the store."""
    store = LocalStore(Path(path), durable=False)
    shots = [put_screenshot(store, png(mark=at)) for at in range(24)]
    for number in range(first, last):
        record_rollout(store, number, shots)


def export(path: str, out: str, kind: str, blobs: str) -> None:
    """One format, alone in this process."""
    started = time.perf_counter()
    report = export_campaign(open_store(path), CAMPAIGN, out, format=kind, blobs=blobs)
    assert not report.problems, report.problems[:1]
    told(f"export {kind}, blobs {blobs}", report.calls, started)


def trace(path: str, out: str, kind: str) -> None:
    """Bytes that Python holds after each rollout, as a JSON list."""
    used: list[int] = []

    def told_of(_: ExportReport) -> None:
        gc.collect()
        used.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    export_campaign(open_store(path), CAMPAIGN, out, format=kind, blobs="none", progress=told_of)
    print(json.dumps(used))


def read(out: str) -> None:
    """Trainer admission of everything in an export."""
    started, calls, tokens = time.perf_counter(), 0, 0
    campaign = open_campaign(out)
    for rollout in campaign:
        calls += len(rollout.calls)
        tokens += rollout.admission.eligible_tokens
    assert not campaign.broken, campaign.broken[:1]
    assert tokens == calls * 60, (tokens, calls)
    told("open_campaign, every rollout verified", calls, started)


def told(what: str, calls: int, started: float) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what:>40}: {calls:>7,} calls, peak {peak:6.1f} MB, {time.perf_counter() - started:7.1f} s", flush=True)


def alone(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", __spec__.name, *arguments], check=True)


def main(calls: int = 10_000) -> None:
    """Record, then each format in a process of its own."""
    root = Path(tempfile.mkdtemp(prefix="bench-export-", dir=os.environ.get("BENCH_DIR")))
    try:
        started, rollouts, workers = time.perf_counter(), calls // TURNS, os.cpu_count() or 1
        bounds = [rollouts * at // workers for at in range(workers + 1)]
        processes = [
            subprocess.Popen([sys.executable, "-m", __spec__.name, "record", str(root / "store"), *map(str, pair)])
            for pair in itertools.pairwise(bounds)
        ]
        codes = [process.wait() for process in processes]
        assert not any(codes), codes
        print(f"{'recorded':>40}: {rollouts * TURNS:>7,} calls, {time.perf_counter() - started:.1f} s", flush=True)
        for kind in FORMATS:
            out = root / "out"
            alone("export", str(root / "store"), str(out), kind, "none")
            if kind != "nemo-gym":
                alone("read", str(out))
            shutil.rmtree(out)
        if calls <= COPIED:
            alone("export", str(root / "store"), str(root / "out"), "jsonl", "all")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    steps = {"record": lambda path, first, last: record(path, int(first), int(last)), "export": export, "read": read,
             "trace": trace}  # fmt: skip
    if sys.argv[1:] and sys.argv[1] in steps:
        steps[sys.argv[1]](*sys.argv[2:])
    else:
        main(*map(int, sys.argv[1:]))
