"""Model protocols: one file per wire format. Importing this package imports none of them."""

from osworld_rollouts.adapters._contract import BaseAdapter, FailureKind, Marks, ModelAdapter, Options
from osworld_rollouts.adapters.registry import (
    AdapterError,
    BadAdapterOptions,
    UnknownAdapter,
    adapter_names,
    load_adapter,
)

__all__ = [
    "AdapterError",
    "BadAdapterOptions",
    "BaseAdapter",
    "FailureKind",
    "Marks",
    "ModelAdapter",
    "Options",
    "UnknownAdapter",
    "adapter_names",
    "load_adapter",
]
