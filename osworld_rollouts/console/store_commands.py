"""`rollouts store verify | gc | stats`: the evidence store as a whole, without Temporal."""

from __future__ import annotations

from datetime import timedelta

from osworld_rollouts.console.output import Output
from osworld_rollouts.evidence.chain import forget_cached_records
from osworld_rollouts.evidence.gc import collect, stats
from osworld_rollouts.evidence.index import ExecutionPointer, list_pointers
from osworld_rollouts.evidence.store import EvidenceStore, open_store
from osworld_rollouts.evidence.verify import ExecutionReport, verify_execution
from osworld_rollouts.settings import load_settings

NOT_INTACT = 1
"""Exit code of a verification that found something."""


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
        report = verify_execution(evidence, pointer.head)
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
    *, forget: tuple[str, ...] = (), days: float = 7, delete: bool = False, store: str | None = None, json: bool = False
) -> None:
    """Remove blobs that no kept execution reaches. Without --delete it only says what it would do.

    What was stored within the last days is kept whatever reaches it, because a running execution is known to Temporal only. Choose
    more days than your longest execution takes.

    Parameters
    ----------
    forget
        A campaign whose executions are not kept; may be given several times.
    days
        Keep what is younger.
    delete
        Remove it.
    store
        Path or URL of another store.
    json
        Print JSON.
    """
    out = Output(as_json=json)
    evidence = configured_store(store)

    def forgotten(pointer: ExecutionPointer) -> bool:
        return pointer.campaign_id in forget

    report = collect(evidence, forget=forgotten, grace=timedelta(days=days), dry_run=not delete)
    out.record({"store": evidence.url, **report.as_json()})
    done = "removed" if delete else "would remove"
    out.line(
        f"{done} {report.removed_blobs} blobs ({report.removed_bytes:,} bytes), {report.removed_journal_entries} journal entries, "
        f"{report.removed_leftovers} files of dead writers, {len(report.forgotten_executions)} executions"
    )
    out.line(
        f"kept {report.kept_blobs} blobs of {report.kept_executions} executions and {report.young_blobs} young ones"
    )
    if not delete and (report.removed_blobs or report.removed_journal_entries or report.removed_leftovers):
        out.line("nothing was removed; add --delete to do it")


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
