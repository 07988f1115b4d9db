# ruff: noqa: ASYNC240 - a look at /proc does not wait
"""A provider whose shared assets are kept between test runs, and what a test run does not leave behind."""

from __future__ import annotations

import os
import tempfile
import uuid
from pathlib import Path

from osworld_rollouts.contracts.desktop import DesktopSpec, LeaseOwner
from osworld_rollouts.desktops.local import LocalDesktopProvider

# Short, because unix sockets live below it; the same for every run, so that guest packages are installed once.
STATE = Path(tempfile.gettempdir()) / f"osworld-tests-{os.getuid()}"


def provider(**settings) -> LocalDesktopProvider:
    """A provider in the tests' own state directory."""
    return LocalDesktopProvider(STATE, **settings)


def owner() -> LeaseOwner:
    """An owner that is this test process."""
    return LeaseOwner(workflow_id=f"pytest/{os.getpid()}", run_id="test", execution_id="test")


def new_lease() -> str:
    """A lease id nobody had before."""
    return f"test/{uuid.uuid4()}"


def spec(**fields) -> DesktopSpec:
    """The default desktop."""
    return DesktopSpec(**fields)


async def remove_leftovers() -> None:
    """Remove desktops of test processes that are gone."""
    maker = provider()
    for record in await maker.list():
        pid = record.owner.workflow_id.partition("/")[2]
        if not pid.isdigit() or not Path("/proc", pid).exists():
            await maker.destroy(record.lease_id)
