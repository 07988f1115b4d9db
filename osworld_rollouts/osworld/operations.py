"""Names for the effects of one job: when is a request the same effect again, and when a new one.

`desktop-env` sends a request up to three times when it does not like the reply, and a task may name the same command in two
steps, or poll it with `until`. Only the first must be one operation. The rule: a request is the *same* operation as the one
before it if it is byte for byte the same (multipart boundaries aside), belongs to the same step, and no reply with status
200 to the one before reached the package. Everything else is a new operation.

Why this is sound: the package is synchronous and repeats only after an error, a lost reply or a status other than 200, at once
and within the step (`controllers/python.py`, `controllers/setup.py`); an `until` loop repeats only after a reply with status 200,
or after an error, and then the recorded reply is the true one. Which step runs is said by the job itself.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

_BOUNDARY = re.compile(rb'boundary="?([^";]+)"?')


def request_digest(method: str, path: str, content_type: str, body: bytes) -> str:
    """Sha256 (hex) of what a request asks for; equal for two uploads of the same file, whatever their boundaries."""
    boundary = _BOUNDARY.search(content_type.encode())
    if content_type.lower().startswith("multipart/") and boundary:
        body = body.replace(boundary.group(1), b"boundary")
    return hashlib.sha256(b"\0".join((method.encode(), path.encode(), body))).hexdigest()


@dataclass(slots=True)
class NamedOperation:
    """One effect: its id, its place in the desktop's order, and whether its reply with status 200 reached the package.

    `reply` is the gateway's own memory of the guest's reply: a repetition is answered from it, so that nothing happens twice on
    a guest that keeps no ledger either.
    """

    operation_id: str
    seq: int
    digest: str
    step: int
    delivered: bool = False
    reply: Any = None


class OperationNames:
    """Gives each effect of a job its id `<prefix>/o<n>` and sequence number.

    With `number_by_seq` n is the sequence number, so that repeated evaluations of one execution never share an id.
    """

    def __init__(self, prefix: str, first_seq: int, *, number_by_seq: bool = False) -> None:
        self._prefix = prefix
        self._count = 0
        self._number_by_seq = number_by_seq
        self._last: NamedOperation | None = None
        self.next_seq = first_seq

    def skip_to(self, seq: int) -> None:
        """Go on at `seq` if that is later; for reads that follow operations of others."""
        self.next_seq = max(self.next_seq, seq)

    def name(self, step: int, digest: str) -> tuple[NamedOperation, bool]:
        """The operation of this request, and whether it is one already named."""
        last = self._last
        if last is not None and last.step == step and last.digest == digest and not last.delivered:
            return last, True
        return self.fresh(step, digest), False

    def fresh(self, step: int, digest: str) -> NamedOperation:
        """A new operation, even for a request that was just made (waiting for a window asks again and again)."""
        number = self.next_seq if self._number_by_seq else self._count
        self._last = NamedOperation(f"{self._prefix}/o{number}", self.next_seq, digest, step)
        self._count += 1
        self.next_seq += 1
        return self._last
