"""Tasks in OSWorld's format: the ones that ship with the project, and the reading of anybody else's."""

from osworld_rollouts.tasks.catalog import TaskError, load_tasks, shipped_tasks

__all__ = ["TaskError", "load_tasks", "shipped_tasks"]
