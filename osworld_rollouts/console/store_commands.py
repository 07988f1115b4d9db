"""`rollouts store verify | gc | stats`: the evidence store as a whole. Only gc asks Temporal, for what still runs."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio.service import RPCError

from osworld_rollouts.console.errors import ConsoleError, ExitCode
from osworld_rollouts.console.output import Output
from osworld_rollouts.evidence.chain import forget_cached_records
from osworld_rollouts.evidence.gc import collect, stats
from osworld_rollouts.evidence.index import ExecutionPointer, list_pointers
from osworld_rollouts.evidence.store import EvidenceStore, open_store
from osworld_rollouts.evidence.unsealed import Unsealed, unsealed_executions
from osworld_rollouts.evidence.verify import ExecutionReport, verify_sealed
from osworld_rollouts.settings import load_settings
from osworld_rollouts.temporal import TemporalUnreachableError, connect

NOT_INTACT = 1
"""Exit code of a verification that found something."""
IN_FLIGHT = timedelta(hours=1)
"""A step of a running execution stores its blobs before its record names them: gc never removes what may be that young."""


def configured_store(url: str | None) -> EvidenceStore:
    """The store of an option, or of the settings."""
    settings = load_settings()
    return open_store(url or settings.store.url)


def verify(*, campaign: str | None = None, store: str | None = None, json: bool = False) -> int:
    """Re-hash every sealed execution's records and every blob they name. Exit code 1 when something is not intact.

    What nobody outside the store vouches for cannot be proved here: `rollouts verify ROLLOUT` asks Temporal's history.

    Parameters
    ----------
    campaign
        Only this campaign.
    store
        Path or URL of another store.
    json
        Print JSON.
    """
    out = Output(as_json=json)
    evidence = configured_store(store)
    forget_cached_records()
    reports: list[ExecutionReport] = []
    for pointer in list_pointers(evidence, campaign_id=campaign):
        report = verify_sealed(evidence, pointer)
        reports.append(report)
        if not report.intact:
            out.line(f"{pointer.execution_id}: {report.problem}", style="red")
    broken = [report for report in reports if not report.intact]
    out.record(
        {"store": evidence.url, "executions": len(reports), "not_intact": [report.as_json() for report in broken]}
    )
    records, blobs = sum(report.records for report in reports), sum(report.blobs for report in reports)
    out.line(
        f"{len(reports)} executions, {records} records, {blobs} blobs: {len(reports) - len(broken)} intact, {len(broken)} not"
    )
    return NOT_INTACT if broken else 0


def collect_garbage(
    *, forget: tuple[str, ...] = (), days: float = 7, delete: bool = False, offline: bool = False, store: str | None = None,
    json: bool = False,
) -> None:  # fmt: skip
    """Remove blobs that no kept execution reaches. Without --delete it only says what it would do.

    Kept are sealed executions, those that Temporal knows and that are not sealed (running ones above all), and what was stored within
    the last days.

    Parameters
    ----------
    forget
        A campaign whose executions are not kept; may be given several times. Those that run are kept all the same.
    days
        Keep what is younger.
    delete
        Remove it.
    offline
        Do not ask Temporal: what runs is then only protected by --days. Choose more days than your longest execution takes.
    store
        Path or URL of another store.
    json
        Print JSON.
    """
    out = Output(as_json=json)
    evidence = configured_store(store)

    def forgotten(pointer: ExecutionPointer) -> bool:
        return pointer.campaign_id in forget

    if days < 0:
        raise ConsoleError(f"--days {days:g} is less than nothing", code=ExitCode.USAGE)
    unsealed = None if offline else asyncio.run(_unsealed(evidence))
    kept = _kept_heads(evidence, unsealed or [], forget, days)
    report = collect(
        evidence,
        forget=forgotten,
        extra_heads=[item.head for item in kept if item.head],
        grace=timedelta(days=days),
        dry_run=not delete,
    )
    running = [item.execution_id for item in kept if item.running]
    out.record(
        {
            "store": evidence.url,
            "temporal_asked": not offline,
            "unsealed_executions": [item.execution_id for item in kept],
            "running_executions": running,
            **report.as_json(),
        }
    )
    done = "removed" if delete else "would remove"
    out.line(
        f"{done} {report.removed_blobs} blobs ({report.removed_bytes:,} bytes), {report.removed_journal_entries} journal entries, "
        f"{report.removed_leftovers} files of dead writers, {len(report.forgotten_executions)} executions"
    )
    out.line(
        f"kept {report.kept_blobs} blobs of {report.kept_executions} sealed executions and {len(kept)} others ({len(running)} running), "
        f"and {report.young_blobs} young ones"
    )
    if offline:
        out.line(
            f"Temporal was not asked: of what runs, only what is younger than {days:g} days is kept", style="yellow"
        )
    if not delete and (report.removed_blobs or report.removed_journal_entries or report.removed_leftovers):
        out.line("nothing was removed; add --delete to do it")


async def _unsealed(store: EvidenceStore) -> list[Unsealed]:
    settings = load_settings()
    try:
        client = await connect(settings)
        sealed = await asyncio.to_thread(lambda: {pointer.execution_id for pointer in list_pointers(store)})
        return await unsealed_executions(client, sealed)
    except (TemporalUnreachableError, RPCError) as error:
        raise ConsoleError(
            f"Temporal at {settings.temporal.address} does not say which executions run, and nothing was removed: {error}",
            remedy="start it, or add --offline to go by age alone",
            code=ExitCode.UNREACHABLE,
        ) from error


def _kept_heads(store: EvidenceStore, unsealed: list[Unsealed], forget: tuple[str, ...], days: float) -> list[Unsealed]:
    """The unsealed executions whose evidence is in this store; a head that is not there belongs to another store."""
    kept = [
        item
        for item in unsealed
        if (item.running or item.campaign_id not in forget) and (item.head is None or store.has(item.head))
    ]
    running = [item.execution_id for item in kept if item.running]
    if running and timedelta(days=days) < IN_FLIGHT:
        raise ConsoleError(
            f"{len(running)} executions run, among them {running[0]}, and what they just stored is not named anywhere yet",
            remedy="keep at least --days 0.05, or wait for them",
            code=ExitCode.CONFLICT,
        )
    return kept


def show_stats(*, quick: bool = False, store: str | None = None, json: bool = False) -> None:
    """Count blobs, executions and what is in their chains.

    Parameters
    ----------
    quick
        Count only; do not read the chains.
    store
        Path or URL of another store.
    json
        Print JSON.
    """
    out = Output(as_json=json)
    found = stats(configured_store(store), walk=not quick)
    out.record(found.as_json())
    out.line(f"{found.url}: {found.blobs:,} blobs, {found.stored_bytes:,} bytes, {found.executions:,} executions")
    for campaign, number in sorted(found.campaigns.items()):
        out.line(f"  campaign {campaign}: {number} executions")
    if not quick and found.turns:
        out.line(f"  records: {', '.join(f'{number} {kind}' for kind, number in sorted(found.records.items()))}")
        out.line(
            f"  {found.screenshots:,} screenshots ({found.screenshot_bytes:,} bytes) sent {found.screenshots_sent:,} times; "
            f"{found.bytes_per_turn:,.0f} bytes a turn in all"
        )
