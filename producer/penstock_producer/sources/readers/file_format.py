"""The format of a file: by its name, by its first bytes where the name says none, or as the job
says."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from penstock_producer.errors import SourceError
from penstock_producer.job.formats import ARROW, COLUMNAR, CSV, JSONL, PARQUET, TSV
from penstock_producer.sources.blobs.blob import Blob
from penstock_producer.sources.blobs.codecs import CODECS
from penstock_producer.sources.blobs.unpacked import PACKED
from penstock_producer.sources.readers.csv_look import LOOKED_AT, csv_or_tsv
from penstock_producer.sources.readers.pinned_rows import FORMAT

_BY_ENDING: Final = {
    ".jsonl": JSONL,
    ".ndjson": JSONL,
    ".json": JSONL,
    ".csv": CSV,
    ".tsv": TSV,
    ".tab": TSV,
    ".parquet": PARQUET,
    ".pq": PARQUET,
    ".arrow": ARROW,
    ".arrows": ARROW,
    ".feather": ARROW,
}
# Of files that are a document each. Others are by --format text.
_TEXTS: Final = frozenset(
    {
        ".txt",
        ".text",
        ".md",
        ".markdown",
        ".rst",
        ".adoc",
        ".org",
        ".tex",
        ".html",
        ".htm",
        ".xhtml",
        ".xml",
        ".log",
        ".srt",
        ".vtt",
        ".eml",
    }
)
_BY_MAGIC: Final = {b"PAR1": PARQUET, b"ARROW1": ARROW}


class FileFormat(NamedTuple):
    rows: str
    packed: str | None  # the codec


def format_of(blob: Blob, given: str | None) -> FileFormat:
    """``given`` is the job's word.

    Reads only where the name says nothing. Raises SourceError for packed Parquet or Arrow."""
    packed, ending = _endings(blob.uri)
    named = _BY_ENDING.get(ending)
    if packed is None and named is None:
        packed, named = _by_content(blob)
    chosen = given or named or JSONL
    if packed is not None and chosen in COLUMNAR:
        raise SourceError(
            "unsupported_format",
            f"{blob.uri} is {chosen} inside of {packed}, and {chosen} is entered by its row "
            f"groups; unpack it: {packed} -d",
        )
    return FileFormat(chosen, packed)


def format_of_pin(pin: Mapping[str, Any]) -> FileFormat:
    return FileFormat(str(pin.get(FORMAT, JSONL)), pin.get(PACKED))


def has_known_ending(name: str) -> bool:
    """Whether a file of a folder says by its name that it holds rows."""
    return _endings(name)[1] in _BY_ENDING


def has_text_ending(name: str) -> bool:
    """Whether a file of a folder says by its name that it is one text."""
    return posixpath.splitext(name)[1].lower() in _TEXTS


def _endings(name: str) -> tuple[str | None, str]:
    """The codec, and the ending of what is packed."""
    path = PurePosixPath(name.lower())
    for codec in CODECS.values():
        if path.suffix == codec.ending:
            return codec.name, path.with_suffix("").suffix
    return None, path.suffix


def _by_content(blob: Blob) -> tuple[str | None, str | None]:
    start = next(iter(blob.chunks(0)), b"")
    for codec in CODECS.values():
        if start.startswith(codec.magic):
            return codec.name, None
    for magic, form in _BY_MAGIC.items():
        if start.startswith(magic):
            return None, form
    return None, csv_or_tsv(start, whole=len(start) < LOOKED_AT)
