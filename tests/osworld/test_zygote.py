"""The evaluator's process: killed, killed with jobs in it, cancelled, left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from osworld_rollouts.osworld.evaluator import OSWorldEvaluator
from osworld_rollouts.osworld.job import FailureKind, PrepareFailed
from osworld_rollouts.osworld.zygote import EvaluatorUnavailable, Zygote
from tests.osworld.processes import children, gone, until
from tests.osworld.rig import step, task

SLEEP = task([step("sleep", seconds=300)])


async def test_a_cancelled_job_is_killed(rig):
    zygote = rig.evaluator._zygote
    running = asyncio.ensure_future(rig.prepare(SLEEP))
    await until(lambda: children(zygote.pid))
    (job,) = children(zygote.pid)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: gone(job))
    assert not gone(zygote.pid)


async def test_a_killed_zygote_takes_its_jobs_along_and_is_started_again(rig):
    zygote = rig.evaluator._zygote
    running = asyncio.ensure_future(rig.prepare(SLEEP))
    await until(lambda: children(zygote.pid))
    (job,) = children(zygote.pid)
    before = zygote.pid
    os.kill(before, signal.SIGKILL)
    with pytest.raises(PrepareFailed) as caught:
        await running
    assert caught.value.kind is FailureKind.CRASH
    assert (caught.value.step, caught.value.step_type) == (1, "sleep")
    await until(lambda: gone(job))
    assert (await rig.prepare(task([step("sleep", seconds=0)]))).steps == 1
    assert zygote.pid != before


async def test_a_stopped_zygote_is_replaced(rig):
    zygote = rig.evaluator._zygote
    before = zygote.pid
    os.kill(before, signal.SIGSTOP)
    with pytest.raises(PrepareFailed) as caught:
        await rig.prepare(SLEEP, timeout_s=1)
    assert caught.value.kind is FailureKind.TIMEOUT
    assert gone(before)
    assert (await rig.prepare(task([step("sleep", seconds=0)]))).steps == 1


async def test_a_package_that_cannot_be_imported_is_said_so(tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    (broken / "desktop_env").mkdir(parents=True)
    (broken / "desktop_env" / "__init__.py").write_text("import no_such_module")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    (tmp_path / "run").mkdir()
    zygote = Zygote(tmp_path / "run", tmp_path / "caches")
    with pytest.raises(EvaluatorUnavailable, match=r"no_such_module.*make setup"):
        await zygote.start()
    await zygote.close()


async def test_an_import_that_takes_too_long_is_given_up(tmp_path):
    (tmp_path / "run").mkdir()
    zygote = Zygote(tmp_path / "run", tmp_path / "caches", start_timeout_s=0.2)
    with pytest.raises(EvaluatorUnavailable, match=r"more than 0\.2 s"):
        await zygote.start()
    await zygote.close()


def test_a_killed_worker_leaves_no_process_and_the_next_one_removes_its_directory(tmp_path):
    """The worker is a process of its own here: it starts the evaluator, a job, and is killed with -9."""
    code = textwrap.dedent(f"""
        import asyncio
        from pathlib import Path
        from osworld_rollouts.osworld.evaluator import OSWorldEvaluator
        from osworld_rollouts.osworld.job import GuestEndpoint
        from tests.osworld.rig import Rig, step, task

        async def main():
            evaluator = OSWorldEvaluator(state_dir=Path({str(tmp_path)!r}))
            await evaluator.start()
            guest = GuestEndpoint(host="127.0.0.1", server_port=9)
            print(evaluator._zygote.pid, flush=True)
            beat = lambda text: print(text, flush=True)
            rig = Rig(evaluator, guest, Path({str(tmp_path)!r}) / "cache", [])
            await evaluator.prepare(rig.job(task([step("sleep", seconds=300)])), heartbeat=beat)

        asyncio.run(main())
    """)
    pytest.importorskip("desktop_env", reason="the evaluator extra is not installed")
    worker = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    pids: list[int] = []
    for line in worker.stdout:
        if line.strip().isdigit():
            pids.append(int(line))
        if "sleep" in line:
            break
    pids += children(pids[0])
    assert len(pids) == 2
    worker.kill()
    worker.wait()

    async def check() -> None:
        await until(lambda: all(gone(pid) for pid in pids))
        workers = tmp_path / "evaluator" / "workers"
        left = [path.name for path in workers.iterdir()]
        assert len(left) == 1
        evaluator = OSWorldEvaluator(state_dir=tmp_path)
        await evaluator.start()
        assert left[0] not in [path.name for path in workers.iterdir()]
        await evaluator.close()
        assert list(workers.iterdir()) == []

    asyncio.run(check())


async def test_a_living_worker_s_directory_is_left_alone(evaluator, tmp_path):
    first = OSWorldEvaluator(state_dir=tmp_path)
    first._warm()
    second = OSWorldEvaluator(state_dir=tmp_path)
    second._warm()
    assert len(list((tmp_path / "evaluator" / "workers").iterdir())) == 2
    await first.close()
    await second.close()


async def test_it_says_what_the_import_cost(evaluator):
    facts = evaluator.process_facts
    assert facts["import_s"] > 0
    assert 100 < facts["rss_mb"] < 1000
    assert facts["threads"] <= 2, "a thread before the fork may hold a lock for ever in the child"
