"""Cases 2 and 3: the wire between worker and guest loses, delays, refuses and spoils; and the look at the desktop fails after the action."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import datetime

import pytest

from osworld_rollouts.contracts.evidence import OperationsRecord, RecoveryRecord
from osworld_rollouts.evidence import chain
from tests.chaos.counting import counting_task
from tests.chaos.fault_proxy import operation, screenshot_after
from tests.stack import QUICK, wait_until

pytestmark = [pytest.mark.temporal, pytest.mark.desktop]
chaos = pytest.mark.chaos


@asynccontextmanager
async def proxied(system, **how):
    """A rollout whose desktop is reached through a fault proxy; its setup begins when the block's first part is done."""
    submitted = await system.submit(counting_task(gated=True), **how)
    proxy = await system.proxy(submitted)
    record = await system.desktop(f"{submitted.rollout_id}/x1")
    try:
        yield proxy, submitted, lambda: system.open_gate(record)
    finally:
        await proxy.close()


@pytest.mark.parametrize(
    "where",
    [
        "/t1/o0",
        pytest.param("/setup/o2", marks=chaos),
        pytest.param("/setup/o3", marks=chaos),
        pytest.param("/post/o1", marks=chaos),
    ],
)
async def test_reply_lost_after_the_effect(system, table, where):
    async with proxied(system) as (proxy, submitted, go):
        fault = proxy.add("drop", operation(where))
        go()
        played = await system.ended(submitted)
    assert fault.fired == 1
    assert played.kinds == ["agent_done"]
    await system.exactly_once(played)
    table.add(2, f"reply lost after the effect, {_kind(where)}", system, played)


@chaos
async def test_request_lost_before_the_guest_saw_it(system, table):
    async with proxied(system) as (proxy, submitted, go):
        fault = proxy.add("lose", operation("/t1/o0"))
        go()
        played = await system.ended(submitted)
    assert fault.fired == 1
    assert played.kinds == ["agent_done"]
    records = chain.walk(system.store, played.result.executions[0].evidence_head)
    recovery = chain.last(records, RecoveryRecord)
    assert [item.state for item in recovery.operations] == ["absent"]
    acts = [record for record in records if isinstance(record, OperationsRecord)]
    assert [record.operations[0]["fence"] for record in acts] == [1, 2, 2]
    await system.exactly_once(played)
    table.add(2, "request lost before the guest saw it, GUI action", system, played)


@chaos
@pytest.mark.parametrize("where", ["/t1/o0", "/setup/o2", "/post/o1"])
async def test_http_500_after_the_effect(system, table, where):
    """Said by whoever stands between us: the guest's ledger knows better."""
    async with proxied(system) as (proxy, submitted, go):
        fault = proxy.add("http500", operation(where))
        go()
        played = await system.ended(submitted)
    assert fault.fired == 1
    assert played.kinds == ["agent_done"]
    await system.exactly_once(played)
    table.add(2, f"HTTP 500 after the effect, {_kind(where)}", system, played)


@chaos
async def test_reply_later_than_the_timeout(system, table):
    async with proxied(system, timing=QUICK.model_copy(update={"operation_s": 2.0})) as (proxy, submitted, go):
        fault = proxy.add("late", operation("/t1/o0"), seconds=25)
        go()
        played = await system.ended(submitted)
    assert fault.fired == 1
    assert played.kinds == ["agent_done"]
    await system.exactly_once(played)
    table.add(2, "reply later than the timeout, GUI action", system, played)


@chaos
async def test_connection_refused_for_a_while(system, table):
    async with proxied(system, faults=":slow=3@1") as (proxy, submitted, go):
        go()
        await wait_until(lambda: system.asked(submitted, turn=1))
        await proxy.refuse()
        await wait_until(lambda: system.pending(submitted, "perform_operation"))
        await asyncio.sleep(3)  # how long connections are refused is the fault itself
        await proxy.listen()
        played = await system.ended(submitted)
    assert played.kinds == ["agent_done"]
    _, act, _ = _acts(system, played)
    assert _seconds(act) > 2  # it was refused, and went on asking
    await system.exactly_once(played)
    table.add(2, "connection refused for 3 s, GUI action", system, played)


@pytest.mark.parametrize("kind", ["cut", pytest.param("spoil", marks=chaos), pytest.param("http500", marks=chaos)])
async def test_observation_is_repeated_and_the_action_is_not(system, table, kind):
    async with proxied(system) as (proxy, submitted, go):
        fault = proxy.add(kind, screenshot_after(proxy, "/t1/o0"), times=3)
        go()
        played = await system.ended(submitted)
    assert fault.fired == 3
    assert played.kinds == ["agent_done"]
    await system.exactly_once(played)
    table.add(3, f"screenshot {_FAULTS[kind]} three times after the action landed", system, played)


@chaos
async def test_observation_that_fails_for_longer_is_repeated_by_another_activity(system, table):
    async with proxied(system) as (proxy, submitted, go):
        fault = proxy.add("http500", screenshot_after(proxy, "/t1/o0"), times=10_000)
        go()
        await wait_until(lambda: fault.fired > 0)
        await wait_until(lambda: system.scheduled(submitted, "perform_operation", 3))
        fault.times = fault.fired
        played = await system.ended(submitted)
    assert played.kinds == ["agent_done"]
    acts = [
        record
        for record in chain.walk(system.store, played.result.executions[0].evidence_head)
        if isinstance(record, OperationsRecord)
    ]
    assert [record.operations[0]["replayed"] for record in acts] == [False, True, False]
    await system.exactly_once(played)
    table.add(3, "no screenshot for longer than one activity waits", system, played)


def _acts(system, played) -> list[OperationsRecord]:
    """What was done on the desktop, turn by turn."""
    records = chain.walk(system.store, played.result.executions[0].evidence_head)
    return [record for record in records if isinstance(record, OperationsRecord)]


def _seconds(act: OperationsRecord) -> float:
    """From the first attempt at a turn's operations to the last one's end."""
    times = [datetime.fromisoformat(entry[name]) for entry in act.operations for name in ("started_at", "finished_at")]
    return (max(times) - min(times)).total_seconds()


_FAULTS = {"cut": "cut off in its middle", "spoil": "with half of its bytes", "http500": "answered with HTTP 500"}


def _kind(where: str) -> str:
    return {"t1": "GUI action", "setup": "setup step", "post": "post-step"}[where.split("/")[1]]
