"""A pin says which content a source had; its other fields are named here.

The others say how, when, through which API and for whom a source was read.

A pin is what the ledger keeps of a job's source. By its content the same submit is known again,
wherever the file lies by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = [
    "AWAITED",
    "DOOR",
    "ESTIMATE",
    "FILES",
    "FORMAT",
    "MEDIA_NEWEST",
    "MEMBERS",
    "NEWEST",
    "PREFIXES",
    "PREPARED",
    "REMOTE",
    "ROUTES",
    "SAMPLE_OF",
    "SEGMENTS",
    "SKIPPED",
    "STARTED_BY",
    "SUBMITTED_BY",
    "UPLOADED",
    "content_of",
    "shown_uri",
    "skipped_in_words",
]

AWAITED: Final = "awaited"  # of an open job: callers wait for its answers
DOOR: Final = "door"  # the kind of door that the job came through, where it is not a trusted one
# a remote one: its source is read from inside `source_roots` only, at submit and ever after
REMOTE: Final = "remote"
# a remote one, which wrote the source itself: rows of it name no files of this machine
UPLOADED: Final = "uploaded"
# tokens of all documents, as guessed from the first of them, where lanes or a deadline are weighed
ESTIMATE: Final = "estimate"
FILES: Final = "files"  # the pins of several files, whose digest is beside it
FORMAT: Final = "format"  # what the rows are, where they are not JSON Lines
# when the last of the files that rows name was changed, at submit
MEDIA_NEWEST: Final = "media_newest_ns"
MEMBERS: Final = "members"  # [packed offset, plain offset] of places where reading can begin
NEWEST: Final = "newest_ns"  # the time of the file of a folder that was changed last
# which beginnings of prompts are shared, for the provider's prompt cache, and what they save
PREFIXES: Final = "prefixes"
PREPARED: Final = "prepared"  # what the survey counted
# of a random sample: how many documents there are, and the bytes of all their requests
# documents by the rule of the job that takes them, as the survey counted; "0": its own model
ROUTES: Final = "routes"
SAMPLE_OF: Final = "sample_of"
SEGMENTS: Final = "segments"  # the name before each thousand files of a folder, and their digest
# files of a folder that hold something else: how many, and the names of the first
SKIPPED: Final = "skipped"
STARTED_BY: Final = "started_by"  # the schedule that the job belongs to, and the planned time
SUBMITTED_BY: Final = "traceparent"  # the span in which it was submitted

_BESIDE_CONTENT: Final = frozenset(
    {
        SKIPPED,
        "mtime_ns",
        "max_line_bytes",
        "max_body_bytes",
        AWAITED,
        DOOR,
        ESTIMATE,
        FILES,
        MEDIA_NEWEST,
        MEMBERS,
        NEWEST,
        PREFIXES,
        PREPARED,
        ROUTES,
        SAMPLE_OF,
        SEGMENTS,
        STARTED_BY,
        SUBMITTED_BY,
    }
)


def shown_uri(pin: Mapping[str, Any]) -> str:
    """Return where the source lies, as its submitter may know it.

    Of an uploaded file that is the name, not where this machine keeps it.
    """
    uri = str(pin.get("uri", ""))
    return uri.rpartition("/")[2] if pin.get(DOOR) == UPLOADED else uri


def skipped_in_words(pin: Mapping[str, Any]) -> str | None:
    """Return which files of the folder are not read; None where all are."""
    found = pin.get(SKIPPED)
    if not isinstance(found, Mapping):
        return None
    count, names = int(found["count"]), list(found["names"])
    more = f" and {count - len(names):,} more" if count > len(names) else ""
    are = "file is" if count == 1 else "files are"
    return (
        f"{count:,} {are} not read, as the names say that they hold something else: "
        f"{', '.join(names)}{more}"
    )


def content_of(pin: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was read, not where or when.

    A moved or touched file is the same source, and so is one read with other limits.
    """
    return {
        name: value for name, value in pin.items() if name not in _BESIDE_CONTENT and name != "uri"
    }
