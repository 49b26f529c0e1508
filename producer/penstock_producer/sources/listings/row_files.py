"""A folder, a prefix or a pattern as files of rows, in the order of their names.

A folder that `datasets.save_to_disk` of Hugging Face wrote has an order of its own, which stands in
its `state.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import SourceError, seen
from penstock_producer.sources.blobs.blob import Blob
from penstock_producer.sources.listings.chosen import Chosen
from penstock_producer.sources.listings.listing import Entry, Listing, shown

_STATE: Final = "state.json"
_INFO: Final = "dataset_info.json"
_SPLITS: Final = "dataset_dict.json"
_MAX_STATE_BYTES: Final = 16 * 1024**2


def _shards(listing: Listing, entries: Sequence[Entry]) -> list[Entry] | None:
    """Return the files of rows in the dataset's own order; None for no saved dataset.

    Raises SourceError for one of several splits, and one whose files are not there.
    """
    by_name = {entry.name: entry for entry in entries}
    if _SPLITS in by_name:
        raise SourceError(
            "several_splits", _advice(listing, _json(listing, by_name[_SPLITS]).get("splits"))
        )
    if _STATE not in by_name or _INFO not in by_name:
        return None
    state = _json(listing, by_name[_STATE])
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise SourceError(
            "unsupported_format",
            f"{listing.uri} holds a selection of rows by numbers; write it with "
            "dataset.flatten_indices().save_to_disk(…)",
        )
    given = state.get("_data_files")
    names = (
        [str(one.get("filename") if isinstance(one, dict) else one) for one in given]
        if isinstance(given, list)
        else []
    )
    missing = [name for name in names if name not in by_name]
    if not names or missing:
        raise SourceError(
            "invalid_dataset",
            f"{listing.uri}{_STATE} names {seen(missing[0]) if missing else 'no files'}, and the "
            "folder has no such file; save the dataset again",
        )
    return [by_name[name] for name in names]


def _json(listing: Listing, entry: Entry) -> dict[str, Any]:
    uri = f"{listing.uri}{entry.name}"
    if entry.size > _MAX_STATE_BYTES:
        raise SourceError(
            "invalid_dataset",
            f"{uri} has {entry.size} bytes, at most {_MAX_STATE_BYTES} are read; save the dataset "
            "again",
        )
    try:
        value = orjson.loads(listing.pinned(entry).read(0, entry.size))
    except orjson.JSONDecodeError as error:
        raise SourceError(
            "invalid_dataset", f"{uri} is not JSON ({error}); save the dataset again"
        ) from None
    if not isinstance(value, dict):
        raise SourceError("invalid_dataset", f"{uri} is not a JSON object; save the dataset again")
    return value


def _advice(listing: Listing, splits: Any) -> str:
    names = [name for name in splits if isinstance(name, str)] if isinstance(splits, list) else []
    shown = " or ".join(f"{listing.uri}{name}/" for name in names[:5]) or "the folder of one split"
    return (
        f"{listing.uri} holds several splits of a dataset; submit each as a job of its own: {shown}"
    )


MAX_FILES: Final = 1_000  # of rows: each has its pin in the job's row


def row_files(chosen: Chosen) -> list[Blob]:
    """Return the files of rows, each as it is now.

    Raises SourceError for what is none, and for too many.
    """
    entries: list[Entry] = []
    for entry in chosen.entries():
        entries.append(entry)
        if len(entries) > MAX_FILES:
            raise SourceError(
                "too_many_files",
                f"{chosen.uri} stands for more than {MAX_FILES} files of rows, the most that a job "
                "has; join some of them",
            )
    if not entries:
        names = ", ".join(chosen.skipped.names)
        raise SourceError(
            "unsupported_format",
            Text(
                f"{chosen.uri} holds no file whose name says that it has rows ({names}); name the "
                f"files to read by a pattern such as {chosen.uri}*.jsonl, or make each file one "
                "document with ",
                SetOption("format", "text"),
            ),
        )
    if not chosen.pattern:
        entries = _shards(chosen.listing, entries) or entries
    for entry in entries:
        check(chosen, entry)
    return [chosen.listing.fresh(entry) for entry in entries]


def check(chosen: Chosen, entry: Entry) -> None:
    """Raise SourceError for an entry that is no file of rows."""
    uri = shown(chosen.listing.uri, entry.name)
    if entry.fault is not None:
        raise SourceError(
            entry.fault.code, Text(f"{uri}: {entry.fault.message} Fix: ", entry.fault.fix)
        )
