"""The probe as a worker uses it: once for a server and model, kept in the store, refused where exact evidence cannot be had."""

from __future__ import annotations

import asyncio
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from osworld_rollouts.evidence.checks import reshapes_distribution
from osworld_rollouts.evidence.store import put_json
from osworld_rollouts.serving.probe import probe
from osworld_rollouts.serving.probe_report import ExactRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from osworld_rollouts.contracts.model import Api
    from osworld_rollouts.contracts.request import Model
    from osworld_rollouts.evidence.store import EvidenceStore
    from osworld_rollouts.serving.probe_report import ProbeReport

_FRESH_S: Final = (
    600  # a server that is started again with other options shows another fingerprint, which the checks notice
)

_Key = tuple[str, str, tuple[tuple[int, int], ...], int]
_reports: dict[_Key, tuple[float, ProbeReport]] = {}
_locks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Key, asyncio.Lock]] = weakref.WeakKeyDictionary()


async def exact_profile(
    store: EvidenceStore, model: Model, *, api: Api, sizes: Sequence[tuple[int, int]], sampling: Mapping[str, Any],
    api_key: str | None, images: int = 3,
) -> tuple[str, ProbeReport]:  # fmt: skip
    """Probe a model (or use a probe of the last minutes); the sha256 of its stored profile, and the report.

    Args:
        store: where the profile is kept; `ExecutionStarted.provenance["server_profile"]` is to name it.
        model: whose server is asked.
        api: the adapter's API.
        sizes: (width, height) of the images the adapter will send.
        sampling: parameters as they will be sent.
        api_key: as for a call.
        images: how many images a prompt may show.

    Raises:
        ExactRefused: with every reason.
        ModelCallError: the server does not answer.
    """
    report = await recent_probe(model, sizes=sizes, api_key=api_key, images=images)
    reasons, remedy = refusals(report, api=api, sampling=sampling)
    if reasons or report.profile is None:
        raise ExactRefused(reasons, remedy)
    return await asyncio.to_thread(put_json, store, report.profile.model_dump(mode="json")), report


async def recent_probe(
    model: Model, *, sizes: Sequence[tuple[int, int]], api_key: str | None, images: int = 3
) -> ProbeReport:
    """A report of the last minutes, or a new probe; callers that come together share one."""
    key: _Key = (model.base_url, model.name, tuple(sizes), images)
    lock = _locks.setdefault(asyncio.get_running_loop(), {}).setdefault(key, asyncio.Lock())
    async with lock:
        known = _reports.get(key)
        if known is not None and time.monotonic() - known[0] < _FRESH_S:
            return known[1]
        report = await probe(
            model.base_url, model.name, images=images, api_key=api_key, sizes=tuple(sizes), timeout_s=model.timeout_s
        )
        _reports[key] = (time.monotonic(), report)
        return report


def forget_probes() -> None:
    """Probe again next time."""
    _reports.clear()


def refusals(report: ProbeReport, *, api: Api, sampling: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    """Why exact evidence cannot be had for these calls, and what to do about the first reason; no reasons when it can."""
    found: list[tuple[str, str]] = [(f"{item.name}: {item.detail}", item.remedy) for item in report.refusals]
    if api == "messages":
        found.append(
            ("the Messages API gives neither ids nor log probabilities", "use an adapter that speaks chat completions")
        )
    if api == "responses":
        found.append(
            (
                "the Responses API gives no log probabilities for reasoning and calls",
                "use an adapter that speaks chat completions",
            )
        )
    if api == "generate" and (report.profile is None or not report.profile.token_in):
        found.append(("the server has no token endpoint", "vLLM: serve with --enable-scale-out"))
    changed = reshapes_distribution(sampling)
    mode = "unknown" if report.profile is None else report.profile.logprobs_mode
    if mode == "tempered":
        changed = [item for item in changed if not item.startswith("temperature ")]
    if changed and mode != "processed":
        found.append(
            (
                f"sampling with {', '.join(changed)}, and the server's log probabilities are {mode}",
                "vLLM: serve with --logprobs-mode processed_logprobs, or sample at temperature 1, top_p 1",
            )
        )
    return tuple(reason for reason, _ in found), found[0][1] if found else ""
