"""Room on a host: what counts, seen by two workers of it."""

from __future__ import annotations

import subprocess
import sys

from osworld_rollouts.desktops.claims import Claims

HOLDER = """
import pathlib, sys
from osworld_rollouts.desktops.claims import Claims
claims = Claims(pathlib.Path(sys.argv[1]))
claims.take("a")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_claim_is_seen_by_others_and_ends_with_its_holder(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"held\n"
    claims = Claims(tmp_path)
    assert claims.held("a")
    assert not claims.held("b")
    claims.take("a")  # two makers of one desktop: the first one's claim stands
    assert claims.ours == []
    holder.kill()
    holder.communicate()
    assert not claims.held("a")
    claims.take("a")
    assert claims.held("a")
    claims.drop("a")
    assert not claims.held("a")


def test_work_begun_outlives_every_worker(tmp_path):
    claims = Claims(tmp_path)
    claims.begin("a")
    assert Claims(tmp_path).begun("a")
    claims.forget("a")
    assert not Claims(tmp_path).begun("a")
    assert list(tmp_path.iterdir()) == []
