"""A removal that is cut short after any of its deletions is found again: listed, or tidied away."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import SecretStr

from osworld_rollouts.contracts.desktop import DesktopSpec, LeaseOwner
from osworld_rollouts.desktops._provider import DesktopError, DesktopRecord, Endpoints
from osworld_rollouts.desktops.lease_registry import LeaseRegistry


def made(registry: LeaseRegistry) -> DesktopRecord:
    folder = registry.folder("lease")
    for name in ("home", "sock", "tmp", "ledger"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").touch()
    now = datetime.now(UTC)
    record = DesktopRecord(
        lease_id="lease",
        provider="local",
        owner=LeaseOwner(workflow_id="w", run_id="r", execution_id="x"),
        host_id="h",
        state="ready",
        state_dir=folder,
        endpoints=Endpoints(server=folder / "s", chromium=folder / "c", vlc=folder / "v"),
        token=SecretStr("t"),
        spec=DesktopSpec(),
        width=1920,
        height=1080,
        image_identity="i",
        tier="process",
        marker="m",
        created_at=now,
        expires_at=now,
    )
    registry.write(record)
    return record


@pytest.mark.parametrize("survives", range(7))
def test_it_is_listed_or_tidied(tmp_path, monkeypatch, survives):
    monkeypatch.chdir(tmp_path)
    registry = LeaseRegistry(Path("d"))  # a socket's path must be short
    record = made(registry)
    left = [survives]

    def counted(delete):
        def deleting(path, *how, **named):
            if not left[0]:
                raise OSError("killed here")
            left[0] -= 1
            return delete(path, *how, **named)

        return deleting

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", counted(shutil.rmtree))
        patch.setattr(Path, "unlink", counted(Path.unlink))
        if survives < 6:
            with pytest.raises(DesktopError):
                registry.remove(record.state_dir)
        else:
            registry.remove(record.state_dir)
    registry.tidy()
    assert bool(registry.all()) == record.state_dir.exists()
