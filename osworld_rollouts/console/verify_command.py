"""`rollouts verify`: whoever holds the Temporal history can check every byte of the trace."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count
from pathlib import Path  # noqa: TC003  (cyclopts reads the annotation)
from typing import TYPE_CHECKING, Any

from temporalio.service import RPCError, RPCStatusCode

from osworld_rollouts.console.errors import ConsoleError, ExitCode
from osworld_rollouts.console.output import Output, calls_left_open
from osworld_rollouts.console.rollouts import how_it_ended
from osworld_rollouts.console.store_commands import NOT_INTACT, configured_store
from osworld_rollouts.contracts.identity import execution_id, execution_workflow_id, split_execution_id
from osworld_rollouts.evidence.chain import forget_cached_records
from osworld_rollouts.evidence.index import read_pointer
from osworld_rollouts.evidence.loader import NotAnExport, open_campaign
from osworld_rollouts.evidence.verify import ExecutionReport, history_heads, verify_execution, verify_sealed
from osworld_rollouts.settings import load_settings
from osworld_rollouts.temporal import connect

if TYPE_CHECKING:
    from temporalio.client import Client

    from osworld_rollouts.evidence.store import EvidenceStore


def verify(
    rollout: str | None = None,
    *,
    export: Path | None = None,
    offline: bool = False,
    store: str | None = None,
    json: bool = False,
) -> int:
    """Walk a rollout's evidence and hold it against the heads in Temporal's history, or check an export. Exit code 1 when not intact.

    Parameters
    ----------
    rollout
        A rollout id (all its executions), or the id of one execution.
    export
        A directory made by `rollouts export`: trainer admission re-verifies every rollout in it.
    offline
        Do not ask Temporal: the chains are only checked against themselves.
    store
        Path or URL of another store.
    json
        Print JSON.
    """
    out = Output(as_json=json)
    if (rollout is None) == (export is None):
        raise ConsoleError("name a rollout, or an export with --export", code=ExitCode.USAGE)
    forget_cached_records()
    if export is not None:
        return _verify_export(export, out)
    evidence = configured_store(store)
    reports = asyncio.run(_verify_rollout(evidence, str(rollout), offline=offline))
    if not reports:
        raise asyncio.run(_nothing_of(str(rollout), evidence, offline=offline))
    out.record({"rollout": rollout, "store": evidence.url, "intact": all(report.intact for report in reports),
                "executions": [report.as_json() for report in reports]})  # fmt: skip
    for report in reports:
        witness = (
            f"{report.witnessed} heads of Temporal's history agree"
            if report.history_checked
            else "not held against a history"
        )
        ended = "" if report.ended else ", still open"
        if report.intact:
            out.line(
                f"{report.execution_id}: intact, {report.records} records and {report.blobs} blobs, {witness}{ended}",
                style="green",
            )
        else:
            out.line(f"{report.execution_id}: NOT intact: {report.problem}", style="red")
        if report.unanswered_calls or report.unseen_samples:
            out.line(f"  {calls_left_open(report.unanswered_calls, report.unseen_samples)}", style="yellow")
    return 0 if all(report.intact for report in reports) else NOT_INTACT


async def _verify_rollout(store: EvidenceStore, name: str, *, offline: bool) -> list[ExecutionReport]:
    try:
        rollout, first = split_execution_id(name)
        last: int | None = first
    except ValueError:
        rollout, first, last = name, 1, None
    client = None if offline else await connect(load_settings())
    reports: list[ExecutionReport] = []
    for number in count(first):
        report = await _verify_one(store, client, execution_id(rollout, number))
        if report is not None:
            reports.append(report)
        if number == last or (report is None and last is None):
            return reports
    return reports


async def _nothing_of(name: str, store: EvidenceStore, *, offline: bool) -> ConsoleError:
    """Why there is nothing to verify: nobody knows it, or it never had evidence."""
    listed = "`rollouts list` shows what there is"
    if offline:
        return ConsoleError(f"{store.url} has no execution of {name!r}", remedy=listed, code=ExitCode.NOT_FOUND)
    try:
        rollout = split_execution_id(name)[0]
    except ValueError:
        rollout = name
    try:
        end = await how_it_ended(await connect(load_settings()), rollout)
    except ConsoleError:
        words = f"neither Temporal nor {store.url} knows an execution of {name!r}"
        return ConsoleError(words, remedy=listed, code=ExitCode.NOT_FOUND)
    words = f"there is no evidence of {name!r}: its rollout " + (
        f"ended with {end}" if end else "runs, and none is written yet"
    )
    return ConsoleError(words, remedy=f"`rollouts show {rollout}` says more", code=ExitCode.NOT_FOUND)


async def _verify_one(store: EvidenceStore, client: Client | None, name: str) -> ExecutionReport | None:
    """One execution; None when nobody knows it."""
    heads = None if client is None else await _heads(client, name)
    pointer = await asyncio.to_thread(read_pointer, store, name)
    if pointer is not None:
        return await asyncio.to_thread(verify_sealed, store, pointer, heads)
    if not heads:
        return None
    return replace(await asyncio.to_thread(verify_execution, store, heads[-1], heads), execution_id=name)


async def _heads(client: Client, name: str) -> list[str] | None:
    """Heads of the history; None when there is no such workflow (any more)."""
    try:
        return await history_heads(client, execution_workflow_id(name)) or None
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise


def _verify_export(path: Path, out: Output) -> int:
    try:
        campaign = open_campaign(path)
    except NotAnExport as error:
        raise ConsoleError(str(error), code=ExitCode.USAGE) from error
    rows: list[dict[str, Any]] = [
        {
            "rollout_id": item.row["rollout_id"], "intact": item.admission.intact, "eligible": item.admission.eligible,
            "eligible_tokens": item.admission.eligible_tokens, "calls": len(item.admission.calls),
            "eligible_calls": sum(call.eligible for call in item.admission.calls), "reasons": list(item.admission.reasons),
            "call_reasons": sorted({reason for call in item.admission.calls for reason in call.reasons}),
        }
        for item in campaign.rollouts(keep_broken=True)
    ]  # fmt: skip
    broken = [row for row in rows if not row["intact"]]
    out.record({"export": str(path), "intact": not broken, "rollouts": rows})
    for row in rows:
        reasons = "; ".join([*row["reasons"], *row["call_reasons"]][:3])
        verdict = (
            "NOT intact"
            if not row["intact"]
            else f"{row['eligible_calls']}/{row['calls']} calls, {row['eligible_tokens']} tokens eligible"
        )
        out.line(
            f"{row['rollout_id']}: {verdict}" + (f" ({reasons})" if reasons else ""),
            style=None if row["intact"] else "red",
        )
    admitted = sum(row["eligible"] for row in rows)
    tokens = sum(row["eligible_tokens"] for row in rows)
    out.line(f"{len(rows)} rollouts, {len(broken)} not intact, {admitted} admitted with {tokens} eligible tokens")
    return NOT_INTACT if broken else 0
