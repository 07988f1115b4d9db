"""When things happen: deterministic Temporal code only."""
