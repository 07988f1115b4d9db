"""`python -c CODE` in the fork server gives what a cold interpreter gives, faster, and leaves nothing for the next."""

from __future__ import annotations

import asyncio
import time

import pytest

from osworld_rollouts.desktops.guest_client import GuestRefused, Operation

pytestmark = pytest.mark.desktop

PROGRAMS = {
    "nothing": "",
    "output": "print('a'); import sys; print('b', file=sys.stderr)",
    "no newline": "print('a', end='')",
    "buffered write": "import sys; sys.stdout.write('x' * 70000)",
    "unicode": "print('naïve 文 🙂')",
    "exit none": "import sys; sys.exit()",
    "exit 3": "import sys; sys.exit(3)",
    "exit 256": "import sys; sys.exit(256)",
    "exit -1": "raise SystemExit(-1)",
    "exit text": "import sys; sys.exit('gone wrong')",
    "exit tuple": "raise SystemExit((1, 2))",
    "exception": "def f():\n    raise ValueError('no')\nf()",
    "chained": "try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e",
    "syntax": "x = (\nprint(1)",
    "indentation": "if True:\nprint(1)",
    "one line for": "import pyautogui; for i in range(3): print(i)",
    "after the output": "print('first'); raise RuntimeError('then')",
    "main": "import __main__, sys; print(__name__, __main__ is sys.modules['__main__'], sorted(k for k in globals()))",
    "argv": "import sys; print(sys.argv, sys.path[0] == '', sys.flags.interactive)",
    "stdin": "import sys; print(repr(sys.stdin.read()), sys.stdout.isatty())",
    "input": "input()",
    "open file is written": "f = open('/tmp/left-open', 'w'); f.write('kept')",
    "atexit": "import atexit; atexit.register(print, 'bye'); print('hi')",
    "thread is waited for": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.2), print('late'))).start(); print('now')",
    "del runs": "class A:\n    def __del__(self): print('del')\na = A()",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "interrupt": "raise KeyboardInterrupt",
    "subprocess": "import subprocess; print(subprocess.run(['echo', 'x'], capture_output=True, text=True).stdout)",
    "child": "import os\npid = os.fork()\nif pid == 0:\n    print('child', flush=True); os._exit(0)\nos.waitpid(pid, 0); print('parent')",
    "os exit": "import os; os._exit(7)",
    "cwd": "import os; print(os.getcwd(), os.environ['DISPLAY'])",
    "future": "from __future__ import annotations\ndef f(x: nothing): pass\nprint(f.__annotations__)",
    "recursion": "def f(): f()\ntry:\n    f()\nexcept RecursionError: print('deep')",
    "dataclass pickles": "import pickle, dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int\nprint(pickle.loads(pickle.dumps(P(3))))",
    "multiprocessing": "import multiprocessing as m\nwith m.Pool(2) as p: print(p.map(abs, [-1, -2]))",
    "asyncio": "import asyncio\nasync def f(): await asyncio.sleep(0); return 5\nprint(asyncio.run(f()))",
    "closed stdout": "import sys; sys.stdout.close(); sys.exit(4)",
    "warning": "import warnings; warnings.warn('careful')",
}


@pytest.mark.parametrize("name", PROGRAMS)
async def test_same_as_a_cold_interpreter(guest, name):
    code = PROGRAMS[name]
    # The words `-B -c` are not the fork server's form, so this one is a process of its own.
    cold = await guest.execute(["python3", "-B", "-c", code])
    for command in ("python", "python3"):
        forked = await guest.execute([command, "-c", code])
        assert (forked.output, forked.error, forked.returncode) == (cold.output, cold.error, cold.returncode)


async def test_extra_words_are_arguments(guest):
    result = await guest.execute(["python", "-c", "import sys; print(sys.argv)", "a", "b c"])
    assert result.output == "['-c', 'a', 'b c']\n"


async def test_state_does_not_leak(guest):
    await guest.execute(
        [
            "python",
            "-c",
            "import os, pyautogui, builtins; os.environ['LEAK'] = '1'; pyautogui.PAUSE = 9; builtins.leak = 1; leaked = 2; os.chdir('/')",
        ]
    )
    result = await guest.execute(
        [
            "python",
            "-c",
            "import os, pyautogui, builtins; print(os.environ.get('LEAK'), pyautogui.PAUSE, hasattr(builtins, 'leak'), 'leaked' in globals(), os.getcwd())",
        ]
    )
    assert result.output.startswith("None 0.1 False False ")
    assert not result.output.endswith(" /\n")


async def test_random_numbers_differ(guest):
    code = ["python", "-c", "import random, uuid, tempfile; print(random.random(), uuid.uuid4(), tempfile.mktemp())"]
    first, second = [(await guest.execute(code)).output.split() for _ in range(2)]
    assert not set(first) & set(second)


async def test_a_click_costs_less_than_an_interpreter(guest):
    async def click(*words):
        started = time.perf_counter()
        done = await guest.execute([*words, "import pyautogui; pyautogui.click(600, 400)"])
        assert done.returncode == 0, done.error
        return time.perf_counter() - started - 0.1

    forked = [await click("python", "-c") for _ in range(8)]
    cold = [await click("python3", "-B", "-c") for _ in range(4)]
    assert sorted(forked)[4] < min(cold) / 2


async def test_timeout_kills_the_group(guest, desktop):
    last = (await guest.health())["last_seq"]
    operation = Operation(f"late/{time.time()}", last + 1, 1, timeout=1)
    code = "import subprocess; print('before', flush=True); subprocess.run(['sleep', '4711'])"
    with pytest.raises(GuestRefused) as late:
        await guest.execute(["python", "-c", code], operation=operation)
    assert (late.value.status, late.value.kind) == (500, "command_timeout")
    assert late.value.detail["output"] == "before\n"
    assert (await guest.execute(["pgrep", "-f", "sleep 4711"])).returncode == 1


async def test_a_daemon_is_not_waited_for(guest):
    started = time.perf_counter()
    done = await guest.execute(
        ["python", "-c", "import subprocess; p = subprocess.Popen(['sleep', '30']); print(p.pid)"]
    )
    assert time.perf_counter() - started < 3
    await guest.execute(["kill", done.output.strip()])


async def test_many_at_once(guest):
    results = await asyncio.gather(
        *(guest.execute(["python", "-c", f"import time; time.sleep(.1); print({i})"]) for i in range(12))
    )
    assert [result.output for result in results] == [f"{i}\n" for i in range(12)]


async def test_a_dead_zygote_is_started_again(guest):
    assert (await guest.execute(["pkill", "-9", "-f", "guest zygote"])).returncode == 0
    result = await guest.execute(["python", "-c", "import pyautogui; print(pyautogui.size())"])
    assert result.returncode == 0, result.error


async def test_the_zygote_dying_meanwhile_is_not_a_result(guest):
    last = (await guest.health())["last_seq"]
    operation = Operation(f"dies/{time.time()}", last + 1, 1)
    code = "import os, time; open('/tmp/began', 'w'); os.kill(os.getppid(), 9); time.sleep(1)"
    with pytest.raises(GuestRefused) as died:
        await guest.execute(["python", "-c", code], operation=operation)
    assert died.value.kind == "operation_interrupted"
    status = await guest.operation(operation.operation_id)
    assert status is not None
    assert status.state == "interrupted"
    with pytest.raises(GuestRefused) as again:
        await guest.execute(["python", "-c", code], operation=operation)
    assert (again.value.status, again.value.kind) == (409, "operation_interrupted")
