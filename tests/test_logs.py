"""Logs: one JSON object a line, correlated, without secrets; console lines for people."""

from __future__ import annotations

import asyncio
import io
import json
import logging

import pytest
import structlog

from osworld_rollouts.logs import REDACTED, configure_logging, correlated, redacted
from osworld_rollouts.settings import load_settings


@pytest.fixture
def lines():
    """Configure JSON logging into a buffer; returns a function that gives the parsed lines."""
    stream = io.StringIO()
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    configure_logging(load_settings(log={"format": "json"}), stream=stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers, root.level = before
    structlog.reset_defaults()


def test_ids_are_on_every_line_inside_also_of_other_libraries(lines):
    log = structlog.get_logger("ours")
    with correlated(rollout_id="demo/a/0", turn=3, attempt=None):
        log.info("acting", action="click")
        logging.getLogger("theirs").warning("slow %s", "disk")
    log.info("outside")
    ours, theirs, outside = lines()
    assert (ours["event"], ours["rollout_id"], ours["turn"], ours["level"]) == ("acting", "demo/a/0", 3, "info")
    assert (theirs["event"], theirs["rollout_id"], theirs["logger"]) == ("slow disk", "demo/a/0", "theirs")
    assert "rollout_id" not in outside
    assert "attempt" not in ours


async def test_ids_do_not_leak_between_tasks(lines):
    log = structlog.get_logger()

    async def one(name: str) -> None:
        with correlated(rollout_id=name):
            await asyncio.sleep(0)
            log.info("here", name=name)

    await asyncio.gather(*(one(f"r{number}") for number in range(20)))
    assert all(line["rollout_id"] == line["name"] for line in lines())


def test_an_unknown_id_is_refused():
    with pytest.raises(ValueError, match="rolloutid"):
        correlated(rolloutid="x")


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abcdef0123456789",
        "key sk-proj-abcdefghijklmnop",
        "api_key=abcd1234efgh",
        '{"token": "abcd1234efgh"}',
        "https://user:hunter22@host/path",
        "http://host/x?access_token=abcd1234&y=1",
        "hf_abcdefghijklmnopqrstuvwx",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcdefghijk",
        "OPENAI_API_KEY=abcd1234efgh",
    ],
)
def test_text_that_looks_like_a_key_is_redacted(text):
    clean = redacted(text)
    assert REDACTED in clean
    for secret in ("abcdef0123456789", "abcdefghijkl", "abcd1234", "hunter22"):
        assert secret not in clean


@pytest.mark.parametrize(
    "text",
    ["turn 12: click(640, 380)", "prompt_tokens: 1200", "a token of thanks", "sha256 " + "a" * 64, "task-1 done"],
)
def test_ordinary_text_stays(text):
    assert redacted(text) == text


def test_values_under_secret_names_are_redacted_at_any_depth():
    clean = redacted(
        {
            "headers": {"Authorization": "x", "Accept": "y"},
            "items": [{"password": "p"}],
            "prompt_tokens": 5,
            "max_tokens": 9,
        }
    )
    assert clean == {
        "headers": {"Authorization": REDACTED, "Accept": "y"},
        "items": [{"password": REDACTED}],
        "prompt_tokens": 5,
        "max_tokens": 9,
    }


def test_a_traceback_is_redacted_too(lines):
    def call():
        raise ValueError("refused: Bearer abcdef0123456789")

    try:
        call()
    except ValueError:
        structlog.get_logger().exception("call failed")
    (line,) = lines()
    assert "ValueError" in line["exception"]
    assert "abcdef0123456789" not in json.dumps(line)


def test_bytes_are_not_dumped(lines):
    structlog.get_logger().info("screenshot", data=b"\x89PNG" * 1000)
    assert lines()[0]["data"] == "<4000 bytes>"
