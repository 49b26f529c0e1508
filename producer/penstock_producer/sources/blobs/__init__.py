"""Bytes that are pinned: a local file, an object of S3, what is packed in them, and how they are
cut."""
