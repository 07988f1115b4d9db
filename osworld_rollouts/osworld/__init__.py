"""Everything that touches the `desktop-env` package: OSWorld's setup steps, getters and metrics, unmodified.

`evaluator` is what activities use. It keeps a killable process (`zygote`, `child`) in which the package is imported once
and forks one job from it for each call; the job's `environment` is the package's own DesktopEnv, attached to a lease
instead of booting a machine. The package reaches the desktop only through the job's `gateway`, where `operations` names every
effect and `verdicts` says what each reply means. `preflight` says beforehand what cannot be run truthfully, and `task_files` puts
downloads where the package looks for them.
"""
