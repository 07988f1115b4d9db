"""What every contract shares: frozen, closed, and with one canonical form to hash."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class Contract(BaseModel):
    """A value that crosses a boundary. Immutable; an unknown field is an error, never dropped."""

    # A value that is refused may be a secret in the wrong place: errors name the field, not what stood in it.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def digest(self) -> str:
        """Sha256 (hex) of the canonical JSON of this value."""
        return canonical_digest(self.model_dump(mode="json"))


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys, no blanks, UTF-8: the same value always gives the same bytes.

    Raises:
        ValueError: for NaN or infinity, which JSON cannot carry.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def canonical_digest(value: Any) -> str:
    """Sha256 (hex) of `canonical_json(value)`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()
