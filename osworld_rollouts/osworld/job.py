"""What goes into and comes out of one run of OSWorld's own code: job, reports, and the two ways it can fail.

Theory of the errors. A *prepare* failure means that the desktop is not in the state the task asks for; it is dirty and the
execution ends. An *evaluation* failure means that there is no verdict. Neither is ever a score. `FailureKind` says whose
doing it was, so that the caller can choose the outcome without reading the message.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from osworld_rollouts.desktops._provider import DesktopRecord


class FailureKind(StrEnum):
    """Why a job gave no result."""

    STEP_FAILED = "step_failed"
    """A setup or post-step did not do what it says: non-zero return code, HTTP error, window that never appeared."""
    EXCEPTION = "exception"
    """The package raised, or returned what is no score."""
    TIMEOUT = "timeout"
    """The job's deadline passed, or the guest did not answer in time."""
    UNREACHABLE = "infrastructure"
    """The guest, a download or this machine failed."""
    INDETERMINATE = "indeterminate"
    """A reply was lost and the guest cannot say whether the effect happened."""
    REFUSED = "refused"
    """The guest refused the operation: stale fence or sequence, wrong token."""
    CRASH = "crash"
    """The evaluator's process died."""


@dataclass(frozen=True, slots=True)
class StockLedger:
    """The ledger of a guest whose server is OSWorld's own, kept from outside: whose it is, and that server's port inside the guest."""

    lease_id: str
    inner_port: int = 5000


@dataclass(frozen=True, slots=True)
class GuestEndpoint:
    """Where a desktop's services are: unix sockets, or a host with ports. `token` is sent as a bearer token, never logged.

    `ledger` says that the guest keeps the operation ledger, so that a request may be sent again under the same operation id.
    Without it an effect whose reply was lost is indeterminate. With `stock` the gateway keeps the ledger in its place.
    """

    server_socket: Path | None = None
    chromium_socket: Path | None = None
    vlc_socket: Path | None = None
    host: str | None = None
    server_port: int = 5000
    chromium_port: int = 9222
    vlc_port: int = 8080
    token: str = field(default="", repr=False)
    ledger: bool = True
    stock: StockLedger | None = None

    def __post_init__(self) -> None:
        if (self.server_socket is None) == (self.host is None):
            raise ValueError("a guest endpoint is either unix sockets or a host with ports: give server_socket or host")

    @classmethod
    def of(cls, record: DesktopRecord) -> GuestEndpoint:
        """The services of a desktop of this host."""
        ends = record.endpoints
        return cls(
            server_socket=ends.server,
            chromium_socket=ends.chromium,
            vlc_socket=ends.vlc,
            host=ends.host,
            server_port=ends.server_port,
            chromium_port=ends.chromium_port,
            vlc_port=ends.vlc_port,
            token=record.token.get_secret_value(),
            stock=StockLedger(record.lease_id, ends.inner_port) if ends.ledger == "stock" else None,
        )

    @property
    def base_url(self) -> str:
        """Where OSWorld's server is asked; over a unix socket the name of the host says nothing."""
        return "http://guest" if self.host is None else f"http://{self.host}:{self.server_port}"


@dataclass(frozen=True, slots=True)
class OSWorldJob:
    """One run of OSWorld's code for one execution.

    `cache_dir` belongs to the execution alone and is shared by its prepare, post-steps and evaluation: the evaluator reads what
    post-steps wrote there. Effects are named `<operation_prefix>/o<n>`, n from 0, with sequence numbers from `first_seq`.
    """

    execution_id: str
    task_document: dict[str, Any]
    cache_dir: Path
    guest: GuestEndpoint
    fence: int
    first_seq: int
    operation_prefix: str
    timeout_s: float
    screen_width: int = 1920
    screen_height: int = 1080
    client_password: str = "password"  # noqa: S105 - the public password of OSWorld's image; tasks hard-code it

    @property
    def task_id(self) -> str:
        """The task's id: the name of its folder in the cache directory."""
        return str(self.task_document["id"])


@dataclass(frozen=True, slots=True)
class PrepareReport:
    """Setup or post-steps ran. `next_seq` is the first free sequence number; `notes` are deviations that were not failures."""

    steps: int
    next_seq: int
    exchanges: list[dict[str, Any]]
    log: bytes
    notes: tuple[str, ...] = ()
    duration_ms: int = 0


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """The evaluator's own number, in [0, 1]. `files` are what it had in its cache directory, by name relative to it."""

    score: float
    next_seq: int
    exchanges: list[dict[str, Any]]
    log: bytes
    files: dict[str, Path]
    notes: tuple[str, ...] = ()
    duration_ms: int = 0


class JobFailed(Exception):
    """A job of OSWorld's code gave no result.

    `message` is one sentence for a person, `traceback` the end of the package's own, `log` what it printed, `exchanges` what was
    asked of the guest until then, `next_seq` the first sequence number not used by it.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        traceback: str = "",
        log: bytes = b"",
        exchanges: list[dict[str, Any]] | None = None,
        next_seq: int = 0,
        notes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.traceback = traceback
        self.log = log
        self.exchanges = exchanges or []
        self.next_seq = next_seq
        self.notes = notes


class PrepareFailed(JobFailed):
    """A setup or post-step failed. Steps count from 1; 0 means that it failed outside any step."""

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        step: int = 0,
        step_type: str = "",
        command: str = "",
        output: str = "",
        **facts: Any,
    ) -> None:
        super().__init__(kind, message, **facts)
        self.step = step
        self.step_type = step_type
        self.command = command
        self.output = output

    def __str__(self) -> str:
        return f"step {self.step} ({self.step_type}): {self.message}" if self.step else self.message


class EvaluationFailed(JobFailed):
    """The evaluator gave no verdict. There is no score, not even 0."""


def as_score(value: object) -> float:
    """The evaluator's return value as a float.

    Booleans and NumPy numbers are numbers, as in OSWorld's own runner. Anything else is no verdict.

    Raises:
        ValueError: for None, text, NaN, infinity, and numbers outside [0, 1].
    """
    kind = type(value).__name__
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()  # pyright: ignore[reportAttributeAccessIssue] - any NumPy scalar
    if not isinstance(value, numbers.Real):
        raise ValueError(f"the evaluator returned {value!r} ({kind}), which is no score")  # noqa: TRY004 - a wrong value
    score = float(value)
    if not math.isfinite(score) or not 0 <= score <= 1:
        raise ValueError(f"the evaluator returned {score!r}, which is no score in [0, 1]")
    return score
