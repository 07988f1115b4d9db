"""Adapters by name. Built-in ones are imported when named; others come from the entry point group `osworld_rollouts.adapters`.

An entry point names the adapter's class:

    [project.entry-points."osworld_rollouts.adapters"]
    my_model = "my_package.my_model:MyModelAdapter"
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from osworld_rollouts.adapters._contract import BaseAdapter, ModelAdapter, Options

GROUP = "osworld_rollouts.adapters"

BUILT_IN = {
    "anthropic_computer_use": "osworld_rollouts.adapters.anthropic_computer_use:AnthropicComputerUseAdapter",
    "computer_13": "osworld_rollouts.adapters.computer_13:Computer13Adapter",
    "nemotron_nano_omni": "osworld_rollouts.adapters.nemotron_nano_omni:NemotronNanoOmniAdapter",
    "pyautogui": "osworld_rollouts.adapters.pyautogui:PyautoguiAdapter",
    "openai_computer_use": "osworld_rollouts.adapters.openai_computer_use:OpenAIComputerUseAdapter",
    "qwen3_vl": "osworld_rollouts.adapters.qwen3_vl:Qwen3VLAdapter",
    "ui_tars": "osworld_rollouts.adapters.ui_tars:UITarsAdapter",
}


class AdapterError(ValueError):
    """An adapter that cannot be had as asked."""


class UnknownAdapter(AdapterError):
    """No adapter of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no adapter {name!r}; installed are: {', '.join(adapter_names())}")


class BrokenAdapter(AdapterError):
    """An installed package names an adapter that cannot be imported, or is none."""


class BadAdapterOptions(AdapterError):
    """Options that the adapter does not take."""


def adapter_names() -> tuple[str, ...]:
    """Every name `load_adapter` knows, sorted."""
    return tuple(sorted({*BUILT_IN, *_installed()}))


def load_adapter(name: str, options: Mapping[str, Any] | None = None) -> ModelAdapter:
    """The adapter of that name with these options.

    Raises:
        UnknownAdapter: listing what there is.
        BrokenAdapter: naming the package that is to be mended.
        BadAdapterOptions: naming each option that is unknown or wrong.
    """
    cls = adapter_class(name)
    try:
        chosen = cls.options_type.model_validate(dict(options or {}))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'options'}: {item['msg']}" for item in error.errors())
        known = ", ".join(cls.options_type.model_fields) or "none"
        raise BadAdapterOptions(f"adapter {name!r} does not take these options: {wrong} (it takes: {known})") from None
    return cls(chosen)


def adapter_class(name: str) -> type[BaseAdapter[Options]]:
    """The class of an adapter, without making one.

    Raises:
        UnknownAdapter: listing what there is.
        BrokenAdapter: naming the package that is to be mended.
    """
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        return cast("type[BaseAdapter[Options]]", getattr(import_module(module), attribute))
    if (found := _installed().get(name)) is not None:
        return _load(found)
    raise UnknownAdapter(name)


def _load(point: EntryPoint) -> type[BaseAdapter[Options]]:
    package = f"package {point.dist.name} {point.dist.version}" if point.dist else "an installed package"
    where = f"adapter {point.name!r} of {package} ({point.value})"
    try:
        cls = point.load()
    except Exception as error:  # whatever somebody else's module does when it is imported
        raise BrokenAdapter(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(cls, "options_type"):
        raise BrokenAdapter(f"{where} is no adapter class: it has no options_type")
    return cast("type[BaseAdapter[Options]]", cls)


def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in BUILT_IN}
