"""Anthropic's Messages API with the computer tool: blocks, whole messages, and typed actions in its words."""

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

    from osworld_rollouts.contracts.model import ImageGeometry


def tool_use(given: dict[str, Any], name: str = "computer", call_id: str = "toolu_1") -> dict[str, Any]:
    """A `tool_use` block."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def member_use(call: dict[str, Any]) -> dict[str, Any]:
    """The same call as a member of the computer toolset: the action is its name."""
    given = dict(call["input"])
    member = {"name": given.pop("action"), "toolset_name": "computer", "caller": {"type": "direct"}}
    return {**call, **member, "input": given}


def text_block(text: str) -> dict[str, Any]:
    """A `text` block."""
    return {"type": "text", "text": text, "citations": None}


def reply(model: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    """A whole `message` object."""
    calls = any(block["type"] == "tool_use" for block in blocks)
    return {
        "id": "msg_scripted", "type": "message", "role": "assistant", "model": model, "content": list(blocks),
        "stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }  # fmt: skip


def blocks_for(
    actions: Sequence[Action], turn: int, geometry: ImageGeometry, *, toolset: bool = False
) -> list[dict[str, Any]]:
    """Blocks that ask for the actions; the end of the episode is a text without a call."""
    last = actions[-1] if actions else None
    if isinstance(last, Done | Fail):
        return [text_block("[INFEASIBLE]" if isinstance(last, Fail) else "Everything is done.")]
    calls = [tool_use(_input(it, geometry), call_id=f"toolu_{turn}_{index}") for index, it in enumerate(actions)]
    return [text_block("I know what to do."), *(map(member_use, calls) if toolset else calls)]


def _input(it: Action, geometry: ImageGeometry) -> dict[str, Any]:
    def at(point: Point) -> list[int]:
        columns, rows = geometry.image_width, geometry.image_height
        return [-(-point.x * columns // geometry.screen_width), -(-point.y * rows // geometry.screen_height)]

    names = {
        ("left", 1): "left_click",
        ("left", 2): "double_click",
        ("left", 3): "triple_click",
        ("right", 1): "right_click",
    }
    match it:
        case Click(point=Point() as point):
            return {"action": names[it.button, it.count], "coordinate": at(point)}
        case Move():
            return {"action": "mouse_move", "coordinate": at(it.point)}
        case Drag():
            return {"action": "left_click_drag", "start_coordinate": at(it.path[0]), "coordinate": at(it.path[-1])}
        case Scroll(point=Point() as point):
            way = "up" if it.clicks_y > 0 else "down"
            return {
                "action": "scroll",
                "coordinate": at(point),
                "scroll_direction": way,
                "scroll_amount": abs(it.clicks_y),
            }
        case TypeText():
            return {"action": "type", "text": it.text}
        case Press():
            return {"action": "key", "text": it.key, "repeat": it.count}
        case Hotkey():
            return {"action": "key", "text": "+".join(it.keys)}
        case Wait():
            return {"action": "wait", "duration": round(it.seconds or 1)}
        case Observe():
            return {"action": "screenshot"}
        case _:
            raise Unspeakable(it.kind)
