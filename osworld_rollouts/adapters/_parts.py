"""Accounting for a reply's text: which stretch became which action, what was left out and why."""

from __future__ import annotations

import re

from osworld_rollouts.contracts.model import ParsedPart

AROUND = "text around the actions"
THINKING = "thinking"

_THINKING = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_LEADING = re.compile(r"\A(?:(?!<think(?:ing)?>).)*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)


class Ledger:
    """Claims on stretches of one text; `parts()` gives every character to exactly one part."""

    def __init__(self, text: str, source: str = "text") -> None:
        self.text = text
        self.source = source
        self._claims: list[ParsedPart] = []

    def took(self, start: int, end: int, action: int) -> None:
        """This stretch is what the action with that index was read from."""
        self._claims.append(ParsedPart(source=self.source, start=start, end=end, action=action))

    def dropped(self, start: int, end: int, reason: str) -> None:
        """This stretch was left out, and why."""
        self._claims.append(ParsedPart(source=self.source, start=start, end=end, dropped=reason))

    def parts(self) -> tuple[ParsedPart, ...]:
        """All claims in order; gaps and overlaps are resolved so that they cover the text exactly once."""
        parts: list[ParsedPart] = []
        at = 0
        for claim in sorted(self._claims, key=lambda part: (part.start, -part.end)):
            start, end = max(claim.start, at), min(claim.end, len(self.text))
            if end <= start:
                continue
            if start > at:
                parts.append(ParsedPart(source=self.source, start=at, end=start, dropped=AROUND))
            parts.append(claim.model_copy(update={"start": start, "end": end}))
            at = end
        if at < len(self.text):
            parts.append(ParsedPart(source=self.source, start=at, end=len(self.text), dropped=AROUND))
        return tuple(parts)


def without_thinking(ledger: Ledger) -> str:
    """The text with thinking blanked out (offsets stay), which the ledger notes as dropped.

    A `</think>` without its opening counts from the beginning: chat templates put the opening tag into the prompt. An
    opening without its end is no block.
    """
    text = ledger.text
    for pattern in (_LEADING, _THINKING):
        for found in list(pattern.finditer(text)):
            ledger.dropped(*found.span(), THINKING)
            text = text[: found.start()] + " " * len(found[0]) + text[found.end() :]
    return text


def unfinished_thinking(text: str) -> bool:
    """Whether the last `<think>` is never closed."""
    opened = [found.end() for found in re.finditer(r"<think(?:ing)?>", text, re.IGNORECASE)]
    return bool(opened) and not re.search(r"</think(?:ing)?>", text[opened[-1] :], re.IGNORECASE)
