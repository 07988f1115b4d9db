"""Changing a byte of a prompt changes the adapter's version.

If a digest here no longer holds, the prompt has changed: raise the adapter's `version` and replace both.
"""

from __future__ import annotations

import importlib

import pytest
from pydantic import TypeAdapter

from osworld_rollouts.contracts._base import canonical_digest
from osworld_rollouts.contracts.request import Sampling
from osworld_rollouts.contracts.steps import OperationOutcome, ParseFailure
from osworld_rollouts.testing.protocol_servers.messages import tool_use
from osworld_rollouts.testing.protocol_servers.responses import computer_call

from .speech import adapter, prompt, turn

GOLDEN = {
    ("anthropic_computer_use",): ("1", "0baa67fc022b5c05", "17c99fcf260a069b"),
    ("anthropic_computer_use", ("show_errors", True), ("tool", "computer_20251124")): ("1", "0baa67fc022b5c05", "aab0aac0db02db8d"),
    ("anthropic_computer_use", ("tool", "computer_toolset_20260801")): ("1", "0baa67fc022b5c05", "b8ebadeedfe4b683"),
    ("computer_13",): ("1", "2251526e8550c843", "2c49cfb0cd494127"),
    ("computer_13", ("observation", "a11y_tree")): ("1", "c16b6606d9aea266", "d291d12eb30071be"),
    ("computer_13", ("observation", "screenshot_a11y_tree")): ("1", "50657ab9019f878a", "47b11c9e36500b9a"),
    ("computer_13", ("observation", "som")): ("1", "b25f69a99ce995f9", "3911be0a5a6eb57a"),
    ("nemotron_nano_omni",): ("1", "a190e7099f4eb10f", "d0dd450d99c42f71"),
    ("nemotron_nano_omni", ("show_errors", True), ("thinking", False)): ("1", "a2e88284f469ddbb", "55f572d6e9afbcc4"),
    ("openai_computer_use",): ("2", "13a597474597a60b", "29313b849f5d1fc5"),
    ("openai_computer_use", ("show_errors", True), ("tool", "computer_use_preview")): ("2", "13a597474597a60b", "3047bcad29ce7d37"),
    ("pyautogui",): ("1", "51672b38cf6a6528", "ed8ef3867cf07cf0"),
    ("pyautogui", ("form", "gym")): ("1", "66b89fbb8bf0a6ff", "116ab2279239f491"),
    ("pyautogui", ("observation", "a11y_tree")): ("1", "db6f8dee41f912bc", "0cf7aeb714fcbc0c"),
    ("pyautogui", ("observation", "screenshot_a11y_tree"), ("show_errors", True)): ("1", "d0e37318d692f8ee", "268a791788dd073b"),
    ("pyautogui", ("observation", "som")): ("1", "54d342219843aa1a", "8c3c481f0fbd6eba"),
    ("qwen3_vl",): ("1", "2cdb5959812a32f8", "654e4708713280ed"),
    ("qwen3_vl", ("coordinates", "absolute"), ("show_errors", True)): ("1", "2cdb5959812a32f8", "1f3eeaf52c87f715"),
    ("ui_tars",): ("1", "e8a491c6d2f6a97d", "1e15aeb0d297620c"),
    ("ui_tars", ("action_space", "call_user"), ("show_errors", True)): ("1", "d44b82fa079a5ec8", "79f413a773123433"),
}  # fmt: skip


def rendered(it):
    """A request with an old turn, a live one that ended with an error, and a rejected reply."""
    output = {"responses": (computer_call({"type": "wait"}),), "messages": (tool_use({"action": "screenshot"}),)}.get(
        it.api, ()
    )
    outcomes = (OperationOutcome(operation_id="o", returncode=1, error="NameError"),)
    past = [
        turn(0, "Action: first.", live=False, output=output),
        turn(1, "Action: second.", reasoning="Because.", output=output, outcomes=outcomes),
    ]
    failure = ParseFailure(kind="unparseable", message="not readable")
    return it.render(prompt(it, past, rejected=(turn(2, "Hm.", failure=failure),)), "model", Sampling())


SDK = {
    "chat_completions": "openai.types.chat.completion_create_params:CompletionCreateParamsNonStreaming",
    "responses": "openai.types.responses.response_create_params:ResponseCreateParamsNonStreaming",
    "messages": "anthropic.types.beta.message_create_params:MessageCreateParamsNonStreaming",
}


@pytest.mark.parametrize("key", sorted(GOLDEN))
def test_requests_are_of_the_official_sdks_types(key):
    name, *options = key
    it = adapter(name, **dict(options))
    module, _, kind = SDK[it.api].partition(":")
    TypeAdapter(getattr(importlib.import_module(module), kind)).validate_python(rendered(it).body)


@pytest.mark.parametrize("key", sorted(GOLDEN))
def test_prompts_are_those_of_their_version(key):
    name, *options = key
    it = adapter(name, **dict(options))
    version, prompts, request = GOLDEN[key]
    assert (
        it.version,
        it.identity().prompt_sha256[:16],
        canonical_digest(rendered(it).model_dump(mode="json"))[:16],
    ) == (version, prompts, request)
