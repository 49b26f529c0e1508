"""A look at a source before its job is submitted: its first rows, or a random sample.

Nothing is accepted or called. A sample is lines of input, which make a job of its own with the
requests of the whole one.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson

from penstock_producer.accepting.survey import Survey, survey
from penstock_producer.errors import SourceError
from penstock_producer.job.spec import JobSpec
from penstock_producer.pins import content_of
from penstock_producer.refusals import DUPLICATE
from penstock_producer.rows import BadRow, Document, FileSource, Tally

__all__ = [
    "FOR_ALL",
    "SAID_BY_LINES",
    "FirstRows",
    "Sample",
    "drawn",
    "first_rows",
    "input_line",
    "sample_of",
]


class FirstRows(NamedTuple):
    """Those that became requests, and what is wrong with the others."""

    documents: list[Document]
    refused: list[BadRow]  # in the order of rows
    more: bool  # whether the source goes on after them
    tally: Tally  # what the options changed in these rows


def first_rows(opened: FileSource, most: int) -> FirstRows:
    """Return at most ``most`` of the first rows. Raises what reading raises."""
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


# Options that a line of input says itself, once requests are made: its job has none of them.
SAID_BY_LINES: Final = (
    "prompt",
    "template",
    "system",
    "messages_field",
    "examples",
    "truncate",
    "tokenizer",
    "compress_prompt",
    "image_fields",
    "audio_fields",
    "params",
    "param_fields",
    "format",
    "sheet",
    "encoding",
    "table",
    "query",
)
FOR_ALL: Final = ("into", "into_table", "into_id")  # a trial is not for others' table


class Sample(NamedTuple):
    """What was drawn, and of how much."""

    lines: Iterator[bytes]  # of input, read as they are taken
    spec: JobSpec  # of the sample's own job
    name: str  # the same for the same draw
    documents: int  # of the whole source that can be used
    size: int  # bytes of all their requests


def sample_of(open_it: Callable[[], FileSource], spec: JobSpec, number: int) -> Sample:
    """Draw ``number`` documents, or all where there are fewer.

    The same source, options and number draw the same ones.

    ``open_it`` is called twice: all of the source is read to count it, and again for the lines.
    Raises what reading raises, and SourceError for a source without a usable document.
    """
    opened = open_it()
    found = survey(opened, spec)
    documents = found.total - len(found.refused)
    if documents == 0:
        raise SourceError(
            "empty_source", f"{opened.uri} holds no usable document to take a sample of"
        )
    options = spec.to_json()
    given = orjson.dumps(
        [options, content_of(found.pin), number], option=orjson.OPT_SORT_KEYS, default=str
    )
    digest = hashlib.sha256(given).hexdigest()
    lines = (
        input_line(one.doc_id, one.body, one.endpoint or spec.endpoint)
        for one in drawn(open_it(), found, number, seed=digest)
    )
    own = {name: value for name, value in options.items() if name not in (*SAID_BY_LINES, *FOR_ALL)}
    its_spec = JobSpec.from_json(own | {"response_format": "none"})
    return Sample(lines, its_spec, f"sample-{digest[:8]}", documents, found.size)


def drawn(opened: FileSource, found: Survey, number: int, *, seed: str) -> Iterator[Document]:
    """Yield ``number`` documents, or all when there are fewer, in the order of the source.

    Each is as likely as the others.
    """
    refused = {refusal.row.line for refusal in found.refused}
    usable = found.total - len(refused)
    wanted = frozenset(random.Random(seed).sample(range(usable), min(number, usable)))
    rows = (row for row in opened.documents({}) if row.line not in refused)
    documents: Any = (
        row for index, row in enumerate(itertools.islice(rows, usable)) if index in wanted
    )
    return iter(documents)


def input_line(doc_id: str, body: bytes, endpoint: str) -> bytes:
    """Return an OpenAI Batch line, its end included."""
    line: Mapping[str, Any] = {
        "custom_id": doc_id,
        "method": "POST",
        "url": endpoint,
        "body": orjson.Fragment(body),
    }
    # A body may have line ends between its tokens, where a blank does as well.
    return orjson.dumps(line).replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"
