"""What a capability probe says: facts, and for exact evidence a verdict with reasons and remedies."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from osworld_rollouts.contracts._base import Contract
from osworld_rollouts.evidence.profile import ServerProfile


class Finding(Contract):
    """One thing asked of the server. `ok` None: it was not answered or does not matter; `needed` marks what exact evidence needs."""

    name: str
    ok: bool | None
    detail: str
    remedy: str = ""
    needed: bool = False


class ProbeReport(Contract):
    """A server and one of its models, as found out by asking. `exact` says whether exact evidence can be had for all of it."""

    schema_version: int = 1
    base_url: str
    asked_at: datetime
    duration_s: float
    requests: int = Field(description="how many requests were made; most generate one token")
    semantic: bool = Field(description="the model answered a prompt")
    exact: bool
    profile: ServerProfile | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def refusals(self) -> tuple[Finding, ...]:
        """Why exact evidence cannot be had; empty when it can."""
        return tuple(item for item in self.findings if item.needed and item.ok is not True)


class ExactRefused(Exception):
    """Exact evidence was asked for and cannot be had from this server. `reasons` are sentences, `remedy` what to do about the first."""

    def __init__(self, reasons: tuple[str, ...], remedy: str = "") -> None:
        self.reasons = reasons
        self.remedy = remedy or "ask for evidence=semantic, which always works"
        super().__init__(f"exact evidence cannot be had: {'; '.join(reasons)}")
