"""What `list` and `show` say of a rollout that runs: what it waits for, in words, and what a person has asked of it."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import subprocess

import pytest
from rich.console import Console
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from osworld_rollouts.console.errors import ExitCode
from osworld_rollouts.console.links import Links
from osworld_rollouts.console.list_command import COLUMNS, NUMBERS, table_rows
from osworld_rollouts.console.output import Output, make_table, middle
from osworld_rollouts.console.pending import Doing, PendingActivity
from osworld_rollouts.console.phases import phase_words, state_words
from osworld_rollouts.console.processes import Registry
from osworld_rollouts.console.rollouts import RolloutDetails
from osworld_rollouts.console.service_commands import _print_processes
from osworld_rollouts.console.services import is_gone
from osworld_rollouts.console.show_command import _page
from osworld_rollouts.contracts.outcome import ExecutionResult, Outcome, OutcomeKind
from tests.console.test_progress import row, view
from tests.console.test_rollouts import MODEL, eventually, worker
from tests.workflows.scripted import CLICK, Script, refuse, replying
from workflows.execution import ExecutionWorkflow


def pending(name="call_model", **fields):
    base = {
        "activity": name, "words": "model call", "state": "started", "attempt": 1, "max_attempts": None, "last_failure": None,
        "since": None, "next_at": None, "gives_up_at": None,
    }  # fmt: skip
    return PendingActivity(**{**base, **fields})


def at(phase, *activities, deciding=False, waits_for_worker=False):
    return Doing("rollout/night/task-1/0/x1", phase, deciding, waits_for_worker, activities)


@pytest.mark.parametrize(
    ("phase", "doing", "seen", "words"),
    [
        ("turns", None, None, "working"),
        ("turns", at("turns", pending()), None, "working"),
        ("turns", at("turns", pending(attempt=29, state="scheduled")), None, "working, model call attempt 29"),
        ("turns", at("turns", deciding=True, waits_for_worker=True), None, "waiting for a worker"),
        (
            "provisioning",
            at("provisioning", pending("provision_desktop", state="scheduled")),
            None,
            "waiting for a free desktop",
        ),
        ("provisioning", at("provisioning", pending("provision_desktop")), None, "making a desktop"),
        ("turns", at("turns", pending()), view(1, paused=True), "working, pausing after this turn"),
        ("turns", at("turns", deciding=True), view(1, paused=True), "working, pausing after this turn"),
        ("turns", at("turns"), view(1, paused=True), "paused"),
        ("turns", at("turns", pending("renew_lease")), None, "paused"),
        ("turns", at("turns"), view(1, paused=False), "working"),
        ("turns", at("turns", pending()), view(1, stop_requested=True), "working, stopping after this turn"),
        ("waiting for execution 2", None, None, "waiting before attempt 2"),
        ("execution 3", None, None, "attempt 3 starts"),
        ("", None, None, "starting"),
    ],
)
def test_states_in_words(phase, doing, seen, words):
    assert state_words(phase, doing, seen) == words


def test_every_phase_of_the_workflows_has_words():
    phases = ("opening", "provisioning", "preparing", "turns", "post-steps", "evaluating", "teardown", "sealing")
    assert all(phase_words(phase) != phase for phase in phases)


LONG = "spreadsheets-2026-11/f9584479-3d0d-4c79-affa-9ad7afdd8850/0"


def drawn(width, tty=True):
    stuck = row(1, doing=at("turns", pending(attempt=29)), rollout_id=LONG)
    lost = row(2, "failed", rollout_id=LONG[:-1] + "1", outcome="policy_response_invalid", eligible=False)
    good = row(3, "completed", rollout_id=LONG[:-1] + "2", outcome="agent_done", score=0.5, eligible=True)
    out = io.StringIO()
    rows = table_rows([stuck, lost, good], width=width if tty else None)
    Console(file=out, width=width).print(make_table(COLUMNS, rows, right=NUMBERS, wrapped=("state",)))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_list_can_be_read_at_80_columns():
    lines = drawn(80)
    assert lines[0].split() == list(COLUMNS)
    assert max(map(len, lines)) <= 80
    ids = [line.split()[0] for line in lines if line.startswith("sp")]
    assert [name[-1] for name in ids] == ["0", "1", "2"]
    assert all("…" in name for name in ids)
    assert "0.5" in lines[-1]
    assert "policy_response_invalid" in "\n".join(lines)


def test_a_wide_terminal_and_a_pipe_have_the_whole_id():
    assert LONG in drawn(160)[1]
    assert "working, model call attempt 29" in drawn(160)[1]
    assert LONG in drawn(240, tty=False)[1]


def test_the_middle_goes_first():
    assert middle("short", 10) == "short"
    assert middle("campaign/a-long-task-name/0", 12) == "camp…-name/0"
    assert len(middle("x" * 50, 20)) == 20


@pytest.fixture
def narrow(monkeypatch):
    """80 columns, as a terminal would have."""
    monkeypatch.setattr("osworld_rollouts.console.output._PIPE_WIDTH", 80)


def busy(_step):
    raise ApplicationError("the model's server answered 500: out of memory", type="model_unreachable")


async def said(cli, words, *arguments):
    async def look():
        done = await cli(*arguments)
        return done if words in done.out else None

    return await eventually(look)


@pytest.mark.temporal
async def test_a_rollout_stuck_on_its_model_shows_it(temporal_env, cli):
    script = Script()
    script.model = busy
    rollout = f"{cli.queue}/text-edit-save/0"
    async with worker(temporal_env, script, cli):
        await cli("submit", "text-edit-save", *MODEL, "--campaign", cli.queue, "--max-turns", "6")
        shown = await said(cli, "working, model call attempt 3", "show", rollout)
        told = (await cli("show", rollout, "--json")).json
        listed = await cli("list", "--campaign", cli.queue)
        row_json = (await cli("list", "--campaign", cli.queue, "--json")).json["rollouts"][0]
        await cli("cancel", rollout)
    assert "turn 1 of at most 6" in shown.out
    assert "last failure: model_unreachable: the model's server answered 500: out of memory" in shown.out
    assert "tried next in" in shown.out
    assert "action" not in shown.out  # no table of turns before there is one
    assert ", given up in" in shown.out
    (waits,) = told["pending_activities"]
    assert (waits["activity"], waits["words"], waits["attempt"] >= 3) == ("call_model", "model call", True)
    assert told["state"].startswith("working, model call attempt")
    assert told["phase"] == "turns"
    assert "working, model call attempt" in listed.out
    assert row_json["state"].startswith("working, model call attempt")
    assert row_json["doing"]["activities"][0]["last_failure"].endswith("out of memory")


@pytest.mark.temporal
async def test_without_a_worker_the_server_still_says_what_is_waited_for(temporal_env, cli):
    script = Script()
    script.model = busy
    rollout = f"{cli.queue}/text-edit-save/0"
    async with worker(temporal_env, script, cli):
        await cli("submit", "text-edit-save", *MODEL, "--campaign", cli.queue)
        await said(cli, "attempt 2", "show", rollout)
    shown = await cli("show", rollout)
    assert "no worker answers" in shown.err
    assert "answered 500" in shown.out
    await cli("cancel", rollout, "--no-wait")


@pytest.mark.temporal
async def test_waiting_for_a_free_desktop_is_no_making_of_one(temporal_env, cli, monkeypatch):
    monkeypatch.setenv("ROLLOUTS_TEMPORAL__POOL_QUEUE", f"{cli.queue}-nobody")
    rollout = f"{cli.queue}/text-edit-save/0"
    async with worker(temporal_env, Script(), cli):
        await cli("submit", "text-edit-save", *MODEL, "--campaign", cli.queue)
        await said(cli, "waiting for a free desktop", "show", rollout)
        await said(cli, "waiting for a free desktop", "list", "--campaign", cli.queue)
        await cli("cancel", rollout, "--no-wait")


@pytest.mark.temporal
async def test_a_pause_is_asked_for_before_it_is_one(temporal_env, cli):
    script, answer = Script(), asyncio.Event()

    async def slowly(step):
        await answer.wait()
        return replying([CLICK])(step)

    script.model = slowly
    rollout = f"{cli.queue}/text-edit-save/0"
    async with worker(temporal_env, script, cli):
        await cli("submit", "text-edit-save", *MODEL, "--campaign", cli.queue)
        await said(cli, "model call: attempt 1, under way", "show", rollout)
        await cli("pause", rollout)
        pausing_now = await said(cli, "pausing after this turn", "show", rollout)
        assert "paused" not in pausing_now.out
        answer.set()
        await said(cli, f"{rollout}  paused", "show", rollout)
        await said(cli, "paused", "list", "--campaign", cli.queue)
        await cli("stop", rollout)
        await said(cli, "stopped_by_operator", "show", rollout)


@pytest.mark.temporal
async def test_causes_have_lines_of_their_own_and_no_page_is_promised_without_evidence(
    temporal_env, cli, narrow, monkeypatch
):
    monkeypatch.setattr("osworld_rollouts.console.links.Links.rollout", lambda _self, name: f"http://page/{name}")
    script = Script()
    cause = "no desktop left on any of the hosts that poll the queue of desktops, after ten minutes"
    script.provision = refuse(OutcomeKind.DESKTOP_UNAVAILABLE, cause)
    async with worker(temporal_env, script, cli):
        await cli("submit", "text-edit-save", *MODEL, "--campaign", cli.queue, "--max-executions", "1", "--wait")
        shown = await cli("show", f"{cli.queue}/text-edit-save/0")
    assert f"x1: {cause}" in " ".join(shown.out.split())
    assert "http://page/" in shown.out
    assert max(len(line) for line in shown.out.splitlines() if "://" not in line) <= 80


@pytest.mark.temporal
async def test_what_has_ended_refuses_with_its_end_and_what_is_not_there_is_not_found(temporal_env, cli):
    script = Script()
    rollout = f"{cli.queue}/text-edit-save/0"
    async with worker(temporal_env, script, cli):
        await cli("submit", "text-edit-save", *MODEL, "--campaign", cli.queue, "--wait")
        for verb in ("pause", "resume", "stop"):
            late = await cli(verb, rollout)
            assert (late.code, late.out.strip()) == (
                ExitCode.CONFLICT,
                f"{rollout}: already ended: agent_done, score 1",
            )
            assert (await cli(verb, rollout, "--dry-run")).code == ExitCode.CONFLICT
            assert (await cli(verb, "no/such/0")).code == ExitCode.NOT_FOUND
            over = await cli(verb, "--campaign", cli.queue)
            assert (over.code, over.out.strip()) == (ExitCode.OK, "nothing is running")
            assert (await cli(verb, "--campaign", "nosuch")).code == ExitCode.NOT_FOUND
        for options in ((), ("--no-wait",), ("--dry-run",)):
            late = await cli("cancel", rollout, *options)
            assert (late.code, late.out.strip()) == (ExitCode.OK, f"{rollout}: already ended: agent_done, score 1")
    assert (await cli("cancel", "--campaign", "nosuch")).code == ExitCode.NOT_FOUND
    missing = await cli("list", "--campaign", "nosuch", "--json")
    assert (missing.code, missing.out) == (ExitCode.NOT_FOUND, "")
    assert (await cli("list", "--campaign", cli.queue, "--failed")).code == ExitCode.OK


def result(number, head=None):
    outcome = Outcome(kind=OutcomeKind.REQUEST_INVALID)
    return ExecutionResult(execution_id=f"night/task-1/0/x{number}", number=number, outcome=outcome, evidence_head=head)


@pytest.mark.parametrize(
    ("status", "executions", "linked"),
    [
        ("running", (), True),
        ("failed", (), False),
        ("failed", (result(1),), False),
        ("failed", (result(1, "a" * 64), result(2)), True),
        ("completed", (result(1, "a" * 64),), True),
        ("terminated", (), True),
    ],
)
def test_a_page_is_linked_where_there_is_one(status, executions, linked):
    details = RolloutDetails(row(1, status), "", {}, executions, None, None)
    assert (_page(details, Links(None, "http://page", "default")) is not None) == linked


@pytest.fixture
def ended_pid():
    """Of a process that is gone."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


@pytest.mark.temporal
async def test_workers_that_are_gone_are_not_counted(temporal_env, cli, ended_pid):
    here = socket.gethostname()
    names = [f"{ended_pid}@{here}", f"{os.getpid()}@{here}", f"{ended_pid}@elsewhere", "my-worker"]
    assert [is_gone(name) for name in names] == [True, False, False, False]
    for name in names[:2]:
        async with Worker(temporal_env.client, task_queue=cli.queue, workflows=[ExecutionWorkflow], identity=name):
            await eventually(lambda: remembered(temporal_env.client, cli.queue, name))  # noqa: B023
    told = (await cli("status", "--json")).json["temporal"]
    assert names[1] in told["workers"]
    assert names[0] not in told["workers"]
    assert f"{len(told['workers'])} worker" in (shown := await cli("status")).out
    assert "seen in the last 75 s" in shown.out


async def remembered(client, queue, name):
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    answer = await client.workflow_service.describe_task_queue(request)
    return any(poller.identity == name for poller in answer.pollers)


def test_up_names_the_address_for_other_programs(tmp_path):
    registry, out = Registry(tmp_path), Output(as_json=False)
    text = io.StringIO()
    out.console = Console(file=text, width=120)
    facts = {"address": "127.0.0.1:17733", "ui_url": "http://127.0.0.1:18733", "version": "1"}
    registry.start("temporal", ["sleep", "60"], facts=facts)
    try:
        _print_processes(registry, out, set())
    finally:
        registry.stop("temporal")
    assert "http://127.0.0.1:18733  gRPC 127.0.0.1:17733" in text.getvalue()


@pytest.mark.temporal
async def test_verify_says_of_a_known_rollout_that_it_has_no_evidence(temporal_env, cli):
    rollout = f"{cli.queue}/text-edit-save/0"
    await cli("submit", "text-edit-save", *MODEL, "--campaign", cli.queue)
    early, one = await cli("verify", rollout), await cli("verify", f"{rollout}/x1")
    await temporal_env.client.get_workflow_handle(f"rollout/{rollout}").terminate()
    late, nobody = await cli("verify", rollout), await cli("verify", "no/such/0")
    offline = await cli("verify", rollout, "--offline")
    assert {done.code for done in (early, one, late, nobody, offline)} == {ExitCode.NOT_FOUND}
    assert "its rollout runs, and none is written yet" in early.err
    assert "its rollout runs" in one.err
    assert f"there is no evidence of '{rollout}': its rollout ended with terminated" in late.err
    assert f"rollouts show {rollout}" in late.err
    assert "neither Temporal nor" in nobody.err
    assert "Temporal" not in offline.err
