"""Can this task be run and scored truthfully here? Asked before a desktop is made and a model is paid.

`check_task` is a pure function of the task file, of what this evaluator has (`EvaluatorFacts`) and of what the desktop is
(`DesktopFacts`, where None means unknown and is not held against it). A *fatal* problem means that running the task would fail, or
worse, score what is not the agent's doing; the others are for the record.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from osworld_rollouts.osworld import requirements
from osworld_rollouts.osworld.package import PackageMissing, PackageNames, package_names
from osworld_rollouts.osworld.task_files import TaskFile, task_files, unsafe_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_INSTALLS = re.compile(
    r"\b(apt|apt-get|pip3?|snap|conda|npm)\s+(?:-\S+\s+)*(?:install|update)\b|--install-extension\s+[\w-]+\.[\w-]+(?!\S*\.vsix)"
)
_LOCAL_WHEEL = re.compile(r"\bpip3?\s+install\s+/\S+\.whl\b")
_LOCAL_HOSTS = frozenset({"", "localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a task cannot (or, not fatal, should only knowingly) be run. `where` names the place in the task file."""

    code: str
    where: str
    message: str
    remedy: str
    fatal: bool = True


@dataclass(frozen=True, slots=True)
class EvaluatorFacts:
    """What this evaluator has. `names` None: `desktop-env` is not installed."""

    names: PackageNames | None
    modules: frozenset[str] = frozenset()
    tools: frozenset[str] = frozenset()
    settings_root: Path | None = None
    upload_roots: tuple[Path, ...] = ()

    @classmethod
    def here(cls, *, settings_root: Path | None = None, upload_roots: tuple[Path, ...] = ()) -> EvaluatorFacts:
        """The facts of this machine and this Python."""
        try:
            names = package_names()
        except PackageMissing:
            names = None
        modules = {name for needs in requirements.METRIC_MODULES.values() for name, _ in needs}
        tools = {name for needs in requirements.METRIC_TOOLS.values() for name, _ in needs}
        return cls(
            names=names,
            modules=frozenset(name for name in modules if importlib.util.find_spec(name) is not None),
            tools=frozenset(name for name in tools if shutil.which(name)),
            settings_root=settings_root,
            upload_roots=upload_roots,
        )


@dataclass(frozen=True, slots=True)
class DesktopFacts:
    """What a desktop is. `programs` are names on its PATH, `browser` is what `google-chrome --version` calls itself."""

    network: bool | None = None
    sudo: bool | None = None
    programs: frozenset[str] | None = None
    browser: str | None = None


PROBE = (
    "for p in {programs}; do command -v $p >/dev/null && echo program $p; done; "
    "echo {password} | sudo -S -k -p '' true 2>/dev/null && echo sudo yes || echo sudo no; "
    "echo browser $(google-chrome --version 2>/dev/null)"
)
"""Shell script for `desktop_probe`; its output is for `read_probe`."""


def desktop_probe(client_password: str = "password") -> str:  # noqa: S107 - the public password of OSWorld's image
    """A shell script that asks a desktop for its facts and changes nothing."""
    return PROBE.format(programs=" ".join(sorted(requirements.PROBED)), password=shlex.quote(client_password))


def read_probe(output: str, *, network: bool | None) -> DesktopFacts:
    """The facts in what `desktop_probe` printed; whether there is a network, the desktop's specification says."""
    found: dict[str, list[str]] = {"program": [], "sudo": [], "browser": []}
    for line in output.splitlines():
        name, _, value = line.partition(" ")
        if name in found:
            found[name].append(value.strip())
    version = re.match(r"\D*[A-Za-z]", " ".join(found["browser"]))
    return DesktopFacts(
        network=network,
        sudo=found["sudo"] == ["yes"],
        programs=frozenset(found["program"]),
        browser=version[0].strip() if version else None,
    )


def check_task(
    document: dict[str, Any],
    evaluator: EvaluatorFacts,
    desktop: DesktopFacts | None = None,
    *,
    missing_files: Callable[[Iterable[TaskFile]], list[TaskFile]] | None = None,
) -> list[Problem]:
    """Every known problem of running the task here, in the order of the task file; `missing_files` is asked when offline."""
    if evaluator.names is None:
        return [
            Problem(
                "evaluator_missing",
                "",
                "desktop-env is not installed here",
                "install the evaluator from the lock (`make setup`)",
            )
        ]
    malformed = list(_shape(document))
    if malformed:
        return malformed
    if names := unsafe_names(document):
        message = f"file names leave the task's cache folder: {', '.join(names)}"
        return [Problem("unsafe_name", "", message, "correct the task file")]
    task = _Task(document)
    found = [
        *_names(task, evaluator.names),
        *_score_would_lie(task, evaluator),
        *_host_access(task, evaluator),
        *_on_desktop(task, desktop or DesktopFacts()),
    ]
    if missing_files is not None:
        for file in missing_files(task_files(document)):
            message = f"{file.url} is not in the task file store, and downloads are off"
            found.append(
                Problem("file_missing", file.used_by, message, "fetch the task's files beforehand, or allow downloads")
            )
    return list(dict.fromkeys(found))


@dataclass(slots=True)
class _Task:
    """A task file as the checks want it: steps with their place, metrics, getters, command lines."""

    document: dict[str, Any]
    steps: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    getters: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        evaluator = self.document["evaluator"]
        for part, steps in (
            ("config", self.document.get("config")),
            ("evaluator.postconfig", evaluator.get("postconfig")),
        ):
            for number, step in enumerate(steps or [], start=1):
                self.steps.append((f"{part}[{number}]", step["type"], step.get("parameters") or {}))
        self.metrics = _listed(evaluator["func"])
        for part in ("result", "expected"):
            for number, getter in enumerate(_listed(evaluator.get(part)), start=1):
                if getter:
                    self.getters.append((f"evaluator.{part}[{number}]", getter))

    def commands(self) -> Iterator[tuple[str, list[str] | str, bool]]:
        """(place, command, shell) of everything that is run on the desktop."""
        for where, kind, parameters in self.steps:
            if kind in {"launch", "execute", "command"} and parameters.get("command"):
                yield where, parameters["command"], bool(parameters.get("shell"))
        for where, getter in self.getters:
            if getter["type"] in {"vm_command_line", "vm_command_error"} and getter.get("command"):
                yield where, getter["command"], bool(getter.get("shell"))


def _shape(document: dict[str, Any]) -> Iterator[Problem]:
    remedy = "correct the task file"
    evaluator = document.get("evaluator")
    if not isinstance(document.get("id"), str) or not isinstance(document.get("instruction"), str):
        yield Problem("malformed", "id", "a task needs an id and an instruction", remedy)
    if not isinstance(evaluator, dict) or not evaluator.get("func"):
        yield Problem("malformed", "evaluator", "a task needs an evaluator with at least one metric in func", remedy)
        return
    for where, steps in (("config", document.get("config")), ("evaluator.postconfig", evaluator.get("postconfig"))):
        if not isinstance(steps or [], list) or not all(_is_step(step) for step in steps or []):
            yield Problem("malformed", where, "steps are a list of objects with a type and parameters", remedy)
    for part in ("result", "expected"):
        if not all(
            getter is None or (isinstance(getter, dict) and (getter.get("type") or not getter))
            for getter in _listed(evaluator.get(part))
        ):
            yield Problem("malformed", f"evaluator.{part}", "a getter is an object with a type", remedy)
    if isinstance(evaluator["func"], list):
        for part in ("result", "expected", "options"):
            if evaluator.get(part) and len(_listed(evaluator[part])) != len(evaluator["func"]):
                message = f"{part} has {len(_listed(evaluator[part]))} entries for {len(evaluator['func'])} metrics"
                yield Problem("malformed", f"evaluator.{part}", message, remedy)


def _is_step(step: Any) -> bool:
    if not isinstance(step, dict) or not step.get("type") or not isinstance(step.get("parameters") or {}, dict):
        return False
    files = (step.get("parameters") or {}).get("files") or []
    return isinstance(files, list) and all(isinstance(file, dict) for file in files)


def _names(task: _Task, names: PackageNames) -> Iterator[Problem]:
    remedy = "use a desktop-env that has it, or leave the task out"
    for metric in task.metrics:
        if metric not in names.metrics:
            yield Problem("unknown_metric", "evaluator.func", f"this desktop-env has no metric {metric!r}", remedy)
    for where, getter in task.getters:
        if getter["type"] not in names.getters:
            yield Problem("unknown_getter", where, f"this desktop-env has no getter {getter['type']!r}", remedy)
    for where, kind, _ in task.steps:
        if kind not in names.setup_steps:
            yield Problem("unknown_step", where, f"this desktop-env has no setup step {kind!r}", remedy)
        elif kind in names.unimplemented_steps:
            yield Problem(
                "unknown_step", where, f"desktop-env names the setup step {kind!r} and does not implement it", remedy
            )


def _score_would_lie(task: _Task, evaluator: EvaluatorFacts) -> Iterator[Problem]:
    for metric in task.metrics:
        for module, why in requirements.METRIC_MODULES.get(metric, ()):
            if module not in evaluator.modules:
                message = f"metric {metric} needs the Python package {module}: {why}"
                yield Problem("missing_module", "evaluator.func", message, f"install {module} where the evaluator runs")
        for tool, why in requirements.METRIC_TOOLS.get(metric, ()):
            if tool not in evaluator.tools:
                message = f"metric {metric} needs the program {tool} on the evaluator's machine: {why}"
                yield Problem("missing_tool", "evaluator.func", message, f"install the system package {tool}")
        if metric in requirements.RUNS_AGENT_CODE:
            message = f"metric {metric} runs Python files that the agent wrote, on the evaluator's machine"
            yield Problem("runs_agent_code", "evaluator.func", message, "run it where that is acceptable", fatal=False)


def _host_access(task: _Task, evaluator: EvaluatorFacts) -> Iterator[Problem]:
    for where, kind, parameters in task.steps:
        if kind == "upload_file":
            for file in parameters.get("files") or []:
                path = Path(str(file.get("local_path"))).resolve()
                if not any(path.is_relative_to(root.resolve()) for root in evaluator.upload_roots):
                    message = f"the task wants to copy {path} of the worker into the desktop"
                    yield Problem(
                        "host_file", where, message, "use a download step, or allow its folder in upload_roots"
                    )
        if kind in requirements.GOOGLE_STEPS:
            yield from _google(where, parameters.get("settings_file"), evaluator)
    for where, getter in task.getters:
        if getter["type"] in requirements.GOOGLE_GETTERS:
            yield from _google(where, getter.get("settings_file"), evaluator)


def _google(where: str, settings_file: str | None, evaluator: EvaluatorFacts) -> Iterator[Problem]:
    settings_file = settings_file or "evaluation_examples/settings/googledrive/settings.yml"
    if evaluator.settings_root is None or not (evaluator.settings_root / settings_file).is_file():
        message = f"the task works on a real Google account; its settings {settings_file} are not here"
        yield Problem(
            "google_account", where, message, "give settings_root, a folder with OSWorld's evaluation_examples/settings"
        )


def _on_desktop(task: _Task, desktop: DesktopFacts) -> Iterator[Problem]:
    if desktop.network is False:
        for where, why in _web(task):
            yield Problem(
                "needs_network",
                where,
                f"the desktop has no network, and the task {why}",
                "choose a desktop with a network",
            )
    if desktop.sudo is False:
        for where, command, _ in task.commands():
            if re.search(r"\bsudo\b", _line(command)) and (task.document["id"], _number(where)) not in _tolerated():
                yield Problem(
                    "needs_sudo",
                    where,
                    f"the desktop's user has no sudo: {_line(command)[:200]}",
                    "choose a container or machine",
                )
    if desktop.programs is not None:
        for where, program in _programs(task):
            if program in requirements.PROBED - desktop.programs:
                yield Problem(
                    "missing_program",
                    where,
                    f"the desktop does not have {program}",
                    "choose a desktop image that has it",
                )
    if desktop.browser is not None and not desktop.browser.startswith("Google Chrome"):
        yield from _browser_name(task, desktop.browser)


def _browser_name(task: _Task, browser: str) -> Iterator[Problem]:
    remedy = "choose a desktop with Google Chrome"
    for where, getter in task.getters:
        if getter["type"] in requirements.CHROME_NAME_GETTERS:
            message = f"getter {getter['type']} looks for `Google Chrome` in the accessibility tree; here it is {browser}, so it finds nothing and scores 0"
            yield Problem("browser_name", where, message, remedy)
        if getter["type"] == "accessibility_tree" and "Chrome" in json.dumps(task.document["evaluator"]):
            yield Problem(
                "browser_name", where, f"the metric looks for Google Chrome by name; here it is {browser}", remedy
            )
    for where, kind, parameters in task.steps:
        if kind == "activate_window" and "Google Chrome" in str(parameters.get("window_name")):
            yield Problem(
                "browser_name", where, f"the task activates a window named Google Chrome; here it is {browser}", remedy
            )


def _web(task: _Task) -> Iterator[tuple[str, str]]:
    for where, kind, parameters in task.steps:
        if kind == "chrome_open_tabs":
            hosts = sorted({host for url in parameters.get("urls_to_open") or [] if (host := _public_host(str(url)))})
            if hosts:
                yield where, f"opens {', '.join(hosts)}"
        elif kind in requirements.GOOGLE_STEPS:
            yield where, "signs in to Google"
    for where, getter in task.getters:
        if getter["type"] in requirements.WEB_GETTERS and (
            getter["type"] != "page_info" or _public_host(str(getter.get("url")))
        ):
            yield where, f"is scored from the public web ({getter['type']})"
    for where, command, _ in task.commands():
        line = _line(command)
        if _INSTALLS.search(line) and not _LOCAL_WHEEL.search(line):
            yield where, f"installs software: {line[:120]}"


def _programs(task: _Task) -> Iterator[tuple[str, str]]:
    for app in task.document.get("related_apps") or []:
        if program := requirements.APP_PROGRAMS.get(str(app).lower()):
            yield "related_apps", program
    for where, command, shell in task.commands():
        words = command if isinstance(command, list) else [command] if shell else _split(command)
        if words and not shell and words[0] not in {"bash", "sh", "/bin/bash", "/bin/sh"}:
            if "/" not in words[0] or words[0].startswith(("/usr/bin/", "/bin/")):
                yield where, PurePosixPath(words[0]).name
            continue
        line = _line(command)
        for program in requirements.KNOWN_PROGRAMS:
            if re.search(rf"(?:^|[;&|(`\n]|\bsudo\s+-S\b|&&)\s*(?:/usr/bin/)?{re.escape(program)}(?=\s|$)", line):
                yield where, program
    for where, getter in task.getters:
        if program := requirements.GETTER_PROGRAMS.get(getter["type"]):
            yield where, program


def _public_host(url: str) -> str:
    parts = urlsplit(url if "//" in url else f"https://{url}")
    return (
        "" if parts.scheme not in {"http", "https"} or (parts.hostname or "") in _LOCAL_HOSTS else parts.hostname or ""
    )


def _line(command: list[str] | str) -> str:
    return command if isinstance(command, str) else " ".join(map(str, command))


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _number(where: str) -> int:
    match = re.match(r"config\[(\d+)\]", where)
    return int(match[1]) if match else 0


def _tolerated() -> Iterable[tuple[str, int]]:
    from osworld_rollouts.osworld.verdicts import TOLERATED  # noqa: PLC0415 - verdicts is about replies, and knows this one thing more

    return TOLERATED


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
