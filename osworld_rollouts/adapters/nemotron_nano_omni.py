"""Nemotron Nano Omni v3 on OSWorld: a thought, `## Action:` in words, `## Code:` with pyautogui code or one of two functions.

Format and prompt text: NVIDIA-NeMo/Gym, `responses_api_agents/osworld_agent` (protocol `nano-omni-v3-osworld-v1`),
Apache-2.0, down to the misspelt password sentence that the published checkpoint was measured with. Rendered prompts are byte
for byte those of the published scores (golden digests in the tests).

History shows thought and action of earlier turns, never their code. Coordinates are fractions of the screen (`relative`),
thousandths (`qwen25`) or pixels (`absolute`); with `relative`, a pair with a value above 1 counts as pixels. Literal points are
projected wherever pyautogui takes one, also in `scroll` and in tuples; code outside the screen stays as written and is noted.
"""

from __future__ import annotations

import ast
import json
import re
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, cast

from osworld_rollouts.adapters._chat import Chat, fill, merged
from osworld_rollouts.adapters._contract import BaseAdapter, FailureKind, Marks, Options
from osworld_rollouts.adapters._failures import no_action
from osworld_rollouts.adapters._fences import Fence, find_fences, is_python, python_error
from osworld_rollouts.adapters._parts import Ledger, without_thinking
from osworld_rollouts.adapters._python_code import Call, off_screen, project_points, repair_line_breaks, split_calls
from osworld_rollouts.adapters._reading import Rejected, read_json
from osworld_rollouts.contracts.action import Action, Done, Fail, PythonCode, Wait
from osworld_rollouts.contracts.model import ParsedPart, ParsedReply
from osworld_rollouts.contracts.request import History, ParsePolicy, Sampling
from osworld_rollouts.contracts.steps import ParseFailure

if TYPE_CHECKING:
    from osworld_rollouts.contracts.model import ImageGeometry, ModelRequest, PastTurn, PromptInput, Reply

SYSTEM = """\
You are a GUI agent. You are given an instruction, a screenshot of the screen and your previous interactions with the computer. You need to perform a series of actions to complete the task. The passoword of the computer is {password}.

For each step, provide your response in this format:
{thought_section}
## Action:
{action}
## Code:
{code}

In the code section, the code should be either pyautogui code or one of the following functions wrapped in the code block:
- {"name": "computer.wait", "description": "Make the computer wait for 20 seconds for installation, running code, etc.", "parameters": {"type": "object", "properties": {}, "required": []}}
- {"name": "computer.terminate", "description": "Terminate the current task and report its completion status", "parameters": {"type": "object", "properties": {"status": {"type": "string", "enum": ["success", "failure"], "description": "The status of the task"}, "answer": {"type": "string", "description": "The answer of the task"}}, "required": ["status"]}}"""
THOUGHT_SECTION = {True: "{thought}", False: "## Thought\n{thought}"}
INSTRUCTION = "# Task Instruction:\n{instruction}\n\nPlease generate the next move according to the screenshot, task instruction and previous steps (if provided).\n"
HISTORY_HEADING = "# Previous History Actions:\n"
TEXT_STEP = "# Step {step}:\n## Thought:\n{thought}\n\n## Action:\n{action}\n"
STEP = "You are currently on Step {step}.\n"
ASSISTANT = {
    True: "<think>\n{thought}\n</think>\n## Action:\n{action}\n",
    False: "## Thought:\n{thought}\n\n## Action:\n{action}\n",
}
FEEDBACK = """\
Your previous response could not be executed because its Code section was invalid:
{error}

Return a corrected response for the same screenshot and task. Keep the required
## Action / ## Code format, emit syntactically valid Python, and do not repeat
the invalid code. Do not claim success merely because parsing failed."""
EMPTY_REPLY = "<empty model response>"
CHECKLIST = """\
Before returning computer.terminate with status=success, re-read the exact task instruction and verify the current state:
- the exact target app, page, slide, sheet, column, file, and setting scope are correct;
- every negative constraint (for example, "do not" or "without") is satisfied;
- any requested output file visibly exists and is non-empty.
If any item is not verified, take one corrective or verification action instead of terminating."""
REPEATED = (
    "Recovery check: the same executable action appeared {times} times in the last {window} steps. Re-read the screenshot and "
    "task. Do not repeat the same strategy unless the visible state is progressing; choose a different verifiable action or "
    "terminate with failure if the task is genuinely impossible."
)
ERROR = "The code of the previous step ended with an error (exit code {code}):\n{error}\n"
ACTION_INFERRED = "Execute the provided code."

_TAGS = frozenset({"", "code", "python", "py", "json", "none"})
_SPECIAL: dict[str, Action] = {"DONE": Done(), "FAIL": Fail()}
_TRIVIAL = frozenset({
    "pyautogui.sleep(0.5)", "pyautogui.keydown('return')pyautogui.keyup('return')",
    'pyautogui.keydown("return")pyautogui.keyup("return")',
})  # fmt: skip
_TOOL_CALL = re.compile(r"</?tool_call>()")
_NEXT_HEADING = re.compile(r"^[ \t]*##(?:[ \t]+|$)", re.MULTILINE)
_THOUGHT = re.compile(r"\A\s*(?:<think(?:ing)?>)?(.*?)</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_LITERAL_TAG = re.compile(r"\A[ \t]*(?:code|python|py|json)(?:\\r)?\\n", re.IGNORECASE)
_LITERAL_BREAK = re.compile(r"(?:\\r)?\\n")
_LOOSE_CALL = re.compile(r"\s*(?:\w+\s*=\s*)?computer\.(wait|terminate)\b", re.IGNORECASE)
_LOOSE_STATUS = re.compile(r"""["']?status["']?\s*[:=]\s*["'](\w+)["']""", re.IGNORECASE)


class NemotronOptions(Options):
    """Options of `nemotron_nano_omni`."""

    thinking: bool = True
    """Whether the model thinks before it answers, in `<think>` or in the server's reasoning field."""
    coordinates: Literal["relative", "qwen25", "absolute"] = "relative"
    """Fractions of the screen, thousandths, or pixels."""
    wait_s: float = 20
    """What `computer.wait` means; the prompt promises 20 seconds."""
    pre_done_checklist: bool = False
    """Remind the model what to verify before it reports success."""
    repeat_threshold: int = 0
    """Warn when the last action was seen this many times among the last `repeat_window` ones; below 2: never."""
    repeat_window: int = 12


class NemotronNanoOmniAdapter(BaseAdapter[NemotronOptions]):
    """NVIDIA's Nano Omni v3 contract for OSWorld."""

    name: ClassVar[str] = "nemotron_nano_omni"
    version: ClassVar[str] = "1"
    options_type = NemotronOptions

    def sampling_defaults(self) -> Sampling:
        """NeMo Gym's."""
        return Sampling(max_tokens=16384, temperature=1.0, top_p=0.95)

    def history_default(self) -> History:
        """NeMo Gym's evaluation policy: three screenshots, older turns as text."""
        return History(name="fixed", params={"keep_images": 3})

    def parse_policy_default(self) -> ParsePolicy:
        """NeMo Gym's: five samples of the same prompt, the later ones not colder than 0.2, then the rollout stops."""
        return ParsePolicy(on_failure="resample", resamples=4, resample_temperature_min=0.2, max_failed_turns=1)

    def prompts(self) -> dict[str, str]:
        """Every text of the contract."""
        thinking = self.options.thinking
        return {
            "system": SYSTEM.replace("{thought_section}", THOUGHT_SECTION[thinking]),
            "instruction": INSTRUCTION,
            "history": HISTORY_HEADING + TEXT_STEP,
            "step": STEP,
            "assistant": ASSISTANT[thinking],
            "feedback": FEEDBACK + EMPTY_REPLY,
            "checklist": CHECKLIST,
            "repeated": REPEATED,
            "error": ERROR,
        }

    def actions(self) -> tuple[str, ...]:
        """Python with pyautogui, and two functions."""
        return ("Python code using pyautogui", "computer.wait", "computer.terminate(status=success|failure, answer)")

    def render(self, prompt: PromptInput, model_name: str, sampling: Sampling) -> ModelRequest:
        """Turns with a screenshot are messages; a run of turns without one is text before the next screenshot."""
        chat = Chat()
        chat.say_text("system", self.prompts()["system"].replace("{password}", prompt.password))
        instruction = INSTRUCTION.replace("{instruction}", prompt.instruction)
        folded: list[PastTurn] = []
        before: PastTurn | None = None
        for past in prompt.past:
            if past.live:
                text = instruction + self._history(folded) + self._error(before) + fill(STEP, step=past.turn + 1)
                chat.say("user", past.view.image, text)
                chat.say_text("assistant", self._said(past, ASSISTANT[self.options.thinking]))
                folded = []
            else:
                folded.append(past)
            before = past
        text = instruction + self._history(folded) + self._error(before) + fill(STEP, step=prompt.turn + 1)
        guidance = "\n\n".join(self._guidance(prompt.past))
        chat.say("user", prompt.current.image, text + (f"\n{guidance}\n" if guidance else ""))
        for rejected in prompt.rejected:
            error = rejected.failure.message if rejected.failure else ""
            chat.say_text("assistant", rejected.text[-8000:] or EMPTY_REPLY)
            chat.say_text("user", fill(FEEDBACK, error=error[-2000:]))
        return chat.request(model_name, merged(self.sampling_defaults(), sampling))

    def parse(self, reply: Reply, geometry: ImageGeometry, marks: Marks = ()) -> ParsedReply:  # noqa: ARG002
        """The last block of the Code section, or the section itself where it has none."""
        if (text := _unwrapped(reply.text)) is not None:
            return _of_whole(self.parse(reply.model_copy(update={"text": text}), geometry), reply)
        ledger = Ledger(reply.text)
        said = self._sections(reply.text, reply.reasoning, ledger)
        native, code = (None, said.code) if said.code else _native_call(reply)
        failure = _unfinished(reply) or (None if code else said.missing)
        read = failure or self._read(code or "", geometry)
        thought, action = said.thought, said.action
        if isinstance(read, ParseFailure):
            return self.checked(
                ParsedReply(failure=read, parts=ledger.parts(), action_text=action or None, thought=thought)
            )
        if said.span:
            ledger.took(*said.span, 0)
        parts = ledger.parts() if native is None else (*ledger.parts(), native)
        notes = read.notes if action else (*read.notes, "action_inferred")
        return self.checked(
            ParsedReply(
                actions=read.actions, parts=parts, notes=notes, action_text=action or ACTION_INFERRED, thought=thought
            )
        )

    def _sections(self, text: str, reasoning: str | None, ledger: Ledger) -> _Said:
        """The reply's sections. The checkpoint can write line breaks as two characters outside code blocks."""
        visible = "```".join(
            _LITERAL_BREAK.sub(lambda found: "\n".rjust(len(found[0])), segment) if index % 2 == 0 else segment
            for index, segment in enumerate(without_thinking(ledger).split("```"))
        )
        action = _section(visible, "Action")
        own = _section(visible, "Thought")
        tagged = _THOUGHT.match(text)
        thought = (reasoning or (tagged[1] if tagged else "")) if self.options.thinking else (own.text if own else "")
        code, span, missing = _code(text, visible, ledger)
        return _Said(thought.strip(), action.text if action else "", code, span, missing)

    def _read(self, code: str, geometry: ImageGeometry) -> _Read | ParseFailure:
        """The actions of a Code section's content."""
        if code in _SPECIAL or code == "WAIT":
            return _Read((_SPECIAL.get(code) or self._wait(),), ())
        if (call := _json_call(code)) is not None:
            action = self._function(call)
            return _Read((action,), ()) if not isinstance(action, ParseFailure) else action
        error = python_error(code)
        if error is not None:
            loose = _LOOSE_CALL.match(code)
            status = _LOOSE_STATUS.search(code)
            if loose is None:
                return ParseFailure(kind=FailureKind.UNPARSEABLE, message=f"Invalid Python action: {error}")
            action = self._function(Call(loose[1].lower(), (), {"status": status[1]} if status else {}))
            return _Read((action,), ()) if not isinstance(action, ParseFailure) else action
        actions: list[Action] = []
        notes: list[str] = []
        for piece in split_calls(code, "computer"):
            action = self._function(piece) if isinstance(piece, Call) else self._python(piece, geometry, notes)
            if isinstance(action, ParseFailure):
                return action
            actions.append(action)
        if not actions:
            return ParseFailure(kind=FailureKind.NO_ACTION, message="the ## Code section holds only comments")
        return _Read(tuple(actions), tuple(notes))

    def _python(self, code: str, geometry: ImageGeometry, notes: list[str]) -> PythonCode:
        width, height = geometry.screen_width, geometry.screen_height

        def project(x: float, y: float) -> tuple[int, int]:
            if self.options.coordinates == "qwen25":
                return round(x / 1000 * width), round(y / 1000 * height)
            if self.options.coordinates == "relative" and abs(x) <= 1 and abs(y) <= 1:
                return round(x * width), round(y * height)
            return round(x), round(y)

        projected, points = project_points(code, project)
        notes.extend(off_screen(points, geometry))
        return PythonCode(code=projected)

    def _function(self, call: Call) -> Action | ParseFailure:
        """`computer.wait` or `computer.terminate`."""
        if call.name == "wait":
            return self._wait()
        if call.name != "terminate":
            return ParseFailure(kind=FailureKind.UNKNOWN_ACTION, message=f"there is no function computer.{call.name}")
        status = call.keywords.get("status", call.arguments[0] if call.arguments else None)
        answer = call.keywords.get("answer", call.arguments[1] if len(call.arguments) > 1 else None)
        words = str(answer) if answer else None
        match str(status).lower() if status is not None else None:
            case "success":
                return Done(answer=words)
            case "failure":
                return Fail(reason=words)
            case None:
                return ParseFailure(
                    kind=FailureKind.UNPARSEABLE, message="computer.terminate is missing a success/failure status"
                )
            case other:
                return ParseFailure(
                    kind=FailureKind.UNKNOWN_ACTION, message=f"computer.terminate has no status {other!r}"
                )

    def _wait(self) -> Wait:
        return Wait(seconds=self.options.wait_s)

    def _said(self, past: PastTurn, template: str, **values: object) -> str:
        text = _unwrapped(past.text) or past.text
        said = self._sections(text, past.reasoning, Ledger(text))
        action = said.action
        if not action and any(isinstance(taken, PythonCode) for taken in past.actions):
            action = ACTION_INFERRED
        return fill(template, thought=said.thought, action=action, **values)

    def _history(self, folded: list[PastTurn]) -> str:
        if not folded:
            return ""
        return HISTORY_HEADING + "\n".join(self._said(past, TEXT_STEP, step=past.turn + 1) for past in folded) + "\n"

    def _error(self, before: PastTurn | None) -> str:
        for outcome in reversed(before.outcomes if before and self.options.show_errors else ()):
            if outcome.returncode:
                return fill(ERROR, code=outcome.returncode, error=outcome.error.strip()[-1000:])
        return ""

    def _guidance(self, past: tuple[PastTurn, ...]) -> list[str]:
        threshold, recent = self.options.repeat_threshold, past[-self.options.repeat_window :]
        codes = [
            turn.actions[0].code if turn.actions and isinstance(turn.actions[0], PythonCode) else "" for turn in recent
        ]
        last = codes[-1].strip() if codes else ""
        times = sum(code.strip() == last for code in codes)
        trivial = not last or re.sub(r"\s+", "", last).lower() in _TRIVIAL
        warned = threshold > 1 and not trivial and times >= threshold
        repeated = [fill(REPEATED, times=times, window=len(codes))] if warned else []
        return [*repeated, CHECKLIST] if self.options.pre_done_checklist else repeated


class _Section(NamedTuple):
    text: str
    start: int
    end: int


class _Said(NamedTuple):
    thought: str
    action: str
    code: str | None
    span: tuple[int, int] | None
    missing: ParseFailure | None


class _Read(NamedTuple):
    actions: tuple[Action, ...]
    notes: tuple[str, ...]


def _section(text: str, name: str, skip: tuple[Fence, ...] = ()) -> _Section | None:
    """The first `## name` section, up to the next heading outside the given blocks."""
    heading = re.search(rf"^[ \t]*##[ \t]+{name}\b[ \t]*:?[ \t]*(?:\r?\n)?", text, re.MULTILINE | re.IGNORECASE)
    if heading is None:
        return None
    end = len(text)
    for found in _NEXT_HEADING.finditer(text, heading.end()):
        if not any(fence.start < found.start() < fence.end for fence in skip):
            end = found.start()
            break
    return _Section(text[heading.end() : end].strip(), heading.end(), end)


def _code(text: str, visible: str, ledger: Ledger) -> tuple[str | None, tuple[int, int] | None, ParseFailure | None]:
    """(code, where it stands, why there is none)."""
    first = _section(visible, "Code")
    if first is None:
        return None, None, ParseFailure(kind=FailureKind.NO_ACTION, message="no explicit ## Code section found")
    fences = find_fences(visible, _is_code, start=first.start)
    section = _section(visible, "Code", fences.closed) or first
    blocks = [fence for fence in fences.closed if fence.start < section.end]
    for fence in blocks[:-1]:
        ledger.dropped(fence.start, fence.end, "an earlier code block of the section; the last one counts")
    if blocks and blocks[-1].tag not in _TAGS:
        message = f"the code block says {blocks[-1].tag!r}; it must be Python"
        return None, None, ParseFailure(kind=FailureKind.UNPARSEABLE, message=message)
    if not blocks and fences.open_at is not None and fences.open_at < section.end:
        return None, None, ParseFailure(kind=FailureKind.UNPARSEABLE, message="unsupported or unterminated Code fence")
    body = (blocks[-1].body_start, blocks[-1].body_end) if blocks else (section.start, section.end)
    inner = text[slice(*body)] if not blocks or blocks[-1].tag else _LITERAL_TAG.sub("", text[slice(*body)])
    code = repair_line_breaks(_TOOL_CALL.sub(r"\1", inner)).strip()
    if not code:
        return None, None, ParseFailure(kind=FailureKind.NO_ACTION, message="the ## Code section is empty")
    return code, (blocks[-1].start, blocks[-1].end) if blocks else body, None


def _is_code(text: str) -> bool:
    return is_python(repair_line_breaks(_LITERAL_TAG.sub("", text)).strip())


def _unwrapped(text: str) -> str | None:
    """The text inside a list of text parts that a server wrote out as one string; None for any other text."""
    if not text.lstrip().startswith("[{"):
        return None
    try:
        parts = read_json(text)
    except Rejected:
        return None
    texts = [part["text"] for part in cast("list[Any]", parts) if _is_text(part)]
    return "".join(texts) if texts and len(texts) == len(parts) else None


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _of_whole(parsed: ParsedReply, reply: Reply) -> ParsedReply:
    """What was read out of such a list, with the string as a whole for its parts: inside it everything is escaped."""
    native = tuple(part for part in parsed.parts if part.source != "text")
    dropped = parsed.failure.message if parsed.failure else "the action is a native call" if native else None
    part = ParsedPart(start=0, end=len(reply.text), action=0 if dropped is None else None, dropped=dropped)
    notes = (*parsed.notes, "the reply's text is a list of text parts, written out as one string")
    return parsed.model_copy(update={"parts": (part, *native), "notes": notes})


def _json_call(code: str) -> Call | None:
    """A function written as an object with `name` and `arguments`, in JSON or as a Python literal."""
    try:
        value = json.loads(code)
    except (ValueError, RecursionError):
        try:
            value = ast.literal_eval(code) if code.startswith("{") else None
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            value = None
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(name, str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    return Call(name.removeprefix("computer."), (), arguments if isinstance(arguments, dict) else {})


def _native_call(reply: Reply) -> tuple[ParsedPart | None, str | None]:
    """The call a server's tool parser took out of the text: its part, and the object it was."""
    for index, call in enumerate(reply.tool_calls):
        if call.name.startswith("computer."):
            try:
                arguments = json.loads(call.arguments or "{}")
            except (ValueError, RecursionError):
                break
            part = ParsedPart(source=f"tool_calls[{index}]", start=0, end=len(call.arguments), action=0)
            return part, json.dumps({"name": call.name, "arguments": arguments})
    return None, None


def _unfinished(reply: Reply) -> ParseFailure | None:
    if reply.truncated or reply.finish_reason == "length":
        return ParseFailure(kind=FailureKind.TRUNCATED, message="the reply was cut by the token limit")
    if reply.finish_reason not in {None, "stop", "tool_calls"}:
        message = f"the reply did not finish cleanly: finish_reason {reply.finish_reason!r}"
        return ParseFailure(kind=FailureKind.UNPARSEABLE, message=message)
    if not reply.text.strip() and not reply.tool_calls:
        return no_action(reply, "", "")
    return None
