"""Finding tasks: shipped ones by name, one task file, or a selection from an OSWorld checkout.

A task file is `<examples>/<domain>/<task id>.json`; an index file (`test_all.json`, `test_small.json`, …) maps a domain to a
list of task ids and lies beside the `examples` directory. Both are OSWorld's own layout (`evaluation_examples/` there).
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osworld_rollouts.contracts.identity import TASK_PATTERN
from osworld_rollouts.contracts.request import Task

if TYPE_CHECKING:
    from collections.abc import Iterable

SHIPPED = "shipped"
"""The name that stands for all shipped tasks."""

_EXAMPLES = Path(__file__).parent / "examples"
_DOMAINS = frozenset({
    "chrome", "gimp", "libreoffice_calc", "libreoffice_impress", "libreoffice_writer", "multi_apps", "os", "thunderbird",
    "vlc", "vs_code",
})  # fmt: skip


class TaskError(ValueError):
    """A task that cannot be found or read: one line that says which, what is wrong with it, and what to do."""


def shipped_tasks() -> list[Task]:
    """The tasks that ship with the project, sorted by domain and id."""
    return list(_shipped())


def load_tasks(spec: str | Path | Iterable[str | Path], *, index: str | Path | None = None) -> list[Task]:
    """Tasks named by `spec`, in its order.

    Each name is one of: `shipped` (all shipped tasks), the id of a shipped task, a task file, an index file, or a directory
    (an OSWorld checkout, its `evaluation_examples`, or its `examples`). With `index`, a directory gives only the tasks which
    that file lists, in its order; a relative `index` is also looked for beside the `examples` directory.

    Raises:
        TaskError: for a name that is none of these, a file that is not a task, and an id that is named twice.
    """
    names = [spec] if isinstance(spec, (str, Path)) else list(spec)
    if not names:
        raise TaskError("no task was named; `shipped` names all tasks that ship with the project")
    found: dict[str, str] = {}
    tasks: list[Task] = []
    for name in names:
        for source, task in _resolve(name, index):
            if task.task_id in found:
                raise TaskError(
                    f"task {task.task_id!r} is named twice: by {found[task.task_id]} and by {source}; keep one"
                )
            found[task.task_id] = source
            tasks.append(task)
    return tasks


def read_task(path: str | Path) -> Task:
    """The task in one file; its domain is the directory's name where that is an OSWorld domain.

    Raises:
        TaskError: when the file cannot be read, is not JSON, or is not a task.
    """
    path = Path(path)
    return _task(_read_json(path, "task file"), path)


def _resolve(name: str | Path, index: str | Path | None) -> list[tuple[str, Task]]:
    text, path = str(name), _as_path(name)
    if text == SHIPPED:
        return [(f"the shipped task {task.task_id}", task) for task in _shipped()]
    shipped = {task.task_id: task for task in _shipped()}
    if text in shipped:
        return [(f"the shipped task {text}", shipped[text])]
    if path is None:
        raise TaskError(f"unknown task {text[:100]!r}")
    if path.is_dir():
        examples = _examples_of(path)
        if index is not None:
            return _indexed(_find_index(index, examples), examples)
        return [(str(file), read_task(file)) for file in sorted(examples.glob("*/*.json"))]
    if path.is_file():
        content = _read_json(path, "task or index file")
        if _is_index(content):
            return _indexed(path, _examples_of(path.parent))
        return [(str(path), _task(content, path))]
    if "/" in text or text.endswith(".json"):
        raise TaskError(f"no task file or directory at {text}; name an existing one, or a shipped task by its id alone")
    raise TaskError(f"unknown task {text!r}{_suggestion(text, shipped)}")


def _as_path(name: str | Path) -> Path | None:
    """The name as a path, or None when no file system could hold it."""
    try:
        Path(name).exists()
    except (OSError, ValueError):
        return None
    return Path(name)


def _indexed(index: Path, examples: Path) -> list[tuple[str, Task]]:
    content = _read_json(index, "index file")
    if not _is_index(content):
        raise TaskError(f"{index} is not an index file: it must map each domain to a list of task ids")
    tasks: list[tuple[str, Task]] = []
    for domain, ids in content.items():
        for task_id in ids:
            _check_name(task_id, str(index))
            _check_name(domain, str(index), what="domain")
            file = examples / domain / f"{task_id}.json"
            if not file.is_file():
                present = [other.stem for other in (examples / domain).glob("*.json")]
                raise TaskError(
                    f"{index} lists {domain}/{task_id}, but there is no {file}{_suggestion(task_id, present)}"
                )
            tasks.append((f"{index} ({domain})", read_task(file)))
    return tasks


def _examples_of(directory: Path) -> Path:
    for candidate in (directory / "evaluation_examples" / "examples", directory / "examples", directory):
        if any(candidate.glob("*/*.json")):
            return candidate
    raise TaskError(f"{directory} holds no OSWorld tasks: expected <domain>/<task id>.json in it or in its examples/")


def _find_index(index: str | Path, examples: Path) -> Path:
    for candidate in (Path(index), examples.parent / index):
        if candidate.is_file():
            return candidate
    there = ", ".join(sorted(path.name for path in examples.parent.glob("*.json")))
    raise TaskError(f"no index file {index}" + (f"; beside the examples there are: {there}" if there else ""))


def _is_index(content: Any) -> bool:
    return isinstance(content, dict) and bool(content) and all(
        isinstance(ids, list) and all(isinstance(task_id, str) for task_id in ids) for ids in content.values()
    )  # fmt: skip


def _task(document: Any, path: Path) -> Task:
    if not isinstance(document, dict):
        raise TaskError(f"{path}: an OSWorld task is a JSON object with id, instruction, config and evaluator")
    if isinstance(document.get("id"), str):
        _check_name(document["id"], str(path))
    try:
        task = Task.from_document(document, _domain(document, path))
    except ValueError as error:
        raise TaskError(f"{path}: {_one_line(error)}") from error
    _check_steps(task.document.get("config", []), f"{path}: config")
    evaluator = task.document["evaluator"]
    assert isinstance(evaluator, dict)  # noqa: S101  # checked by from_document
    func = evaluator.get("func")
    if not (isinstance(func, str) or (isinstance(func, list) and func and all(isinstance(name, str) for name in func))):
        raise TaskError(f"{path}: task field 'evaluator.func' must be the name of a metric, or a list of names")
    _check_steps(evaluator.get("postconfig", []), f"{path}: evaluator.postconfig")
    return task


def _domain(document: dict[str, Any], path: Path) -> str:
    if path.parent.name in _DOMAINS or path.parent.parent.name == "examples":
        return path.parent.name
    stated = document.get("domain")
    return stated if isinstance(stated, str) and stated else "custom"


def _check_steps(steps: Any, where: str) -> None:
    if not isinstance(steps, list):
        raise TaskError(f"{where} must be a list of steps, got {type(steps).__name__}")
    for number, step in enumerate(steps):
        if not (
            isinstance(step, dict) and isinstance(step.get("type"), str) and isinstance(step.get("parameters"), dict)
        ):
            raise TaskError(f"{where}[{number}] must be an object with a 'type' (text) and 'parameters' (object)")


def _check_name(name: str, source: str, what: str = "task id") -> None:
    if not re.fullmatch(TASK_PATTERN.strip("^$"), name):
        raise TaskError(
            f"{source}: {what} {name!r} is not a name; it becomes part of file and workflow names, so use up to 128 letters, "
            "digits, '.', '_' and '-', beginning with a letter or digit"
        )


def _read_json(path: Path, what: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except OSError as error:
        raise TaskError(f"cannot read the {what} {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"the {what} {path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise TaskError(
            f"the {what} {path} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from error
    except RecursionError as error:
        raise TaskError(f"the {what} {path} is not JSON: nested too deeply") from error
    except ValueError as error:
        raise TaskError(f"the {what} {path} is not JSON: {error}") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _suggestion(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or [other for other in names if name in other][:3]
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; there are: {', '.join(names)}" if 0 < len(names) <= 20 else ""


def _one_line(error: ValueError) -> str:
    return " ".join(str(error).split())


@functools.cache
def _shipped() -> tuple[Task, ...]:
    return tuple(read_task(path) for path in sorted(_EXAMPLES.glob("*/*.json")))
