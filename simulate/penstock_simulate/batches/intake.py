"""Reads the input of a batch once, line by line: checks it, counts its tokens and draws what each
request gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from penstock_simulate.answers.calls import Call
from penstock_simulate.answers.faults import Fates
from penstock_simulate.batches.account import RequestAccount
from penstock_simulate.batches.fates import Fate, lasting_fate, passing_fate
from penstock_simulate.batches.index import Index, IndexMaker

MAX_PROBLEMS = 100  # of one batch that are shown: a wrong file has one on each line


class Problem(NamedTuple):
    """Why a batch is refused: in the words of its dialect, with the line where there is one."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Span(NamedTuple):
    """Where a request lies in its file, and its bytes there."""

    offset: int
    raw: bytes


class Asked(NamedTuple):
    """One request of a batch.

    ``custom_id`` names it in the results, ``call.document`` decides its luck."""

    custom_id: str
    call: Call
    usable: bool  # a request that is not gets an error of its own and costs no other
    echo: Mapping[str, Any] = {}  # what its result repeats besides, in dialects that have such


class Reader(Protocol):
    """How a dialect finds the requests of one input, reads them and checks them."""

    problems: list[Problem]

    def spans(self, source: Path) -> Iterable[Span]: ...

    def checked(self, raw: bytes, number: int) -> Asked | None:
        """None, and a problem more, for one that the whole batch is refused for.

        ``number`` counts from 1."""
        ...

    def whole(self, requests: int) -> None:
        """All were read: what is wrong with the whole is said now."""
        ...


class Kept(NamedTuple):
    """Where a batch's index goes, and what decides the order of its answers (None: that of the
    input)."""

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
    """Every request, checked; with problems, the batch is refused and nothing of it is submitted.

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
