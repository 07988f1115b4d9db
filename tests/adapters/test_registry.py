from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib.metadata import EntryPoint

import pytest

from osworld_rollouts import history
from osworld_rollouts.adapters import (
    BadAdapterOptions,
    BrokenAdapter,
    ModelAdapter,
    UnknownAdapter,
    adapter_names,
    load_adapter,
    registry,
)
from osworld_rollouts.console.main import run
from osworld_rollouts.contracts.action import Done
from osworld_rollouts.contracts.model import ParsedReply

SDKS = {"openai", "anthropic", "PIL", "aiohttp", "numpy", "lxml", "torch", "requests", "httpx", "httpx2"}


def test_what_there_is():
    assert adapter_names() == (
        "anthropic_computer_use", "computer_13", "nemotron_nano_omni", "openai_computer_use", "pyautogui", "qwen3_vl", "ui_tars",
    )  # fmt: skip


@pytest.mark.parametrize("name", adapter_names())
def test_every_adapter_is_complete(name):
    adapter = load_adapter(name)
    assert isinstance(adapter, ModelAdapter)
    assert adapter.identity().name == name == adapter.name
    assert adapter.actions()
    assert adapter.prompts()
    history.initial_window(adapter.history_default())
    assert adapter.__class__.__module__.endswith(name)


def test_an_unknown_adapter_names_the_known_ones():
    with pytest.raises(UnknownAdapter, match=r"no adapter 'gpt'.*pyautogui, qwen3_vl"):
        load_adapter("gpt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colour": 1}, r"colour: Extra inputs.*it takes: show_errors, one_action, coordinates, max_pixels"),
        ({"coordinates": "polar"}, "coordinates: Input should be 'relative' or 'absolute'"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(BadAdapterOptions, match=message):
        load_adapter("qwen3_vl", options)


def test_third_parties_add_adapters(monkeypatch):
    point = EntryPoint(name="shout", value=f"{__name__}:ShoutAdapter", group=registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == registry.GROUP else [])
    assert "shout" in adapter_names()
    assert load_adapter("shout").parse(None, None).actions == (Done(),)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nowhere_at_all:Adapter", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        (f"{__name__}:NoAdapter", "AttributeError"),
        (f"{__name__}:SDKS", "is no adapter class"),
    ],
)
def test_a_broken_package_is_named_and_hides_no_other_adapter(monkeypatch, capsys, value, message):
    point = EntryPoint(name="shout", value=value, group=registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == registry.GROUP else [])
    with pytest.raises(BrokenAdapter, match=message):
        load_adapter("shout")
    assert run(["adapters"]) == 0
    shown = capsys.readouterr()
    assert all(name in shown.out for name in registry.BUILT_IN)
    assert message in shown.err
    assert run(["adapters", "show", "shout"]) == 2
    assert message in capsys.readouterr().err


class ShoutAdapter(registry.adapter_class("pyautogui")):
    name = "shout"

    def parse(self, reply, geometry, marks=()):
        return ParsedReply(actions=(Done(),))


@pytest.mark.parametrize("name", adapter_names())
def test_importing_one_adapter_imports_no_sdk(name):
    code = textwrap.dedent(f"""
        from osworld_rollouts.adapters import load_adapter
        from osworld_rollouts.contracts.model import Reply
        it = load_adapter({name!r})
        it.parse(Reply(api=it.api, text="hello"), it.geometry(1920, 1080))
    """)
    ran = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True)
    imported = {line.rsplit("|", 1)[1].strip() for line in ran.stderr.splitlines() if line.startswith("import time:")}
    assert {module.partition(".")[0] for module in imported} & SDKS == set()
    others = {f"osworld_rollouts.adapters.{other}" for other in adapter_names() if other != name}
    assert imported & others == set()


def test_history_imports_only_contracts():
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import osworld_rollouts.history"],
        capture_output=True,
        text=True,
        check=True,
    )
    ours = {line.rsplit("|", 1)[1].strip() for line in ran.stderr.splitlines() if " osworld_rollouts" in line}
    assert {module for module in ours if not module.startswith("osworld_rollouts.contracts")} == {
        "osworld_rollouts",
        "osworld_rollouts.history",
    }
