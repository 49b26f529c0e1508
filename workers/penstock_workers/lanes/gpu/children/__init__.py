"""Runs what can hang or grow without end in processes of its own.

These are trials of grammars, and vLLM's parsers of answers."""
