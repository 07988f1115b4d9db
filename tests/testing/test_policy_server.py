"""The scripted policy over real HTTP: what it answers, where it stands, how it misbehaves."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time

import aiohttp
import openai
import pytest

from osworld_rollouts.testing import tokens
from osworld_rollouts.testing.policy_server import MODEL, PolicyServer
from osworld_rollouts.testing.scripts import code_script
from tests.testing.screens import INSTRUCTION, RED, chat_body, draw_screen

IMAGE_TOKENS = tokens.ImageSize(640, 480).tokens
BOTH, BLUE, NOTHING = draw_screen("red", "blue"), draw_screen("blue"), draw_screen()


@pytest.fixture
async def server(script):
    async with PolicyServer(scripts=[script]) as running:
        yield running


@pytest.fixture
async def session():
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(20)) as open_session:
        yield open_session


@pytest.fixture
def ask(server, session):
    async def post(*screens, turn=None, execution="c/t/0/x1", **fields) -> tuple[int, dict]:
        headers = {} if turn is None else {"X-Execution-Id": execution, "X-Turn": str(turn)}
        url = f"{server.base_url}/chat/completions"
        async with session.post(url, json=chat_body(*screens, **fields), headers=headers) as reply:
            return reply.status, await reply.json()

    return post


def text_of(reply: tuple[int, dict]) -> str:
    assert reply[0] == 200, reply[1]
    return reply[1]["choices"][0]["message"]["content"]


async def test_it_plays_the_script_and_clicks_what_it_sees(ask):
    assert text_of(await ask(BOTH, turn=0)) == f"I press it.\n```python\npyautogui.click({RED})\n```"
    second = text_of(await ask(BOTH, BOTH, turn=1))
    assert (
        "pyautogui.write('it\\'s \"hello\"\\n', interval=0.02)\ntime.sleep(0.5)\npyautogui.hotkey('ctrl', 's')"
        in second
    )
    compile(re.findall(r"```python\n(.*)```", second, re.DOTALL)[0], "reply", "exec")
    assert text_of(await ask(BOTH, BOTH, BOTH, turn=2)) == "That was it.\n```\nDONE\n```"
    assert "DONE" in text_of(await ask(BOTH, turn=3))


async def test_it_waits_for_what_it_does_not_see_and_then_takes_another_way(ask):
    for turn in (0, 1):
        assert text_of(await ask(NOTHING, turn=turn)) == "I do not see the red button yet, so I wait.\n```\nWAIT\n```"
    other = text_of(await ask(NOTHING, turn=2))
    assert "I cannot find the red button, so I take another way." in other
    assert "pyautogui.press('enter')" in other
    assert "WAIT" in text_of(await ask(NOTHING, turn=3))
    assert "hello" in text_of(await ask(NOTHING, turn=4))


async def test_after_waiting_in_vain_it_waits_once_at_most(script, session):
    steps = [step.model_copy(update={"patience": 3}) for step in script.steps[:2]]
    async with PolicyServer(scripts=[script.model_copy(update={"steps": (*steps, script.steps[2])})]) as server:
        said = []
        for turn in range(7):
            headers = {"X-Execution-Id": "c/t/0/x1", "X-Turn": str(turn)}
            body = chat_body(NOTHING)
            async with session.post(f"{server.base_url}/chat/completions", json=body, headers=headers) as reply:
                said.append(text_of((200, await reply.json())))
    waits = ["WAIT" in text for text in said]
    assert waits == [True, True, True, False, True, False, False]
    assert "DONE" in said[-1]


async def test_it_goes_on_as_soon_as_the_target_appears(ask):
    assert "WAIT" in text_of(await ask(NOTHING, turn=0))
    assert f"click({RED})" in text_of(await ask(BOTH, turn=1))


async def test_without_another_way_it_says_fail(script, session):
    step = script.steps[0].model_copy(update={"instead": (), "patience": 0})
    async with (
        PolicyServer(scripts=[script.model_copy(update={"steps": (step,)})]) as server,
        session.post(f"{server.base_url}/chat/completions", json=chat_body(NOTHING)) as reply,
    ):
        assert "I cannot find the red button, and know no other way.\n```\nFAIL" in text_of((200, await reply.json()))


async def test_the_same_turn_gives_the_same_answer(ask):
    await ask(BOTH, turn=0)
    first, again = await ask(BOTH, turn=1), await ask(BOTH, turn=1)
    assert text_of(first) == text_of(again)
    assert first[1]["id"] != again[1]["id"]
    assert "DONE" in text_of(await ask(BOTH, turn=2))


async def test_executions_do_not_share_their_place(ask):
    await ask(BOTH, turn=0, execution="c/t/0/x1")
    assert "hello" in text_of(await ask(BOTH, turn=1, execution="c/t/0/x1"))
    assert "click" in text_of(await ask(BOTH, turn=0, execution="c/t/0/x2"))


async def test_after_a_restart_turn_n_is_step_n(ask):
    assert "hello" in text_of(await ask(BOTH, turn=1, execution="c/t/7/x1"))
    assert "DONE" in text_of(await ask(BOTH, turn=9, execution="c/t/8/x1"))


async def test_without_headers_the_conversation_is_followed(ask):
    assert "click" in text_of(await ask(BOTH))
    assert "hello" in text_of(await ask(BOTH, BOTH))
    assert "DONE" in text_of(await ask(BOTH, BOTH))
    assert "click" in text_of(await ask(BOTH))
    assert "hello" in text_of(await ask(BOTH, BOTH))
    assert "click" in text_of(await ask(BOTH))


async def test_the_instruction_may_stand_in_the_system_message(server, session):
    body = chat_body(BOTH, instruction="?")
    body["messages"][0]["content"] += f"\nYou are asked to complete the following task: {INSTRUCTION}"
    async with session.post(f"{server.base_url}/chat/completions", json=body) as reply:
        assert "click" in text_of((reply.status, await reply.json()))


async def test_an_unknown_task_is_refused_by_name(ask):
    status, body = await ask(BOTH, instruction="Book a flight.")
    assert status == 400
    assert "knows no solution" in body["error"]["message"]
    assert INSTRUCTION[:20] in body["error"]["message"]


async def test_it_says_scripted_wherever_it_names_itself(ask, server, session):
    _, body = await ask(BOTH, turn=0)
    async with session.get(f"{server.base_url}/models") as reply:
        (card,) = (await reply.json())["data"]
    assert "scripted" in body["id"]
    assert "scripted" in body["model"]
    assert "scripted" in body["system_fingerprint"]
    assert "scripted" in card["owned_by"]
    assert "not a model" in card["owned_by"]
    async with session.get(f"{server.base_url.removesuffix('/v1')}/health") as reply:
        assert (reply.status, (await reply.json())["policy"]) == (200, "scripted")
    async with session.get(f"{server.base_url.removesuffix('/v1')}/stats") as reply:
        stats = await reply.json()
    assert (stats["policy"], stats["generations"]) == ("scripted", 1)
    assert stats["calls"][0]["execution_id"] == "c/t/0/x1"


async def test_exact_evidence_is_consistent(ask):
    _, body = await ask(BOTH, BLUE, turn=0, logprobs=True, top_logprobs=2, return_token_ids=True)
    (choice,) = body["choices"]
    entries = choice["logprobs"]["content"]
    assert tokens.decode(choice["token_ids"]) == choice["message"]["content"]
    assert choice["token_ids"][-1] == tokens.IM_END
    assert len(choice["token_ids"]) == len(entries) == body["usage"]["completion_tokens"]
    assert len(body["prompt_token_ids"]) == body["usage"]["prompt_tokens"]
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]
    assert body["prompt_token_ids"].count(tokens.IMAGE_PAD) == 2 * IMAGE_TOKENS
    assert all(entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 2 for entry in entries)
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)


async def test_fields_that_were_not_asked_for_are_null(ask):
    _, body = await ask(BOTH, turn=0)
    (choice,) = body["choices"]
    assert body["prompt_token_ids"] is choice["token_ids"] is choice["logprobs"] is None


async def test_the_fields_are_those_of_a_recorded_vllm_reply(ask, shared):
    recorded = json.loads((shared / "data/vllm_wire/01_chat_1img_evidence.json").read_text())["response"]
    _, body = await ask(BOTH, turn=0, logprobs=True, top_logprobs=0, return_token_ids=True)
    assert body.keys() == recorded.keys()
    assert body["usage"].keys() == recorded["usage"].keys()
    assert body["choices"][0].keys() == recorded["choices"][0].keys()
    assert body["choices"][0]["message"].keys() == recorded["choices"][0]["message"].keys()
    assert (
        body["choices"][0]["logprobs"]["content"][0].keys() == recorded["choices"][0]["logprobs"]["content"][0].keys()
    )


async def test_a_reply_longer_than_max_tokens_is_cut(ask):
    _, body = await ask(BOTH, turn=0, max_tokens=10, logprobs=True, return_token_ids=True)
    (choice,) = body["choices"]
    assert (choice["finish_reason"], len(choice["token_ids"]), choice["message"]["content"]) == (
        "length",
        10,
        "I press it",
    )
    assert tokens.IM_END not in choice["token_ids"]
    assert "click" in text_of(await ask(BOTH, turn=1)), "a cut reply does not advance the script"


async def test_the_openai_client_reads_it(server):
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        body = chat_body(BOTH)
        reply = await client.chat.completions.create(
            **body, logprobs=True, extra_body={"return_token_ids": True}, extra_headers={"X-Request-Id": "r1"}
        )
        assert reply.id == "chatcmpl-scripted-r1"
        assert reply.choices[0].finish_reason == "stop"
        assert reply.model_extra
        assert reply.model_extra["prompt_token_ids"]
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await client.chat.completions.create(**{**body, "model": "gpt-9"})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"messages": []}, "`messages`"),
        ({"messages": ["x"]}, "`role`"),
        ({"model": None}, "`model`"),
        ({"n": 3}, "one choice"),
        ({"stream": True}, "does not stream"),
        ({"top_logprobs": 3}, "`logprobs` must be set to true"),
        ({"logprobs": True, "top_logprobs": 21}, "between 0 and 20"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "'audio'"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}
                ]
            },
            "data URL",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
                    }
                ]
            },
            "load image",
        ),
    ],
)
async def test_malformed_requests_are_refused_in_vllms_form(server, session, change, says):
    async with session.post(f"{server.base_url}/chat/completions", json={**chat_body(BOTH), **change}) as reply:
        body = await reply.json()
    assert reply.status == 400
    assert says in body["error"]["message"]
    assert body["error"]["type"] == "BadRequestError"


async def test_a_body_that_is_not_json(server, session):
    async with session.post(
        f"{server.base_url}/chat/completions", data=b"{", headers={"Content-Type": "application/json"}
    ) as reply:
        assert reply.status == 400
        assert "not JSON" in (await reply.json())["error"]["message"]


async def test_http_errors_come_first_and_generate_nothing(ask, server):
    statuses = [(await ask(BOTH, turn=0, model=f"{MODEL}:http=429x2"))[0] for _ in range(3)]
    assert statuses == [429, 429, 200]
    (call,) = server.stats()["calls"]
    assert (call["requests"], call["generations"], call["statuses"]) == (3, 1, [429, 429, 200])


async def test_a_429_tells_when_to_come_back(server, session):
    async with session.post(
        f"{server.base_url}/chat/completions", json=chat_body(BOTH, model=f"{MODEL}:http=429")
    ) as reply:
        assert (reply.status, reply.headers["Retry-After"]) == (429, "1")
        assert (await reply.json())["error"]["code"] == 429


async def test_a_fault_of_one_turn_leaves_the_others_alone(ask):
    assert (await ask(BOTH, turn=0, model=f"{MODEL}:http=500@1"))[0] == 200
    assert (await ask(BOTH, turn=1, model=f"{MODEL}:http=500@1"))[0] == 500


async def test_slow(ask):
    begun = time.monotonic()
    await ask(BOTH, turn=0, model=f"{MODEL}:slow=0.5")
    assert time.monotonic() - begun >= 0.5


async def test_a_dropped_reply_was_generated_and_can_be_asked_for_again(ask, server):
    with pytest.raises(aiohttp.ClientError):
        await ask(BOTH, turn=0, model=f"{MODEL}:drop=x1")
    assert "click" in text_of(await ask(BOTH, turn=0, model=f"{MODEL}:drop=x1"))
    (call,) = server.stats()["calls"]
    assert (call["generations"], call["dropped"]) == (2, 1)
    assert server.stats()["generations"] == 2


@pytest.mark.parametrize(("fault", "content"), [("garbage", "nonsense"), ("empty", ""), ("truncated", "```python")])
async def test_useless_replies_do_not_advance_the_script(ask, fault, content):
    text = text_of(await ask(BOTH, turn=0, model=f"{MODEL}:{fault}=x1"))
    assert content in text
    assert not text.endswith("```")
    assert f"click({RED})" in text_of(await ask(BOTH, turn=0, model=f"{MODEL}:{fault}=x1"))


async def test_a_truncated_reply_says_length(ask):
    _, body = await ask(BOTH, turn=0, model=f"{MODEL}:truncated", return_token_ids=True)
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["choices"][0]["token_ids"][-1] != tokens.IM_END


@pytest.mark.parametrize(
    ("fault", "says"), [("done", "```\nDONE\n```"), ("fail", "```\nFAIL\n```"), ("loop", "click(960, 540)")]
)
async def test_it_can_stop_at_once_or_never(ask, fault, says):
    for turn in range(3):
        assert says in text_of(await ask(BOTH, turn=turn, model=f"{MODEL}:{fault}"))


async def test_overflow_is_vllms_refusal_and_depends_on_the_images(ask, server):
    status, body = await ask(BOTH, BOTH, BOTH, turn=0, model=f"{MODEL}:overflow=2")
    assert status == 400
    assert "maximum context length" in body["error"]["message"]
    assert body["error"]["param"] == "input_tokens"
    assert server.stats()["generations"] == 0
    assert (await ask(BOTH, BOTH, turn=0, model=f"{MODEL}:overflow=2"))[0] == 200
    assert (await ask(BOTH, turn=1, model=f"{MODEL}:overflow"))[0] == 400


async def test_an_unknown_fault_is_an_unknown_model(ask):
    status, body = await ask(BOTH, model=f"{MODEL}:explode")
    assert status == 404
    assert "unknown fault 'explode'" in body["error"]["message"]


async def test_a_wrong_key(script, session):
    async with PolicyServer(scripts=[script], api_key="right") as server:
        url = f"{server.base_url}/chat/completions"
        for key, status in (("wrong", 401), ("right", 200)):
            async with session.post(url, json=chat_body(BOTH), headers={"Authorization": f"Bearer {key}"}) as reply:
                assert reply.status == status
        async with session.get(f"{server.base_url}/models") as reply:
            assert reply.status == 401


async def test_many_at_once(ask):
    replies = await asyncio.gather(*(ask(BOTH, turn=0, execution=f"c/t/{number}/x1") for number in range(8)))
    assert all(f"click({RED})" in text_of(reply) for reply in replies)


async def test_solutions_that_are_code(session):
    scripts = [code_script("Touch a file.", "open('/tmp/x', 'w')"), code_script("Fly.", "FAIL")]
    async with PolicyServer(scripts=scripts) as server:
        url = f"{server.base_url}/chat/completions"
        async with session.post(url, json=chat_body(BOTH, instruction="Touch a file.")) as reply:
            assert "open('/tmp/x', 'w')" in text_of((200, await reply.json()))
        async with session.post(url, json=chat_body(BOTH, instruction="Fly.")) as reply:
            assert "FAIL" in text_of((200, await reply.json()))


async def test_a_client_that_hangs_up_is_counted_but_nothing_is_generated(server, session):
    body = chat_body(BOTH, model=f"{MODEL}:slow=5")
    with pytest.raises(TimeoutError):
        await session.post(f"{server.base_url}/chat/completions", json=body, timeout=aiohttp.ClientTimeout(0.3))
    await asyncio.sleep(0.2)
    assert server.stats()["generations"] == 0
    assert server.stats()["requests"] == 1


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "osworld_rollouts.testing.policy_server", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_its_url_and_ends_when_told(number):
    command = [sys.executable, "-m", "osworld_rollouts.testing.policy_server", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1\n", process.stdout.readline())
        os.kill(process.pid, number)
        assert process.wait(20) == 0
        assert process.stderr
        assert "not a model" in process.stderr.read()


def test_a_port_in_use_is_one_clear_line():
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("--port", str(port))
    assert done.returncode == 2
    assert "choose another --port" in done.stderr
    assert "Traceback" not in done.stderr


def test_bad_arguments_are_one_clear_line(tmp_path):
    broken = tmp_path / "x.json"
    broken.write_text('{"steps": []}')
    for arguments, says in (
        (["--faults", "explode"], "unknown fault"),
        (["--script", str(broken)], "x.json"),
        (["--script", "/nowhere"], "/nowhere"),
    ):
        done = run(*arguments)
        assert done.returncode == 2
        assert says in done.stderr
        assert "Traceback" not in done.stderr
