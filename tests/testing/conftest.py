"""A script for the made-up screen: press the red button, then type."""

from __future__ import annotations

import pytest

from osworld_rollouts.testing.scripts import Script
from tests.testing.screens import BUTTONS, INSTRUCTION, draw_button


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for name in BUTTONS:
        draw_button(name).save(folder / f"{name}.png")
    return folder


@pytest.fixture
def script(pictures) -> Script:
    return Script.model_validate(
        {
            "instruction": INSTRUCTION,
            "directory": pictures,
            "targets": {
                "red": {"name": "the red button", "pictures": ["red.png"]},
                "blue": {"name": "the blue one", "pictures": ["blue.png"]},
            },
            "steps": [
                {"thought": "I press it.", "do": [{"click": "red"}], "instead": [{"press": "enter"}], "patience": 2},
                {
                    "thought": "I greet.",
                    "see": "blue",
                    "do": [{"type": 'it\'s "hello"\n'}, {"pause": 0.5}, {"keys": ["ctrl", "s"]}],
                    "patience": 1,
                },
                {"thought": "That was it.", "do": "DONE"},
            ],
        }
    )
