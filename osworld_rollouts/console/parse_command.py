"""`rollouts parse`: what an adapter makes of a reply."""

from __future__ import annotations

import json as jsonlib
import sys
from typing import TYPE_CHECKING

from rich.text import Text

from osworld_rollouts.console.adapters_list import load
from osworld_rollouts.console.errors import ConsoleError, ExitCode
from osworld_rollouts.console.output import STYLES, Output, one_line
from osworld_rollouts.contracts.action import PythonCode, describe
from osworld_rollouts.contracts.desktop import DesktopSpec
from osworld_rollouts.contracts.model import Reply
from osworld_rollouts.serving.errors import ReplyUnreadable
from osworld_rollouts.serving.reply import read_reply

if TYPE_CHECKING:
    from osworld_rollouts.contracts.model import Api, ParsedReply


def parse(
    *,
    adapter: str = "pyautogui",
    option: tuple[str, ...] = (),
    body: bool = False,
    width: int = 1920,
    height: int = 1080,
    json: bool = False,
) -> int:
    """Read a reply from standard input and show what becomes of it. Exit code 1 when it holds no action.

    Parameters
    ----------
    adapter
        The model protocol.
    option
        An adapter option, name=value. May be repeated.
    body
        Standard input is the server's whole JSON reply; otherwise it is the reply's text. The Responses and Messages
        protocols always take the whole reply.
    width
        Width of the screen, pixels.
    height
        Height of the screen, pixels.
    json
        Print JSON.
    """
    out = Output(as_json=json)
    found = load(adapter, option)
    reply = _reply(found.api, sys.stdin.buffer.read(), whole=body or found.api in {"responses", "messages"})
    screen = DesktopSpec(width=width, height=height)
    parsed = found.parse(reply, found.geometry(screen.width, screen.height))
    out.record(parsed)
    _show(parsed, reply, out)
    return ExitCode.OK if parsed.actions else ExitCode.UNSCORED


def _reply(api: Api, data: bytes, *, whole: bool) -> Reply:
    if not whole:
        return Reply(api=api, text=data.decode("utf-8", "replace"))
    try:
        return read_reply(api, data)
    except ReplyUnreadable as error:
        raise ConsoleError(f"standard input is no reply of the {api} API: {error}") from error


def _show(parsed: ParsedReply, reply: Reply, out: Output) -> None:
    for index, action in enumerate(parsed.actions):
        out.line(Text(f"action {index}: ", style=STYLES["good"]).append(one_line(describe(action), 200)))
        if isinstance(action, PythonCode):
            out.line("\n".join(f"    {line}" for line in action.code.splitlines()))
    if parsed.failure:
        out.line(Text(f"{parsed.failure.kind}: ", style=STYLES["bad"]).append(parsed.failure.message))
    for note in parsed.notes:
        out.line(f"note: {note}", style=STYLES["dim"])
    sources = {
        "text": reply.text,
        **{f"tool_calls[{index}]": call.arguments for index, call in enumerate(reply.tool_calls)},
    }
    items = {f"output[{index}]": jsonlib.dumps(item, ensure_ascii=False) for index, item in enumerate(reply.output)}
    for part in parsed.parts:
        if part.dropped is not None:
            words = sources[part.source][part.start : part.end] if part.source in sources else items[part.source]
            if words.strip():
                out.line(f"dropped ({part.dropped}): {one_line(words, 160)}", style=STYLES["dim"])
