"""Steps on a desktop: provision, act, recover, keep alive, tear down."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog
from temporalio import activity

from activities._boundary import boundary
from activities._execution import Executions
from activities._failures import failure
from activities._observe import ObservationError, observe
from activities._operate import Landed, operate, recorded, settled
from activities._patience import patiently
from osworld_rollouts.actions import guest_code
from osworld_rollouts.contracts import steps
from osworld_rollouts.contracts.desktop import Lease
from osworld_rollouts.contracts.evidence import ModelCallRecord, OperationsRecord, RecoveryRecord
from osworld_rollouts.contracts.outcome import OutcomeKind
from osworld_rollouts.desktops._provider import DesktopError, DesktopLost, DesktopNotReady, DesktopUnavailable
from osworld_rollouts.desktops.clients import guest_client
from osworld_rollouts.desktops.guest_client import GuestClient, GuestError, GuestUnreachable, Operation
from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.store import put_json
from osworld_rollouts.failpoints import reach

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from osworld_rollouts.contracts.action import Action
    from osworld_rollouts.contracts.request import Settle
    from osworld_rollouts.desktops._provider import DesktopRecord
    from osworld_rollouts.desktops.host import DesktopHost
    from osworld_rollouts.evidence.store import EvidenceStore

log = structlog.get_logger()


class DesktopActivities:
    """Everything that touches a desktop, on the host that holds it."""

    def __init__(self, host: DesktopHost, store: EvidenceStore) -> None:
        self._host = host
        self._store = store
        self._executions = Executions(store)

    @activity.defn(name="provision_desktop")
    async def provision_desktop(self, step: steps.ProvisionDesktop) -> Lease:
        """Make the desktop of the lease, or adopt what an earlier attempt made.

        Raises:
            ApplicationError: desktop_unavailable, desktop_not_ready (both retried), desktop_lost.
        """
        async with boundary("provisioning", execution_id=step.owner.execution_id, lease_id=step.lease_id):
            reach("provision-started", step.owner.execution_id)
            try:
                lease = await self._host.provision(step.spec, step.lease_id, step.owner, step.expires_after_s)
            except DesktopLost as error:
                raise failure(OutcomeKind.DESKTOP_LOST, str(error), phase="provisioning") from error
            except DesktopNotReady as error:
                raise failure(OutcomeKind.DESKTOP_NOT_READY, str(error), phase="provisioning", retry=True) from error
            except (DesktopUnavailable, DesktopError) as error:
                raise failure(OutcomeKind.DESKTOP_UNAVAILABLE, str(error), phase="provisioning", retry=True) from error
            except asyncio.CancelledError:
                # An attempt that Temporal gave up must leave the desktop to the next one, which may work on it already.
                why = activity.cancellation_details()
                if why is not None and why.cancel_requested:
                    await asyncio.shield(self._host.destroy(step.lease_id))
                raise
            log.info("desktop ready", provider=lease.provider, tier=lease.tier)
            return lease

    @activity.defn(name="perform_operation")
    async def perform_operation(self, step: steps.PerformOperation) -> steps.Performed:
        """Execute one turn's operations in order, each at most once, then observe.

        Raises:
            ApplicationError: operation_unconfirmed (the workflow asks the guest), operation_refused, operation_indeterminate,
                observation_failed, desktop_lost, desktop_unresponsive.
        """
        async with (
            boundary("acting", execution_id=step.execution_id, turn=step.turn, lease_id=step.lease_id),
            on_desktop(self._host, step, "acting") as (record, client),
        ):
            last = step.operations[-1].operation_id if step.operations else step.execution_id
            reach("act-started", last)
            facts = await patiently(self._executions.at, step.head)
            actions = await patiently(self._actions, step.record)
            settle = facts.request.rollout.settle
            done: list[dict[str, Any]] = []
            outcomes: list[steps.OperationOutcome] = []
            for item in step.operations:
                landed, entry = await self._one(client, step, item, actions[item.action.index], settle)
                outcomes.append(landed.outcome)
                done.append(entry)
            first = settle.min_s if step.operations else 0.0
            observation = await observe(
                client,
                self._store,
                (record.width, record.height),
                settle,
                facts.needs,
                first_s=first,
                limit_s=settle.max_s,
            )
            reach("act-after-observation", last)
            written = OperationsRecord(
                **facts.place(step.execution_id),
                recorded_at=datetime.now(UTC),
                turn=step.turn,
                operations=tuple(done),
                outcomes=tuple(outcomes),
                observation=observation,
            )
            head = await patiently(chain.append, self._store, step.head, written)
            reach("act-after-record", last)
            return steps.Performed(head=head, outcomes=tuple(outcomes))

    async def _one(
        self, client: GuestClient, step: steps.PerformOperation, item: steps.Operation, action: Action, settle: Settle
    ) -> tuple[Landed, dict[str, Any]]:
        started = datetime.now(UTC)
        entry: dict[str, Any] = {
            "operation_id": item.operation_id,
            "seq": item.seq,
            "fence": step.fence,
            "action": item.action.summary,
        }
        code = guest_code(action)
        if code is None:
            seconds = 0.0
            if action.kind == "wait":
                seconds = settle.wait_action_s if action.seconds is None else action.seconds
                await asyncio.sleep(seconds)
            landed = Landed(
                steps.OperationOutcome(
                    operation_id=item.operation_id, returncode=None, duration_ms=round(seconds * 1000)
                ),
                {},
            )
        else:
            entry["command"] = await patiently(self._store.put, code.encode())
            operation = Operation(item.operation_id, item.seq, step.fence, step.timeout_s)
            if item.operation_id in step.known:
                landed = await settled(client, operation, "finished before")
            else:
                landed = await operate(client, code, operation)
            entry["result"] = await patiently(put_json, self._store, landed.answer)
        entry |= {
            "returncode": landed.outcome.returncode,
            "replayed": landed.outcome.replayed,
            "started_at": started.isoformat(),
            "finished_at": datetime.now(UTC).isoformat(),
        }
        log.info(
            "performed",
            operation_id=item.operation_id,
            action=item.action.summary,
            returncode=landed.outcome.returncode,
        )
        return landed, entry

    @activity.defn(name="recover_operation")
    async def recover_operation(self, step: steps.RecoverOperation) -> steps.Recovered:
        """Ask the guest's ledger: finished, absent, running, or unknown. Never executes anything.

        Raises:
            ApplicationError: desktop_lost or desktop_unresponsive when there is nobody to ask.
        """
        async with (
            boundary("recovering", execution_id=step.execution_id, turn=step.turn, lease_id=step.lease_id),
            on_desktop(self._host, step, "recovering") as (_, client),
        ):
            facts = await patiently(self._executions.at, step.head)
            found = [await self._state(client, operation_id) for operation_id in step.operation_ids]
            answers = await patiently(put_json, self._store, [answer for _, answer in found])
            operations = tuple(item for item, _ in found)
            written = RecoveryRecord(
                **facts.place(step.execution_id),
                recorded_at=datetime.now(UTC),
                turn=step.turn,
                operations=operations,
                answers=answers,
            )
            head = await patiently(chain.append, self._store, step.head, written)
            log.info("recovered", states=[item.state for item in operations])
            return steps.Recovered(head=head, operations=operations)

    async def _state(self, client: GuestClient, operation_id: str) -> tuple[steps.RecoveredOperation, dict[str, Any]]:
        limit = activity.info().start_to_close_timeout
        deadline = asyncio.get_running_loop().time() + (limit.total_seconds() / 2 if limit else 60)
        while True:
            status = await client.operation(operation_id)
            if status is None:
                return steps.RecoveredOperation(operation_id=operation_id, state="absent"), {
                    "operation_id": operation_id,
                    "absent": True,
                }
            answer = {
                "operation_id": operation_id,
                "state": status.state,
                "started_at": status.started_at,
                "finished_at": status.finished_at,
            }
            if status.state == "finished":
                return steps.RecoveredOperation(operation_id=operation_id, state="finished"), {
                    **answer,
                    **recorded(status).answer,
                }
            if status.state == "interrupted":
                detail = "the guest server stopped while it ran"
                return steps.RecoveredOperation(operation_id=operation_id, state="unknown", detail=detail), answer
            if asyncio.get_running_loop().time() > deadline:
                return steps.RecoveredOperation(
                    operation_id=operation_id, state="running", detail="still running"
                ), answer
            await asyncio.sleep(0.5)

    @activity.defn(name="renew_lease")
    async def renew_lease(self, lease_id: str) -> None:
        """Move the lease's expiry away from now."""
        async with boundary("paused", lease_id=lease_id):
            try:
                await self._host.renew(lease_id)
            except DesktopLost as error:
                raise failure(OutcomeKind.DESKTOP_LOST, str(error), phase="paused") from error

    @activity.defn(name="teardown_desktop")
    async def teardown_desktop(self, step: steps.TeardownDesktop) -> None:
        """Remove the desktop. Removing what is gone is a success; another attempt follows a failure."""
        async with boundary("teardown", lease_id=step.lease_id):
            reach("teardown-started", step.lease_id)
            try:
                await self._host.destroy(step.lease_id)
            except DesktopError as error:
                raise failure(OutcomeKind.DESKTOP_UNAVAILABLE, str(error), phase="teardown", retry=True) from error
            log.info("desktop removed", reason=step.reason)

    # --- shared ---

    def _actions(self, sha256: str) -> tuple[Action, ...]:
        record = chain.read_record(self._store, sha256)
        if not isinstance(record, ModelCallRecord):
            raise failure(
                OutcomeKind.INTERNAL_ERROR, f"record {sha256} is {record.kind}, not a model call", phase="acting"
            )
        return record.actions


@asynccontextmanager
async def on_desktop(
    host: DesktopHost, step: steps.OnDesktop, phase: str
) -> AsyncGenerator[tuple[DesktopRecord, GuestClient]]:
    """The desktop of a step and a client of its guest. What escapes the block leaves it typed by outcome kind."""
    try:
        record = await host.find(step.lease_id)
        await host.renew(step.lease_id)
    except DesktopLost as error:
        raise failure(OutcomeKind.DESKTOP_LOST, str(error), phase=phase) from error
    try:
        async with guest_client(record) as client:
            yield record, client
    except (GuestUnreachable, GuestError) as error:
        kind, message = await host.diagnose(step.lease_id)
        raise failure(kind, f"{phase}: {message} ({error})", phase=phase) from error
    except ObservationError as error:
        kind, message = await host.diagnose(step.lease_id, healthy=OutcomeKind.OBSERVATION_FAILED)
        raise failure(kind, f"{phase}: {message}: {error}", phase=phase) from error
