"""The adapter that the documentation writes works as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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


def test_the_written_adapter_is_found_by_its_entry_point(tmp_path):
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "my_model.py").write_text(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], encoding="utf-8")
    group, point = re.search(r'```toml\n\[project\.entry-points\."(.*?)"\]\n(.*?)\n```', PAGE).groups()
    about = tmp_path / "my_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n", encoding="utf-8")
    (about / "entry_points.txt").write_text(f"[{group}]\n{point.replace(chr(34), '')}\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "osworld_rollouts.console.main", "parse", "--adapter", "my_model"],
        input='{"do": "click", "x": 5, "y": 6}',
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "action 0: click(5, 6)\n"


def test_every_adapter_is_on_the_page():
    assert all(f"| `{name}` |" in PAGE for name in adapter_names())
