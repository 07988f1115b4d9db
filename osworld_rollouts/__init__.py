"""OSWorld rollouts as durable Temporal workflows."""
