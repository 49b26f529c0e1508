"""Outcomes as tables: Parquet and CSV files, Arrow in memory, rows of a database."""
