from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from osworld_rollouts.evidence import chain, open_store
from osworld_rollouts.evidence.profile import ImageTokens, ServerProfile

WIRE = Path(os.environ.get("VLLM_WIRE", Path(__file__).resolve().parents[2].parent / "shared" / "data" / "vllm_wire"))

APIS = {
    "/v1/chat/completions": "chat_completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/inference/v1/generate": "generate",
}


@pytest.fixture
def store(tmp_path):
    chain.forget_cached_records()
    return open_store(tmp_path / "evidence")


@pytest.fixture
def tiny() -> ServerProfile:
    """The tiny model of the recorded replies, as a probe would describe it."""
    return ServerProfile(
        server="vllm", model="tiny-vlm", image_token=4088, image_before=4085, image_after=4086, end_tokens=(4078, 4076),
        images=(ImageTokens(width=560, height=336, tokens=240),), logprobs_mode="processed",
        special_texts=("<|image_pad|>", "<|vision_start|>", "<|vision_end|>"),
    )  # fmt: skip


@pytest.fixture
def wire():
    """Read a recorded exchange: (api, request body, reply bytes, max_tokens)."""
    if not WIRE.is_dir():
        pytest.skip(f"the recorded vLLM replies are not at {WIRE} (set VLLM_WIRE to their folder)")

    def read(name):
        exchange = json.loads((WIRE / f"{name}.json").read_text())
        body = exchange["request"]["body"]
        limits = (
            body.get("max_tokens") or body.get("max_output_tokens") or body.get("sampling_params", {}).get("max_tokens")
        )
        return APIS[exchange["request"]["path"]], body, json.dumps(exchange["response"]).encode(), limits

    return read
