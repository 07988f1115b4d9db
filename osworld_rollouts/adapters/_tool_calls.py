"""Tool calls that stand in a reply's text: Qwen's `<tool_call>` JSON blocks, bare JSON lines, Qwen3-Coder's XML functions.

Formats: the Qwen chat templates (Hermes style `<tool_call>{"name": …, "arguments": …}</tool_call>`) and Qwen3-Coder's and
Nemotron's (`<function=name><parameter=key>value</parameter></function>`), as their vLLM tool parsers read them.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from osworld_rollouts.adapters._reading import Fields, read_json

_START = re.compile(r"<tool_call>\s*(?=[{<])|(?P<function><function=)|^[ \t]*(?P<json>\{)", re.MULTILINE)
_END = re.compile(r"\s*</tool_call>")
_FUNCTION = re.compile(r"<function=(?P<name>[^>\s]+)>(?P<body>.*?)(?:</function>|(?=</tool_call>)|\Z)", re.DOTALL)
_PARAMETER = re.compile(
    r"<parameter=(?P<name>[^>\s]+)>\n?(?P<value>.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL
)
_DECODER = json.JSONDecoder(strict=False)


class CallText(NamedTuple):
    """A call as it stands in the text, and the text that holds it without its tags."""

    start: int
    end: int
    body: str


class Named(NamedTuple):
    """A call's name and its arguments."""

    name: str
    arguments: Fields


def find_calls(text: str) -> list[CallText]:
    """Every stretch of a text that is a call, or claims to be one, in order."""
    calls: list[CallText] = []
    at = 0
    while found := _START.search(text, at):
        tagged = found[0].startswith("<tool_call>")
        first = found.start() if found["function"] else found.end() - len(found["json"] or "")
        body_end = _body_end(text, first, tagged=tagged)
        if body_end is None:  # a line that starts with a brace and is no call
            at = found.end()
            continue
        closing = _END.match(text, body_end) if tagged else None
        at = closing.end() if closing else body_end
        calls.append(CallText(found.start(), at, text[first:body_end]))
    return calls


def read_call(body: str) -> Named:
    """The call in a stretch of text.

    Raises:
        Rejected: saying what is wrong.
    """
    function = _FUNCTION.match(body)
    if function:
        values = {item["name"]: item["value"] for item in _PARAMETER.finditer(function["body"])}
        return Named(function["name"], Fields(values, function["name"]))
    outer = Fields(read_json(body), "a tool call")
    return named(outer.text("name"), outer.values.get("arguments", outer.values.get("parameters")))


def named(name: str, arguments: object) -> Named:
    """A call whose arguments are an object, or an object as JSON text.

    Raises:
        Rejected: the arguments are no object.
    """
    return Named(name, Fields(read_json(arguments) if isinstance(arguments, str) else arguments, name))


def as_text(name: str, arguments: str) -> str:
    """A native call in the textual form."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = arguments
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': value}, ensure_ascii=False)}\n</tool_call>"


def _body_end(text: str, first: int, *, tagged: bool) -> int | None:
    if text.startswith("<function=", first):
        found = _FUNCTION.match(text, first)
        return found.end() if found else len(text)
    try:
        value, end = _DECODER.raw_decode(text, first)
    except (ValueError, RecursionError):
        if not tagged:
            return None
        close = text.find("</tool_call>", first)
        return len(text) if close < 0 else close
    is_call = isinstance(value, dict) and "name" in value and "arguments" in value
    return end if tagged or is_call else None
