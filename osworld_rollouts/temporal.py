"""Names that the Temporal side agrees on: workflow types, activities, queues, search attributes; and how a client connects."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.contrib.pydantic import pydantic_data_converter

if TYPE_CHECKING:
    from temporalio.client import Interceptor

    from osworld_rollouts.contracts.request import RolloutRequest
    from osworld_rollouts.settings import Settings

ROLLOUT_WORKFLOW = "RolloutWorkflow"
EXECUTION_WORKFLOW = "ExecutionWorkflow"

MAX_REQUEST_BYTES = 512 * 1024
"""A gRPC message holds 4 MB and a payload 2 MB; a request rides in the rollout's start, the execution's, and its first activity."""

CAMPAIGN = SearchAttributeKey.for_keyword("RolloutCampaign")
ROLLOUT = SearchAttributeKey.for_keyword("RolloutId")
TASK = SearchAttributeKey.for_keyword("RolloutTask")
DOMAIN = SearchAttributeKey.for_keyword("RolloutDomain")
MODEL = SearchAttributeKey.for_keyword("RolloutModel")
ADAPTER = SearchAttributeKey.for_keyword("RolloutAdapter")
PURPOSE = SearchAttributeKey.for_keyword("RolloutPurpose")
PHASE = SearchAttributeKey.for_keyword("RolloutPhase")
OUTCOME = SearchAttributeKey.for_keyword("RolloutOutcome")
EXECUTION = SearchAttributeKey.for_int("RolloutExecution")
TURN = SearchAttributeKey.for_int("RolloutTurn")
SCORE = SearchAttributeKey.for_float("RolloutScore")
ELIGIBLE = SearchAttributeKey.for_bool("RolloutEligible")

SEARCH_ATTRIBUTES: dict[str, str] = {
    **{key.name: "Keyword" for key in (CAMPAIGN, ROLLOUT, TASK, DOMAIN, MODEL, ADAPTER, PURPOSE, PHASE, OUTCOME)},
    EXECUTION.name: "Int",
    TURN.name: "Int",
    SCORE.name: "Double",
    ELIGIBLE.name: "Bool",
}
"""Name to type, as `temporal operator search-attribute create` wants them. SQL visibility has room for 10 keywords."""


async def connect(settings: Settings, *, interceptors: list[Interceptor] | None = None) -> Client:
    """Connect as the settings say, which includes Temporal's own environment configuration (address, namespace, TLS, API key).

    Raises:
        TemporalUnreachableError: when no server answers there.
    """
    config = settings.connect_config()
    try:
        return await asyncio.wait_for(
            Client.connect(**config, data_converter=pydantic_data_converter, interceptors=interceptors or []),
            settings.temporal.connect_timeout_s,
        )
    except (RuntimeError, TimeoutError) as error:
        raise TemporalUnreachableError(settings.temporal.address, settings.temporal.namespace) from error


class TemporalUnreachableError(RuntimeError):
    """No Temporal server answers. `what` says where, `remedy` what to do; the message says both."""

    remedy = "start one with `rollouts up`, or set TEMPORAL_ADDRESS"

    def __init__(self, address: str, namespace: str) -> None:
        self.what = f"no Temporal server answers at {address} (namespace {namespace!r})"
        super().__init__(f"{self.what}: {self.remedy}")


def start_attributes(request: RolloutRequest, *, execution: int | None = None) -> TypedSearchAttributes:
    """Search attributes a rollout (or, with `execution`, one of its executions) starts with."""
    rollout = request.rollout
    pairs = [
        SearchAttributePair(CAMPAIGN, request.campaign_id),
        SearchAttributePair(ROLLOUT, request.rollout_id),
        SearchAttributePair(TASK, rollout.task.task_id),
        SearchAttributePair(DOMAIN, rollout.task.domain),
        SearchAttributePair(MODEL, rollout.model.name),
        SearchAttributePair(ADAPTER, rollout.adapter.name),
        SearchAttributePair(PHASE, "starting"),
    ]
    if request.purpose:
        pairs.append(SearchAttributePair(PURPOSE, request.purpose))
    numbers = [SearchAttributePair(EXECUTION, execution), SearchAttributePair(TURN, 0)] if execution is not None else []
    return TypedSearchAttributes([*pairs, *numbers])
