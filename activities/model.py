"""Call the policy model: render, send once, journal, parse, record."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog
from pydantic_core import to_jsonable_python
from temporalio import activity

from activities._boundary import boundary
from activities._failures import call_failure, failure
from activities._patience import patiently
from osworld_rollouts.contracts.action import describe
from osworld_rollouts.contracts.evidence import ModelCallRecord
from osworld_rollouts.contracts.model import ModelRequest, ParsedReply, Reply
from osworld_rollouts.contracts.outcome import OutcomeKind
from osworld_rollouts.contracts.steps import CallModel, ModelReply, ParseFailure, PlannedAction
from osworld_rollouts.evidence import chain
from osworld_rollouts.evidence.store import put_json
from osworld_rollouts.failpoints import reach
from osworld_rollouts.prompts import AdapterVersionError, Prompt, PromptBuilder
from osworld_rollouts.serving.client import RawReply, send
from osworld_rollouts.serving.errors import ModelCallError, ReplyUnreadable
from osworld_rollouts.serving.exact import end_tokens, judge, sent_sampling
from osworld_rollouts.serving.journal import Attempt, CallKey, Journal, put_request
from osworld_rollouts.serving.reply import read_reply
from osworld_rollouts.serving.secrets import KeyMissing, resolve_key
from osworld_rollouts.serving.token_turns import token_request

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from osworld_rollouts.contracts.evidence import Record
    from osworld_rollouts.evidence.store import EvidenceStore

log = structlog.get_logger()

# What a reply may put into Temporal's history is bounded, so that no model can make a payload that Temporal refuses: the record in the
# evidence holds all of it. A turn that wants more effects than this is not one turn.
MAX_ACTIONS = 64
_SHORT = 500


class ModelActivities:
    """Calls of the policy model. A reply that was received is used by every later attempt instead of being bought again."""

    def __init__(self, store: EvidenceStore) -> None:
        importlib.import_module("openai")  # seconds, which at the first call would hold up every heartbeat
        self._store = store
        self._journal = Journal(store)
        self._prompts = PromptBuilder(store)
        self._bought: dict[CallKey, asyncio.Task[tuple[RawReply | None, ModelCallError | None]]] = {}

    @activity.defn(name="call_model")
    async def call_model(self, step: CallModel) -> ModelReply:
        """One call of a turn.

        Raises:
            ApplicationError: model_unreachable (retried by Temporal), model_rejected, evidence_unavailable, request_invalid.
        """
        async with boundary("model", execution_id=step.execution_id, turn=step.turn):
            try:
                return await self._call(step)
            except AdapterVersionError as error:
                raise failure(
                    OutcomeKind.INTERNAL_ERROR,
                    str(error),
                    phase="model",
                    retry=True,
                    remedy="run a worker of the version the execution began with, or cancel it",
                ) from error

    async def _call(self, step: CallModel) -> ModelReply:
        records = await patiently(chain.walk, self._store, step.head)
        prompt = await patiently(self._prompts.build, records, step)
        request = await self._by_tokens(prompt.render(), records, prompt)
        key = CallKey(step.execution_id, step.turn, step.call)
        sent = await patiently(put_request, self._store, request)
        if key in self._bought:
            await asyncio.wait([self._bought[key]])
        found = await patiently(self._journal.lookup, key, sent)
        reused = found.reply is not None
        overflow: ModelCallError | None = None
        raw = found.reply
        if raw is None:
            raw, overflow = await self._to_its_end(key, self._buy(step, prompt, request, key, sent))
        reply, parsed = await asyncio.to_thread(self._parse, raw, request, prompt, records)
        record = await patiently(
            self._record, step, records, prompt, request, sent, raw, reply, parsed, overflow, found.earlier
        )
        head = await patiently(chain.append, self._store, step.head, record)
        reach("model-after-record", f"{step.execution_id}/t{step.turn}")
        return _result(head, record, parsed, reused=reused, latency_ms=record.latency_ms)

    async def _by_tokens(self, request: ModelRequest, records: list[Record], prompt: Prompt) -> ModelRequest:
        """The same turn as token ids that extend the last call exactly, where the adapter's option `token_in` asks for it."""
        rollout = prompt.request.rollout
        if rollout.evidence != "exact" or not rollout.adapter.options.get("token_in"):
            return request
        try:
            return await token_request(
                self._store,
                records,
                request,
                rollout.model,
                api_key=resolve_key(rollout.model.api_key_env),
                request_id=uuid.uuid4().hex,
            )
        except ModelCallError as error:
            raise call_failure(error, "model") from error

    async def _to_its_end(
        self, key: CallKey, buying: Coroutine[Any, Any, tuple[RawReply | None, ModelCallError | None]]
    ) -> tuple[RawReply | None, ModelCallError | None]:
        """Wait for a call; when Temporal gives this attempt up meanwhile, the call goes on and the next attempt takes its reply."""
        task = self._bought[key] = asyncio.create_task(buying)
        task.add_done_callback(lambda _: self._bought.pop(key, None))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            why = activity.cancellation_details()
            if why is None or why.cancel_requested or why.worker_shutdown:
                task.cancel()
                with contextlib.suppress(Exception, asyncio.CancelledError):
                    await task
            else:
                task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            raise

    async def _buy(
        self, step: CallModel, prompt: Prompt, request: ModelRequest, key: CallKey, sent: str
    ) -> tuple[RawReply | None, ModelCallError | None]:
        model = prompt.request.rollout.model
        try:
            api_key = resolve_key(model.api_key_env)
        except KeyMissing as error:
            raise failure(OutcomeKind.MODEL_REJECTED, str(error), phase="model") from error
        request_id = uuid.uuid4().hex
        await asyncio.to_thread(
            self._journal.begin,
            key,
            attempt=activity.info().attempt,
            request_id=request_id,
            sent=sent,
            call=to_jsonable_python(_known_before(step, prompt, request)),
        )
        reach("model-before-send", f"{step.execution_id}/t{step.turn}")
        try:
            raw = await send(
                request,
                model,
                request_id=request_id,
                api_key=api_key,
                load=self._store.get,
                headers={"X-Execution-Id": step.execution_id, "X-Turn": str(step.turn)},
            )
        except ModelCallError as error:
            await patiently(self._journal.failed, key, request_id, error)
            if error.kind == "context_overflow":
                return None, error
            raise call_failure(error, "model") from error
        reach("model-after-reply", f"{step.execution_id}/t{step.turn}")
        await patiently(self._journal.received, key, raw)
        reach("model-after-journal", f"{step.execution_id}/t{step.turn}")
        log.info("model replied", latency_ms=raw.latency_ms, status=raw.status)
        return raw, None

    def _parse(
        self, raw: RawReply | None, request: ModelRequest, prompt: Prompt, records: list[Record]
    ) -> tuple[Reply | None, ParsedReply | None]:
        if raw is None:
            return None, None
        try:
            reply = read_reply(
                request.api, raw.body, max_tokens=prompt.sampling.max_tokens, eos=end_tokens(self._store, records)
            )
        except ReplyUnreadable as error:
            raise failure(
                OutcomeKind.MODEL_REJECTED,
                str(error),
                phase="model",
                remedy="check that model.base_url speaks this adapter's API",
            ) from error
        return reply, prompt.adapter.parse(reply, prompt.input.geometry, prompt.input.current.marks)

    def _record(
        self,
        step: CallModel,
        records: list[Record],
        prompt: Prompt,
        request: ModelRequest,
        sent: str,
        raw: RawReply | None,
        reply: Reply | None,
        parsed: ParsedReply | None,
        overflow: ModelCallError | None,
        earlier: tuple[Attempt, ...],
    ) -> ModelCallRecord:
        facts: dict[str, Any] = {}
        if raw is not None and reply is not None and parsed is not None:
            facts = {
                "received": self._store.put(raw.body),
                "request_id": raw.request_id,
                "status": raw.status,
                "started_at": raw.started_at,
                "latency_ms": raw.latency_ms,
                "text": reply.text,
                "reasoning": reply.reasoning,
                "finish_reason": reply.finish_reason,
                "stop_reason": reply.stop_reason,
                "truncated": reply.truncated,
                "served_model": reply.served_model,
                "response_id": reply.response_id,
                "system_fingerprint": reply.system_fingerprint,
                "weight_version": reply.weight_version,
                "usage": reply.usage,
                "prompt_token_ids": self._ids(reply.prompt_token_ids),
                "generated_token_ids": self._ids(reply.generated_token_ids),
                "logprobs": self._ids(reply.logprobs),
                "actions": parsed.actions,
                "failure": parsed.failure,
                "output": put_json(self._store, _output(reply)) if _output(reply) else None,
                "parsed": put_json(self._store, parsed.model_dump(mode="json")),
                **judge(
                    self._store,
                    records,
                    request,
                    reply,
                    exact=prompt.request.rollout.evidence == "exact",
                    window=step.window,
                ),
            }
        else:
            refused = self._journal.attempts(CallKey(step.execution_id, step.turn, step.call))[-1]
            facts = {
                "received": None,
                "request_id": refused.request_id,
                "started_at": datetime.fromisoformat(refused.started_at),
                "overflow": True,
                "error": str(overflow),
                "status": overflow.status if overflow else None,
            }
        known = _known_before(step, prompt, request)
        return ModelCallRecord(
            execution_id=step.execution_id,
            index=records[-1].index + 1,
            previous=step.head,
            recorded_at=datetime.now(UTC),
            turn=step.turn,
            call=step.call,
            activity_attempt=activity.info().attempt,
            sent=sent,
            earlier_attempts=tuple(item.as_json() for item in earlier),
            **{**known, "missing": (*known["missing"], *(reply.missing if reply else ()))},
            **facts,
        )

    def _ids(self, values: tuple[int, ...] | tuple[float, ...] | None) -> str | None:
        return None if values is None else put_json(self._store, list(values))


def _known_before(step: CallModel, prompt: Prompt, request: ModelRequest) -> dict[str, Any]:
    """What the call's record says whatever comes back."""
    sampling, unsent = sent_sampling(request)
    return {
        "api": request.api,
        "evidence": prompt.request.rollout.evidence,
        "window": step.window,
        "media": request.media,
        "sampling": sampling,
        "missing": unsent,
    }


def _output(reply: Reply) -> list[dict[str, Any]]:
    if reply.output:
        return [dict(item) for item in reply.output]
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in reply.tool_calls
    ]


def _result(
    head: str, record: ModelCallRecord, parsed: ParsedReply | None, *, reused: bool, latency_ms: int
) -> ModelReply:
    if parsed is None:
        return ModelReply(head=head, overflow=True, images=len(record.media))
    usage = record.usage or {}
    prompt_tokens, completion_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
    actions, failure = parsed.actions, parsed.failure
    if len(actions) > MAX_ACTIONS:
        actions = ()
        failure = ParseFailure(
            kind="too_many_actions", message=f"{len(parsed.actions)} actions in one reply, limit {MAX_ACTIONS}"
        )
    if failure is not None and len(failure.message) > _SHORT:
        failure = failure.model_copy(update={"message": f"{failure.message[:_SHORT]}…"})
    return ModelReply(
        head=head,
        actions=tuple(
            PlannedAction(
                index=index,
                kind=action.kind,
                summary=describe(action)[:120],
                seconds=action.seconds if action.kind == "wait" else None,
            )
            for index, action in enumerate(actions)
        ),
        failure=failure,
        images=len(record.media),
        finish_reason=record.finish_reason,
        prompt_tokens=prompt_tokens if isinstance(prompt_tokens, int) else None,
        completion_tokens=completion_tokens if isinstance(completion_tokens, int) else None,
        latency_ms=latency_ms,
        reused=reused,
        exact_violations=record.violations,
        thought=" ".join((parsed.thought or parsed.action_text or record.text).split())[:120],
    )
