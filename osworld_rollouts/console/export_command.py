"""`rollouts export`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from osworld_rollouts.console.errors import ConsoleError, ExitCode
from osworld_rollouts.console.output import Output
from osworld_rollouts.console.store_commands import configured_store
from osworld_rollouts.evidence.export.campaign import ExportReport, export_campaign
from osworld_rollouts.evidence.export.files import NothingToExport, PlaceInUse


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

    try:
        report = export_campaign(
            configured_store(store),
            campaign,
            target,
            format=format,
            only_eligible=only == "eligible",
            blobs=blobs,
            progress=told,
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
    for name, why in report.fields_left_out.items():
        console.line(f"  left out: {name}: {why}", style="dim")
    for problem in report.problems:
        console.line(f"  not intact, left out: {problem}", style="red")
    return 1 if report.problems else 0
