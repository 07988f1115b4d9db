"""Rollout requests from what a person typed: tasks x samples, one model, one adapter."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from osworld_rollouts.adapters.registry import AdapterError, BadAdapterOptions, adapter_names, load_adapter
from osworld_rollouts.console.errors import ConsoleError
from osworld_rollouts.contracts.desktop import DesktopSpec
from osworld_rollouts.contracts.request import (
    Adapter,
    History,
    Limits,
    Model,
    ParsePolicy,
    Rollout,
    RolloutRequest,
    Sampling,
)
from osworld_rollouts.desktops.registry import provider_names
from osworld_rollouts.history import POLICY_NAMES, HistoryError, policy_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from osworld_rollouts.contracts.request import Task


@Parameter(name="*", group="Model")
@dataclass(frozen=True)
class ModelOptions:
    """The policy model and how it is asked.

    Parameters
    ----------
    model
        Its name, as the server knows it.
    base_url
        Address of an OpenAI-compatible server, usually ending in /v1.
    api_key_env
        Environment variable *of the worker* that holds the key.
    max_tokens
        Limit of a reply.
    temperature
        Sampling temperature.
    top_p
        Nucleus sampling.
    seed
        Sampling seed, for servers that honour it.
    """

    model: str | None = None
    base_url: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None

    def contract(self) -> Model:
        """The model.

        Raises:
            ConsoleError: name or address is missing.
        """
        if not self.model or not self.base_url:
            missing = " and ".join(
                flag for flag, value in (("--model", self.model), ("--base-url", self.base_url)) if not value
            )
            raise ConsoleError(
                f"{missing} missing: which model, served where?",
                remedy="for example --model gpt-5 --base-url https://api.openai.com/v1",
            )
        return Model(name=self.model, base_url=self.base_url, api_key_env=self.api_key_env)

    def sampling(self) -> Sampling:
        """What is sent; None is not sent."""
        return Sampling(max_tokens=self.max_tokens, temperature=self.temperature, top_p=self.top_p, seed=self.seed)


@Parameter(name="*", group="Agent")
@dataclass(frozen=True)
class AgentOptions:
    """How the model's words become actions, and for how long.

    Parameters
    ----------
    adapter
        The model's protocol; `rollouts adapters` lists them.
    adapter_option
        An option of the adapter as name=value (JSON, or text); may be repeated.
    history
        Which earlier turns the model sees; the adapter's own choice by default.
    history_option
        A parameter of the history policy as name=value; may be repeated.
    parse_policy
        What follows a reply that holds no action: noop (the turn is used up), resample, feedback (resample, the error shown to
        the model) or stop; the adapter's own choice by default, as `rollouts adapters show` prints it.
    parse_policy_option
        A detail of that policy as name=value: resamples, max_failed_turns, resample_temperature, resample_temperature_min. May be
        repeated; without --parse-policy it changes the adapter's own choice.
    max_turns
        The horizon.
    provider
        Which kind of desktop.
    evidence
        semantic, or exact when tokens and logprobs must be proved.
    """

    adapter: str = "pyautogui"
    adapter_option: tuple[str, ...] = ()
    history: str | None = None
    history_option: tuple[str, ...] = ()
    parse_policy: Literal["noop", "resample", "feedback", "stop"] | None = None
    parse_policy_option: tuple[str, ...] = ()
    max_turns: int = 15
    provider: str = "local"
    evidence: Literal["semantic", "exact"] = "semantic"


@Parameter(name="*", group="Scheduling")
@dataclass(frozen=True)
class ScheduleOptions:
    """Names, budgets and order; they do not change what a rollout means.

    Parameters
    ----------
    campaign
        Name of this set of rollouts; rollout ids are campaign/task/sample.
    samples
        Rollouts for each task.
    first_sample
        Index of the first one.
    purpose
        What it is for, for example evaluation or train.
    label
        name=value, shown with the rollout; may be repeated.
    priority
        1 (first) to 5.
    max_executions
        Physical attempts for each rollout.
    execution_limit_s
        Wall-clock limit of one attempt, up to the last turn.
    """

    campaign: str = "default"
    samples: Annotated[int, Parameter(name=("--samples", "-n"))] = 1
    first_sample: int = 0
    purpose: str | None = None
    label: tuple[str, ...] = ()
    priority: int = 3
    max_executions: int = 3
    execution_limit_s: float = 3600


def build_requests(
    tasks: Sequence[Task], model: ModelOptions, agent: AgentOptions, schedule: ScheduleOptions
) -> list[RolloutRequest]:
    """One request for each task and sample, samples outermost, so that an interrupted campaign has seen every task.

    Raises:
        ConsoleError: an option that cannot be read; ValidationError: a value out of range.
    """
    if schedule.samples < 1:
        raise ConsoleError(f"--samples must be at least 1, got {schedule.samples}")
    _known("--adapter", agent.adapter, adapter_names())
    _known("--provider", agent.provider, provider_names())
    if agent.history is not None:
        _known("--history", agent.history, POLICY_NAMES)
    served, sampling = model.contract(), model.sampling()
    adapter = Adapter(name=agent.adapter, options=pairs(agent.adapter_option, "--adapter-option"))
    history = History(name=agent.history, params=pairs(agent.history_option, "--history-option"))
    _check_agent(adapter, history)
    parse_policy = _parse_policy(agent, adapter)
    labels = {name: str(value) for name, value in pairs(schedule.label, "--label", plain=True).items()}
    limits = Limits(max_executions=schedule.max_executions, execution_s=schedule.execution_limit_s)
    return [
        RolloutRequest(
            rollout=Rollout(
                task=task,
                model=served,
                adapter=adapter,
                history=history,
                parse_policy=parse_policy,
                sampling=sampling,
                max_turns=agent.max_turns,
                desktop=DesktopSpec(provider=agent.provider),
                evidence=agent.evidence,
            ),
            campaign_id=schedule.campaign,
            sample_index=sample,
            purpose=schedule.purpose,
            labels=labels,
            priority=schedule.priority,
            limits=limits,
        )
        for sample in range(schedule.first_sample, schedule.first_sample + schedule.samples)
        for task in tasks
    ]


def _check_agent(adapter: Adapter, history: History) -> None:
    """Refuse options that the worker would refuse, while the rollout's id is still free for the right ones."""
    try:
        chosen = load_adapter(adapter.name, dict(adapter.options))
    except BadAdapterOptions as error:
        raise ConsoleError(str(error), remedy=f"`rollouts adapters show {adapter.name}`") from error
    except (AdapterError, ImportError):
        return  # the worker may have what is missing here
    default = history if history.name else chosen.history_default()
    try:
        policy_id(History(name=default.name, params={**default.params, **history.params}))
    except HistoryError as error:
        raise ConsoleError(f"--history-option: {error}") from error


def _parse_policy(agent: AgentOptions, adapter: Adapter) -> ParsePolicy | None:
    """The policy that was asked for; None leaves it to the adapter that the worker has."""
    details = pairs(agent.parse_policy_option, "--parse-policy-option")
    if agent.parse_policy is not None:
        return ParsePolicy.model_validate({"on_failure": agent.parse_policy, **details})
    if not details:
        return None
    try:
        default = load_adapter(adapter.name, dict(adapter.options)).parse_policy_default()
    except AdapterError as error:
        raise ConsoleError(str(error)) from error
    return ParsePolicy.model_validate({**default.model_dump(), **details})


def _known(flag: str, name: str, names: Iterable[str]) -> None:
    """Refuse a name nothing here knows, before a desktop is made for it. `--request` submits for workers that know more."""
    choices = sorted(names)
    if name not in choices:
        close = difflib.get_close_matches(name, choices, n=1)
        hint = (f"did you mean {close[0]}? " if close else "") + f"there are: {', '.join(choices)}"
        raise ConsoleError(f"{flag} {name!r} is unknown", remedy=hint)


def read_requests(path: Path) -> list[RolloutRequest]:
    """The request in a JSON file, or all of those that `rollouts submit --dry-run --json` printed.

    Raises:
        ConsoleError: it cannot be read; ValidationError: it is no request.
    """
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise ConsoleError(f"cannot read the request file {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConsoleError(f"the request file {path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ConsoleError(f"the request file {path} holds no JSON object")
    printed = document.get("rollouts")
    if isinstance(printed, list) and printed and all(isinstance(item, dict) and "request" in item for item in printed):
        return [RolloutRequest.model_validate(item["request"]) for item in printed]
    return [RolloutRequest.model_validate(document)]


def pairs(texts: Sequence[str], flag: str, *, plain: bool = False) -> dict[str, Any]:
    """`name=value` arguments as a dictionary; values are JSON where they are, otherwise (or when `plain`) text."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConsoleError(f"{flag} wants name=value, got {text!r}")
        try:
            found[name] = value if plain else json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found
