"""`rollouts setup | config | tasks`."""

from __future__ import annotations

import asyncio
import difflib
from dataclasses import asdict
from pathlib import Path  # noqa: TC003  (cyclopts reads annotations)
from typing import TYPE_CHECKING

from rich.text import Text
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.service import RPCError

from osworld_rollouts.console.errors import ConsoleError, ExitCode
from osworld_rollouts.console.output import STYLES, Output, one_line
from osworld_rollouts.settings import describe_settings, explain_settings, load_settings, unknown_environment
from osworld_rollouts.tasks.catalog import SHIPPED, load_tasks
from osworld_rollouts.temporal import SEARCH_ATTRIBUTES, connect

if TYPE_CHECKING:
    from temporalio.client import Client

    from osworld_rollouts.contracts.request import Task
    from osworld_rollouts.osworld.preflight import Problem

_TYPES: dict[str, IndexedValueType.ValueType] = {
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    "Double": IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE,
    "Bool": IndexedValueType.INDEXED_VALUE_TYPE_BOOL,
    "Datetime": IndexedValueType.INDEXED_VALUE_TYPE_DATETIME,
    "Text": IndexedValueType.INDEXED_VALUE_TYPE_TEXT,
    "KeywordList": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST,
}


def setup(*, dry_run: bool = False, json: bool = False) -> None:
    """Register the search attributes that rollouts need in the Temporal namespace. Doing it again changes nothing.

    Parameters
    ----------
    dry_run
        Only say which are missing.
    json
        Print JSON.
    """
    asyncio.run(_setup(dry_run=dry_run, out=Output(as_json=json)))


async def _setup(*, dry_run: bool, out: Output) -> None:
    settings = load_settings()
    client = await connect(settings)
    missing = await missing_attributes(client)
    if missing and not dry_run:
        await register_attributes(client, missing)
    out.record(
        {
            "namespace": client.namespace,
            "registered": sorted(missing),
            "there": sorted(set(SEARCH_ATTRIBUTES) - set(missing)),
            "dry_run": dry_run,
        }
    )
    for name, kind in SEARCH_ATTRIBUTES.items():
        state = ("would register" if dry_run else "registered") if name in missing else "there"
        out.line(Text(f"{name} ({kind}): ").append(state, style=STYLES["good"] if name in missing else STYLES["dim"]))


async def missing_attributes(client: Client) -> dict[str, str]:
    """Search attributes the namespace lacks, name to type.

    Raises:
        ConsoleError: one exists with another type.
    """
    answer = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    there = dict(answer.custom_attributes)
    for name, kind in SEARCH_ATTRIBUTES.items():
        if name in there and there[name] != _TYPES[kind]:
            other = next((label for label, value in _TYPES.items() if value == there[name]), str(there[name]))
            raise ConsoleError(
                f"search attribute {name} exists in namespace {client.namespace!r} with type {other}, rollouts need {kind}",
                remedy="remove it there, or use another namespace",
                code=ExitCode.ENVIRONMENT,
            )
    return {name: kind for name, kind in SEARCH_ATTRIBUTES.items() if name not in there}


async def register_attributes(client: Client, attributes: dict[str, str]) -> None:
    """Add search attributes to the client's namespace.

    Raises:
        ConsoleError: the service does not allow it (Temporal Cloud manages them elsewhere) or has no room.
    """
    request = AddSearchAttributesRequest(
        namespace=client.namespace, search_attributes={name: _TYPES[kind] for name, kind in attributes.items()}
    )
    try:
        await client.operator_service.add_search_attributes(request)
    except RPCError as error:
        wanted = " ".join(f"--search-attribute {name}={kind}" for name, kind in attributes.items())
        raise ConsoleError(
            f"the Temporal service did not register the search attributes: {error.message}",
            remedy=f"on Temporal Cloud use `tcld namespace search-attributes add --namespace {client.namespace} {wanted.replace('--search-attribute', '--sa')}`",
            code=ExitCode.ENVIRONMENT,
        ) from error


def config(name: str = "", /, *, reasons: bool = False, json: bool = False) -> None:
    """Every setting with its value and where it came from.

    Parameters
    ----------
    name
        Only settings whose name contains this.
    reasons
        Also why the default is what it is.
    json
        Print JSON.
    """
    out = Output(as_json=json)
    why = describe_settings()
    known = explain_settings()
    rows = [row for row in known if name in row[0]]
    if not rows:
        names = {key: key for key, *_ in known} | {key.rpartition(".")[2]: key for key, *_ in known}
        near = dict.fromkeys(names[found] for found in difflib.get_close_matches(name, names, n=4))
        raise ConsoleError(
            f"no setting has {name!r} in its name" + (f"; did you mean {' or '.join(near)}?" if near else ""),
            remedy="`rollouts config` lists them",
        )
    ignored = unknown_environment()
    out.record(
        {
            "settings": [
                {"name": key, "value": value, "origin": origin, "reason": why.get(key, "")}
                for key, value, origin in rows
            ],
            "ignored_environment": ignored,
        }
    )
    table = [
        [
            key,
            value,
            Text(origin, style=STYLES["dim"] if origin == "default" else STYLES["good"]),
            *([why.get(key, "")] if reasons else []),
        ]
        for key, value, origin in rows
    ]
    out.table(("setting", "value", "from", *(["reason"] if reasons else [])), table)
    if ignored:
        out.note(f"not a setting, ignored: {', '.join(ignored)}", style=STYLES["waiting"])


def tasks(spec: str = SHIPPED, /, *, index: Path | None = None, check: bool = False, json: bool = False) -> None:
    """List tasks: the shipped ones, or those of an OSWorld checkout.

    Parameters
    ----------
    spec
        `shipped`, a task's id or file, or a directory.
    index
        With a directory: only the tasks in this file.
    check
        Say which of them this machine's evaluator and local desktop could not run truthfully, and why.
    json
        Print JSON.
    """
    out = Output(as_json=json)
    found = load_tasks(spec, index=index)
    problems = _check(found) if check else {}
    out.record(
        {
            "tasks": [
                {
                    "id": task.task_id,
                    "domain": task.domain,
                    "instruction": task.instruction,
                    **({"problems": [asdict(problem) for problem in problems[task.task_id]]} if check else {}),
                }
                for task in found
            ]
        }
    )
    if not check:
        out.table(
            ("task", "domain", "instruction"),
            ((task.task_id, task.domain, one_line(task.instruction, 100)) for task in found),
        )
        return
    out.table(("task", "domain", ""), ((task.task_id, task.domain, verdict(problems[task.task_id])) for task in found))
    refused = sum(1 for found in problems.values() if any(problem.fatal for problem in found))
    out.line(
        f"{len(found) - refused} of {len(found)} can be run on a local desktop of this machine; a worker asks its own desktop again",
        style="bold",
    )


def _check(found: list[Task]) -> dict[str, list[Problem]]:
    try:
        from osworld_rollouts.console.task_check import problems_of  # noqa: PLC0415  (needs the evaluator's packages)
    except ImportError as error:
        raise ConsoleError(
            f"--check needs {error.name}",
            remedy="make setup, which installs a worker's packages from the lock",
            code=ExitCode.ENVIRONMENT,
        ) from error
    return {task.task_id: problems_of(task) for task in found}


def verdict(problems: list[Problem]) -> Text:
    """Whether a task can be run, in a few words."""
    fatal = [
        f"{problem.message} ({problem.where})" if problem.where else problem.message
        for problem in problems
        if problem.fatal
    ]
    return (
        Text(one_line("; ".join(fatal), 160), style=STYLES["bad"])
        if fatal
        else Text("can be run", style=STYLES["good"])
    )
