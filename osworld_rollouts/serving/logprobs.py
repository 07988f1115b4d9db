"""Which log probabilities a server gives: of the distribution that was sampled from, or of another.

At the first position after one prompt the distribution is the same in every request. Two tokens whose log probabilities differ
by d at temperature 1 differ by 2d at temperature 0.5 if the server tempers what it reports, and by d if it reports raw ones.
With top_p near 0 only the best token can be sampled: its log probability is 0 if the server renormalises what it reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from osworld_rollouts.contracts.model import Reply
    from osworld_rollouts.evidence.profile import LogprobsMode

_PROMPTS: Final = ("Write one random word.", "Name any colour.", "Continue: the")
_TOP: Final = 5
_GAP: Final = 0.2  # nats; two tokens nearer than this say nothing in half precision


async def logprobs_mode(
    chat: Callable[..., Awaitable[Reply]], last_body: Callable[[], dict[str, Any]]
) -> tuple[LogprobsMode, str]:
    """The mode and how it was seen.

    Args:
        chat: sends messages with sampling fields, one token.
        last_body: the body of the last reply, for the entries' `top_logprobs`.
    """
    for prompt in _PROMPTS:
        messages = [{"role": "user", "content": prompt}]
        plain = await _top(chat, last_body, messages, temperature=1.0)
        sharp = await _top(chat, last_body, messages, temperature=0.5)
        common = sorted(set(plain) & set(sharp), key=lambda token: plain[token])
        if len(common) < 2 or plain[common[-1]] - plain[common[0]] < _GAP:
            continue
        ratio = (sharp[common[-1]] - sharp[common[0]]) / (plain[common[-1]] - plain[common[0]])
        if abs(ratio - 1) < 0.1:
            return "raw", f"raw: a gap at temperature 0.5 is {ratio:.2f} times the gap at 1"
        if abs(ratio - 2) > 0.2:
            return "unknown", f"unknown: a gap at temperature 0.5 is {ratio:.2f} times the gap at 1, expected 1 or 2"
        flat = await chat(messages, max_tokens=1, temperature=2.0, seed=1)
        best = max(entry["logprob"] for entry in _entries(last_body())) if flat.logprobs else None
        narrow = await chat(messages, max_tokens=1, temperature=2.0, top_p=0.001, seed=1)
        if not narrow.logprobs or best is None or best > -0.01:
            return "tempered", "tempered; whether top_p is in them could not be seen"
        if abs(narrow.logprobs[0]) < 1e-3:
            return "processed", "processed: those of the distribution sampled from, temperature and top_p included"
        return (
            "tempered",
            f"tempered: temperature is in them, top_p is not ({narrow.logprobs[0]:.3f} for the only token left)",
        )
    return "unknown", "unknown: no two tokens far enough apart to tell"


async def _top(
    chat: Callable[..., Awaitable[Reply]], last_body: Callable[[], dict[str, Any]], messages: list[Any], **sampling: Any
) -> dict[str, float]:
    await chat(messages, max_tokens=1, top_logprobs=_TOP, seed=1, **sampling)
    found: dict[str, float] = {}
    for entry in _entries(last_body()):
        for item in (entry, *(entry.get("top_logprobs") or [])):
            found[str(item["token"])] = float(item["logprob"])
    return found


def _entries(body: dict[str, Any]) -> list[dict[str, Any]]:
    logprobs = body["choices"][0].get("logprobs") or {}
    return list(logprobs.get("content") or [])
