"""A reader for each format of source_formats.py: documents with positions."""
