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
    from osworld_rollouts.console.rollouts import RolloutDetails
    from osworld_rollouts.console.viewer.catalog import Listing
    from osworld_rollouts.console.viewer.live import LiveExecution
    from osworld_rollouts.console.viewer.trace import Trace
    from osworld_rollouts.contracts.desktop import MediaRef
    from osworld_rollouts.contracts.evidence import ModelCallRecord
    from osworld_rollouts.evidence.index import ExecutionPointer

CSP_SERVED = "default-src 'none'; img-src 'self'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'"
CSP_FILES = "default-src 'none'; img-src 'self' file:; style-src 'self' file:; script-src 'self' file:; base-uri 'none'; form-action 'none'"
"""For pages opened as files, where `'self'` does not cover the neighbours in every browser."""
SILENT = "Temporal does not answer: these counts are of the evidence store only. What runs, and what ended without evidence, is not among them."
_READABLE_LIMIT = 2_000_000


class Urls(Protocol):
    """Where a page's neighbours are; None for what this kind of page does not have."""

    def static(self, name: str) -> str: ...  # noqa: D102
    def media(self, ref: MediaRef) -> str: ...  # noqa: D102
    def blob(self, sha256: str) -> str | None: ...  # noqa: D102
    def readable(self, sha256: str) -> str | None: ...  # noqa: D102
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

    def readable(self, sha256: str) -> str | None:
        """The same as a page, JSON with line breaks."""
        return f"/read/{sha256}"

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

    def readable(self, sha256: str) -> str | None:  # noqa: ARG002
        """Not exported."""
        return None

    def rollout(self, rollout_id: str, number: int | None) -> str:  # noqa: ARG002
        """Another execution of the same rollout."""
        return "index.html" if number in {None, self.last} else f"x{number}.html"

    def overview(self, campaign: str | None = None, page: int = 1) -> str | None:  # noqa: ARG002
        """Not exported."""
        return None


@dataclass(frozen=True)
class IndexUrls:
    """Names for the index of exported rollouts. `pages` has each one's page, seen from the index."""

    pages: dict[str, str]

    def static(self, name: str) -> str:
        """Beside the index."""
        return name

    def media(self, ref: MediaRef) -> str:
        """As it would be beside the index, which shows none."""
        return ref.sha256

    def blob(self, sha256: str) -> str | None:  # noqa: ARG002
        """Not exported."""
        return None

    def readable(self, sha256: str) -> str | None:  # noqa: ARG002
        """Not exported."""
        return None

    def rollout(self, rollout_id: str, number: int | None) -> str:  # noqa: ARG002
        """The page of its last execution."""
        return self.pages[rollout_id]

    def overview(self, campaign: str | None = None, page: int = 1) -> str | None:  # noqa: ARG002
        """There is no list beside this one."""
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
        .render(
            trace=trace,
            attempts=attempts,
            turns_done=_turns_done(trace, live),
            urls=urls,
            links=links,
            live=live,
            csp=csp,
        )
    )


def render_unsealed(
    details: RolloutDetails,
    live: LiveExecution | None,
    attempts: Sequence[ExecutionPointer],
    urls: Urls,
    links: Links,
    *,
    csp: str,
) -> str:
    """The page of a rollout of which there is no evidence to show, or not yet: what Temporal knows of it."""
    return (
        _environment()
        .get_template("unsealed.html.jinja")
        .render(
            details=details,
            row=details.row,
            live=live,
            attempts={pointer.number for pointer in attempts},
            urls=urls,
            links=links,
            csp=csp,
        )
    )


def render_blob(sha256: str, data: bytes, urls: Urls, *, csp: str) -> str:
    """A blob in a form to read: JSON with line breaks, other text as it is."""
    text = data[:_READABLE_LIMIT].decode("utf-8", "replace")
    kind = "text"
    try:
        text, kind = json.dumps(json.loads(data), ensure_ascii=False, indent=2), "JSON"
    except ValueError:
        if "\ufffd" in text:
            text, kind = "", "binary"
    cut = (len(data) > _READABLE_LIMIT and kind == "text") or len(text) > _READABLE_LIMIT
    return (
        _environment()
        .get_template("blob.html.jinja")
        .render(
            sha256=sha256,
            kind=kind,
            size=len(data),
            lines=text[:_READABLE_LIMIT].splitlines(),
            cut=cut,
            urls=urls,
            csp=csp,
        )
    )


def render_overview(listing: Listing, urls: Urls, links: Links, *, csp: str, note: str = SILENT) -> str:
    """The list. `note` says what the counts leave out when Temporal did not answer."""
    note = "" if listing.answers else note
    return (
        _environment()
        .get_template("overview.html.jinja")
        .render(**vars(listing), note=note, urls=urls, links=links, csp=csp)
    )


def render_message(title: str, message: str, urls: Urls, *, csp: str) -> str:
    """A page that says one thing, for what cannot be shown."""
    return _environment().get_template("message.html.jinja").render(title=title, message=message, urls=urls, csp=csp)


def _turns_done(trace: Trace, live: LiveExecution | None) -> int:
    """Turns that were completed, as the outcome or the running execution counts them, else as far as the evidence tells."""
    if trace.outcome:
        return trace.outcome.turns
    return live.turn if live else sum(turn.act_ms is not None for turn in trace.turns)


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
        number=_number,
        seconds=_seconds,
        clock=_clock,
        moment=_moment,
        words=_words,
        short=_short,
        shown=_shown,
        raw=_raw,
        since=_since,
        pause=_pause,
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


def _raw(call: ModelCallRecord) -> str:
    """How a call went, in one line."""
    usage = call.usage or {}
    tried = len(call.earlier_attempts)
    facts = (
        f"finish {call.finish_reason}" if call.finish_reason else "",
        f"{usage.get('prompt_tokens', '?')} + {usage.get('completion_tokens', '?')} tokens" if usage else "",
        _count(len(call.media), "image") if call.media else "",
        _count(tried, "earlier attempt" if call.received else "attempt") if tried else "",
    )
    return " · ".join(filter(None, facts))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _since(value: datetime) -> str:
    """How long ago that was."""
    return _seconds(max(0.0, (datetime.now(UTC) - value).total_seconds()))


def _pause(value: datetime) -> str:
    """How long until then."""
    rest = (value - datetime.now(UTC)).total_seconds()
    return f"in {_seconds(max(1.0, round(rest)))}" if rest > 0.5 else "now"
