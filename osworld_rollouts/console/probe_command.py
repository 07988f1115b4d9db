"""`rollouts probe`."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from osworld_rollouts.console.errors import ConsoleError, ExitCode
from osworld_rollouts.console.output import Output
from osworld_rollouts.serving.errors import ModelCallError
from osworld_rollouts.serving.secrets import KeyMissing, resolve_key

if TYPE_CHECKING:
    from osworld_rollouts.serving.probe_report import ProbeReport

_SIZE = re.compile(r"^(\d{2,5})x(\d{2,5})$")


def probe_model(
    *, base_url: str, model: str, images: int = 3, exact: bool = False, size: tuple[str, ...] = ("1920x1080",),
    api_key_env: str | None = None, timeout: float = 120, json: bool = False,
) -> int:  # fmt: skip
    """Ask a model's server what evidence it can give, with about 15 small requests. Exit code 1 with --exact when it cannot give exact evidence.

    Parameters
    ----------
    base_url
        Address of the server, usually ending in /v1.
    model
        The model, as the server names it.
    images
        How many images one prompt must take.
    exact
        Fail unless exact evidence can be had.
    size
        WIDTHxHEIGHT of the images that will be sent; may be given several times.
    api_key_env
        Environment variable that holds the key; default OPENAI_API_KEY if it is set.
    timeout
        Seconds for each request.
    json
        Print JSON.
    """
    out = Output(as_json=json)
    if not base_url.startswith(("http://", "https://")):
        raise ConsoleError(f"--base-url {base_url!r} is no address, for example http://127.0.0.1:8000/v1")
    if images < 1:
        raise ConsoleError(f"--images {images}: a prompt shows at least one")
    report = asyncio.run(_probe(base_url, model, images, [_size(item) for item in size], api_key_env, timeout))
    out.record(
        {**report.model_dump(mode="json"), "refusals": [item.model_dump(mode="json") for item in report.refusals]}
    )
    marks = {True: ("yes", "green"), False: ("no", "red"), None: ("-", "dim")}
    for item in report.findings:
        mark, style = marks[item.ok]
        out.line(f"{mark:>4} {item.name}: {item.detail}", style=style if item.ok is not True else None)
        if item.remedy:
            out.line(f"       {item.remedy}")
    verdict = "exact evidence can be had" if report.exact else "semantic evidence only"
    why = "" if report.exact else f": {', '.join(item.name for item in report.refusals)}"
    out.line(
        f"{verdict}{why} ({report.requests} requests, {report.duration_s:.1f} s)",
        style="green" if report.exact else "yellow",
    )
    return 1 if exact and not report.exact else 0


async def _probe(
    base_url: str, model: str, images: int, sizes: list[tuple[int, int]], api_key_env: str | None, timeout: float
) -> ProbeReport:  # fmt: skip
    try:
        from osworld_rollouts.serving.client import close_clients  # noqa: PLC0415 - needs the extra `worker`
        from osworld_rollouts.serving.probe import probe  # noqa: PLC0415

        key = resolve_key(api_key_env or "OPENAI_API_KEY", required=api_key_env is not None)
        try:
            return await probe(base_url, model, images=images, api_key=key, sizes=sizes, timeout_s=timeout)
        finally:
            await close_clients()
    except ModelCallError as error:
        code = ExitCode.USAGE if error.kind == "rejected" else ExitCode.UNREACHABLE
        raise ConsoleError(error.message, remedy=error.remedy, code=code) from error
    except KeyMissing as error:
        raise ConsoleError(str(error), code=ExitCode.USAGE) from error
    except ImportError as error:
        raise ConsoleError(
            f"probing needs packages of a worker: {error}",
            remedy="pip install 'osworld-rollouts[worker]'",
            code=ExitCode.ENVIRONMENT,
        ) from error


def _size(text: str) -> tuple[int, int]:
    found = _SIZE.match(text)
    if not found:
        raise ConsoleError(f"--size {text!r} is not WIDTHxHEIGHT, for example 1920x1080")
    return int(found[1]), int(found[2])
