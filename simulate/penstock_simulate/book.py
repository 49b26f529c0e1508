"""Every call, counted per document before it is answered: losses and duplicates show."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from penstock_simulate.choices import BadSetting
from penstock_simulate.reply import Usage


@dataclass(slots=True)
class _Accounts:
    """Everything that a reset forgets."""

    requests: int = 0
    in_flight: int = 0
    max_in_flight: int = 0
    unread: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_at: float | None = None  # Unix seconds
    last_at: float | None = None
    calls: dict[str, int] = field(default_factory=dict)  # by document
    answered: dict[str, int] = field(default_factory=dict)  # good answers, by document
    outcomes: Counter[str] = field(default_factory=Counter)
    over_limit: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)  # by the code of the error
    # who followed a redirect: with a key, without a key
    trapped: Counter[str] = field(default_factory=Counter)


class CallBook:
    """Counts in memory (some 300 bytes per document) and, with a log, one line per call on disk."""

    def __init__(self, log: Path | None = None) -> None:
        self._log = _open(log) if log is not None else None
        self._now = _Accounts()

    @property
    def requests(self) -> int:
        return self._now.requests

    @property
    def in_flight(self) -> int:
        return self._now.in_flight

    def arrived(self, document: str) -> int:
        """Count a call; its number among the calls for this document, from 1."""
        books = self._now
        number = books.calls.get(document, 0) + 1
        books.calls[document] = number
        books.requests += 1
        books.in_flight += 1
        if books.in_flight > books.max_in_flight:
            books.max_in_flight = books.in_flight
        books.last_at = time.time()
        if books.first_at is None:
            books.first_at = books.last_at
        return number

    def decided(self, document: str, number: int, outcome: str) -> None:
        """Put the call and what it gets on disk.

        It is one write, so a killed simulator loses no whole line."""
        if self._log is not None:
            line = {
                "at": round(time.time(), 6),
                "document": document,
                "call": number,
                "outcome": outcome,
            }
            os.write(self._log, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def left(self, document: str, outcome: str, usage: Usage, *, ok: bool, unread: bool) -> None:
        """Note that the call has been answered.

        ``unread``: the client had gone; the work was done all the same."""
        books = self._now
        books.in_flight -= 1
        books.outcomes[outcome] += 1
        books.prompt_tokens += usage.prompt
        books.completion_tokens += usage.completion
        books.unread += 1 if unread else 0
        if ok:
            books.answered[document] = books.answered.get(document, 0) + 1

    def over_limit(self, dimension: str) -> None:
        """Count a call that a limit turned away which was known beforehand."""
        self._now.over_limit[dimension] += 1

    def refused(self, code: str) -> None:
        """Count a call that got an error with this code, for whatever reason."""
        self._now.refused[code] += 1

    def trapped(self, how: str) -> None:
        """Count a client that followed a redirect."""
        self._now.trapped[how] += 1

    def stats(self) -> dict[str, Any]:
        books = self._now
        return {
            "requests": books.requests,
            "by_status": dict(sorted(books.outcomes.items())),
            "over_limit": dict(books.over_limit),
            "refused": dict(books.refused),
            "trapped": dict(books.trapped),
            "documents": len(books.calls),
            "answered": len(books.answered),
            "answered_more_than_once": sum(1 for times in books.answered.values() if times > 1),
            "unread": books.unread,
            "in_flight": books.in_flight,
            "max_in_flight": books.max_in_flight,
            "prompt_tokens": books.prompt_tokens,
            "completion_tokens": books.completion_tokens,
            "first_at": books.first_at,
            "last_at": books.last_at,
        }

    def calls(self, least: int = 1) -> dict[str, dict[str, int]]:
        """Return calls and good answers of each document called at least ``least`` times."""
        books = self._now
        return {
            document: {"calls": number, "ok": books.answered.get(document, 0)}
            for document, number in books.calls.items()
            if number >= least
        }

    def reset(self) -> None:
        """Count from nothing; calls in flight stay in flight.

        The log on disk is kept: it is append-only."""
        flying = self._now.in_flight
        self._now = _Accounts(requests=flying, in_flight=flying, max_in_flight=flying)

    def close(self) -> None:
        if self._log is not None:
            os.close(self._log)
            self._log = None


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError as error:
        raise BadSetting(
            f"--call-log: cannot write {str(path)!r}: {error.strerror}; give a file in a folder "
            "that exists"
        ) from error
