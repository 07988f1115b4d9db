"""Segments: stretches of model calls in which each prompt begins with exactly what came before it.

Whether a call extends the one before is computed from ids and images, never assumed: the previous prompt and what was
generated from it must be a prefix of this prompt, image for image. Wherever that does not hold, a new segment starts, with a
boundary event that says why and where. Nothing is joined that was not sent joined.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_STEP: Final = 4096


class BoundaryReason(StrEnum):
    """Why a call starts a new segment."""

    FIRST_CALL = "first_call"
    IDS_MISSING = "ids_missing"
    HISTORY_COMPACTED = "history_compacted"
    MEDIA_CHANGED = "media_changed"
    PROMPT_REWRITTEN = "prompt_rewritten"
    GENERATION_RETOKENISED = "generation_retokenised"
    PROMPT_SHORTER = "prompt_shorter"


@dataclass(frozen=True)
class SentAndGenerated:
    """What one call put before the model and got from it. `epoch` is the history policy's count of compactions."""

    prompt_ids: Sequence[int] | None
    generated_ids: Sequence[int] | None
    media: Sequence[str]
    epoch: int = 0


@dataclass(frozen=True)
class Extension:
    """Whether a call extends the one before. `position` is the first id (counted in the previous prompt and generation) that differs."""

    extends: bool | None
    reason: BoundaryReason | None = None
    position: int | None = None
    previous_length: int | None = None
    generation_starts: int | None = None

    def boundary(self) -> dict[str, Any] | None:
        """The boundary event, for the record; None where there is no boundary."""
        if self.extends or self.reason is None:
            return None
        event: dict[str, Any] = {"reason": self.reason.value}
        for name in ("position", "previous_length", "generation_starts"):
            if getattr(self, name) is not None:
                event[name] = getattr(self, name)
        return event


def extension(previous: SentAndGenerated | None, current: SentAndGenerated) -> Extension:
    """Whether `current` extends `previous`, and if not, why and from where."""
    if previous is None:
        return Extension(None, BoundaryReason.FIRST_CALL)
    if previous.prompt_ids is None or previous.generated_ids is None or current.prompt_ids is None:
        return Extension(None, BoundaryReason.IDS_MISSING)
    before = (*previous.prompt_ids, *previous.generated_ids)
    at = first_divergence(before, current.prompt_ids)
    length, starts = len(before), len(previous.prompt_ids)
    media_kept = len(current.media) >= len(previous.media) and tuple(current.media[: len(previous.media)]) == tuple(
        previous.media
    )
    if at is None and media_kept:
        return Extension(extends=True, previous_length=length, generation_starts=starts)
    if current.epoch != previous.epoch:
        reason = BoundaryReason.HISTORY_COMPACTED
    elif not media_kept:
        reason = BoundaryReason.MEDIA_CHANGED
    elif at is not None and at >= len(current.prompt_ids):
        reason = BoundaryReason.PROMPT_SHORTER
    elif at is not None and at >= starts:
        reason = BoundaryReason.GENERATION_RETOKENISED
    else:
        reason = BoundaryReason.PROMPT_REWRITTEN
    return Extension(extends=False, reason=reason, position=at, previous_length=length, generation_starts=starts)


def first_divergence(before: Sequence[int], after: Sequence[int]) -> int | None:
    """Position of the first element of `before` that `after` does not repeat; None when `before` is a prefix of `after`."""
    if isinstance(before, tuple) and isinstance(after, tuple) and after[: len(before)] == before:
        return None
    for start in range(0, len(before), _STEP):
        left, right = before[start : start + _STEP], after[start : start + _STEP]
        if tuple(left) != tuple(right[: len(left)]):
            return start + next(
                (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
            )
    return None
