# ruff: noqa: T201  (a program that prints)
"""What recording adds to a turn at 1920x1080: `python -m tests.evidence.bench_recording [turns]`.

A turn here: check, hash and store the screenshot; store the request; journal the attempt; store the reply; read and check it; find its
segment; store ids and log probabilities; append two records. Prompt of 4 images and 1,200 ids, reply of 200 ids. No model, no desktop.
"""

from __future__ import annotations

import io
import statistics
import sys
import tempfile
import time

from PIL import Image, ImageDraw

from osworld_rollouts.contracts.model import ModelRequest
from osworld_rollouts.contracts.steps import HistoryWindow
from osworld_rollouts.evidence import chain, open_store
from osworld_rollouts.evidence.media import put_screenshot
from osworld_rollouts.evidence.profile import ImageTokens, ServerProfile
from osworld_rollouts.evidence.store import put_json
from osworld_rollouts.serving.client import RawReply
from osworld_rollouts.serving.exact import PROFILE_KEY, ask_for_evidence, judge
from osworld_rollouts.serving.journal import CallKey, Journal, put_request
from osworld_rollouts.serving.reply import read_reply
from tests.evidence.builders import Chain
from tests.evidence.exact import AFTER, BEFORE, END, IMAGE, vllm_reply

PROFILE = ServerProfile(
    server="vllm", model="m", image_token=IMAGE, image_before=BEFORE, image_after=AFTER, end_tokens=(END,), logprobs_mode="processed",
    images=(ImageTokens(width=1920, height=1080, tokens=252),),
)  # fmt: skip


def desktop(turn: int) -> bytes:
    """A screenshot with windows and text, a little different each turn."""
    image = Image.new("RGB", (1920, 1080), (60, 90, 120))
    draw = ImageDraw.Draw(image)
    for window in range(4):
        left, top = 60 + window * 430 + turn % 40, 60 + window * 110
        draw.rectangle((left, top, left + 700, top + 520), fill=(245, 245, 245))
        for line in range(28):
            draw.text(
                (left + 12, top + 8 + line * 18),
                f"Line {line} of window {window}, turn {turn}: the quick brown fox",
                fill=(20, 20, 20),
            )
    out = io.BytesIO()
    image.save(out, "PNG", compress_level=3)
    return out.getvalue()


def main(turns: int = 60) -> None:
    store = open_store(tempfile.mkdtemp(prefix="bench-"))
    journal, made = Journal(store), Chain(store)
    made.start(provenance={PROFILE_KEY: put_json(store, PROFILE.model_dump(mode="json"))})
    made.prepare()
    shots, times = (
        [desktop(turn) for turn in range(turns)],
        {"screenshot": [], "before sending": [], "after the reply": [], "operations": []},
    )
    media, ids = [], [5] * 192
    for turn in range(turns):
        marks = [time.perf_counter()]
        shot = put_screenshot(store, shots[turn])
        marks.append(time.perf_counter())
        media = [*media, shot][-4:]
        prompt = [*ids, *[part for _ in media for part in (BEFORE, *[IMAGE] * 252, AFTER)]]
        records = chain.walk(store, made.head)
        messages = [
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": f"media://{item.sha256}"}} for item in media],
            }
        ]
        request = ask_for_evidence(
            ModelRequest(
                api="chat_completions", body={"model": "m", "messages": messages, "max_tokens": 400}, media=tuple(media)
            )
        )
        sent, key = put_request(store, request), CallKey(made.execution_id, turn, 0)
        journal.lookup(key, sent)
        journal.begin(key, attempt=1, request_id=f"r{turn}", sent=sent)
        marks.append(time.perf_counter())
        body = vllm_reply(prompt, [*[100 + at % 900 for at in range(199)], END])
        marks.append(time.perf_counter())
        received = journal.received(key, RawReply(200, body, request_id=f"r{turn}"))
        reply = read_reply("chat_completions", body, max_tokens=400, eos=(END,))
        arrays = {
            "prompt_token_ids": reply.prompt_token_ids,
            "generated_token_ids": reply.generated_token_ids,
            "logprobs": reply.logprobs,
        }
        made.call(
            turn, sent=sent, received=received, media=tuple(media), text=reply.text, evidence="exact",
            **{name: put_json(store, list(value)) for name, value in arrays.items()},
            **judge(store, records, request, reply, exact=True, window=HistoryWindow()),
        )  # fmt: skip
        marks.append(time.perf_counter())
        made.operate(turn, shot)
        marks.append(time.perf_counter())
        steps = (marks[1] - marks[0], marks[2] - marks[1], marks[4] - marks[3], marks[5] - marks[4])
        for name, value in zip(times, steps, strict=True):
            times[name].append(value * 1000)
    for name, values in times.items():
        print(f"{name:>16}: median {statistics.median(values):6.2f} ms, best {min(values):6.2f} ms")
    beside = [
        a + b + c
        for a, b, c in zip(times["before sending"], times["after the reply"], times["operations"], strict=True)
    ]
    whole = [a + b for a, b in zip(beside, times["screenshot"], strict=True)]
    print(
        f"  beside the model call and the screenshot: median {statistics.median(beside):.2f} ms, best {min(beside):.2f} ms"
    )
    print(f"  with the screenshot: median {statistics.median(whole):.2f} ms, best {min(whole):.2f} ms")
    blobs = list(store.blobs())
    pictures = sum(len(shot) for shot in shots)
    print(
        f"  store: {sum(item.stored_bytes for item in blobs) / turns / 1000:.1f} kB a turn, of which {pictures / turns / 1000:.1f} kB the screenshot"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
