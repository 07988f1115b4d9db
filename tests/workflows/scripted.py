"""Activities that answer from a script, for tests of sequencing only.

They imitate neither a desktop, a model, an evaluator nor a store: what those do is tested on the real ones. What they do keep is
the contract: names, types, and which failures an activity may raise.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from temporalio import activity

from activities._failures import failure
from osworld_rollouts.contracts import steps
from osworld_rollouts.contracts.action import Action, Click, Done, Point, describe
from osworld_rollouts.contracts.desktop import Lease
from osworld_rollouts.contracts.outcome import OutcomeKind
from osworld_rollouts.contracts.request import ParsePolicy

CLICK = Click(point=Point(x=640, y=380))
DONE = Done()


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def replying(*turns: list[Action] | steps.ParseFailure | str) -> Callable[[steps.CallModel], steps.ModelReply]:
    """A model that answers turn n with the n-th entry (the last repeats): actions, a parse failure, or 'overflow'."""

    def reply(step: steps.CallModel) -> steps.ModelReply:
        entry = turns[min(step.turn, len(turns) - 1)]
        head = sha(f"{step.head}/model/{step.turn}/{step.call}")
        if entry == "overflow":
            return steps.ModelReply(head=head, overflow=True)
        if isinstance(entry, steps.ParseFailure):
            return steps.ModelReply(head=head, failure=entry)
        planned = tuple(
            steps.PlannedAction(index=index, kind=action.kind, summary=describe(action))
            for index, action in enumerate(entry)
        )
        return steps.ModelReply(head=head, actions=planned, thought="thinking")

    return reply


class Script:
    """What each activity does; tests replace the entries they care about."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []
        self.parse_policy: ParsePolicy | None = None
        self.model: Callable[[steps.CallModel], steps.ModelReply | Awaitable[steps.ModelReply]] = replying(
            [CLICK], [DONE]
        )
        self.perform: Callable[[steps.PerformOperation], steps.Performed | Awaitable[steps.Performed | None] | None] = (
            lambda _step: None
        )
        self.recover: Callable[[steps.RecoverOperation], str] = lambda _step: "finished"
        self.evaluate: Callable[[steps.Evaluate], float] = lambda _step: 1.0
        self.provision: Callable[[steps.ProvisionDesktop], Awaitable[None] | None] = lambda _step: None
        self.grow: dict[str, int] = {}
        """Bytes that the answer of an activity has too many."""
        self.renew: Callable[[str], None] = lambda _lease_id: None
        self.teardown: Callable[[steps.TeardownDesktop], Awaitable[None] | None] = lambda _step: None

    def named(self, name: str) -> list:
        return [step for called, step in self.calls if called == name]

    def grown(self, name: str, field: str, answer):
        """The answer, or one that is too large."""
        return answer.model_copy(update={field: "x" * self.grow[name]}) if name in self.grow else answer

    def activities(self) -> list:
        calls = self.calls

        @activity.defn
        async def open_execution(step: steps.OpenExecution) -> steps.Opened:
            calls.append(("open_execution", step))
            return steps.Opened(
                head=sha(step.execution_id),
                history_name="fixed",
                history_params={"keep_images": 3},
                store="file:///evidence",
                parse_policy=self.parse_policy,
            )

        @activity.defn
        async def provision_desktop(step: steps.ProvisionDesktop) -> Lease:
            calls.append(("provision_desktop", step))
            await settled(self.provision(step))
            now = datetime.now(UTC)
            lease = Lease(
                lease_id=step.lease_id,
                provider="local",
                host_id="h",
                task_queue=activity.info().task_queue,
                fence=1,
                width=1920,
                height=1080,
                image_identity="scripted",
                created_at=now,
                expires_at=now + timedelta(hours=1),
            )
            return self.grown("provision_desktop", "tier", lease)

        @activity.defn
        async def prepare_task(step: steps.PrepareTask) -> steps.Prepared:
            calls.append(("prepare_task", step))
            return steps.Prepared(head=sha(step.head + "prepared"), next_seq=3, steps=2)

        @activity.defn
        async def call_model(step: steps.CallModel) -> steps.ModelReply:
            calls.append(("call_model", step))
            return self.grown("call_model", "thought", await settled(self.model(step)))

        @activity.defn
        async def perform_operation(step: steps.PerformOperation) -> steps.Performed:
            calls.append(("perform_operation", step))
            answer = await settled(self.perform(step))
            if answer is not None:
                return answer
            outcomes = tuple(
                steps.OperationOutcome(operation_id=item.operation_id, returncode=0) for item in step.operations
            )
            done = steps.Performed(head=sha(step.head + f"act{step.turn}"), outcomes=outcomes)
            return self.grown("perform_operation", "head", done)

        @activity.defn
        async def recover_operation(step: steps.RecoverOperation) -> steps.Recovered:
            calls.append(("recover_operation", step))
            state = self.recover(step)
            operations = tuple(steps.RecoveredOperation(operation_id=item, state=state) for item in step.operation_ids)
            return steps.Recovered(head=sha(step.head + "recovered"), operations=operations)

        @activity.defn
        async def prepare_evaluation(step: steps.PrepareEvaluation) -> steps.EvaluationPrepared:
            calls.append(("prepare_evaluation", step))
            return steps.EvaluationPrepared(head=sha(step.head + "post"), next_seq=step.first_seq, steps=0)

        @activity.defn
        async def evaluate(step: steps.Evaluate) -> steps.Evaluated:
            calls.append(("evaluate", step))
            verdict = steps.Evaluated(head=sha(step.head + "evaluated"), score=self.evaluate(step), duration_ms=1)
            return self.grown("evaluate", "head", verdict)

        @activity.defn
        async def renew_lease(lease_id: str) -> None:
            calls.append(("renew_lease", lease_id))
            self.renew(lease_id)

        @activity.defn
        async def teardown_desktop(step: steps.TeardownDesktop) -> None:
            calls.append(("teardown_desktop", step))
            await settled(self.teardown(step))

        @activity.defn
        async def seal_execution(step: steps.SealExecution) -> steps.Sealed:
            calls.append(("seal_execution", step))
            return steps.Sealed(head=sha(step.head + "sealed"))

        return [
            open_execution,
            provision_desktop,
            prepare_task,
            call_model,
            perform_operation,
            recover_operation,
            prepare_evaluation,
            evaluate,
            renew_lease,
            teardown_desktop,
            seal_execution,
        ]


async def settled(answer):
    """An answer, waited for where it takes its time."""
    return await answer if inspect.isawaitable(answer) else answer


def refuse(kind: OutcomeKind, message: str = "because") -> Callable:
    """An activity body that fails for good with an outcome kind."""

    def body(_step):
        raise failure(kind, message, phase="test")

    return body
