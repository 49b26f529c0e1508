"""Folders and prefixes whose files are one document each."""
