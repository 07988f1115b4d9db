"""`rollouts adapters list | show`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.text import Text

from osworld_rollouts.adapters import AdapterError, adapter_names, load_adapter
from osworld_rollouts.adapters.registry import adapter_class
from osworld_rollouts.console.errors import ConsoleError
from osworld_rollouts.console.output import Output
from osworld_rollouts.console.requests import pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from osworld_rollouts.adapters import ModelAdapter


def list_adapters(*, json: bool = False) -> None:
    """Every installed model protocol.

    Parameters
    ----------
    json
        Print JSON.
    """
    out = Output(as_json=json)
    found: list[ModelAdapter] = []
    broken: list[str] = []
    for name in adapter_names():
        try:
            found.append(load_adapter(name))
        except AdapterError as error:
            broken.append(str(error))
    out.record(
        [
            {**adapter.identity().model_dump(mode="json"), "api": adapter.api, "summary": _summary(adapter)}
            for adapter in found
        ]
    )
    out.table(
        ("adapter", "version", "api", "what it is"),
        [(adapter.name, adapter.version, adapter.api, _summary(adapter)) for adapter in found],
    )
    for message in broken:
        sys.stderr.write(f"warning: {message}\n")


def show_adapter(name: str, /, *, option: tuple[str, ...] = (), json: bool = False) -> None:
    """One protocol: options, defaults, action space, prompts.

    Parameters
    ----------
    name
        The adapter's name.
    option
        An adapter option, name=value. May be repeated.
    json
        Print JSON.
    """
    out = Output(as_json=json)
    adapter = load(name, option)
    geometry = adapter.geometry(1920, 1080)
    options = adapter_class(name).options_type.model_validate(pairs(option, "--option")).model_dump(mode="json")
    facts: dict[str, Any] = {
        "identity": adapter.identity().model_dump(mode="json"),
        "api": adapter.api,
        "options": options,
        "observes": adapter.needs().model_dump(mode="json"),
        "image": f"{geometry.image_width}x{geometry.image_height} of a 1920x1080 screen",
        "sampling": adapter.sampling_defaults().model_dump(mode="json", exclude_none=True),
        "history": adapter.history_default().model_dump(mode="json"),
        "parse_policy": adapter.parse_policy_default().model_dump(mode="json"),
        "actions": list(adapter.actions()),
        "prompts": adapter.prompts(),
    }
    out.record(facts)
    out.line(Text(f"{adapter.name} {adapter.version}", style="bold").append(f"  {_summary(adapter)}", style=""))
    out.table(
        ("", ""),
        [
            ("api", adapter.api),
            ("observes", ", ".join(key for key, wanted in facts["observes"].items() if wanted)),
            ("image", facts["image"]),
            ("sampling", _pairs(facts["sampling"]) or "what the server does by itself"),
            ("history", f"{facts['history']['name']} {_pairs(facts['history']['params'])}"),
            ("when unreadable", _pairs(facts["parse_policy"])),
            ("options", _pairs(options)),
            ("prompt sha256", facts["identity"]["prompt_sha256"]),
            *((("actions" if index == 0 else ""), action) for index, action in enumerate(adapter.actions())),
        ],
    )
    for key, text in adapter.prompts().items():
        out.line()
        out.line(Text(f"prompt: {key}", style="bold"))
        out.line(text)


def load(name: str, option: Sequence[str]) -> ModelAdapter:
    """An adapter with options as given on the command line.

    Raises:
        ConsoleError: there is no such adapter, or it does not take the options.
    """
    try:
        return load_adapter(name, pairs(option, "--option"))
    except AdapterError as error:
        raise ConsoleError(str(error)) from error


def _summary(adapter: ModelAdapter) -> str:
    lines = (type(adapter).__doc__ or "").strip().splitlines()
    return lines[0] if lines else ""


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items() if value is not None)
