"""`rollouts render --from … --adapter …`: the same turn in another protocol, from the evidence alone."""

from __future__ import annotations

import json
import sys

import pytest

from osworld_rollouts.adapters import adapter_names
from osworld_rollouts.console.main import run
from osworld_rollouts.contracts._base import canonical_json
from osworld_rollouts.contracts.action import Click, Point
from osworld_rollouts.contracts.desktop import DesktopSpec
from osworld_rollouts.contracts.outcome import Outcome, OutcomeKind
from osworld_rollouts.contracts.request import Adapter, Model, Rollout, RolloutRequest, Task
from osworld_rollouts.contracts.steps import CallModel, HistoryWindow
from osworld_rollouts.evidence import chain, index
from osworld_rollouts.evidence.media import put_screenshot
from osworld_rollouts.evidence.store import open_store
from osworld_rollouts.prompts import PromptBuilder
from osworld_rollouts.serving.journal import put_request
from tests.evidence.builders import EXECUTION, START, Chain, png

TURNS = 4
OPTIONS = {"coordinates": "absolute"}
REPLY = 'Action: Click the {n}th button.\n<tool_call>\n{{"name": "computer_use", "arguments": {{"action": "left_click"}}}}\n</tool_call>'


@pytest.fixture
def played(tmp_path, capsys, monkeypatch):
    """A sealed rollout of four turns in Qwen's protocol, and `rollouts render --from` it."""
    store = open_store(tmp_path / "store")
    task = Task.from_document({"id": "task", "instruction": "Press every button", "evaluator": {"func": "x"}}, "os")
    rollout = Rollout(
        task=task,
        model=Model(name="qwen", base_url="http://127.0.0.1:9/v1", extra_body={"top_k": 20}),
        adapter=Adapter(name="qwen3_vl", options=OPTIONS),
        desktop=DesktopSpec(width=1600, height=900),
    )
    request = RolloutRequest(rollout=rollout, campaign_id="camp")
    made = Chain(store)
    window = {"history": "fixed", "history_params": {"keep_images": 3}, "adapter": "qwen3_vl", "adapter_version": "1"}
    made.start(request=store.put(canonical_json(request.model_dump(mode="json"))), **window)
    shots = [put_screenshot(store, png(1600, 900, mark=60 * number)) for number in range(TURNS + 1)]
    made.prepare(shots[0])
    builder = PromptBuilder(store)
    for turn in range(TURNS):
        shown = HistoryWindow(image_start=max(0, turn - 2))
        step = CallModel(execution_id=EXECUTION, head=made.head, turn=turn, call=0, window=shown)
        request = builder.build(chain.walk(store, made.head), step).render()
        actions = (Click(point=Point(x=turn, y=turn)),)
        sent = {"sent": put_request(store, request), "media": request.media, "window": shown}
        made.call(turn, **sent, text=REPLY.format(n=turn), actions=actions)
        made.operate(turn, shots[turn + 1])
    outcome = Outcome(
        kind=OutcomeKind.HORIZON_REACHED, score=0.0, eligible=True, admission_reason="", admission_policy="p"
    )
    made.end(outcome.kind, outcome.score)
    index.write_pointer(
        store,
        index.ExecutionPointer(
            execution_id=EXECUTION, rollout_id="camp/task/0", number=1, campaign_id="camp", head=made.head, outcome=outcome, sealed_at=START,
        ),
    )  # fmt: skip
    monkeypatch.setenv("ROLLOUTS_STATE_DIR", str(tmp_path / "state"))

    def render(*arguments, code=0, json_too="--json"):
        before = {item.name for item in store.blobs()}
        found = run(
            ["render", "--from", "camp/task/0", "--store", store.url, *([json_too] if json_too else []), *arguments]
        )
        out, err = capsys.readouterr()
        assert found == code, err
        assert {item.name for item in store.blobs()} == before  # looking writes nothing
        return (json.loads(out)[0] if code == 0 and json_too else None), out + err

    return render


@pytest.mark.parametrize("turn", range(TURNS))
def test_the_own_adapter_makes_what_was_sent(played, turn):
    stored, _ = played("--turn", str(turn))
    assert stored["body"]["top_k"] == 20
    options = [word for name, value in OPTIONS.items() for word in ("--option", f"{name}={value}")]
    for again in (
        played("--turn", str(turn), "--adapter", "qwen3_vl", *options)[0],
        played("--turn", str(turn), "--option", "max_pixels=1310720")[0],
    ):
        assert again["body"] == stored["body"]
        assert again["media"] == stored["media"]
        assert again["instead_of"] == stored["sent"]


def test_an_option_alone_changes_the_own_adapter(played):
    body = json.dumps(played("--turn", "1", "--option", "coordinates=relative")[0]["body"])
    assert "1000x1000" in body
    assert "1000x1000" not in json.dumps(played("--turn", "1")[0]["body"])


@pytest.mark.parametrize("name", adapter_names())
def test_another_adapter_is_shown_the_same_turn(played, name):
    request, _ = played("--turn", "2", "--adapter", name, "--model", "other")
    assert request["adapter"]["name"] == name
    assert (request["body"]["model"], request["turn"]) == ("other", 2)
    body = json.dumps(request["body"])
    assert "Press every button" in body
    assert "2th button" not in body  # the reply of the turn itself, which came after
    assert len(request["media"]) == len(set(request["media"])) == 3
    positions = [body.index(f"media://{sha256}") for sha256 in request["media"]]
    assert positions == sorted(positions)


def test_the_window_of_the_time_holds(played):
    assert len(played("--turn", "3", "--adapter", "nemotron_nano_omni")[0]["media"]) == 3
    assert "Previous History Actions:\\n# Step 1:" in json.dumps(
        played("--turn", "3", "--adapter", "nemotron_nano_omni")[0]["body"]
    )


def test_a_console_without_pillow_says_what_to_install(played, monkeypatch):
    monkeypatch.setitem(sys.modules, "osworld_rollouts.adapters.images", None)
    assert played("--turn", "1", "--adapter", "pyautogui")[0]["media"]
    said = played("--turn", "1", "--adapter", "anthropic_computer_use", code=2)[1]
    assert "another form" in said
    assert "osworld-rollouts[worker]" in said


def test_what_was_not_recorded_is_said(played):
    wanting = ("--turn", "1", "--adapter", "computer_13", "--option", "observation=a11y_tree")
    assert played(*wanting)[0]["missing"] == ["accessibility_tree"]
    assert "none was recorded" in played(*wanting, json_too=None)[1]
    assert "none was recorded" not in played("--turn", "1", "--adapter", "computer_13", json_too=None)[1]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--turn", "4", "--adapter", "qwen3_vl"), 4, "its turns are 0 to 3"),
        (("--turn", "1", "--adapter", "gpt"), 2, "there is no adapter 'gpt'"),
        (("--turn", "1", "--option", "colour=1"), 2, "colour"),
    ],
)
def test_errors_say_what_to_do(played, arguments, code, words):
    assert words in played(*arguments, code=code)[1]
