"""How much of a prompt a server's prefix cache can keep from one call to the next, by history policy."""

from __future__ import annotations

import base64
import io
import json
import random
import urllib.request
from itertools import pairwise

import pytest
from PIL import Image

from osworld_rollouts import history
from osworld_rollouts.contracts.desktop import MediaRef
from osworld_rollouts.contracts.model import PastTurn, PromptInput, View
from osworld_rollouts.contracts.request import History, Sampling
from tests.serving.vllm_server import MODEL, VllmServer, missing

from .speech import adapter, say

TURNS = 24
POLICIES = {
    "fixed 3": History(name="fixed", params={"keep_images": 3}),
    "fixed 10": History(name="fixed", params={"keep_images": 10}),
    "hysteresis 3-10": History(name="hysteresis", params={"low": 3, "high": 10}),
    "sink 1, 3-10": History(name="sink_window", params={"sink": 1, "low": 3, "high": 10}),
}
REPLIES = {
    "nemotron_nano_omni": "## Action:\nClick number {}.\n## Code:\n```python\npyautogui.click(0.5, 0.5)\n```",
    "qwen3_vl": 'Action: Click number {}.\n<tool_call>\n{{"name": "computer_use", "arguments": {{"action": "wait"}}}}\n</tool_call>',
}


def requests(name, policy):
    """The requests of a rollout, call by call."""
    it, window, past, found = adapter(name), history.initial_window(policy), [], []
    geometry = it.geometry(560, 336)
    for number in range(TURNS):
        window = history.advance(policy, window, number)
        live, kept = set(history.live_turns(policy, window, number)), set(history.kept_turns(policy, window, number))
        shown = tuple(turn.model_copy(update={"live": turn.turn in live}) for turn in past if turn.turn in kept)
        view = View(image=MediaRef(sha256=f"{number:064x}", pixel_sha256="0" * 64, bytes=1, width=560, height=336))
        prompt = PromptInput(
            instruction="Click.",
            turn=number,
            max_turns=TURNS,
            geometry=geometry,
            window=window,
            past=shown,
            current=view,
        )
        found.append(it.render(prompt, MODEL, Sampling(max_tokens=1, temperature=0)))
        text = REPLIES[name].format(number)
        past.append(
            PastTurn(turn=number, view=view, live=True, text=text, reasoning="Thought.", actions=say(it, text).actions)
        )
    return found


def common(left, right):
    """How many messages two lists begin with in common."""
    return next(
        (index for index, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )


@pytest.mark.parametrize("name", REPLIES)
def test_messages_stay_where_they_are_between_compactions(name):
    stable = {}
    for label, policy in POLICIES.items():
        messages = [request.body["messages"] for request in requests(name, policy)]
        kept = [common(before, after) / len(before) for before, after in pairwise(messages)]
        stable[label] = sum(kept) / len(kept)
    assert stable["hysteresis 3-10"] > 2 * stable["fixed 3"]
    assert stable["hysteresis 3-10"] > 1.4 * stable["fixed 10"]
    assert stable["sink 1, 3-10"] > 1.4 * stable["fixed 10"]


def screenshot(number):
    """A picture that differs from every other in every patch."""
    image = Image.frombytes("RGB", (560, 336), random.Random(number).randbytes(560 * 336 * 3))
    out = io.BytesIO()
    image.save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


@pytest.mark.vllm
@pytest.mark.timeout(900)  # 200 prompts with pictures on a processor
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_real_server_finds_more_of_the_prompt_in_its_cache(tmp_path):
    with VllmServer(tmp_path / "vllm.log") as server:
        for name in REPLIES:
            share = {}
            for label, policy in POLICIES.items():
                usages = [ask(server, request, salt=f"{name} {label}") for request in requests(name, policy)]
                cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
                total = sum(usage["prompt_tokens"] for usage in usages)
                share[label] = cached / total
                print(  # noqa: T201 - numbers for the docs
                    f"{name}, {label}: {cached} of {total} prompt tokens cached ({share[label]:.0%}), {(total - cached) // TURNS} computed a call"
                )
            assert share["hysteresis 3-10"] > share["fixed 3"]
            assert share["hysteresis 3-10"] > share["fixed 10"]


def ask(server, request, salt):
    """Send a request with pictures; its usage."""
    text = json.dumps({**request.body, "cache_salt": salt, "tool_choice": "none"})
    for media in request.media:
        text = text.replace(f"media://{media.sha256}", f"data:image/png;base64,{screenshot(int(media.sha256, 16))}")
    call = urllib.request.Request(
        f"{server.base_url}/chat/completions", text.encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(call, timeout=300) as reply:
        return json.loads(reply.read())["usage"]
