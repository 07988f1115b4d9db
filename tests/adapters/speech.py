"""Short words for adapter tests: replies, requests, and what came of them."""

from __future__ import annotations

from osworld_rollouts.adapters import load_adapter
from osworld_rollouts.contracts.action import PythonCode
from osworld_rollouts.contracts.desktop import MediaRef
from osworld_rollouts.contracts.model import PastTurn, PromptInput, Reply, View
from osworld_rollouts.contracts.steps import HistoryWindow

FENCE = "```"


def block(code, tag="python"):
    """A code block."""
    return f"{FENCE}{tag}\n{code}\n{FENCE}"


def say(adapter, text="", *, marks=(), width=1920, height=1080, **facts):
    """What an adapter makes of a text."""
    reply = Reply(api=adapter.api, text=text, **facts)
    return adapter.parse(reply, adapter.geometry(width, height), marks)


def codes(parsed):
    """Actions in one word each; the model's own Python as it is."""
    return [action.code if isinstance(action, PythonCode) else action.kind for action in parsed.actions]


def plain(parsed):
    """Actions as dictionaries without defaults, with their kind."""
    return [{"kind": action.kind, **action.model_dump(exclude_defaults=True)} for action in parsed.actions]


def picture(number):
    """A reference to an image that nobody has."""
    return MediaRef(sha256=f"{number:064x}", pixel_sha256="0" * 64, bytes=1, width=1, height=1)


def turn(number, text="", *, live=True, **facts):
    """A finished turn."""
    return PastTurn(turn=number, view=View(image=picture(number)), live=live, text=text, **facts)


def prompt(adapter, past=(), instruction="Rename the {file}", **facts):
    """What an adapter is given to render."""
    number = len(past)
    fields = {"current": View(image=picture(number)), "max_turns": 15, "window": HistoryWindow(), **facts}
    return PromptInput(
        instruction=instruction, turn=number, past=tuple(past), geometry=adapter.geometry(1920, 1080), **fields
    )


def adapter(name, **options):
    """An adapter with options."""
    return load_adapter(name, options)


def texts(messages):
    """The texts of chat messages, one string a message."""
    return [
        message["content"]
        if isinstance(message["content"], str)
        else "".join(part.get("text", "<image>") for part in message["content"])
        for message in messages
    ]
