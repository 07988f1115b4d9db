"""History policies: which screenshots of earlier turns the model still sees. Pure, so they replay in a workflow.

A turn is numbered from 0; before the model call of turn `t` there are `t` finished turns and the current screenshot, so
`t + 1` screenshots at most. The current one is always shown. Counts below are screenshots *including* the current one.

| name | params | shown |
| --- | --- | --- |
| `none` | | the current one; no text of earlier turns either |
| `full` | | all |
| `fixed` | `keep_images` | the last `keep_images` |
| `hysteresis` | `low_water`, `high_water` | grows to `high_water`, then drops to the last `low_water` |
| `sink_window` | `sink`, `low_water`, `high_water` | the first `sink` always; both marks include the sink |

`low` and `high` are accepted as short names of the marks. Every policy but `none` further takes:

- `max_images`: never more than this many;
- `max_image_tokens` with `tokens_per_image`: the same budget in tokens;
- `max_text_turns`: how many turns without a screenshot stay as text; without it, text is never dropped.

Semantics and policy ids are those of NeMo Gym's `history_policy` (schema_version 1); the sink and the current screenshot
are the least that is shown, even when a budget asks for less.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, NamedTuple

from osworld_rollouts.contracts.steps import HistoryWindow

if TYPE_CHECKING:
    from osworld_rollouts.contracts.request import History

_MARKS: dict[str, tuple[str, ...]] = {
    "none": (),
    "full": (),
    "fixed": ("keep_images",),
    "hysteresis": ("low_water", "high_water"),
    "sink_window": ("sink", "low_water", "high_water"),
}
_BUDGETS = ("max_images", "max_image_tokens", "tokens_per_image", "max_text_turns")
_SHORT = {"low": "low_water", "high": "high_water"}

POLICY_NAMES = tuple(_MARKS)
"""Names a `History` may have."""


class HistoryError(ValueError):
    """A history policy that does not exist, or whose parameters contradict each other."""


class _Marks(NamedTuple):
    """A policy as two water marks: above `high` screenshots, keep the last `low`; the first `sink` stay. None: no limit."""

    low: int | None
    high: int | None
    sink: int
    budget: int | None
    max_text_turns: int | None


def initial_window(history: History) -> HistoryWindow:
    """State before the first turn.

    Raises:
        HistoryError: for an unknown policy or parameters that do not fit it.
    """
    return HistoryWindow(sink=_marks(history).sink)


def advance(history: History, window: HistoryWindow, turn: int) -> HistoryWindow:
    """State for the model call of `turn`; `epoch` grows whenever screenshots that were shown no longer are.

    Raises:
        HistoryError: for an unknown policy or parameters that do not fit it.
    """
    marks, total = _marks(history), turn + 1
    start = max(0, min(window.image_start, turn))
    limit = _least(marks.budget, window.limit)
    high, low = _least(marks.high, limit), _least(marks.low, limit)
    if high is not None and low is not None and _shown(start, marks.sink, total) > high:
        start = _start_of(low, marks.sink, total)
    return _moved(window, marks, start)


def live_turns(history: History, window: HistoryWindow, turn: int) -> tuple[int, ...]:
    """Turns whose screenshots are shown in the call of `turn`, oldest first; the last is always `turn` itself."""
    marks = _marks(history)
    recent = max(0, min(window.image_start, turn))
    return tuple(number for number in range(turn + 1) if number < marks.sink or number >= recent)


def kept_turns(history: History, window: HistoryWindow, turn: int) -> tuple[int, ...]:
    """Finished turns that appear in the call of `turn` at all, as text or with their screenshot, oldest first."""
    marks = _marks(history)
    if history.name == "none":
        return ()
    live = set(live_turns(history, window, turn))
    text = [number for number in range(turn) if number not in live]
    if marks.max_text_turns is not None:
        text = text[max(0, len(text) - marks.max_text_turns) :]
    return tuple(sorted({*text, *live} - {turn}))


def shrink(history: History, window: HistoryWindow, turn: int) -> HistoryWindow | None:
    """State with one screenshot fewer, after the server refused the prompt as too long; None when nothing can be dropped.

    The sink and the current screenshot stay. The number that was left becomes the window's limit, so later turns do not
    run into the same refusal again.
    """
    marks, total = _marks(history), turn + 1
    start = max(0, min(window.image_start, turn))
    shown = _shown(start, marks.sink, total)
    smaller = _start_of(shown - 1, marks.sink, total)
    left = _shown(smaller, marks.sink, total)
    if left >= shown:
        return None
    return _moved(window, marks, smaller).model_copy(update={"limit": left})


def policy_id(history: History) -> str:
    """Stable name of a policy and its parameters, equal to NeMo Gym's for the policies it knows.

    Raises:
        HistoryError: for an unknown policy or parameters that do not fit it.
    """
    _marks(history)
    config = {"schema_version": 1, "name": history.name, "params": _params(history)}
    canonical = json.dumps([config], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"osworld-history-policy-{hashlib.sha256(canonical.encode()).hexdigest()[:24]}"


def _marks(history: History) -> _Marks:
    names = _MARKS.get(history.name or "")
    if names is None:
        raise HistoryError(f"there is no history policy {history.name!r}; choose one of {', '.join(_MARKS)}")
    params = _params(history)
    allowed = () if history.name == "none" else _BUDGETS
    missing = [name for name in names if name not in params]
    extra = [name for name in params if name not in names and name not in allowed]
    if missing or extra:
        needs = ", ".join(names) or "no parameters"
        raise HistoryError(
            f"history policy {history.name!r} needs {needs}; missing: {missing}, not understood: {extra}"
            f" (further allowed: {', '.join(allowed) or 'none'})"
        )
    if ("max_image_tokens" in params) != ("tokens_per_image" in params):
        raise HistoryError("max_image_tokens needs tokens_per_image, and the other way round: give both or neither")
    low, high, sink = _water(history.name or "", params)
    return _Marks(low, high, sink, _budget(params), params.get("max_text_turns"))


def _water(name: str, params: dict[str, int]) -> tuple[int | None, int | None, int]:
    """(low, high, sink) of a policy, checked."""
    if name == "none":
        return 1, 1, 0
    if name == "full":
        return None, None, 0
    if name == "fixed":
        return params["keep_images"], params["keep_images"], 0
    low, high, sink = params["low_water"], params["high_water"], params.get("sink", 0)
    if name == "hysteresis" and high <= low:
        raise HistoryError(f"hysteresis needs high_water > low_water, got {low} and {high}; use fixed for equal marks")
    if high < low:
        raise HistoryError(f"sink_window needs high_water >= low_water, got low_water {low}, high_water {high}")
    if name == "sink_window" and low <= sink:
        raise HistoryError(f"sink_window counts the sink in low_water, so low_water ({low}) must exceed sink ({sink})")
    return low, high, sink


def _params(history: History) -> dict[str, int]:
    found: dict[str, int] = {}
    for key, value in history.params.items():
        name = _SHORT.get(key, key)
        least = 0 if name == "max_text_turns" else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise HistoryError(f"history parameter {key!r} must be an integer of at least {least}, got {value!r}")
        if name in found:
            raise HistoryError(f"history parameter {name!r} is given twice")
        found[name] = value
    return found


def _budget(params: dict[str, int]) -> int | None:
    by_tokens = params["max_image_tokens"] // params["tokens_per_image"] if "max_image_tokens" in params else None
    return _least(params.get("max_images"), by_tokens)


def _least(left: int | None, right: int | None) -> int | None:
    if left is None or right is None:
        return right if left is None else left
    return min(left, right)


def _shown(start: int, sink: int, total: int) -> int:
    """How many of `total` screenshots are shown when turns below `sink` and from `start` on are."""
    first = min(sink, total)
    return first + total - max(start, first)


def _start_of(count: int, sink: int, total: int) -> int:
    """First turn of the recent window when `count` screenshots may be shown, at least the sink and the current one."""
    first = min(sink, total)
    return max(first, total - max(1, count - first))


def _moved(window: HistoryWindow, marks: _Marks, start: int) -> HistoryWindow:
    dropped = start != window.image_start and start > marks.sink
    return window.model_copy(update={"image_start": start, "sink": marks.sink, "epoch": window.epoch + int(dropped)})
