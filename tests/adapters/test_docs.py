"""The adapter that the documentation writes works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from osworld_rollouts.adapters import ModelAdapter, adapter_names
from osworld_rollouts.contracts.request import Sampling

from .speech import plain, prompt, say, texts, turn

PAGE = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text(encoding="utf-8")


@pytest.fixture
def written():
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    assert len([line for line in code.splitlines() if line.strip()]) <= 65
    names = {"__name__": "my_model"}
    exec(compile(code, "docs/adapters.md", "exec"), names)
    return names["MyModelAdapter"](names["MyModelOptions"]())


def test_the_written_adapter_works(written):
    assert isinstance(written, ModelAdapter)
    assert plain(say(written, '{"do": "click", "x": 5, "y": 6}')) == [{"kind": "click", "point": {"x": 5, "y": 6}}]
    assert plain(say(written, "<think>{</think>{'do': 'end'}")) == [{"kind": "done"}]
    assert say(written, "hm").failure.kind == "no_action"
    assert say(written, '{"do": "fly"}').failure.kind == "unknown_action"
    said = texts(written.render(prompt(written, [turn(0, "{}", live=False)]), "m", Sampling()).body["messages"])
    assert said[1:] == ["(a screenshot that is no longer shown)", "{}", "<image>"]


def test_every_adapter_is_on_the_page():
    assert all(f"| `{name}` |" in PAGE for name in adapter_names())
