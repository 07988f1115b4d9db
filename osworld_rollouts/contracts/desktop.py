"""Desktops and the right to use one: specification, lease, observation."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from osworld_rollouts.contracts._base import Contract
from osworld_rollouts.contracts.identity import Sha256


class DesktopSpec(Contract):
    """The desktop a rollout needs. `image` None means the provider's current one; its identity is recorded."""

    provider: str = "local"
    image: str | None = None
    width: int = Field(default=1920, ge=640, le=7680, description="pixels")
    height: int = Field(default=1080, ge=480, le=4320, description="pixels")
    network: Literal["none", "host"] = "none"


class LeaseOwner(Contract):
    """Whose desktop it is: the execution workflow. A desktop whose owner is closed is removed."""

    workflow_id: str
    run_id: str
    execution_id: str


class Lease(Contract):
    """The right to use one desktop. Carries no secret and no address: the host that made it looks them up by `lease_id`."""

    lease_id: str
    provider: str
    host_id: str
    task_queue: str = Field(description="Temporal task queue of the host that holds the desktop")
    fence: int = Field(ge=1, description="grows when the lease is taken over; a guest refuses older ones")
    width: int
    height: int
    image_identity: str
    tier: str = ""
    created_at: datetime
    expires_at: datetime


class MediaRef(Contract):
    """An image in the evidence store: `sha256` of the bytes as stored and sent, `pixel_sha256` of its RGB pixels."""

    sha256: Sha256
    pixel_sha256: Sha256
    bytes: int
    mime: str = "image/png"
    width: int
    height: int


class Observation(Contract):
    """What the desktop showed. `stable` says whether two frames in a row were equal before the settle limit."""

    screenshot: MediaRef
    accessibility_tree: Sha256 | None = None
    missing: tuple[str, ...] = Field(default=(), description="observations asked for and not had, each with its reason")
    captured_at: datetime
    stable: bool
    settle_ms: int
