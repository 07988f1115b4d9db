"""Ways in which the policy server misbehaves on request, for tests of everything that calls a model.

Written `kind[=value][xN][@turn]`, joined by colons: `slow=2`, `http=429x2:garbage=x1`, `drop=x1@3`. `xN` limits a fault to the
first N requests of each (execution, turn) it applies to; `@turn` to one turn. A model name may carry them after a colon:
`scripted-solver:http=429x2`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

KINDS: Final = {
    "slow": "wait `value` seconds before answering (default 5)",
    "http": "answer with HTTP status `value` and generate nothing",
    "overflow": "refuse prompts of more than `value` images (default: all) as too long, as vLLM does",
    "drop": "generate, then drop the connection without an answer",
    "truncated": "cut the reply in the middle, finish_reason `length`",
    "garbage": "answer with text that holds no action",
    "empty": "answer with no text at all",
    "done": "say DONE at once",
    "fail": "say FAIL at once",
    "loop": "click the middle of the screen for ever",
}

_PATTERN = re.compile(r"^(?P<kind>[a-z]+)(?:=(?P<value>\d+(?:\.\d+)?)?(?:x(?P<times>\d+))?)?(?:@(?P<turn>\d+))?$")


@dataclass(frozen=True)
class Fault:
    """One kind of misbehaviour; None means without a limit, or the kind's default value."""

    kind: str
    value: float | None = None
    times: int | None = None
    turn: int | None = None


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Read `slow=2:http=429x2`; the empty text is no fault.

    Raises:
        ValueError: naming what is not understood and what would be.
    """
    return tuple(_parse(part) for part in text.split(":") if part)


def _parse(text: str) -> Fault:
    found = _PATTERN.match(text)
    if not found or found["kind"] not in KINDS:
        raise ValueError(f"unknown fault {text!r}; written kind[=value][xN][@turn] with one of: {', '.join(KINDS)}")
    value = float(found["value"]) if found["value"] else None
    if found["kind"] == "http" and (value is None or not 400 <= value < 600):
        raise ValueError(f"fault {text!r} needs an HTTP error status, for example http=429x2")
    times, turn = (int(found[name]) if found[name] is not None else None for name in ("times", "turn"))
    return Fault(found["kind"], value, times, turn)
