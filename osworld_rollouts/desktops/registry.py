"""Desktop providers by name. A package adds its own through the entry point group `osworld_rollouts.desktops`."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from osworld_rollouts.desktops._provider import DesktopProvider, DesktopUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP = "osworld_rollouts.desktops"
BUILT_IN = {
    "local": "osworld_rollouts.desktops.local:LocalDesktopProvider",
    "attached": "osworld_rollouts.desktops.attached:AttachedDesktopProvider",
}


def provider_names() -> list[str]:
    """Names `create_provider` knows, sorted."""
    return sorted({*BUILT_IN, *(entry.name for entry in entry_points(group=GROUP))})


def create_provider(name: str, **settings: Any) -> DesktopProvider:
    """The provider of this name, made with `settings` (its constructor's keyword arguments).

    Raises:
        DesktopUnavailable: no provider has this name.
    """
    factory: Callable[..., DesktopProvider] | None = None
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            factory = entry.load()
    if factory is None and name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        factory = getattr(__import__(module, fromlist=[attribute]), attribute)
    if factory is None:
        known = ", ".join(provider_names())
        raise DesktopUnavailable(f"there is no desktop provider {name!r}; known are {known}")
    return factory(**settings)
