"""The command line against the session's Temporal server."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import sys
import uuid

import pytest

from osworld_rollouts.console import main

HEARING = ("env", "--default-signal=INT")
"""Before a command that is to be interrupted: a test suite in the background has passed on that Ctrl-C is to be ignored."""


class Done:
    """How a command ended."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def cli(temporal_env, tmp_path, monkeypatch):
    """Run a command against the test's server (in a process of its own where it is interrupted); `queue` is this test's own."""
    queue = f"console-{uuid.uuid4().hex[:8]}"
    for name in list(os.environ):
        if name.startswith(("ROLLOUTS_", "TEMPORAL_")):
            monkeypatch.delenv(name)
    own = {
        "ROLLOUTS_STATE_DIR": str(tmp_path / "state"),
        "ROLLOUTS_TEMPORAL__ADDRESS": temporal_env.client.service_client.config.target_host,
        "ROLLOUTS_TEMPORAL__WORKFLOW_QUEUE": queue,
        "ROLLOUTS_TEMPORAL__POOL_QUEUE": queue,
        "ROLLOUTS_TIMEOUTS__RETRY_PAUSE_S": "0.01",
    }
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    async def run(*arguments, interrupt_when=None):
        if interrupt_when is None:
            return await asyncio.to_thread(in_process, arguments)
        process = await asyncio.create_subprocess_exec(
            *HEARING, sys.executable, "-m", "osworld_rollouts.console.main", *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=tmp_path,
        )  # fmt: skip
        await interrupt_when()
        process.send_signal(2)
        out, err = await asyncio.wait_for(process.communicate(), 120)
        return Done(process.returncode, out.decode(), err.decode())

    def in_process(arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main.run(list(arguments))
        return Done(code, out.getvalue(), err.getvalue())

    run.queue = queue
    return run
