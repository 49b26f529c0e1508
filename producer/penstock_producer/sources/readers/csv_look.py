"""Whether the beginning of a file whose name says nothing is CSV: each of its first records has the
same number of fields."""

from __future__ import annotations

import csv
import io
from itertools import islice
from typing import Final

from penstock_producer.job.formats import CSV, TSV
from penstock_producer.sources.blobs.lines import BOM

LOOKED_AT: Final = 64 * 1024  # bytes
_RECORDS: Final = 20
_DELIMITERS: Final = (",", "\t", ";", "|")
_JSON: Final = ("{", "[")


def csv_or_tsv(start: bytes, *, whole: bool) -> str | None:
    """CSV, TSV, or None for what may be anything else.

    ``whole``: the file has no more than these bytes.

    Two records at least, none of which begins as JSON does; the delimiter is that which the header
    is read by.
    """
    data = start.removeprefix(BOM)[:LOOKED_AT]
    whole = whole and len(start) <= LOOKED_AT
    if b"\0" in data:
        return None
    text = data.decode("latin-1")  # whatever the encoding: delimiters and quotes are ASCII
    if any(line.lstrip().startswith(_JSON) for line in text.splitlines()[:_RECORDS]):
        return None
    header = text.partition("\n")[0]
    delimiter = next((one for one in _DELIMITERS if one in header), None)
    if delimiter is None or len(set(_numbers_of_fields(text, delimiter, whole=whole))) != 1:
        return None
    return TSV if delimiter == "\t" else CSV


def _numbers_of_fields(text: str, delimiter: str, *, whole: bool) -> list[int]:
    """Of the first whole records; none where there is only one, or where they cannot be read."""
    rows: list[int] = []
    try:
        for row in islice(
            csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True),
            _RECORDS + 1,
        ):
            if row:
                rows.append(len(row))
    except csv.Error:  # a quote that closes later than here
        rows.append(0)
        whole = False
    known = rows if whole else rows[:-1]
    return known[:_RECORDS] if len(known) > 1 else []
