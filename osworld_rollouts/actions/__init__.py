"""From typed actions to what the guest runs."""

from osworld_rollouts.actions.commands import MAX_COMMAND_BYTES, REPORTED, ActionTooLarge, guest_code
from osworld_rollouts.actions.keys import KEY_NAMES, MODIFIERS, UnknownKey, key_name, key_names

__all__ = [
    "KEY_NAMES",
    "MAX_COMMAND_BYTES",
    "MODIFIERS",
    "REPORTED",
    "ActionTooLarge",
    "UnknownKey",
    "guest_code",
    "key_name",
    "key_names",
]
