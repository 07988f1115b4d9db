"""A rollout as files: a page for each execution with its screenshots, to open without any server, to keep or to send."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING
from urllib.parse import quote

from osworld_rollouts.console.errors import ConsoleError, ExitCode
from osworld_rollouts.console.viewer.catalog import ModelNames, last_executions, list_page
from osworld_rollouts.console.viewer.live import Known
from osworld_rollouts.console.viewer.pages import CSP_FILES, FileUrls, IndexUrls, render_overview, render_rollout
from osworld_rollouts.console.viewer.trace import read_trace
from osworld_rollouts.evidence.errors import EvidenceError
from osworld_rollouts.evidence.index import list_pointers

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from osworld_rollouts.console.links import Links
    from osworld_rollouts.evidence.store import EvidenceStore

_STATIC = ("style.css", "viewer.js", "icon.svg")


def export_rollout(store: EvidenceStore, rollout_id: str, directory: Path, links: Links) -> Path:
    """Write `index.html` (the last execution), `x<n>.html` (earlier ones), `media/` and the style into a directory.

    A page of the same rollout that is there already is replaced at once, never left half written.

    Returns:
        The path of `index.html`.

    Raises:
        ConsoleError: the store holds no execution of this rollout.
    """
    pointers = sorted(list_pointers(store, rollout_id=rollout_id), key=lambda pointer: pointer.number)
    if not pointers:
        raise ConsoleError(
            f"the evidence store holds no finished execution of {rollout_id!r}",
            remedy="`rollouts show` tells where it stands",
            code=ExitCode.NOT_FOUND,
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    draft = directory.with_name(f".{directory.name}.{uuid.uuid4().hex[:8]}")
    (draft / "media").mkdir(parents=True)
    try:
        urls = FileUrls(pointers[-1].number)
        for pointer in pointers:
            trace = read_trace(store, pointer.execution_id, pointer.head)
            for ref in trace.media().values():
                try:
                    (draft / urls.media(ref)).write_bytes(store.get(ref.sha256))
                except EvidenceError as error:
                    trace.problems.append(str(error))
            page = render_rollout(trace, pointers, urls, links, live=None, csp=CSP_FILES)
            (draft / urls.rollout(rollout_id, pointer.number)).write_text(page, encoding="utf-8")
        _write_static(draft)
        if directory.exists():
            _set_aside(directory)
        draft.rename(directory)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return directory / "index.html"


def export_index(
    store: EvidenceStore, directory: Path, pages: Mapping[str, Path], links: Links, *, campaign: str, submitted: int
) -> Path:
    """Write `index.html` into a directory: a list of rollouts that were exported below it.

    Args:
        store: what they were exported from.
        directory: where; it need not exist.
        pages: each rollout's page, as `export_rollout` gave it.
        links: to the Temporal UI.
        campaign: the heading.
        submitted: how many there are in all, with those that left no evidence.

    Returns:
        The path of the index.
    """
    found = {name: pointers for name, pointers in last_executions(store).items() if name in pages}
    listing = list_page(
        found,
        store,
        Known(),
        campaign=None,
        page=1,
        models=ModelNames(),
        expected=max(submitted, len(found)),
        size=len(found),
    )
    urls = IndexUrls({name: quote(page.relative_to(directory).as_posix()) for name, page in pages.items()})
    page = render_overview(replace(listing, campaign=campaign), urls, links, csp=CSP_FILES, note="")
    directory.mkdir(parents=True, exist_ok=True)
    _write_static(directory)
    draft = directory / f".index.{uuid.uuid4().hex[:8]}"
    draft.write_text(page, encoding="utf-8")
    return draft.replace(directory / "index.html")


def _write_static(directory: Path) -> None:
    for name in _STATIC:
        data = resources.files("osworld_rollouts.console.viewer").joinpath("static", name).read_bytes()
        (directory / name).write_bytes(data)


def _set_aside(directory: Path) -> None:
    """Remove an earlier export; anything else of that name is somebody's and stays.

    Raises:
        ConsoleError: the directory is not one of ours.
    """
    if any(directory.iterdir()) and not (directory / "index.html").is_file():
        raise ConsoleError(f"{directory} exists and is no exported rollout", remedy="choose another directory")
    old = directory.with_name(f".{directory.name}.{uuid.uuid4().hex[:8]}")
    directory.rename(old)
    shutil.rmtree(old)
