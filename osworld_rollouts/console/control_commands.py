"""`rollouts pause | resume | stop | cancel`: what a person may do to a running rollout. Doing it twice is no error."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from temporalio.client import WorkflowUpdateFailedError
from temporalio.service import RPCError, RPCStatusCode

from osworld_rollouts.console.errors import ConsoleError, ExitCode
from osworld_rollouts.console.output import Output
from osworld_rollouts.console.rollouts import Filter, check_campaign, find_rollouts, how_it_ended, outcome_of
from osworld_rollouts.contracts.identity import rollout_workflow_id
from osworld_rollouts.settings import load_settings
from osworld_rollouts.temporal import connect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from temporalio.client import Client

_UPDATE_TIMEOUT_S = 20
_TEARDOWN_S = 180
_MANY = 100_000


def pause(*rollouts: str, campaign: str | None = None, dry_run: bool = False, json: bool = False) -> int:
    """Pause rollouts after their current turn; their desktops are kept.

    Parameters
    ----------
    rollouts
        Rollout ids.
    campaign
        Every running rollout of this campaign.
    dry_run
        Only say which.
    json
        Print JSON.
    """
    return asyncio.run(_update("pause", rollouts, campaign, dry_run=dry_run, out=Output(as_json=json)))


def resume(*rollouts: str, campaign: str | None = None, dry_run: bool = False, json: bool = False) -> int:
    """Let paused rollouts go on.

    Parameters
    ----------
    rollouts
        Rollout ids.
    campaign
        Every running rollout of this campaign.
    dry_run
        Only say which.
    json
        Print JSON.
    """
    return asyncio.run(_update("resume", rollouts, campaign, dry_run=dry_run, out=Output(as_json=json)))


def stop(*rollouts: str, campaign: str | None = None, dry_run: bool = False, json: bool = False) -> int:
    """Let rollouts finish their turn, then evaluate what stands there. The score is real, the sample is masked.

    Parameters
    ----------
    rollouts
        Rollout ids.
    campaign
        Every running rollout of this campaign.
    dry_run
        Only say which.
    json
        Print JSON.
    """
    return asyncio.run(_update("stop_after_turn", rollouts, campaign, dry_run=dry_run, out=Output(as_json=json)))


def cancel(
    *rollouts: str, campaign: str | None = None, no_wait: bool = False, dry_run: bool = False, json: bool = False
) -> int:
    """End rollouts now and remove their desktops. Waits until they are gone.

    Parameters
    ----------
    rollouts
        Rollout ids.
    campaign
        Every running rollout of this campaign.
    no_wait
        Do not wait for the desktops to be removed.
    dry_run
        Only say which.
    json
        Print JSON.
    """
    return asyncio.run(_cancel(rollouts, campaign, wait=not no_wait, dry_run=dry_run, out=Output(as_json=json)))


async def _update(update: str, rollouts: Sequence[str], campaign: str | None, *, dry_run: bool, out: Output) -> int:
    _check_chosen(rollouts, campaign)
    client = await connect(load_settings())
    ids = await _chosen(client, rollouts, campaign)
    answers: dict[str, str] = {}
    refused: dict[str, str] = {}
    for rollout_id in ids:
        try:
            ended = await how_it_ended(client, rollout_id)
            if ended is None and not dry_run:
                answers[rollout_id] = await _ask(client, rollout_id, update)
            elif ended is None:
                answers[rollout_id] = f"would {update.replace('_', ' ')}"
            else:
                refused[rollout_id] = f"already ended: {ended}"
        except WorkflowUpdateFailedError as error:
            refused[rollout_id] = str(error.cause)
    out.record({"done": answers, "refused": refused})
    if not ids:
        out.line("nothing is running")
    for rollout_id, answer in (*answers.items(), *refused.items()):
        out.line(f"{rollout_id}: {answer}", style="yellow" if rollout_id in refused else None)
    return ExitCode.CONFLICT if refused else ExitCode.OK


async def _ask(client: Client, rollout_id: str, update: str) -> str:
    try:
        async with asyncio.timeout(_UPDATE_TIMEOUT_S):
            return str(await client.get_workflow_handle(rollout_workflow_id(rollout_id)).execute_update(update))
    except TimeoutError as error:
        raise ConsoleError(
            f"no worker took the request for {rollout_id!r} within {_UPDATE_TIMEOUT_S} s; it stands and a worker will take it",
            remedy="look at `rollouts status`",
            code=ExitCode.UNREACHABLE,
        ) from error
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise ConsoleError(
                f"rollout {rollout_id!r} ended at this moment",
                remedy="`rollouts show` says how",
                code=ExitCode.CONFLICT,
            ) from error
        raise


async def _cancel(rollouts: Sequence[str], campaign: str | None, *, wait: bool, dry_run: bool, out: Output) -> int:
    _check_chosen(rollouts, campaign)
    client = await connect(load_settings())
    ids = await _chosen(client, rollouts, campaign)
    if not dry_run:
        ended = await cancel_rollouts(client, ids, timeout_s=_TEARDOWN_S if wait else None)
    else:
        ends = {rollout_id: await how_it_ended(client, rollout_id) for rollout_id in ids}
        ended = {name: f"already ended: {end}" if end else "would be cancelled" for name, end in ends.items()}
    out.record({"cancelled": ended})
    for rollout_id, words in ended.items():
        out.line(f"{rollout_id}: {words}")
    if not ids:
        out.line("nothing is running")
    return ExitCode.OK


async def cancel_rollouts(client: Client, ids: Sequence[str], *, timeout_s: float | None) -> dict[str, str]:
    """Cancel each, and say how each ended; with a timeout, wait that long for it, which is when their desktops are gone.

    Raises:
        ConsoleError: one does not exist, or one has not ended in time.
    """
    over: dict[str, str] = {}
    for rollout_id in ids:
        try:
            ended = await how_it_ended(client, rollout_id)
            if ended is not None:
                over[rollout_id] = f"already ended: {ended}"
                continue
            await client.get_workflow_handle(rollout_workflow_id(rollout_id)).cancel()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # it ended between the two requests
                raise
    waited = [rollout_id for rollout_id in ids if rollout_id not in over]
    if timeout_s is None:
        return {**dict.fromkeys(waited, "cancelling"), **over}
    try:
        async with asyncio.timeout(timeout_s):
            ends = await asyncio.gather(*(outcome_of(client, rollout_id) for rollout_id in waited))
    except TimeoutError as error:
        raise ConsoleError(
            f"not all had ended after {timeout_s:g} s; the request stands",
            remedy="a worker must run for their desktops to be removed: `rollouts status`",
            code=ExitCode.UNREACHABLE,
        ) from error
    ended_now = {
        rollout_id: str(result.outcome.kind) if result else "cancelled"
        for rollout_id, (result, _) in zip(waited, ends, strict=True)
    }
    return {**ended_now, **over}


def _check_chosen(rollouts: Sequence[str], campaign: str | None) -> None:
    if bool(rollouts) == bool(campaign):
        raise ConsoleError("name rollouts, or a --campaign", remedy="`rollouts list --running` shows what runs")


async def _chosen(client: Client, rollouts: Sequence[str], campaign: str | None) -> list[str]:
    if campaign:
        await check_campaign(client, campaign)
        return [row.rollout_id for row in await find_rollouts(client, Filter(campaign=campaign, running=True), _MANY)]
    return [name.removeprefix("rollout/") for name in rollouts]
