"""Logging by structlog: one event a line, correlated, without secrets.

`configure_logging(settings)` is called once by each process. Everywhere else: `log = structlog.get_logger()`, then
`log.info("desktop ready", seconds=1.4)`. Which rollout, execution, turn and operation a line belongs to is bound once with
`correlated(...)` and added to every line written inside, also by libraries that use the standard `logging`.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any, cast

import structlog
from structlog.contextvars import bound_contextvars

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from structlog.typing import EventDict, Processor, WrappedLogger

    from osworld_rollouts.settings import Settings

REDACTED = "[redacted]"
CORRELATION_KEYS = (
    "campaign_id",
    "rollout_id",
    "execution_id",
    "turn",
    "operation_id",
    "lease_id",
    "workflow_id",
    "run_id",
    "attempt",
)
"""Ids that `correlated` knows, in the order in which a console line shows them."""

_SECRET_NAMES = re.compile(
    r"(^|[_\-.])(authorization|api[_-]?key|apikey|token|secret|password|passwd|cookie|credential|private[_-]?key|access[_-]?key)s?$",
    re.IGNORECASE,
)
_NOT_SECRET = re.compile(r"(^|[_\-.])(prompt|completion|generated|max|total|reasoning)[_-]tokens?$", re.IGNORECASE)
_SECRET_TEXT = re.compile(
    r"""(?ix)
    (?P<bearer> \b(?:bearer|basic)\s+ ) [A-Za-z0-9._~+/=\-]{8,}
    | \b (?: sk | pk | rk ) - [A-Za-z0-9_\-]{8,}          # OpenAI, Anthropic, Stripe style keys
    | \b gh[opsur]_[A-Za-z0-9]{20,} | \b hf_[A-Za-z0-9]{20,} | \b AKIA[0-9A-Z]{16}\b
    | \b eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]+   # JSON web tokens
    | (?P<name> ["']? \b (?:[a-z0-9_\-]*[_\-])? (?:authorization|api[_-]?key|token|secret|password)\b ["']? \s* [=:] \s* (?: ["']? (?:bearer|basic)\s+ )? ) ["']? (?!\[redacted) [^\s"'&,;}\])]{4,}
    | (?P<user> \b [a-z][a-z0-9+.\-]*:// [^\s/:@]+ : ) [^\s/@]+ (?=@)
    """
)


def configure_logging(settings: Settings, *, stream: Any = None) -> None:
    """Send structlog and the standard `logging` of this process to one stream (default: standard error)."""
    target = stream or sys.stderr
    level = getattr(logging, settings.log.level.upper())
    as_json = settings.log.format == "json" or (settings.log.format == "auto" and not target.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True)
        if as_json
        else structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
        structlog.processors.StackInfoRenderer(),
        _order,
    ]
    last: list[Processor] = (
        [structlog.processors.format_exc_info, redact, structlog.processors.JSONRenderer(default=str)]
        if as_json
        else [
            structlog.processors.format_exc_info,
            redact,
            structlog.dev.ConsoleRenderer(colors=target.isatty(), pad_event_to=30),
        ]
    )
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for chatty in ("httpx", "httpcore", "openai", "urllib3", "aiohttp.access", "asyncio", "docker"):
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))


def correlated(**ids: Any) -> AbstractContextManager[None]:
    """Bind correlation ids (see CORRELATION_KEYS) to every line logged inside the `with`; None is left out."""
    unknown = set(ids) - set(CORRELATION_KEYS)
    if unknown:
        raise ValueError(f"not a correlation id: {', '.join(sorted(unknown))}; known are {', '.join(CORRELATION_KEYS)}")
    return bound_contextvars(**{name: value for name, value in ids.items() if value is not None})


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Structlog processor: values under secret names and anything that looks like a key become `[redacted]`."""
    return cast("EventDict", redacted(dict(event)))


def redacted(value: Any) -> Any:
    """A copy of JSON-like data or text without secrets."""
    if isinstance(value, str):
        return _SECRET_TEXT.sub(_keep_label, value)
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {name: REDACTED if _is_secret(name, item) else redacted(item) for name, item in items}
    if isinstance(value, list | tuple):
        return [redacted(item) for item in cast("list[Any]", value)]
    if isinstance(value, bytes | bytearray):
        return f"<{len(value)} bytes>"
    return value


def _is_secret(name: Any, value: Any) -> bool:
    if not isinstance(name, str) or value is None or isinstance(value, bool):
        return False
    return bool(_SECRET_NAMES.search(name)) and not _NOT_SECRET.search(name)


def _keep_label(match: re.Match[str]) -> str:
    return (match["bearer"] or match["name"] or match["user"] or "") + REDACTED


def _order(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    first = {name: event[name] for name in CORRELATION_KEYS if name in event}
    return {**first, **event}
