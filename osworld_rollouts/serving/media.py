"""Images in a request: `media://<sha256>` while it is recorded, a data URL or base64 while it is sent."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from osworld_rollouts.contracts.model import ModelRequest

_REFERENCE: Final = re.compile(r"^media://([0-9a-f]{64})$")
_SLOTS: Final = frozenset({"url", "image_url", "data"})


def media_reference(sha256: str) -> str:
    """How a recorded request names an image."""
    return f"media://{sha256}"


def references(body: Any) -> list[str]:
    """Sha256 of the images of a request body, in the order in which they stand there."""
    found: list[str] = []

    def visit(sha256: str, _: Mapping[str, Any]) -> str:
        found.append(sha256)
        return ""

    _replace(body, visit)
    return found


def with_images(request: ModelRequest, load: Callable[[str], bytes]) -> dict[str, Any]:
    """The body as it is sent: every reference replaced by the stored image's exact bytes.

    Only the places where an API takes an image are looked at (`url`, `image_url`, Anthropic's base64 `data`), so that a text
    that happens to look like a reference stays text.

    Args:
        request: with `media` naming every image it shows.
        load: bytes of an image by sha256.

    Raises:
        ValueError: the body shows an image that `media` does not name.
    """
    mimes = {item.sha256: item.mime for item in request.media}

    def visit(sha256: str, holder: Mapping[str, Any]) -> str:
        if sha256 not in mimes:
            raise ValueError(f"the request shows image {sha256}, which its media list does not name")
        text = base64.b64encode(load(sha256)).decode("ascii")
        return text if holder.get("type") == "base64" else f"data:{mimes[sha256]};base64,{text}"

    return _replace(request.body, visit)


def _replace(value: Any, visit: Callable[[str, Mapping[str, Any]], str]) -> Any:
    if isinstance(value, dict):
        result: dict[str, Any] = {}
        for key, inner in value.items():
            found = _REFERENCE.match(inner) if key in _SLOTS and isinstance(inner, str) else None
            result[key] = visit(found[1], value) if found else _replace(inner, visit)
        return result
    if isinstance(value, list | tuple):
        return [_replace(inner, visit) for inner in value]
    return value
