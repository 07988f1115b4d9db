"""OpenAI's Responses API with the computer tool: items, whole responses, and typed actions in its words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from osworld_rollouts.contracts.action import (
    Action,
    Click,
    Done,
    Drag,
    Fail,
    Hotkey,
    Move,
    Observe,
    Point,
    Press,
    Scroll,
    TypeText,
    Wait,
)
from osworld_rollouts.testing.protocol_servers.texts import Unspeakable

if TYPE_CHECKING:
    from collections.abc import Sequence

_BUTTONS = {"left": "left", "right": "right", "middle": "wheel", "back": "back", "forward": "forward"}


def computer_call(
    *actions: dict[str, Any], call_id: str = "call_1", checks: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """A `computer_call` item: one action as the preview tool has it, several as the newer tool batches them."""
    item: dict[str, Any] = {
        "type": "computer_call",
        "id": f"cu_{call_id}",
        "call_id": call_id,
        "status": "completed",
        "pending_safety_checks": list(checks),
    }
    return item | ({"action": actions[0]} if len(actions) == 1 else {"actions": list(actions)})


def message(text: str) -> dict[str, Any]:
    """A `message` item."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}


def response(model: str, *items: dict[str, Any], number: int = 0) -> dict[str, Any]:
    """A whole `response` object."""
    usage = {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 2,
    }
    return {
        "id": f"resp_{number}", "object": "response", "created_at": 0.0, "status": "completed", "error": None,
        "incomplete_details": None, "instructions": None, "metadata": {}, "model": model, "output": list(items),
        "parallel_tool_calls": True, "temperature": 1.0, "tool_choice": "auto", "tools": [], "top_p": 1.0, "usage": usage,
    }  # fmt: skip


def items_for(actions: Sequence[Action], turn: int) -> list[dict[str, Any]]:
    """Output items that ask for the actions; the end of the episode is a message without a call."""
    last = actions[-1] if actions else None
    if isinstance(last, Done | Fail):
        return [message("The task is infeasible." if isinstance(last, Fail) else "Everything is done.")]
    return [computer_call(*map(_action, actions), call_id=f"call_{turn}")]


def _action(it: Action) -> dict[str, Any]:
    match it:
        case Click(point=Point(x=x, y=y), count=1):
            return {"type": "click", "button": _BUTTONS[it.button], "x": x, "y": y}
        case Click(point=Point(x=x, y=y), count=2, button="left"):
            return {"type": "double_click", "x": x, "y": y}
        case Move(point=Point(x=x, y=y)):
            return {"type": "move", "x": x, "y": y}
        case Drag():
            return {"type": "drag", "path": [{"x": point.x, "y": point.y} for point in it.path]}
        case Scroll(point=Point(x=x, y=y)):
            return {"type": "scroll", "x": x, "y": y, "scroll_x": it.clicks_x * 100, "scroll_y": -it.clicks_y * 100}
        case TypeText():
            return {"type": "type", "text": it.text}
        case Press(count=1):
            return {"type": "keypress", "keys": [it.key.upper() if len(it.key) > 1 else it.key]}
        case Hotkey():
            return {"type": "keypress", "keys": [key.upper() for key in it.keys]}
        case Wait():
            return {"type": "wait"}
        case Observe():
            return {"type": "screenshot"}
        case _:
            raise Unspeakable(it.kind)
