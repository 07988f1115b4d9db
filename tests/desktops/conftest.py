"""One real desktop for the whole session; tests that change its fate make their own."""

from __future__ import annotations

import pytest

from osworld_rollouts.desktops.guest_client import GuestClient
from tests.desktops import rig


@pytest.fixture(scope="session")
async def desktop():
    """A ready desktop, in the best tier this machine allows."""
    await rig.remove_leftovers()
    maker = rig.provider()
    problems = [problem for problem in await maker.preflight() if problem.fatal]
    assert not problems, problems[0].remedy
    lease = rig.new_lease()
    yield await maker.create(rig.spec(), lease, rig.owner())
    await maker.destroy(lease)


@pytest.fixture
async def guest(desktop):
    """A client of the session's desktop."""
    async with GuestClient.of(desktop) as client:
        yield client
