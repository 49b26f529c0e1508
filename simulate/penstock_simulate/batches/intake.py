"""Read the input of a batch once: check it, count its tokens, draw what each request gets."""

from __future__ import annotations

import os
import random
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

import orjson

from penstock_simulate.answers.calls import Call
from penstock_simulate.answers.faults import Fates
from penstock_simulate.batches.folder import RequestAccount
from penstock_simulate.batches.timeline import Fate, lasting_fate, passing_fate

_ENTRY = struct.Struct("<QQB")
_AT_ONCE = 4096  # entries read together


class Entry(NamedTuple):
    """One request."""

    offset: int  # in the input file
    length: int
    fate: Fate


class Index:
    """The requests of a batch, on disk but for a byte each.

    Counts are made from these bytes while the batch runs."""

    def __init__(self, path: Path, fates: bytes) -> None:
        self._path, self._fates = path, fates

    def __len__(self) -> int:
        return len(self._fates)

    def good(self, done: int) -> int:
        """Return how many of the first ``done`` requests get an answer."""
        return self._fates.count(Fate.GOOD, 0, done) + self._fates.count(Fate.DECLINED, 0, done)

    def read(self, source: Path) -> Iterator[tuple[Fate, bytes]]:
        """Yield each request's fate and its line of the input, in the order of the answers."""
        with self._path.open("rb") as index, source.open("rb") as lines:
            while entries := index.read(_AT_ONCE * _ENTRY.size):
                for offset, length, fate in _ENTRY.iter_unpack(entries):
                    yield Fate(fate), os.pread(lines.fileno(), length, offset)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


class IndexMaker:
    """Collects the requests as they are read: some 20 bytes for each."""

    def __init__(self) -> None:
        self._offsets, self._lengths, self._fates = array("Q"), array("Q"), bytearray()

    def add(self, offset: int, length: int, fate: Fate) -> None:
        self._offsets.append(offset)
        self._lengths.append(length)
        self._fates.append(fate)

    def write(self, path: Path, shuffled_by: str | None) -> Index:
        """Put it on disk, in an order that follows from ``shuffled_by``.

        Where that is None the order is as it was given."""
        order = list(range(len(self._fates)))
        if shuffled_by is not None:
            random.Random(shuffled_by).shuffle(order)
        with path.open("wb") as file:
            for at in order:
                file.write(_ENTRY.pack(self._offsets[at], self._lengths[at], self._fates[at]))
        return Index(path, bytes(self._fates[at] for at in order))


MAX_PROBLEMS = 100  # of one batch that are shown: a wrong file has one on each line


class Problem(NamedTuple):
    """The reason to refuse a batch, in the words of its dialect, and its line where it has one."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Span(NamedTuple):
    """The place of a request in its file, and its bytes there."""

    offset: int
    raw: bytes


def spans_of_lines(source: Path) -> Iterator[Span]:
    """Yield the requests of a file that has one on each line."""
    offset = 0
    with source.open("rb") as file:
        for raw in file:
            yield Span(offset, raw)
            offset += len(raw)


def renamed(line: bytes, field: str) -> bytes:
    """Return a line of results under a name that no request has; ``field`` holds the name."""
    return orjson.dumps(orjson.loads(line) | {field: f"unknown-{uuid4().hex[:12]}"})


class Asked(NamedTuple):
    """One request of a batch.

    ``custom_id`` names it in the results, ``call.document`` decides its luck."""

    custom_id: str
    call: Call
    usable: bool  # a request that is not gets an error of its own and costs no other
    echo: Mapping[str, Any] = {}  # what its result repeats besides, in dialects that have such


class Reader(Protocol):
    """The way in which a dialect finds the requests of one input, reads them and checks them."""

    problems: list[Problem]

    def spans(self, source: Path) -> Iterable[Span]: ...

    def checked(self, raw: bytes, number: int) -> Asked | None:
        """Check a request; ``number`` counts from 1.

        None, and a problem more, for one that the whole batch is refused for."""
        ...

    def whole(self, requests: int) -> None:
        """Say what is wrong with the whole, now that all were read."""
        ...


class Kept(NamedTuple):
    """The place of a batch's index, and what orders its answers (None: the input does)."""

    path: Path
    order: str | None


class Intake:
    """The requests of a batch while it is taken in. ``tokens`` are those of the prompts."""

    def __init__(self, fates: Fates) -> None:
        self._fates = fates
        self._spans: list[tuple[int, int, Fate]] = []
        self._documents: list[str] = []
        self.problems: list[Problem] = []
        self.tokens = 0
        self.model = ""

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, span: Span, asked: Asked) -> None:
        call = asked.call
        fate = lasting_fate(call, self._fates, usable=asked.usable)
        self._spans.append((span.offset, len(span.raw), fate))
        self._documents.append(call.document)
        self.tokens += call.prompt_tokens
        self.model = self.model or call.model

    def index(self, account: RequestAccount, kept: Kept) -> Index:
        """Count the requests as submitted and draw what they get. Blocks: for a thread."""
        made, numbers = IndexMaker(), account.submitted(self._documents)
        for (offset, length, fate), document, number in zip(
            self._spans, self._documents, numbers, strict=True
        ):
            made.add(
                offset,
                length,
                passing_fate(document, number, self._fates) if fate is Fate.GOOD else fate,
            )
        return made.write(kept.path, kept.order)


def read_input(source: Path, reader: Reader, fates: Fates) -> Intake:
    """Read and check every request; with problems, the batch is refused and nothing is submitted.

    Blocks: for a thread."""
    found, number = Intake(fates), 0
    for span in reader.spans(source):
        number += 1
        asked = reader.checked(span.raw, number)
        if asked is not None and not reader.problems:
            found.add(span, asked)
        if len(reader.problems) >= MAX_PROBLEMS:
            break
    reader.whole(number)
    found.problems = reader.problems[:MAX_PROBLEMS]
    return found
