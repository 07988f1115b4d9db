"""Model protocols: one file per wire format. Importing this package imports none of them.

What an adapter is, and the pieces to build one from (docs/adapters.md).
"""

from osworld_rollouts.adapters._chat import Chat, fill, media_url, merged
from osworld_rollouts.adapters._contract import BaseAdapter, FailureKind, Marks, ModelAdapter, Options
from osworld_rollouts.adapters._failures import no_action
from osworld_rollouts.adapters._fences import find_fences, is_python
from osworld_rollouts.adapters._parts import Ledger, without_thinking
from osworld_rollouts.adapters._reading import (
    Fields,
    Rejected,
    Screen,
    Written,
    press,
    read_calls,
    read_json,
    unknown,
    unparseable,
)
from osworld_rollouts.adapters.registry import (
    AdapterError,
    BadAdapterOptions,
    BrokenAdapter,
    UnknownAdapter,
    adapter_names,
    load_adapter,
)

__all__ = [
    "AdapterError",
    "BadAdapterOptions",
    "BaseAdapter",
    "BrokenAdapter",
    "Chat",
    "FailureKind",
    "Fields",
    "Ledger",
    "Marks",
    "ModelAdapter",
    "Options",
    "Rejected",
    "Screen",
    "UnknownAdapter",
    "Written",
    "adapter_names",
    "fill",
    "find_fences",
    "is_python",
    "load_adapter",
    "media_url",
    "merged",
    "no_action",
    "press",
    "read_calls",
    "read_json",
    "unknown",
    "unparseable",
    "without_thinking",
]
