"""The little language of faults."""

from __future__ import annotations

import pytest

from osworld_rollouts.testing.faults import Fault, parse_faults


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", ()),
        ("slow=2", (Fault("slow", 2),)),
        ("slow=0.25", (Fault("slow", 0.25),)),
        ("http=429x2", (Fault("http", 429, 2),)),
        ("garbage=x1", (Fault("garbage", None, 1),)),
        ("drop=x1@3", (Fault("drop", None, 1, 3),)),
        ("done@0", (Fault("done", None, None, 0),)),
        ("overflow=3:empty", (Fault("overflow", 3), Fault("empty"))),
    ],
)
def test_faults_are_read(text, faults):
    assert parse_faults(text) == faults


@pytest.mark.parametrize("text", ["sloow", "slow=-1", "http", "http=200", "http=429x", "garbagex2", "drop@", "DONE"])
def test_what_is_not_understood_is_refused(text):
    with pytest.raises(ValueError, match="fault"):
        parse_faults(text)
