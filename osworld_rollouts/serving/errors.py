"""What can go wrong between us and a model's server.

One exception with a *kind*. What matters for money and truth is `sample_may_exist`: whether the server may have generated a
reply that nobody saw. It is False only where that cannot be (refused connection, a 4xx); a time-out, a dropped connection or a
5xx after the request was sent leave it open, and the record of the call says so.
"""

from __future__ import annotations

from typing import Final, Literal

ErrorKind = Literal[
    "unreachable", "timeout", "rejected", "rate_limited", "server_error", "context_overflow", "cut", "unreadable"
]

RETRYABLE: Final[frozenset[str]] = frozenset(
    {"unreachable", "timeout", "rate_limited", "server_error", "cut", "unreadable"}
)

# Substrings, lower case, by which servers say that a prompt is too long: vLLM, SGLang, OpenAI, Anthropic and gateways before them.
OVERFLOW_MARKERS: Final = (
    "maximum context length",
    "context_length_exceeded",
    "exceeds model",
    "reduce the length",
    "input length",
    "prompt is too long",
    "longer than the model's context length",
    "exceeds the model's maximum",
    "maximum model length",
    "context window",
)


class ModelCallError(Exception):
    """A call of the policy model that brought no reply.

    Attributes:
        kind: what happened, one of `ErrorKind`.
        status: HTTP status, None when there was none.
        remedy: what a person can do.
        retry_after: seconds the server asked to wait, None when it did not.
        sample_may_exist: whether the server may have generated a reply that nobody saw.
        body: what arrived of the reply, possibly nothing.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        status: int | None = None,
        remedy: str = "",
        retry_after: float | None = None,
        sample_may_exist: bool = False,
        body: bytes = b"",
    ) -> None:
        self.kind: ErrorKind = kind
        self.status = status
        self.message = message
        self.remedy = remedy
        self.retry_after = retry_after
        self.sample_may_exist = sample_may_exist
        self.body = body
        super().__init__(f"{message}; {remedy}" if remedy else message)

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.kind in RETRYABLE


class ReplyUnreadable(ValueError):
    """A reply with status 200 that is not what its API promises."""


def is_overflow(status: int, message: str) -> bool:
    """Whether an error says that the prompt does not fit the model."""
    lowered = message.lower()
    return status in {400, 413, 422} and any(marker in lowered for marker in OVERFLOW_MARKERS)
