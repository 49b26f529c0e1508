"""Files of batches lie in a bucket of the account's: each batch has a folder, found by its tag."""

from __future__ import annotations


def batch_name(tag: str) -> str:
    """Return the name of a batch at the provider, of its folder and of its file."""
    return f"penstock-{tag}"


def folder_of(bucket: str, tag: str) -> str:
    """Return the folder of a batch below ``bucket``, an address with or without a path."""
    return f"{bucket.rstrip('/')}/{batch_name(tag)}/"


def file_of(bucket: str, tag: str) -> str:
    """Return the address of the file with the requests of a batch."""
    return f"{folder_of(bucket, tag)}{batch_name(tag)}.jsonl"
