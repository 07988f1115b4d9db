"""The worker: workflows, model calls and desktops, together or apart.

    python worker.py                               everything, as the settings say
    python worker.py --roles workflows,models      no desktops on this machine
    python worker.py --roles desktops              only desktops

One signal (SIGINT, SIGTERM) lets running steps end, a second one leaves at once. Neither loses anything: desktops go on, and the next
worker of the same host continues every rollout at the step where it stands.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import structlog
from temporalio.worker import Worker

from activities._capacity import room_on
from osworld_rollouts import provenance, temporal
from osworld_rollouts.evidence.errors import EvidenceError
from osworld_rollouts.evidence.store import open_store
from osworld_rollouts.logs import configure_logging
from osworld_rollouts.settings import Settings, SettingsError, load_settings
from workflows.execution import ExecutionWorkflow
from workflows.rollout import RolloutWorkflow

if TYPE_CHECKING:
    from collections.abc import Callable

    from temporalio.client import Client

    from osworld_rollouts.desktops.host import DesktopHost
    from osworld_rollouts.evidence.store import EvidenceStore
    from osworld_rollouts.osworld.evaluator import OSWorldEvaluator

log = structlog.get_logger()


async def run(settings: Settings, stop: asyncio.Event) -> None:
    """Poll until `stop` is set.

    Raises:
        TemporalUnreachableError: no server answers.
        EvidenceError: the store cannot be opened.
    """
    client = await temporal.connect(settings)
    store = await asyncio.to_thread(open_store, settings.store.url)
    roles: set[str] = set(settings.worker.roles)
    async with contextlib.AsyncExitStack() as stack:
        workers: list[Worker] = []
        if roles & {"workflows", "models"}:
            workers.append(await _central(client, settings, store, roles))
        if "desktops" in roles:
            host, evaluator = await _host(settings)
            stack.push_async_callback(evaluator.close)
            workers += _desktop_workers(client, settings, store, host, evaluator)
            stack.enter_context(_reaping(host, client, settings))
        log.info(
            "worker started",
            roles=sorted(roles),
            address=settings.temporal.address,
            namespace=settings.temporal.namespace,
            host_id=settings.host_id(),
            version=provenance.version(),
        )
        for worker in workers:
            await stack.enter_async_context(worker)
        await stop.wait()
        log.info("worker stopping")


async def _central(client: Client, settings: Settings, store: EvidenceStore, roles: set[str]) -> Worker:
    """Workflows and model calls share a queue, so a queue's worker must know both; roles bound what is polled."""
    from activities.evidence import EvidenceActivities  # noqa: PLC0415 - a desktop host needs neither
    from activities.model import ModelActivities  # noqa: PLC0415 - likewise

    activities: list[Callable[..., Any]] = []
    if "models" in roles:
        evidence = EvidenceActivities(store, server_version=await _server_version(client))
        activities = [evidence.open_execution, evidence.seal_execution, ModelActivities(store).call_model]
    return Worker(
        client,
        task_queue=settings.temporal.workflow_queue,
        workflows=[RolloutWorkflow, ExecutionWorkflow] if "workflows" in roles else [],
        activities=activities,
        max_concurrent_workflow_tasks=settings.worker.max_workflow_tasks if "workflows" in roles else None,
        max_cached_workflows=settings.worker.max_cached_workflows if "workflows" in roles else 0,
        max_concurrent_activities=settings.worker.max_model_calls if activities else None,
        **_shared(settings),
    )


async def _host(settings: Settings) -> tuple[DesktopHost, OSWorldEvaluator]:
    from activities.evaluation import remove_work_dir  # noqa: PLC0415 - needs a desktop host's packages
    from osworld_rollouts.desktops.host import DesktopHost  # noqa: PLC0415 - likewise
    from osworld_rollouts.osworld.evaluator import OSWorldEvaluator  # noqa: PLC0415 - likewise

    work = settings.state_dir / "work"
    host = DesktopHost(
        settings.state_dir,
        host_id=settings.host_id(),
        task_queue=settings.host_queue(),
        capacity=settings.host.capacity,
        lease_ttl_s=settings.timeouts.lease_ttl_s,
        cleanup=lambda lease_id: remove_work_dir(work, lease_id),
        provider_settings=settings.provider_settings(),
    )
    most = None if settings.attached else await host.most("local")
    if most is not None and most < host.capacity:
        log.warning(
            "fewer desktops than configured", capacity=most, configured=host.capacity, cause="no user namespaces"
        )
        host.capacity = most
    evaluator = OSWorldEvaluator(state_dir=settings.state_dir)
    await evaluator.start()
    return host, evaluator


def _desktop_workers(
    client: Client, settings: Settings, store: EvidenceStore, host: DesktopHost, evaluator: OSWorldEvaluator
) -> list[Worker]:
    from activities.desktop import DesktopActivities  # noqa: PLC0415 - needs a desktop host's packages
    from activities.evaluation import EvaluationActivities  # noqa: PLC0415 - likewise

    desktop = DesktopActivities(host, store)
    evaluation = EvaluationActivities(host, store, evaluator, work_dir=settings.state_dir / "work")
    return [
        Worker(
            client,
            task_queue=settings.temporal.pool_queue,
            activities=[desktop.provision_desktop],
            tuner=room_on(host),
            **_shared(settings),
        ),
        Worker(
            client,
            task_queue=settings.host_queue(),
            activities=[
                evaluation.prepare_task,
                desktop.perform_operation,
                desktop.recover_operation,
                evaluation.prepare_evaluation,
                evaluation.evaluate,
                desktop.renew_lease,
                desktop.teardown_desktop,
            ],
            max_concurrent_activities=max(4, 2 * settings.host.capacity),
            **_shared(settings),
        ),
    ]


def _shared(settings: Settings) -> dict[str, Any]:
    from datetime import timedelta  # noqa: PLC0415 - one use

    shared: dict[str, Any] = {
        "graceful_shutdown_timeout": timedelta(seconds=settings.worker.graceful_shutdown_s),
        # By default a beat may be held back for four fifths of its timeout, which a busy machine takes for a death.
        "max_heartbeat_throttle_interval": timedelta(seconds=1),
    }
    if settings.worker.deployment:
        from temporalio.common import VersioningBehavior, WorkerDeploymentVersion  # noqa: PLC0415 - only with versioning
        from temporalio.worker import WorkerDeploymentConfig  # noqa: PLC0415 - likewise

        build = (
            settings.worker.build_id or str(provenance.provenance().get("source_revision") or provenance.version())[:40]
        )
        shared["deployment_config"] = WorkerDeploymentConfig(
            version=WorkerDeploymentVersion(deployment_name=settings.worker.deployment, build_id=build),
            use_worker_versioning=True,
            default_versioning_behavior=VersioningBehavior.PINNED,
        )
    return shared


@contextlib.contextmanager
def _reaping(host: DesktopHost, client: Client, settings: Settings) -> Any:
    """Remove what dead owners left: now, and again every `host.reap_every_s`."""

    async def forever() -> None:
        while True:
            try:
                await host.reap(client)
            except Exception:  # a reaper that dies silently is a leak; the next round tries again
                log.exception("looking for leftover desktops failed")
            await asyncio.sleep(settings.host.reap_every_s)

    task = asyncio.create_task(forever())
    try:
        yield
    finally:
        task.cancel()


async def _server_version(client: Client) -> str | None:
    from temporalio.api.workflowservice.v1 import GetSystemInfoRequest  # noqa: PLC0415 - one use

    info = await client.workflow_service.get_system_info(GetSystemInfoRequest())
    return info.server_version or None


async def _main(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    await run(settings, stop)


def main() -> None:
    """Parse the command line, run, and leave with a code: 0 stopped, 2 unusable settings, 3 no server or no store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--roles", help="comma separated: workflows, models, desktops (default: the settings')")
    arguments = parser.parse_args()
    code = 0
    try:
        overrides = {"worker": {"roles": tuple(arguments.roles.split(","))}} if arguments.roles else {}
        settings = load_settings(**overrides)
        configure_logging(settings)
        asyncio.run(_main(settings))
    except SettingsError as error:
        print(f"worker: {error}", file=sys.stderr)
        code = 2
    except (temporal.TemporalUnreachableError, EvidenceError) as error:
        print(f"worker: {error}", file=sys.stderr)
        code = 3
    sys.stdout.flush()
    sys.stderr.flush()
    # CPython 3.11 can abort at exit after a client or worker ran (sdk-python#300); everything is flushed, so leave at once.
    os._exit(code)


if __name__ == "__main__":
    main()
