"""Submit, list, show and control on a real Temporal server; the activities answer from a script."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager

import pytest
from temporalio.worker import Worker

from activities._failures import failure
from osworld_rollouts.console.errors import ExitCode
from osworld_rollouts.contracts.outcome import OutcomeKind
from osworld_rollouts.evidence.store import open_store
from tests.evidence.exact import exact_execution
from tests.workflows.scripted import CLICK, DONE, Script, refuse, replying
from workflows.execution import ExecutionWorkflow
from workflows.rollout import RolloutWorkflow

pytestmark = pytest.mark.temporal
MODEL = ("--model", "scripted", "--base-url", "http://127.0.0.1:9/v1")


@asynccontextmanager
async def worker(temporal_env, script, cli):
    async with Worker(
        temporal_env.client,
        task_queue=cli.queue,
        workflows=[RolloutWorkflow, ExecutionWorkflow],
        activities=script.activities(),
    ):
        yield script


def pausing(script: Script) -> asyncio.Event:
    """Let the model answer clicks until the event is set, then DONE; a little pause makes the run watchable."""
    done = asyncio.Event()
    click, end = replying([CLICK]), replying([DONE])

    def answer(step):
        return end(step) if done.is_set() else click(step)

    script.model = answer
    return done


async def eventually(look, seconds=30):
    async with asyncio.timeout(seconds):
        while not (found := await look()):
            await asyncio.sleep(0.1)
    return found


async def test_submit_waits_and_reports(temporal_env, cli):
    async with worker(temporal_env, Script(), cli):
        done = await cli(
            "submit",
            "text-edit-save",
            "terminal-count-errors",
            *MODEL,
            "--campaign",
            cli.queue,
            "--wait",
            "--in-flight",
            "1",
        )
    assert done.code == ExitCode.OK, done.err
    assert "2 of 2 scored; mean over those 1" in done.out
    assert f"{cli.queue}/text-edit-save/0" in done.out
    assert "agent_done" in done.out
    assert "score 1" in done.err  # the plain progress lines


async def test_the_same_again_is_found_and_another_is_refused_with_its_fields(temporal_env, cli):
    async with worker(temporal_env, Script(), cli):
        first = await cli("submit", "text-edit-save", *MODEL, "--campaign", cli.queue, "--json")
        again = await cli(
            "submit", "text-edit-save", *MODEL, "--campaign", cli.queue, "--priority", "1", "--wait", "--json"
        )
        other = await cli(
            "submit", "text-edit-save", *MODEL, "--campaign", cli.queue, "--max-turns", "7", "--temperature", "0.5"
        )
    assert first.json["rollouts"][0]["existed"] is False
    (entry,) = again.json["rollouts"]
    assert (entry["existed"], entry["result"]["outcome"]["score"]) == (True, 1.0)
    assert other.code == ExitCode.CONFLICT
    assert "max_turns" in other.err
    assert "sampling.temperature" in other.err
    assert other.err.count("\n") == 1


async def test_a_failed_rollout_is_code_1_with_its_cause(temporal_env, cli):
    script = Script()
    script.provision = refuse(OutcomeKind.DESKTOP_UNAVAILABLE, "no desktop left on any host")
    async with worker(temporal_env, script, cli):
        done = await cli("submit", "text-edit-save", *MODEL, "--campaign", cli.queue, "--wait", "--max-executions", "2")
        shown = await cli("show", f"{cli.queue}/text-edit-save/0")
        as_json = await cli("show", f"{cli.queue}/text-edit-save/0", "--json")
    assert done.code == ExitCode.UNSCORED
    assert "0 of 1 scored" in done.out
    assert "no desktop left on any host" in done.out
    assert re.search(r"x1 +desktop_unavailable", shown.out)
    assert re.search(r"x2 +desktop_unavailable", shown.out)
    assert as_json.json["executions"][1]["outcome"]["score"] is None
    assert "no desktop left" in as_json.json["failure"]


async def test_the_score_of_a_campaign_makes_no_zero_of_a_failure(temporal_env, cli):
    script = Script()
    tasks = ("text-edit-save", "terminal-count-errors", "calc-total-formula")

    async def provision(step):
        if "calc" in step.owner.execution_id:
            raise failure(OutcomeKind.DESKTOP_LOST, "gone", phase="provisioning")

    script.provision = provision
    script.evaluate = lambda step: 0.0 if "terminal" in step.execution_id else 1.0
    async with worker(temporal_env, script, cli):
        await cli("submit", *tasks, *MODEL, "--campaign", cli.queue, "--max-executions", "1", "--wait")

    async def listed():
        return (await cli("list", "--campaign", cli.queue, "--json")).json["total"] == 3

    await eventually(listed)
    shown, told = await cli("score", cli.queue), (await cli("score", cli.queue, "--of", "4", "--json"))
    assert (shown.code, told.code) == (ExitCode.UNSCORED, ExitCode.UNSCORED)
    assert "no score yet: 1 of 3 have none (1 desktop_lost)" in shown.out
    assert "between 0.333 and 0.667" in shown.out
    assert (told.json["rollouts"], told.json["scored"], told.json["missing"], told.json["mean"]) == (4, 2, 1, 0.5)
    assert told.json["unscored"] == {"desktop_lost": 1}
    assert told.json["domains"]["libreoffice_calc"]["mean"] is None
    assert (await cli("score", cli.queue, "--of", "2")).code == ExitCode.USAGE
    assert (await cli("score", "no-such-campaign")).code == ExitCode.NOT_FOUND


async def test_an_export_says_which_rollouts_it_cannot_hold(temporal_env, cli, tmp_path):
    """One has evidence, one failed before it had any, and one runs."""
    script = Script()
    script.provision = refuse(OutcomeKind.DESKTOP_UNAVAILABLE, "no desktop left on any host")
    where = ("--store", str(tmp_path / "store"), "--out")
    exact_execution(open_store(str(tmp_path / "store")), f"{cli.queue}/text-edit-save/0/x1", campaign=cli.queue)
    submit = ("submit", *MODEL, "--campaign", cli.queue, "--max-executions", "1")
    async with worker(temporal_env, script, cli):
        await cli(*submit, "text-edit-save", "calc-total-formula", "--wait")
    await cli(*submit, "terminal-count-errors")  # no worker polls: it stays as it is

    async def listed():
        return (await cli("list", "--campaign", cli.queue, "--json")).json["total"] == 3

    await eventually(listed)
    done = await cli("export", cli.queue, *where, str(tmp_path / "out"), "--json")
    assert done.code == ExitCode.OK, done.err
    assert done.json["rollouts"] == 1
    left = {"desktop_unavailable": 1, "running": 1}
    assert done.json["without_evidence"] == left
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["without_evidence"] == left
    shown = await cli("export", cli.queue, *where, str(tmp_path / "two"))
    assert "in no file, because nothing of them is sealed: 1 " in shown.out


async def test_list_filters_and_counts(temporal_env, cli):
    script = Script()
    script.evaluate = lambda _step: 0.0
    async with worker(temporal_env, script, cli):
        await cli(
            "submit",
            "text-edit-save",
            "terminal-count-errors",
            *MODEL,
            "--campaign",
            cli.queue,
            "--purpose",
            "validation",
            "--wait",
        )
        everything = await cli("list", "--campaign", cli.queue, "--json")
        one = await cli(
            "list",
            "--campaign",
            cli.queue,
            "--task",
            "text-edit-save",
            "--outcome",
            "agent_done",
            "--purpose",
            "validation",
            "--json",
        )
        limited = await cli("list", "--campaign", cli.queue, "--limit", "1")
        none = await cli("list", "--campaign", cli.queue, "--failed")
        raw = await cli("list", "--query", f"RolloutCampaign = '{cli.queue}' AND RolloutScore < 0.5", "--json")
        wrong = await cli("list", "--query", "nonsense = 3")
        quoted = await cli("list", "--task", "a' OR '1'='1")
    assert everything.json["total"] == 2
    assert {row["score"] for row in everything.json["rollouts"]} == {0.0}
    assert [row["task"] for row in one.json["rollouts"]] == ["text-edit-save"]
    assert "1 of 2; --limit shows more" in limited.out
    assert "no rollouts match" in none.out
    assert raw.json["total"] == 2
    assert (wrong.code, wrong.err.count("\n")) == (ExitCode.USAGE, 1)
    assert quoted.code == ExitCode.USAGE


async def test_show_of_a_running_and_of_an_unknown_rollout(temporal_env, cli):
    script = Script()
    done = pausing(script)
    rollout = f"{cli.queue}/text-edit-save/0"
    async with worker(temporal_env, script, cli):
        await cli(
            "submit", "text-edit-save", *MODEL, "--campaign", cli.queue, "--max-turns", "5000", "--label", "who=me"
        )
        shown = await eventually(lambda: _shows(cli, rollout, "click(640, 380)"))
        done.set()
        unknown = await cli("show", "no/such/0")
    assert f"{rollout}  working" in shown.out
    assert "label who" in shown.out, shown.out
    assert unknown.code == ExitCode.NOT_FOUND
    assert "no/such/0" in unknown.err


async def _shows(cli, rollout, words):
    shown = await cli("show", rollout)
    return shown if words in shown.out else None


async def test_show_without_a_worker_says_so(cli):
    await cli("submit", "text-edit-save", *MODEL, "--campaign", cli.queue)
    shown = await cli("show", f"{cli.queue}/text-edit-save/0")
    assert shown.code == ExitCode.OK
    assert "no worker answers" in shown.err
    cancelled = await cli("cancel", f"{cli.queue}/text-edit-save/0", "--no-wait")
    assert cancelled.code == ExitCode.OK


async def test_pause_resume_stop(temporal_env, cli):
    script = Script()
    done = pausing(script)
    rollout = f"{cli.queue}/text-edit-save/0"
    async with worker(temporal_env, script, cli):
        await cli("submit", "text-edit-save", *MODEL, "--campaign", cli.queue, "--max-turns", "5000")
        await eventually(lambda: _shows(cli, rollout, "click(640, 380)"))
        dry = await cli("pause", rollout, "--dry-run")
        assert "would pause" in dry.out
        paused = await cli("pause", "--campaign", cli.queue, "--json")
        assert list(paused.json["done"]) == [rollout]
        await eventually(lambda: _shows(cli, rollout, f"{rollout}  paused"))
        before = len(script.calls)
        await asyncio.sleep(1)
        assert len(script.calls) == before
        assert (await cli("resume", rollout)).code == ExitCode.OK
        stopped = await cli("stop", rollout)
        assert stopped.code == ExitCode.OK, stopped.err
        shown = await eventually(lambda: _shows(cli, rollout, "stopped_by_operator"))
        assert "masked" in shown.out
        late = await cli("pause", rollout)
        assert (late.code, late.out.strip()) == (
            ExitCode.CONFLICT,
            f"{rollout}: already ended: stopped_by_operator, score 1",
        )
    done.set()


async def test_cancel_waits_for_the_desktop_to_be_gone_and_twice_is_no_error(temporal_env, cli):
    script = Script()
    pausing(script)
    rollout = f"{cli.queue}/text-edit-save/0"
    async with worker(temporal_env, script, cli):
        await cli("submit", "text-edit-save", *MODEL, "--campaign", cli.queue, "--max-turns", "5000")
        await eventually(lambda: _shows(cli, rollout, "click(640, 380)"))
        cancelled = await cli("cancel", rollout)
        assert (cancelled.code, cancelled.out.strip()) == (ExitCode.OK, f"{rollout}: cancelled")
        assert len(script.named("teardown_desktop")) == 1
        again = await cli("cancel", rollout)
        assert again.code == ExitCode.OK
        nothing = await cli("cancel", "--campaign", cli.queue)
        assert "nothing is running" in nothing.out
        assert (await cli("cancel", "no/such/0")).code == ExitCode.NOT_FOUND


async def test_interrupting_a_wait_leaves_the_rollout_running(temporal_env, cli):
    script = Script()
    done = pausing(script)
    async with worker(temporal_env, script, cli):

        async def calls():
            await eventually(lambda: _true(len(script.calls) > 8))

        interrupted = await cli(
            "submit",
            "text-edit-save",
            *MODEL,
            "--campaign",
            cli.queue,
            "--max-turns",
            "5000",
            "--wait",
            interrupt_when=calls,
        )
        assert interrupted.code == ExitCode.INTERRUPTED
        assert interrupted.err.splitlines()[-1].startswith("error: interrupted")
        running = await cli("list", "--campaign", cli.queue, "--running", "--json")
        assert running.json["total"] == 1
        done.set()
        found = await cli("submit", "text-edit-save", *MODEL, "--campaign", cli.queue, "--max-turns", "5000", "--wait")
        assert found.code == ExitCode.OK


async def _true(value):
    return value


async def test_setup_is_idempotent(cli):
    first = await cli("setup", "--json")
    assert first.code == ExitCode.OK
    assert first.json["registered"] == []
    dry = await cli("setup", "--dry-run")
    assert dry.out.count("there") == len(first.json["there"])


async def test_up_uses_a_service_that_is_not_ours_and_starts_none(cli):
    up = await cli("up", "--no-worker", "--no-page", "--no-keeper", "--json")
    assert up.code == ExitCode.OK, up.err
    assert up.json == {"started": [], "processes": []}
    status = await cli("status", "--json")
    assert (status.json["temporal"]["reachable"], status.json["temporal"]["ours"]) == (True, False)
    assert (await cli("down", "--json")).json["ended"] == []
