"""OSWorld's `pyautogui` action space: a reflection, then Python in a code block, or one of WAIT, FAIL, DONE.

Format and prompt text: xlang-ai/OSWorld, `mm_agents/prompts.py` (SYS_PROMPT_IN_*_OUT_CODE, SYS_PROMPT_IN_SOM_OUT_TAG) and
`mm_agents/agent.py` (`PromptAgent`, `parse_code_from_string`), Apache-2.0. With `form="gym"` turns are shown as NeMo Gym's
OSWorld agent shows them: earlier screenshots only, never the model's own words.

Coordinates are screen pixels, written into the code by the model; the code runs as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from osworld_rollouts.adapters import _osworld
from osworld_rollouts.adapters._chat import Chat, merged
from osworld_rollouts.adapters._contract import BaseAdapter, FailureKind, Marks
from osworld_rollouts.adapters._failures import no_action
from osworld_rollouts.adapters._fences import Fence, find_fences, is_python
from osworld_rollouts.adapters._parts import Ledger, unfinished_thinking, without_thinking
from osworld_rollouts.adapters._python_code import off_screen, project_points
from osworld_rollouts.contracts.action import Action, Done, Fail, PythonCode, Wait
from osworld_rollouts.contracts.model import (
    ImageGeometry,
    ModelRequest,
    ObservationNeeds,
    ParsedReply,
    PromptInput,
    Reply,
)
from osworld_rollouts.contracts.steps import ParseFailure

if TYPE_CHECKING:
    from osworld_rollouts.contracts.request import History, Sampling

SYSTEM = """\
You are an agent which follow my instruction and perform desktop computer tasks as instructed.
You have good knowledge of computer and good internet connection and assume your code will run on a computer for controlling the mouse and keyboard.
{observation}

You are required to use `pyautogui` to perform the action grounded to the observation, but DONOT use the `pyautogui.locateCenterOnScreen` function to locate the element you want to operate with since we have no image of the element you want to operate with. DONOT USE `pyautogui.screenshot()` to make screenshot.
{tags}Return one line or multiple lines of python code to perform the action each time, be time efficient. When predicting multiple lines of code, make some small sleep like `time.sleep(0.5);` interval so that the machine could take; Each time you need to predict a complete code, no variables or function can be shared from history
You need to to specify the coordinates of by yourself based on your observation of current observation, but you should be careful to ensure that the coordinates are correct.
You ONLY need to return the code inside a code block, like this:
```python
# your code here
```
Specially, it is also allowed to return the following special code:
When you think you have to wait for some time, return ```WAIT```;
When you think the task can not be done, return ```FAIL```, don't easily say ```FAIL```, try your best to do the task;
When you think the task is done, return ```DONE```.

My computer's password is '{password}', feel free to use it when you need sudo rights.
First give the current screenshot and previous things we did a short reflection, then RETURN ME THE CODE OR SPECIAL CODE I ASKED FOR. NEVER EVER RETURN ME ANYTHING ELSE."""

TAGS = """\
You can replace x, y in the code with the tag of the element you want to operate with. such as:
```python
pyautogui.moveTo(tag_3)
pyautogui.click(tag_2)
pyautogui.dragTo(tag_1, button='left')
```
When you think you can directly output precise x and y coordinates or there is no tag on which you want to interact, you can also use them directly. 
But you should be careful to ensure that the coordinates are correct.
"""  # noqa: W291 - as published

GYM_TURN = (
    "Task: {instruction}\nGiven the screenshot below, what's the next step you will take to help complete the task?"
)
GYM_PREVIOUS = "Previous screenshot:"
GYM_TREE = "Accessibility tree:\n{tree}"

_SPECIAL: dict[str, Action] = {"WAIT": Wait(), "DONE": Done(), "FAIL": Fail()}
_WORDS = frozenset(_SPECIAL)


class PyautoguiOptions(_osworld.OSWorldOptions):
    """Options of `pyautogui`."""

    form: Literal["osworld", "gym"] = "osworld"
    """How earlier turns are shown: with the model's replies (OSWorld), or as screenshots only (NeMo Gym)."""
    token_in: bool = False
    """With exact evidence: send token ids to vLLM's token endpoint, so that each call extends the one before it without drift."""


class PyautoguiAdapter(BaseAdapter[PyautoguiOptions]):
    """OSWorld's code-block protocol."""

    name: ClassVar[str] = "pyautogui"
    version: ClassVar[str] = "1"
    options_type = PyautoguiOptions

    def needs(self) -> ObservationNeeds:
        """What the chosen observation variant shows."""
        return _osworld.needs(self.options.observation)

    def sampling_defaults(self) -> Sampling:
        """OSWorld's."""
        return _osworld.SAMPLING

    def history_default(self) -> History:
        """OSWorld's: three earlier turns and the current one."""
        return _osworld.HISTORY

    def prompts(self) -> dict[str, str]:
        """System prompt of the variant and the texts around each observation."""
        if self.options.form == "gym":
            return {"system": self._system(), "turn": GYM_TURN, "previous": GYM_PREVIOUS, "tree": GYM_TREE}
        return {"system": self._system() + _osworld.TASK, **_osworld.prompts(self.options)}

    def actions(self) -> tuple[str, ...]:
        """Python with pyautogui, and three words."""
        return ("Python code using pyautogui and time", "WAIT", "DONE", "FAIL")

    def render(self, prompt: PromptInput, model_name: str, sampling: Sampling) -> ModelRequest:
        """System message, the kept turns, the current observation."""
        system = self._system().replace("{password}", prompt.password)
        chat = (
            self._gym(prompt, system)
            if self.options.form == "gym"
            else _osworld.conversation(prompt, system, self.options)
        )
        return chat.request(model_name, merged(self.sampling_defaults(), sampling))

    def parse(self, reply: Reply, geometry: ImageGeometry, marks: Marks = ()) -> ParsedReply:
        """Each code block is an action; a block's last line may be WAIT, DONE or FAIL; a bare word counts as a block."""
        ledger = Ledger(reply.text)
        text = without_thinking(ledger)
        actions: list[Action] = []
        if text.strip() in _SPECIAL:
            start = text.index(text.strip())
            actions.append(_SPECIAL[text.strip()])
            ledger.took(start, start + len(text.strip()), 0)
            return self.checked(ParsedReply(actions=tuple(actions), parts=ledger.parts()))
        cut = bool(reply.truncated)
        fences = find_fences(text, is_python, _WORDS)
        usable = () if cut and unfinished_thinking(text) else fences.closed
        for fence in usable:
            actions.extend(_block(text, fence, ledger, len(actions)))
        tags = _tag_lines(marks) if self.options.observation == "som" else ""
        notes = ["cut by the token limit after the last complete block"] if cut and actions else []
        for code in (it.code for it in actions if isinstance(it, PythonCode)):
            _, points = project_points(code, lambda x, y: (round(x), round(y)))
            notes += off_screen(points, geometry)
        actions = [PythonCode(code=tags + it.code) if isinstance(it, PythonCode) else it for it in actions]
        failure = None if actions else _failure(reply, text, fences.open_at)
        thought = text[: usable[0].start].strip() if usable else text.strip()
        return self.checked(
            ParsedReply(
                actions=tuple(actions), failure=failure, parts=ledger.parts(), notes=tuple(notes), thought=thought
            )
        )

    def _system(self) -> str:
        variant = self.options.observation
        return SYSTEM.replace("{observation}", _osworld.OBSERVATION[variant]).replace(
            "{tags}", TAGS if variant == "som" else ""
        )

    def _gym(self, prompt: PromptInput, system: str) -> Chat:
        chat = Chat(detail="high")
        chat.say("system", system)
        turns = [(past.view, GYM_PREVIOUS) for past in prompt.past if past.live]
        for view, text in [*turns, (prompt.current, GYM_TURN.replace("{instruction}", prompt.instruction))]:
            tree = GYM_TREE.replace("{tree}", view.accessibility_tree) if view.accessibility_tree else None
            chat.say("user", text, view.image if self.needs().screenshot else None, tree)
        return chat


def _block(text: str, fence: Fence, ledger: Ledger, first: int) -> list[Action]:
    """The actions of one block: its code, and the special word it ends with."""
    body = text[fence.body_start : fence.body_end]
    code = body.strip()
    if not code:
        ledger.dropped(fence.start, fence.end, "empty code block")
        return []
    *lines, last = code.split("\n")
    if last.strip() not in _SPECIAL:
        ledger.took(fence.start, fence.end, first)
        return [PythonCode(code=code)]
    if not "".join(lines).strip():
        ledger.took(fence.start, fence.end, first)
        return [_SPECIAL[last.strip()]]
    word_at = fence.body_start + body.rindex(last)
    ledger.took(fence.start, word_at, first)
    ledger.took(word_at, fence.end, first + 1)
    return [PythonCode(code="\n".join(lines).rstrip()), _SPECIAL[last.strip()]]


def _tag_lines(marks: Marks) -> str:
    """`tag_n` for the centre of mark n, as OSWorld puts them before the model's code."""
    return "".join(f"tag_{number} = ({x + w // 2}, {y + h // 2})\n" for number, (x, y, w, h) in enumerate(marks, 1))


def _failure(reply: Reply, text: str, open_at: int | None) -> ParseFailure:
    if open_at is not None and not reply.truncated:
        return ParseFailure(kind=FailureKind.UNPARSEABLE, message="a code block starts with ``` and never ends")
    return no_action(reply, text, "there is no code block and no WAIT, DONE or FAIL in the reply")
