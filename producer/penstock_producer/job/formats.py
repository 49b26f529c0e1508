"""The forms that the rows of a source can have, and the encodings of their text."""

from __future__ import annotations

import codecs
from typing import Final, Literal

Format = Literal["jsonl", "csv", "tsv", "parquet", "arrow", "text", "media"]

JSONL: Final = "jsonl"
CSV: Final = "csv"
TSV: Final = "tsv"
PARQUET: Final = "parquet"
ARROW: Final = "arrow"
TEXT: Final = "text"  # each file of a folder is one document
MEDIA: Final = "media"  # so is each image or sound
COLUMNAR: Final = frozenset({PARQUET, ARROW})  # entered by row group, not read from the start

UTF_8: Final = "utf-8"
_ASCII: Final = bytes(range(128))
_STATEFUL: Final = (
    "iso2022",
    "idna",
    "unicode",
    "raw",
)  # what a byte means depends on those before it


def check_encoding(name: str) -> str:
    """The codec's own name.

    Raises ValueError for one that is unknown, or in which a newline may be another byte."""
    try:
        codec = codecs.lookup(name).name
        usable = _ASCII.decode(codec) == _ASCII.decode() and not codec.startswith(_STATEFUL)
    except (LookupError, ValueError):  # no name of a codec of text; bytes that do not decode
        codec, usable = name, False
    if not usable:
        raise ValueError(
            "write an encoding in which ASCII is one byte each, such as utf-8, latin-1, cp1252, "
            "shift_jis or gb18030; convert others: iconv -f UTF-16 -t UTF-8"
        )
    return codec
