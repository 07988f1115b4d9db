"""Begin and seal the evidence of an execution."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from temporalio import activity

from activities._boundary import boundary
from activities._failures import call_failure, failure
from osworld_rollouts import history as policies
from osworld_rollouts.adapters.registry import AdapterError, load_adapter
from osworld_rollouts.contracts._base import canonical_json
from osworld_rollouts.contracts.evidence import ExecutionStarted, Terminated
from osworld_rollouts.contracts.outcome import OutcomeKind
from osworld_rollouts.contracts.request import History, ParsePolicy, Rollout
from osworld_rollouts.contracts.steps import Opened, OpenExecution, Sealed, SealExecution
from osworld_rollouts.evidence import chain, index, transcript
from osworld_rollouts.prompts import resolve_sampling
from osworld_rollouts.provenance import provenance
from osworld_rollouts.serving.errors import ModelCallError
from osworld_rollouts.serving.exact import PROFILE_KEY
from osworld_rollouts.serving.probe_report import ExactRefused
from osworld_rollouts.serving.profiles import exact_profile
from osworld_rollouts.serving.secrets import resolve_key
from osworld_rollouts.serving.unanswered import record_unanswered

if TYPE_CHECKING:
    from osworld_rollouts.adapters._contract import ModelAdapter
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
            profile = await self._exact_profile(step) if step.request.rollout.evidence == "exact" else None
            return await asyncio.to_thread(self._open, step, profile)

    async def _exact_profile(self, step: OpenExecution) -> str:
        """Ask the model's server whether exact evidence can be had; the sha256 of what it said of itself."""
        rollout = step.request.rollout
        adapter = _adapter(rollout)
        geometry = adapter.geometry(rollout.desktop.width, rollout.desktop.height)
        sampling = resolve_sampling(rollout.sampling, adapter.sampling_defaults(), None)
        try:
            profile, _ = await exact_profile(
                self._store,
                rollout.model,
                api=adapter.api,
                sizes=((geometry.image_width, geometry.image_height),),
                sampling=sampling.model_dump(exclude_none=True),
                api_key=resolve_key(rollout.model.api_key_env),
            )
        except ExactRefused as error:
            raise failure(OutcomeKind.EVIDENCE_REFUSED, str(error), phase="opening", remedy=error.remedy) from error
        except ModelCallError as error:
            raise call_failure(error, "opening") from error
        return profile

    def _open(self, step: OpenExecution, profile: str | None) -> Opened:
        rollout = step.request.rollout
        adapter = _adapter(rollout)
        chosen = rollout.history if rollout.history.name else adapter.history_default()
        history = History(name=chosen.name, params={**chosen.params, **rollout.history.params})
        try:
            policies.policy_id(history)
        except policies.HistoryError as error:
            raise failure(OutcomeKind.REQUEST_INVALID, str(error), phase="opening") from error
        identity = adapter.identity()
        if rollout.adapter.version not in {None, identity.version}:
            raise failure(
                OutcomeKind.REQUEST_INVALID,
                f"the request names version {rollout.adapter.version} of adapter {identity.name}; this worker has {identity.version}",
                phase="opening",
                remedy="install that version on the worker, or leave the version out",
            )
        policy = _parse_policy(rollout, adapter)
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
            parse_policy=policy,
            provenance={
                **provenance(),
                "temporal_server": self._server_version,
                "prompt_sha256": identity.prompt_sha256,
                "history_policy_id": policies.policy_id(history),
                PROFILE_KEY: profile,
            },
        )
        head = chain.append(self._store, None, record)
        return Opened(
            head=head,
            history_name=history.name or "none",
            history_params=history.params,
            store=self._store.url,
            parse_policy=policy,
        )

    @activity.defn(name="seal_execution")
    async def seal_execution(self, step: SealExecution) -> Sealed:
        """Write the last record and the pointer by which viewers and exporters find the execution. Idempotent."""
        async with boundary("sealing", execution_id=step.execution_id):
            return await asyncio.to_thread(self._seal, step)

    def _seal(self, step: SealExecution) -> Sealed:
        records = chain.walk(self._store, step.head)
        started = transcript.started(records)
        existing = index.read_pointer(self._store, step.execution_id)
        if existing is not None and existing.outcome == step.outcome and self._closes(existing.head, step.head):
            return self._sealed(existing.head)
        why = step.outcome.cause.message if step.outcome.cause else ""
        last = record_unanswered(self._store, records, step.head, why)
        now = datetime.now(UTC)
        head = chain.append(
            self._store,
            last,
            Terminated(
                execution_id=step.execution_id,
                index=chain.next_index(self._store, last),
                previous=last,
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
        return self._sealed(head)

    def _closes(self, sealed: str, head: str) -> bool:
        """Whether a sealed chain ends the one that `head` ends: after it come only calls without a reply, and the end."""
        records = chain.walk_named(self._store, sealed)
        names = [name for name, _ in records]
        if head not in names or not isinstance(records[-1][1], Terminated):
            return False
        return all(transcript.is_unanswered(record) for _, record in records[names.index(head) + 1 : -1])

    def _sealed(self, head: str) -> Sealed:
        records = chain.walk(self._store, head)
        return Sealed(
            head=head,
            unanswered_calls=sum(transcript.is_unanswered(record) for record in records),
            unseen_samples=transcript.unseen_samples(records),
        )


def task_id_of(request: bytes) -> str:
    """Task id inside a stored request."""
    import json  # noqa: PLC0415 - two uses a rollout

    return json.loads(request)["rollout"]["task"]["task_id"]


def _parse_policy(rollout: Rollout, adapter: ModelAdapter) -> ParsePolicy:
    """What follows an unreadable reply: as asked, else the adapter's default; with the temperature of further calls worked out."""
    policy = rollout.parse_policy or adapter.parse_policy_default()
    least = policy.resample_temperature_min
    own = resolve_sampling(rollout.sampling, adapter.sampling_defaults(), policy.resample_temperature).temperature
    if least is None or own is None or own >= least:
        return policy
    return policy.model_copy(update={"resample_temperature": least})


def _adapter(rollout: Rollout) -> ModelAdapter:
    try:
        return load_adapter(rollout.adapter.name, dict(rollout.adapter.options))
    except AdapterError as error:
        raise failure(
            OutcomeKind.REQUEST_INVALID, str(error), phase="opening", remedy="see `rollouts adapters`"
        ) from error
