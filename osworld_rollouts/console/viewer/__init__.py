"""Pages that show rollouts turn by turn: served on loopback, or written as files."""
