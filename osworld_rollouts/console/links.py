"""Addresses a person can open: a workflow in the Temporal UI, a rollout on our page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from osworld_rollouts.console.embedded import NAME as SERVER
from osworld_rollouts.console.processes import Registry
from osworld_rollouts.temporal import CAMPAIGN

if TYPE_CHECKING:
    from osworld_rollouts.settings import Settings


@dataclass(frozen=True)
class Links:
    """Builds links; an address that is not known gives None, never a dead link."""

    ui_url: str | None
    page_url: str | None
    namespace: str

    @classmethod
    def of(cls, settings: Settings) -> Links:
        """From the settings, or from what `rollouts up` started."""
        registry = Registry(settings.state_dir)
        server, viewer = registry.find(SERVER), registry.find("viewer")
        ui_url = settings.temporal.ui_url or (server.facts.get("ui_url") if server else None)
        return cls(ui_url, viewer.facts.get("url") if viewer else None, settings.temporal.namespace)

    def workflow(self, workflow_id: str, run_id: str | None = None) -> str | None:
        """A workflow's history in the Temporal UI."""
        if not self.ui_url:
            return None
        run = f"/{quote(run_id, safe='')}/history" if run_id else ""
        return f"{self.ui_url.rstrip('/')}/namespaces/{quote(self.namespace, safe='')}/workflows/{quote(workflow_id, safe='')}{run}"

    def campaign(self, campaign: str) -> str | None:
        """A campaign's workflows in the Temporal UI."""
        if not self.ui_url:
            return None
        query = quote(f'{CAMPAIGN.name}="{campaign}"', safe="")
        return f"{self.ui_url.rstrip('/')}/namespaces/{quote(self.namespace, safe='')}/workflows?query={query}"

    def rollout(self, rollout_id: str) -> str | None:
        """A rollout on our page."""
        return f"{self.page_url}/rollout/{quote(rollout_id)}" if self.page_url else None
