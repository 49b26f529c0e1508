"""Anthropic's Message Batches."""
