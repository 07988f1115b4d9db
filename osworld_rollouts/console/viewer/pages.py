"""From a trace to HTML. Everything in it is untrusted: autoescaping, no inline script or style, and a policy that allows neither."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from osworld_rollouts.console.output import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from osworld_rollouts.console.links import Links
    from osworld_rollouts.console.viewer.catalog import Listing, LiveExecution
    from osworld_rollouts.console.viewer.trace import Trace
    from osworld_rollouts.contracts.desktop import MediaRef
    from osworld_rollouts.evidence.index import ExecutionPointer

CSP_SERVED = "default-src 'none'; img-src 'self'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'"
CSP_FILES = "default-src 'none'; img-src 'self' file:; style-src 'self' file:; script-src 'self' file:; base-uri 'none'; form-action 'none'"
"""For pages opened as files, where `'self'` does not cover the neighbours in every browser."""


class Urls(Protocol):
    """Where a page's neighbours are; None for what this kind of page does not have."""

    def static(self, name: str) -> str: ...  # noqa: D102
    def media(self, ref: MediaRef) -> str: ...  # noqa: D102
    def blob(self, sha256: str) -> str | None: ...  # noqa: D102
    def rollout(self, rollout_id: str, number: int | None) -> str: ...  # noqa: D102
    def overview(self, campaign: str | None = None, page: int = 1) -> str | None: ...  # noqa: D102


class ServedUrls:
    """Paths of the local server."""

    def static(self, name: str) -> str:
        """A file that ships with us."""
        return f"/static/{name}"

    def media(self, ref: MediaRef) -> str:
        """A screenshot."""
        return f"/media/{ref.sha256}"

    def blob(self, sha256: str) -> str | None:
        """Anything in the store, as plain text or a download."""
        return f"/blob/{sha256}"

    def rollout(self, rollout_id: str, number: int | None) -> str:
        """A rollout, or one of its executions."""
        return f"/rollout/{quote(rollout_id)}" + (f"?x={number}" if number else "")

    def overview(self, campaign: str | None = None, page: int = 1) -> str | None:
        """The list."""
        chosen = {
            name: value for name, value in (("campaign", campaign), ("page", page if page > 1 else None)) if value
        }
        return "/" + (f"?{urlencode(chosen)}" if chosen else "")


@dataclass(frozen=True)
class FileUrls:
    """Names of the files of one exported rollout. `last` is the execution that `index.html` shows."""

    last: int

    def static(self, name: str) -> str:
        """Beside the page."""
        return name

    def media(self, ref: MediaRef) -> str:
        """In `media/`."""
        return f"media/{ref.sha256}.{ref.mime.rpartition('/')[2]}"

    def blob(self, sha256: str) -> str | None:  # noqa: ARG002
        """Not exported."""
        return None

    def rollout(self, rollout_id: str, number: int | None) -> str:  # noqa: ARG002
        """Another execution of the same rollout."""
        return "index.html" if number in {None, self.last} else f"x{number}.html"

    def overview(self, campaign: str | None = None, page: int = 1) -> str | None:  # noqa: ARG002
        """Not exported."""
        return None


def render_rollout(
    trace: Trace,
    attempts: Sequence[ExecutionPointer],
    urls: Urls,
    links: Links,
    *,
    live: LiveExecution | None,
    csp: str,
) -> str:
    """The page of one execution, with links to the rollout's other ones."""
    return (
        _environment()
        .get_template("rollout.html.jinja")
        .render(trace=trace, attempts=attempts, urls=urls, links=links, live=live, csp=csp)
    )


def render_overview(listing: Listing, urls: Urls, links: Links, *, csp: str) -> str:
    """The list."""
    return _environment().get_template("overview.html.jinja").render(**vars(listing), urls=urls, links=links, csp=csp)


def render_message(title: str, message: str, urls: Urls, *, csp: str) -> str:
    """A page that says one thing, for what cannot be shown."""
    return _environment().get_template("message.html.jinja").render(title=title, message=message, urls=urls, csp=csp)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("osworld_rollouts.console.viewer"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters.update(
        number=_number, seconds=_seconds, clock=_clock, moment=_moment, words=_words, short=_short, shown=_shown
    )
    return environment


def _visible(value: Any) -> Any:
    """No control or direction-changing characters: what a page shows is what is there, in the order in which it stands."""
    return clean(value, limit=len(value)) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _number(value: float) -> str:
    return f"{value:.4g}"


def _seconds(value: float) -> str:
    if value < 0.0995:
        return f"{value * 1000:.0f} ms"
    if value < 59.5:
        return f"{value:.2g} s" if value < 9.95 else f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {rest:02d} s"


def _clock(value: float) -> str:
    minutes, rest = divmod(int(value), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def _moment(value: datetime) -> str:
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _words(value: str) -> str:
    return str(value).replace("_", " ")


def _short(value: str, limit: int) -> str:
    line = " ".join(value.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
