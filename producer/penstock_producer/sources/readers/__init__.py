"""Rows with positions out of a blob: JSON Lines, CSV, Parquet and Arrow."""
