"""Gemini's files and batches."""
