"""Commands: exit codes, no waiting for daemons, timeouts that kill what was started."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from osworld_rollouts.guest.execute import CommandTimeout, parse_command, run_command
from osworld_rollouts.guest.wire import ApiError


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_streams_and_code():
    done = run_command("printf 'a\\r\\nb'; echo e >&2; exit 3", shell=True, timeout=5)
    assert (done.output, done.error, done.returncode) == ("a\nb", "e\n", 3)


def test_signal_is_negative():
    assert run_command("kill -9 $$", shell=True, timeout=5).returncode == -9


def test_merged():
    assert run_command("echo a; echo b >&2", shell=True, timeout=5, merge=True).output == "a\nb\n"


def test_bytes_that_are_no_text():
    assert run_command("printf '\\377x'", shell=True, timeout=5).output == "\ufffdx"


def test_large_output_is_kept_whole():
    assert len(run_command("head -c 3000000 /dev/zero | tr '\\0' a", shell=True, timeout=20).output) == 3_000_000


def test_endless_output_does_not_fill_the_memory():
    with pytest.raises(CommandTimeout) as late:
        run_command("yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", shell=True, timeout=1.5)
    assert len(late.value.outcome.output) < 40 * 2**20


def test_a_daemon_that_keeps_the_pipe_is_not_waited_for():
    started = time.monotonic()
    done = run_command("echo pid $$; sleep 30 & echo child $!", shell=True, timeout=10)
    assert time.monotonic() - started < 2
    child = int(done.output.split()[-1])
    assert alive(child)
    os.kill(child, 9)


def test_a_daemon_may_go_on_writing():
    done = run_command(
        "(sleep 0.6; echo more; echo more; sleep 0.2; touch /tmp/osw-daemon-$$) & echo $$", shell=True, timeout=5
    )
    mark = Path(f"/tmp/osw-daemon-{done.output.strip()}")
    deadline = time.monotonic() + 5
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert mark.exists(), "it was killed by a broken pipe"
    mark.unlink()


def test_timeout_kills_the_whole_group():
    started = time.monotonic()
    with pytest.raises(CommandTimeout) as late:
        run_command("echo before; sleep 61 & echo $!; sleep 62", shell=True, timeout=0.5)
    assert time.monotonic() - started < 20  # not 61
    assert late.value.outcome.output.startswith("before\n")
    child = int(late.value.outcome.output.split()[-1])
    while alive(child) and time.monotonic() - started < 10:  # killed; whoever adopted it reaps it in a moment
        time.sleep(0.02)
    assert not alive(child)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"command": ["ls", "~/x"]}, (["ls", str(Path("~/x").expanduser())], False)),
        ({"command": "echo 'a b' c"}, (["echo", "a b", "c"], False)),
        ({"command": "echo ~/x | cat", "shell": True}, ("echo ~/x | cat", True)),
        ({"command": ["echo", 1]}, (["echo", "1"], False)),
    ],
)
def test_commands_are_read_like_upstream(data, expected):
    assert parse_command(data) == expected


@pytest.mark.parametrize("data", [{}, {"command": ""}, {"command": []}, {"command": "'"}, {"command": 5}])
def test_no_command(data):
    with pytest.raises(ApiError):
        parse_command(data)
