"""How long each step may take, in seconds. Chosen by settings at submission and carried by the workflow, so that replay sees the same."""

from __future__ import annotations

from pydantic import Field

from osworld_rollouts.contracts._base import Contract


class Timing(Contract):
    """Timeouts of the steps. Every default says why."""

    heartbeat_s: float = Field(
        default=15, gt=1, description="a dead worker is noticed after this; workers beat at a third of it"
    )
    pool_wait_s: float = Field(
        default=86400,
        gt=0,
        description="in a large campaign most rollouts wait all night for a free desktop, which costs nothing",
    )
    host_grace_s: float = Field(
        default=180,
        gt=0,
        description="a host that does not poll its own queue for so long is given up; a restart takes seconds",
    )
    provision_s: float = Field(
        default=180, gt=0, description="a local desktop takes 2 s; a cold page cache or a busy machine far more"
    )
    prepare_s: float = Field(default=600, gt=0, description="setup may download files and open office documents")
    model_s: float = Field(
        default=600, gt=0, description="one attempt at a model call, beside the request's own timeout"
    )
    model_total_s: float = Field(
        default=3600, gt=0, description="all attempts of one call, so that a served model may restart"
    )
    operation_s: float = Field(default=120, gt=0, description="one operation in the guest: OSWorld's own limit")
    observe_s: float = Field(
        default=60, gt=0, description="settling and taking the observation after a turn's operations"
    )
    post_steps_s: float = Field(default=300, gt=0, description="the evaluator's post-steps")
    evaluate_s: float = Field(default=300, gt=0, description="one attempt at the evaluator")
    teardown_s: float = Field(default=60, gt=0, description="one attempt at removing a desktop")
    teardown_total_s: float = Field(default=300, gt=0, description="all attempts; after that the host's reaper has it")
    evidence_s: float = Field(default=60, gt=0, description="one attempt at writing evidence")
    evidence_total_s: float = Field(
        default=3600, gt=0, description="all attempts, so that a full disk or an unreachable store can be mended"
    )
    lease_ttl_s: float = Field(
        default=1800, gt=0, description="a desktop nobody renewed for so long is removed; every step renews"
    )
    retry_pause_s: float = Field(default=5, ge=0, description="between two executions of a rollout, doubled each time")
