"""A folder, a prefix or a pattern as files of rows, in the order of their names."""

from __future__ import annotations

import os
from typing import Final

from penstock_producer.errors import SourceError
from penstock_producer.source_names import is_database
from penstock_producer.sources.blobs.blob import Blob
from penstock_producer.sources.blobs.convert import cannot_open, refuse_ending, refuse_kind
from penstock_producer.sources.databases.address import address_of
from penstock_producer.sources.listings import saved_dataset
from penstock_producer.sources.listings.chosen import Chosen, choose
from penstock_producer.sources.listings.listing import Entry, shown
from penstock_producer.sources.readers.file_format import has_known_ending

MAX_FILES: Final = 1_000  # of rows: each has its pin in the job's row


def row_files(chosen: Chosen) -> list[Blob]:
    """The files of rows, each as it is now.

    Raises SourceError for what is none, and for too many."""
    entries: list[Entry] = []
    for entry in chosen.entries():
        entries.append(entry)
        if len(entries) > MAX_FILES:
            raise SourceError(
                "too_many_files",
                f"{chosen.uri} stands for more than {MAX_FILES} files of rows, the most that a job "
                "has; join some of them",
            )
    if not chosen.pattern:
        entries = saved_dataset.shards(chosen.listing, entries) or entries
    for entry in entries:
        check(chosen, entry)
    return [chosen.listing.fresh(entry) for entry in entries]


def refuse_unreadable(path: str) -> None:
    """Raises SourceError for a local path, or a database's name, that is plainly no source.

    Reads nothing of it."""
    if is_database(path):
        address_of(path)
        return
    chosen = choose(path)
    if chosen is not None:
        chosen.form(None)
        return
    refuse_ending(path)
    try:
        refuse_kind(path, os.stat(path).st_mode)
    except OSError as error:
        raise cannot_open(path, error) from error


def check(chosen: Chosen, entry: Entry) -> None:
    """Raises SourceError for an entry that is no file of rows."""
    uri = shown(chosen.listing.uri, entry.name)
    if entry.fault is not None:
        raise SourceError(entry.fault.code, f"{uri}: {entry.fault.message} Fix: {entry.fault.fix}")
    if not chosen.pattern and not has_known_ending(entry.name):
        raise SourceError(
            "unsupported_format",
            f"{chosen.uri} holds {uri}, whose name does not say that it has rows; name the files "
            f"to read by a pattern such as {chosen.uri}*.jsonl, or make each file one document "
            "with --format text",
        )
