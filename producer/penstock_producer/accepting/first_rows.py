"""The first rows of a source as requests, for those who look before they submit.

Nothing is accepted or called."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from penstock_producer.refusals import DUPLICATE
from penstock_producer.rows import BadRow, Document, FileSource
from penstock_producer.tally import Tally

__all__ = ["FirstRows", "first_rows"]


class FirstRows(NamedTuple):
    """Those that became requests, and what is wrong with the others."""

    documents: list[Document]
    refused: list[BadRow]  # in the order of rows
    more: bool  # whether the source goes on after them
    tally: Tally  # what the options changed in these rows


def first_rows(opened: FileSource, most: int) -> FirstRows:
    """At most ``most`` of them. Raises what reading raises."""
    reading = opened.documents({})
    rows = list(itertools.islice(reading, most))
    tally = Tally().plus(opened.tally)
    more = next(reading, None) is not None
    documents: list[Document] = []
    refused: list[BadRow] = []
    lines: dict[str, int] = {}
    for row in rows:
        if isinstance(row, BadRow):
            refused.append(row)
        elif row.doc_id in lines:
            refused.append(_duplicate(opened.uri, row, lines[row.doc_id]))
        else:
            lines[row.doc_id] = row.line
            documents.append(row)
    return FirstRows(documents, refused, more, tally)


def _duplicate(uri: str, row: Document, first: int) -> BadRow:
    message = f"the id {row.doc_id!r} is that of line {first}, too."
    return BadRow(
        uri,
        row.line,
        DUPLICATE,
        None,
        message,
        "",
        "give every row an id of its own",
        row.doc_id,
        {},
    )
