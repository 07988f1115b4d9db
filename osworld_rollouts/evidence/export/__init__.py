"""Sealed evidence as files that trainers and analysts read. Formats: jsonl, parquet, nemo-gym."""
