"""Places beside environment variables where settings come from: our TOML file, Temporal's configuration, the embedded server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, TomlConfigSettingsSource
from temporalio.envconfig import ClientConfigProfile

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

SERVER_FILE = "temporal.json"
"""State file of the embedded Temporal server, in `<state_dir>/run`."""


def default_state_dir() -> Path:
    """`$XDG_STATE_HOME/osworld-rollouts`, by default `~/.local/state/osworld-rollouts` (XDG base directory specification)."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "osworld-rollouts"


class TomlSource(TomlConfigSettingsSource):
    """The file that `ROLLOUTS_CONFIG` names, which must exist; otherwise `rollouts.toml` here, which may."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        named = os.environ.get("ROLLOUTS_CONFIG")
        self.path = Path(named).expanduser() if named else Path("rollouts.toml")
        if named and not self.path.is_file():
            raise FileNotFoundError(f"ROLLOUTS_CONFIG names {named}, which is no file; correct it or unset it")
        super().__init__(settings_cls, toml_file=self.path)


class _PlainSource(PydanticBaseSettingsSource):
    """A source that gives a dictionary at once."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002
        """Unused: the whole dictionary comes from `__call__`."""
        return None, field_name, False


class TemporalEnvironmentSource(_PlainSource):
    """Address, namespace and API key as every Temporal tool reads them."""

    def __call__(self) -> dict[str, Any]:
        """Only what is set there."""
        chosen = self.current_state.get("temporal") or {}
        profile = ClientConfigProfile.load(profile=cast("dict[str, Any]", chosen).get("profile"))
        found = {"address": profile.address, "namespace": profile.namespace, "api_key": profile.api_key}
        found = {name: value for name, value in found.items() if value}
        return {"temporal": found} if found else {}


class EmbeddedSource(_PlainSource):
    """Address of the server that `rollouts up` left running, as its state file says."""

    def __call__(self) -> dict[str, Any]:
        """Nothing when no such server was started."""
        return self.read(Path(self.current_state.get("state_dir") or default_state_dir()).expanduser())

    @staticmethod
    def read(state_dir: Path) -> dict[str, Any]:
        """The same for a known state directory."""
        try:
            record = json.loads((state_dir / "run" / SERVER_FILE).read_text(encoding="utf-8"))
            return {"temporal": {"address": str(record["facts"]["address"])}}
        except (OSError, ValueError, KeyError, TypeError):
            return {}
