"""The policy model's server: one request out, one reply back, exactly as they were."""
