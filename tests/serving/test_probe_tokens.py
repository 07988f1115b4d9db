"""How replies end, asked of a server that answers everything with one body."""

from __future__ import annotations

import json

import pytest

from osworld_rollouts.evidence.profile import ServerProfile
from osworld_rollouts.serving.probe_server import ProbedServer
from osworld_rollouts.serving.probe_tokens import ask_end_tokens
from tests.serving.fault_proxy import SmallServer

REPLY = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{
        "index": 0, "message": {"role": "assistant", "content": "OK"}, "logprobs": None, "finish_reason": "stop",
        "stop_reason": None, "token_ids": [5, 2],
    }],
}  # fmt: skip


@pytest.mark.parametrize(("spelling", "texts"), [({"prompt": "</s>"}, ("</s>",)), ({}, ())])
async def test_end_tokens_come_with_their_spelling_where_the_server_detokenises(spelling, texts):
    async with SmallServer(json.dumps({**REPLY, **spelling}).encode()) as server:
        probed = ProbedServer(server.base_url, "m", None, 10)
        profile = await ask_end_tokens(probed, ServerProfile(server="vllm", model="m"))
        asked = server.sent_bodies[-1]
    assert (profile.end_tokens, profile.end_texts) == ((2,), texts)
    assert (asked["tokens"], asked["skip_special_tokens"]) == ([2], False)
