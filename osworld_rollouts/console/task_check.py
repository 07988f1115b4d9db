"""What `rollouts tasks --check` asks: whether this machine's evaluator and local desktop could run a task truthfully."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from osworld_rollouts.osworld.preflight import DesktopFacts, EvaluatorFacts, Problem, check_task
from osworld_rollouts.osworld.requirements import PROBED

if TYPE_CHECKING:
    from osworld_rollouts.contracts.request import Task


def problems_of(task: Task) -> list[Problem]:
    """Every known problem. A worker asks again, of the desktop it has then."""
    programs = frozenset(name for name in PROBED if shutil.which(name))
    # What the local desktop is, beside the programs it shares with its host: no network, no password for sudo, Chromium for Chrome.
    desktop = DesktopFacts(
        network=False, sudo=False, programs=programs | {"google-chrome", "python"}, browser="Chromium"
    )
    return check_task(task.document, EvaluatorFacts.here(), desktop)
