"""What a person submits: a rollout request, and the part of it that decides its meaning."""

from __future__ import annotations

import re
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, JsonValue, ValidationError, field_validator, model_validator

from osworld_rollouts.contracts._base import Contract, canonical_digest
from osworld_rollouts.contracts.desktop import DesktopSpec
from osworld_rollouts.contracts.identity import CampaignId, RolloutId, TaskId, default_rollout_id


class Task(Contract):
    """One OSWorld task, as its JSON file says; unknown keys of the file are kept in `document`."""

    task_id: TaskId
    domain: str = Field(min_length=1, max_length=64)
    instruction: str = Field(min_length=1)
    document: dict[str, JsonValue]

    @classmethod
    def from_document(cls, document: dict[str, Any], domain: str) -> Task:
        """Read a task file's content.

        Raises:
            ValueError: naming the field that is missing or of the wrong type.
        """
        for key, kind in (("id", str), ("instruction", str), ("evaluator", dict)):
            if not isinstance(document.get(key), kind):
                raise ValueError(
                    f"task field {key!r} must be a {kind.__name__}, got {type(document.get(key)).__name__}"
                )
        if not isinstance(document.get("config", []), list):
            raise ValueError("task field 'config' must be a list of setup steps")
        return cls(task_id=document["id"], domain=domain, instruction=document["instruction"], document=document)


class Model(Contract):
    """Where the policy model is served. Keys are references to environment variables of the worker, never values."""

    name: str = Field(min_length=1, description="as the server knows it")
    base_url: str = Field(description="http(s) address of an OpenAI-compatible server, usually ending in /v1")
    api_key_env: str | None = Field(
        default="OPENAI_API_KEY",
        description="environment variable of the worker that holds the key; upper case, so that a key given by mistake is refused",
    )
    timeout_s: float = Field(default=300, gt=0)
    extra_body: dict[str, JsonValue] = Field(
        default_factory=dict, description="further request fields, sent as they are"
    )

    @field_validator("base_url")
    @classmethod
    def _http(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError(f"must start with http:// or https://, got {value!r}")
        if "@" in urlsplit(value).netloc:
            raise ValueError(
                "must not hold a user name or password, which would stand in every record; put the key into an environment variable "
                "of the worker and name that in api_key_env"
            )
        return value.rstrip("/")

    @field_validator("api_key_env")
    @classmethod
    def _a_name(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", value):
            raise ValueError(
                "is the name of an environment variable of the worker (upper-case letters, digits, _), not the key itself"
            )
        return value


class Sampling(Contract):
    """Every sampling parameter that is sent. None means the adapter's default, and failing that "not sent", which is recorded."""

    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] | None = None


class Adapter(Contract):
    """Which model protocol, in which version (None: the installed one, recorded), with which options."""

    name: str = Field(default="pyautogui", min_length=1)
    version: str | None = None
    options: dict[str, JsonValue] = Field(default_factory=dict)


class History(Contract):
    """Which earlier turns the model sees: none, full, fixed, hysteresis, sink_window (None: the adapter's default)."""

    name: str | None = None
    params: dict[str, JsonValue] = Field(default_factory=dict)


class ParsePolicy(Contract):
    """What follows when a reply holds no action: consume the turn, sample again, sample again showing the error, or stop."""

    on_failure: Literal["noop", "resample", "feedback", "stop"] = "noop"
    resamples: int = Field(
        default=5, ge=0, le=20, description="further calls within one turn, for resample and feedback"
    )
    resample_temperature: float | None = Field(default=None, ge=0, le=2, description="None: the request's temperature")
    resample_temperature_min: float | None = Field(
        default=None, ge=0, le=2, description="a request's temperature below this is raised to it for further calls"
    )
    max_failed_turns: int = Field(
        default=3, ge=1, description="consecutive turns without an action before the rollout stops"
    )


class Settle(Contract):
    """How long the desktop is given after an action, in seconds."""

    min_s: float = Field(default=0.3, ge=0, le=60, description="before the first look")
    max_s: float = Field(default=2.0, ge=0, le=120, description="limit for two equal frames in a row")
    poll_s: float = Field(default=0.2, gt=0, le=10)
    wait_action_s: float = Field(default=2.0, ge=0, le=600, description="what WAIT means without a number")
    after_setup_s: float = Field(default=10.0, ge=0, le=300, description="limit for a stable frame after setup")
    before_evaluation_s: float = Field(default=2.0, ge=0, le=300)

    @model_validator(mode="after")
    def _ordered(self) -> Settle:
        if self.max_s < self.min_s:
            raise ValueError(f"settle.max_s ({self.max_s}) is below settle.min_s ({self.min_s})")
        return self


class Evaluator(Contract):
    """Who scores: OSWorld's evaluation in this version of `desktop-env`."""

    package: Literal["desktop-env"] = "desktop-env"
    version: str = "1.0.2"


class Rollout(Contract):
    """Everything that decides a rollout's meaning. Its canonical JSON is the request digest."""

    task: Task
    model: Model
    adapter: Adapter = Adapter()
    history: History = History()
    parse_policy: ParsePolicy | None = Field(default=None, description="None: the adapter's default, as recorded")
    sampling: Sampling = Sampling()
    max_turns: int = Field(default=15, ge=1, le=10_000, description="model calls that may lead to actions: the horizon")
    desktop: DesktopSpec = DesktopSpec()
    settle: Settle = Settle()
    evaluator: Evaluator = Evaluator()
    evidence: Literal["semantic", "exact"] = "semantic"


class Limits(Contract):
    """Wall-clock limits and retry budget, in seconds: how long we try, not what we measure. Outside the digest."""

    execution_s: float = Field(
        default=3600,
        gt=0,
        description="one deadline from the desktop to the last turn; a turn that began before it ends first, a pause does not count",
    )
    scoring_s: float = Field(
        default=600, gt=0, description="kept after the last turn for post-steps and evaluation together"
    )
    max_executions: int = Field(default=3, ge=1, le=100)


class RolloutRequest(Contract):
    """One rollout to run. Ids, labels, purpose, priority and limits are about scheduling; `rollout` is what is run."""

    rollout: Rollout
    campaign_id: CampaignId = "default"
    sample_index: int = Field(default=0, ge=0)
    rollout_id: RolloutId = ""
    purpose: str | None = Field(default=None, max_length=64)
    labels: dict[str, str] = Field(default_factory=dict)
    priority: int = Field(default=3, ge=1, le=5)
    limits: Limits = Limits()

    @model_validator(mode="before")
    @classmethod
    def _fill_id(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("rollout_id"):
            rollout = data.get("rollout")
            try:
                task = (rollout if isinstance(rollout, Rollout) else Rollout.model_validate(rollout)).task
            except ValidationError:
                return {**data, "rollout_id": "unnamed"}  # the field itself says what is wrong
            campaign, sample = data.get("campaign_id", "default"), data.get("sample_index", 0)
            return {**data, "rollout_id": default_rollout_id(campaign, task.task_id, sample)}
        return data

    def request_digest(self) -> str:
        """Sha256 of everything that decides meaning; equal digests mean the same rollout."""
        return self.rollout.digest()


def differing_fields(left: Rollout, right: Rollout) -> list[str]:
    """Dotted names of the fields in which two rollouts differ, for a refusal that names them."""
    names: list[str] = []

    def walk(prefix: str, a: Any, b: Any) -> None:
        if isinstance(a, dict) and isinstance(b, dict) and prefix != "task.document":
            for key in sorted({*a, *b}):
                walk(f"{prefix}.{key}" if prefix else key, a.get(key), b.get(key))
        elif canonical_digest(a) != canonical_digest(b):
            names.append(prefix)

    walk("", left.model_dump(mode="json"), right.model_dump(mode="json"))
    return names
