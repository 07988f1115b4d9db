"""The embedded Temporal server: started, reused, found again, killed and restarted without losing anything."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
from temporalio.client import Client

from osworld_rollouts.console import embedded
from osworld_rollouts.console.embedded import EmbeddedServerError, ensure_server, find_binary, free_port, probe
from osworld_rollouts.console.processes import Registry
from osworld_rollouts.settings import load_settings
from osworld_rollouts.temporal import SEARCH_ATTRIBUTES

pytestmark = pytest.mark.temporal


@pytest.fixture
def place(tmp_path):
    settings = load_settings(state_dir=tmp_path / "state", embedded={"port": 17233, "ui_port": 18233})
    registry = Registry(settings.state_dir)
    yield settings, registry
    registry.stop("temporal", 5)


async def test_started_once_then_reused_then_found_without_its_state_file(place):
    settings, registry = place
    first = await ensure_server(settings, registry, SEARCH_ATTRIBUTES)
    assert first.started
    assert first.version.startswith("server 1.")
    again = await ensure_server(settings, registry, SEARCH_ATTRIBUTES)
    assert not again.started
    assert again.process.pid == first.process.pid

    registry.path("temporal").unlink()
    adopted = await ensure_server(settings, registry, SEARCH_ATTRIBUTES)
    assert (adopted.started, adopted.process.pid, adopted.address) == (False, first.process.pid, first.address)


async def test_listens_on_loopback_only_and_keeps_histories(place):
    settings, registry = place
    server = await ensure_server(settings, registry, SEARCH_ATTRIBUTES)
    client = await Client.connect(server.address)
    namespace = await client.workflow_service.describe_namespace(_describe())
    assert namespace.config.workflow_execution_retention_ttl.ToTimedelta() == embedded.RETENTION
    listening = _listening(server.process.pid)
    assert listening
    assert {address for address, _ in listening} == {"127.0.0.1"}


async def test_search_attributes_are_there(place):
    settings, registry = place
    server = await ensure_server(settings, registry, SEARCH_ATTRIBUTES)
    client = await Client.connect(server.address)
    assert (await client.count_workflows(" AND ".join(f"{name} IS NOT NULL" for name in SEARCH_ATTRIBUTES))).count == 0


async def test_a_killed_server_loses_nothing(place):
    settings, registry = place
    server = await ensure_server(settings, registry, SEARCH_ATTRIBUTES)
    client = await Client.connect(server.address)
    for number in range(30):
        await client.start_workflow("Nobody", id=f"w-{number}", task_queue="nobody")
    os.kill(server.process.pid, signal.SIGKILL)
    again = await ensure_server(settings, registry, SEARCH_ATTRIBUTES)
    assert again.started
    client = await Client.connect(again.address)
    assert (await client.count_workflows("ExecutionStatus = 'Running'")).count == 30


async def test_a_port_in_use_gives_the_next(place):
    settings, registry = place
    with socket.socket() as taken, socket.socket() as taken_ui:
        for listener, port in ((taken, 17233), (taken_ui, 18233)):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen()
        server = await ensure_server(settings, registry, {})
        assert 17233 < int(server.address.rpartition(":")[2]) < 17283
        assert 18233 < int(server.ui_url.rpartition(":")[2]) < 18283


def test_no_free_port_is_said(monkeypatch):
    monkeypatch.setattr(embedded, "_PORT_TRIES", 1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(EmbeddedServerError, match="no free port") as caught:
            free_port(taken.getsockname()[1])
    assert "embedded.port" in caught.value.remedy


def test_no_binary_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(embedded.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmbeddedServerError, match="no `temporal`") as caught:
        find_binary(load_settings())
    assert "embedded" in caught.value.remedy


async def test_a_program_that_is_no_server_is_said(place, tmp_path):
    settings, registry = place
    fake = tmp_path / "temporal"
    fake.write_text(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'temporal version 9 (Server 9, UI 9)' && exit 0\necho boom >&2\nexit 3\n",
        encoding="utf-8",
    )
    fake.chmod(0o755)
    settings = load_settings(
        state_dir=settings.state_dir, embedded={"binary": str(fake), "port": 17233, "ui_port": 18233}
    )
    with pytest.raises(EmbeddedServerError, match="boom"):
        await ensure_server(settings, registry, {})
    assert registry.running() == []


async def test_a_full_disk_is_said_before_anything_is_started(place, monkeypatch):
    settings, registry = place
    monkeypatch.setattr(embedded.shutil, "disk_usage", lambda _path: type("Usage", (), {"free": 1_000_000})())
    with pytest.raises(EmbeddedServerError, match=r"1\.0 MiB free") as caught:
        await ensure_server(settings, registry, {})
    assert "ROLLOUTS_STATE_DIR" in caught.value.remedy
    assert registry.running() == []


async def test_probe_tells_a_server_from_something_else(place):
    settings, registry = place
    server = await ensure_server(settings, registry, {})
    assert (await probe(server.address)).startswith("1.")
    assert await probe("127.0.0.1:1") is None
    assert await probe(server.ui_url.removeprefix("http://")) is None


def _describe():
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest

    return DescribeNamespaceRequest(namespace="default")


def _listening(pid: int) -> list[tuple[str, int]]:
    """(address, port) of each listening TCP socket of a process, from proc(5)."""
    inodes = {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()}
    found = []
    for table in ("tcp", "tcp6"):
        with Path(f"/proc/{pid}/net/{table}").open(encoding="ascii") as file:
            for line in list(file)[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                    address, port = fields[1].split(":")
                    text = (
                        ".".join(str(byte) for byte in reversed(bytes.fromhex(address)))
                        if len(address) == 8
                        else address
                    )
                    found.append((text, int(port, 16)))
    return found
