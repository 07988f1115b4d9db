"""Begin and seal the evidence of an execution."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from temporalio import activity

from activities._boundary import boundary
from activities._failures import failure
from osworld_rollouts import history as policies
from osworld_rollouts.adapters.registry import AdapterError, load_adapter
from osworld_rollouts.contracts._base import canonical_json
from osworld_rollouts.contracts.evidence import ExecutionStarted, Terminated
from osworld_rollouts.contracts.outcome import OutcomeKind
from osworld_rollouts.contracts.request import History
from osworld_rollouts.contracts.steps import Opened, OpenExecution, Sealed, SealExecution
from osworld_rollouts.evidence import chain, index, transcript
from osworld_rollouts.provenance import provenance

if TYPE_CHECKING:
    from osworld_rollouts.evidence.store import EvidenceStore


class EvidenceActivities:
    """Writes what the workflow decided."""

    def __init__(self, store: EvidenceStore, *, server_version: str | None) -> None:
        self._store = store
        self._server_version = server_version

    @activity.defn(name="open_execution")
    async def open_execution(self, step: OpenExecution) -> Opened:
        """Write the first record: what is run, by what.

        Raises:
            ApplicationError: request_invalid for an adapter or history policy that cannot be had; evidence_unavailable (retried).
        """
        async with boundary("opening", execution_id=step.execution_id):
            return await asyncio.to_thread(self._open, step)

    def _open(self, step: OpenExecution) -> Opened:
        rollout = step.request.rollout
        try:
            adapter = load_adapter(rollout.adapter.name, dict(rollout.adapter.options))
            default = adapter.history_default()
            chosen = rollout.history if rollout.history.name else default
            history = History(
                name=chosen.name,
                params={**chosen.params, **(rollout.history.params if not rollout.history.name else {})},
            )
            policies.policy_id(history)
        except (AdapterError, policies.HistoryError) as error:
            raise failure(
                OutcomeKind.REQUEST_INVALID, str(error), phase="opening", remedy="see `rollouts adapters`"
            ) from error
        identity = adapter.identity()
        if rollout.adapter.version not in {None, identity.version}:
            raise failure(
                OutcomeKind.REQUEST_INVALID,
                f"the request names version {rollout.adapter.version} of adapter {identity.name}; this worker has {identity.version}",
                phase="opening",
                remedy="install that version on the worker, or leave the version out",
            )
        record = ExecutionStarted(
            execution_id=step.execution_id,
            index=0,
            previous=None,
            recorded_at=datetime.now(UTC),
            rollout_id=step.request.rollout_id,
            number=step.number,
            campaign_id=step.request.campaign_id,
            purpose=step.request.purpose,
            request_digest=step.request.request_digest(),
            request=self._store.put(canonical_json(step.request.model_dump(mode="json"))),
            workflow_id=step.workflow_id,
            run_id=step.run_id,
            adapter=identity.name,
            adapter_version=identity.version,
            history=history.name or "none",
            history_params=history.params,
            provenance={
                **provenance(),
                "temporal_server": self._server_version,
                "prompt_sha256": identity.prompt_sha256,
                "history_policy_id": policies.policy_id(history),
            },
        )
        head = chain.append(self._store, None, record)
        return Opened(head=head, history_name=history.name or "none", history_params=history.params)

    @activity.defn(name="seal_execution")
    async def seal_execution(self, step: SealExecution) -> Sealed:
        """Write the last record and the pointer by which viewers and exporters find the execution. Idempotent."""
        async with boundary("sealing", execution_id=step.execution_id):
            return await asyncio.to_thread(self._seal, step)

    def _seal(self, step: SealExecution) -> Sealed:
        records = chain.walk(self._store, step.head)
        started = transcript.started(records)
        existing = index.read_pointer(self._store, step.execution_id)
        if existing is not None and existing.outcome == step.outcome and existing.head != step.head:
            ended = chain.read_record(self._store, existing.head)
            if isinstance(ended, Terminated) and ended.previous == step.head:
                return Sealed(head=existing.head)
        now = datetime.now(UTC)
        head = chain.append(
            self._store,
            step.head,
            Terminated(
                execution_id=step.execution_id,
                index=records[-1].index + 1,
                previous=step.head,
                recorded_at=now,
                outcome=step.outcome,
            ),
        )
        request = self._store.get(started.request)
        index.write_pointer(
            self._store,
            index.ExecutionPointer(
                execution_id=step.execution_id,
                rollout_id=started.rollout_id,
                number=started.number,
                campaign_id=started.campaign_id,
                task_id=task_id_of(request),
                request_digest=started.request_digest,
                workflow_id=started.workflow_id,
                run_id=started.run_id,
                head=head,
                outcome=step.outcome,
                sealed_at=now,
            ),
        )
        return Sealed(head=head)


def task_id_of(request: bytes) -> str:
    """Task id inside a stored request."""
    import json  # noqa: PLC0415 - two uses a rollout

    return json.loads(request)["rollout"]["task"]["task_id"]
