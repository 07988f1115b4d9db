"""`rollouts export`."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Literal

from temporalio.service import RPCError

from osworld_rollouts.console.errors import ConsoleError, ExitCode
from osworld_rollouts.console.output import STYLES, Output
from osworld_rollouts.console.rollouts import Filter, find_rollouts
from osworld_rollouts.console.store_commands import configured_store
from osworld_rollouts.evidence.export.campaign import ExportReport, export_campaign
from osworld_rollouts.evidence.export.files import NothingToExport, PlaceInUse
from osworld_rollouts.evidence.index import list_pointers
from osworld_rollouts.settings import load_settings
from osworld_rollouts.temporal import TemporalUnreachableError, connect

_ASK_S = 10
_ALL = 1_000_000


def export(
    campaign: str, *, format: Literal["jsonl", "parquet", "nemo-gym"] = "jsonl", only: Literal["all", "eligible"] = "all",  # noqa: A002
    out: Path | None = None, blobs: Literal["all", "none"] = "all", store: str | None = None, json: bool = False,
) -> int:  # fmt: skip
    """Write a campaign's sealed rollouts: one row for each model call, one for each rollout. Columns are in docs/evidence.md.

    Parameters
    ----------
    campaign
        The campaign's id.
    format
        jsonl, parquet (needs the extra `export`), or nemo-gym.
    only
        eligible leaves out rollouts that runtime admission masked.
    out
        A new directory; by default CAMPAIGN-FORMAT here.
    blobs
        all copies records, replies, requests and images beside the rows, so that they can be verified and shown anywhere.
    store
        Path or URL of another store.
    json
        Print JSON.
    """
    console = Output(as_json=json)
    target = out or Path(f"{campaign}-{format}")

    def told(report: ExportReport) -> None:
        if report.rollouts and report.rollouts % 100 == 0:
            console.note(f"{report.rollouts} rollouts, {report.calls} calls")

    place = configured_store(store)
    sealed = {pointer.rollout_id for pointer in list_pointers(place, campaign_id=campaign)}
    try:
        report = export_campaign(
            place,
            campaign,
            target,
            format=format,
            only_eligible=only == "eligible",
            blobs=blobs,
            progress=told,
            without_evidence=asyncio.run(_without_evidence(campaign, sealed)) if sealed else None,
        )
    except NothingToExport as error:
        raise ConsoleError(str(error), code=ExitCode.NOT_FOUND) from error
    except PlaceInUse as error:
        raise ConsoleError(str(error), code=ExitCode.USAGE) from error
    console.record(report.as_json())
    console.line(f"{target}: {report.rollouts} rollouts, {report.executions} executions, {report.calls} model calls")
    for item in report.files:
        console.line(f"  {item['name']}: {item['rows']} rows, {item['bytes']:,} bytes")
    if report.left_out:
        console.line(f"  {report.left_out} masked rollouts left out")
    if report.unscored:
        console.line(f"  {report.unscored} rollouts without a score are in unscored.jsonl")
    if report.without_evidence is None:
        console.line(
            "  Temporal did not answer: rollouts of which nothing is sealed are not counted", style=STYLES["waiting"]
        )
    elif report.without_evidence:
        parts = ", ".join(f"{count} {kind}" for kind, count in report.without_evidence.items())
        console.line(f"  in no file, because nothing of them is sealed: {parts}", style=STYLES["waiting"])
    for name, why in report.fields_left_out.items():
        console.line(f"  left out: {name}: {why}", style="dim")
    for problem in report.problems:
        console.line(f"  not intact, left out: {problem}", style="red")
    return 1 if report.problems else 0


async def _without_evidence(campaign: str, sealed: set[str]) -> dict[str, int] | None:
    """Rollouts that Temporal knows and the store does not, counted by outcome or, while they run, as running; None without an answer."""
    try:
        async with asyncio.timeout(_ASK_S):
            client = await connect(load_settings())
            rows = await find_rollouts(client, Filter(campaign=campaign), _ALL)
    except (TemporalUnreachableError, RPCError, TimeoutError):
        return None
    others = (row for row in rows if row.rollout_id not in sealed)
    return dict(
        Counter("running" if row.status == "running" else row.outcome or row.status for row in others).most_common()
    )
