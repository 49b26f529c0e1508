"""Dead letters: one line each, and groups of those whose errors are alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from penstock_gateway.for_tenants import told_of
from penstock_gateway.pages.chart import Part, parts
from penstock_ledger import Job, LetterLine
from penstock_producer.reporting.advice import on_page
from penstock_producer.reporting.fixes import FIXES
from penstock_producer.reporting.text import count, one_line

__all__ = ["GROUPED_MAX", "Group", "LetterRow", "alike", "groups", "letter_rows", "members"]

# dead letters that are read to be grouped: without their bodies some megabytes
GROUPED_MAX: Final = 5_000
GROUPS_SHOWN: Final = 50
ERROR_CHARS: Final = 300
ALIKE_CHARS: Final = 160  # of what two errors have in common; what differs behind that is details
ID_CHARS: Final = 512

# What differs between errors that are alike: ids, hashes, addresses, quoted values and numbers. A
# status is none of these, and stays. Each pattern is linear.
_VALUES: Final = re.compile(
    r"(?P<status>\bHTTP [1-5][0-9]{2}\b)"
    r"|(?P<id>\b(?:[a-z]{2,12}[-_])?(?=[0-9A-Za-z-]*[0-9])[0-9A-Za-z]{8,64}(?:-[0-9A-Za-z]{2,64}){0,6}\b)"
    r"|(?P<quoted>\"[^\"\n]{1,200}\"|'[^'\n]{1,200}'|`[^`\n]{1,200}`)"
    r"|(?P<number>\d[\d.,:]{0,30})"
)
_NAMES: Final = {"id": "ID", "quoted": "“…”", "number": "N"}


class LetterRow(NamedTuple):
    doc_id: str  # as it is, for links
    name: str
    reason: str
    tries: str
    status: str
    error: str
    replayable: bool


class Group(NamedTuple):
    """Dead letters of one reason whose errors differ in values only."""

    reason: str
    alike: str
    number: str
    share: Sequence[Part]
    example: str  # a document
    replayable: int
    fix: str


def letter_rows(job: Job, lines: Iterable[LetterLine]) -> list[LetterRow]:
    return [
        LetterRow(
            line.doc_id,
            one_line(line.doc_id, ID_CHARS),
            line.reason,
            count(line.attempts),
            "" if line.status_code is None else str(line.status_code),
            one_line(told_of(job, line.last_error), ERROR_CHARS),
            line.replayable,
        )
        for line in lines
    ]


def alike(error: str) -> str:
    """Return what is left of an error without its values: equal for errors that are alike."""
    cut = one_line(error, ERROR_CHARS)
    return _VALUES.sub(lambda found: _NAMES.get(str(found.lastgroup), found[0]), cut)[
        :ALIKE_CHARS
    ].strip()


def groups(lines: Iterable[LetterLine]) -> list[Group]:
    """Group dead letters by reason and by error, the largest group first."""
    found: dict[tuple[str, str], list[LetterLine]] = {}
    for line in lines:
        found.setdefault((line.reason, alike(line.last_error)), []).append(line)
    ordered = sorted(found.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    most = max((len(same) for same in found.values()), default=1)
    return [
        Group(
            reason,
            same_words,
            count(len(same)),
            parts([("bad", len(same))], most),
            same[0].doc_id,
            sum(line.replayable for line in same),
            on_page(FIXES.get(reason, "")),
        )
        for (reason, same_words), same in ordered[:GROUPS_SHOWN]
    ]


def members(lines: Iterable[LetterLine], reason: str, same_words: str) -> list[str]:
    """Return the documents of one group that can be sent again."""
    return [
        line.doc_id
        for line in lines
        if line.replayable and line.reason == reason and alike(line.last_error) == same_words
    ]
