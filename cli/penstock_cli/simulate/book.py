"""Every call that arrived, counted per document before it is answered, so that losses and duplicates show."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import orjson

from penstock_cli.errors import UsageProblem


class CallBook:
    """Counts in memory, about 200 bytes per document, and optionally one line per call on disk."""

    def __init__(self, log: Path | None = None) -> None:
        self._log = _open(log) if log is not None else None
        self._forget()

    def arrived(self, document: str) -> int:
        """Count a call; its number among the calls for this document, from 1."""
        number = self._calls.get(document, 0) + 1
        self._calls[document] = number
        self._requests += 1
        self._in_flight += 1
        self._max_in_flight = max(self._max_in_flight, self._in_flight)
        now = time.time()
        self._first_at = self._first_at or now
        self._last_at = now
        return number

    def decided(self, document: str, number: int, outcome: str) -> None:
        """Put the call and what it is going to get on disk: one write, so a killed simulator loses no whole line."""
        if self._log is not None:
            line = {"at": round(time.time(), 6), "document": document, "call": number, "outcome": outcome}
            os.write(self._log, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def left(self, document: str, outcome: str, usage: tuple[int, int], *, ok: bool, unread: bool) -> None:
        """The call has been answered. ``unread``: nobody was there any more; the work was done all the same."""
        self._in_flight -= 1
        self._outcomes[outcome] += 1
        self._prompt_tokens += usage[0]
        self._completion_tokens += usage[1]
        if unread:
            self._unread += 1
        if ok:
            self._answered[document] = self._answered.get(document, 0) + 1

    def refused(self, dimension: str) -> None:
        """A limit that was told beforehand turned this call away."""
        self._over_limit[dimension] += 1

    @property
    def requests(self) -> int:
        return self._requests

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def stats(self) -> dict[str, Any]:
        return {
            "requests": self._requests,
            "by_status": dict(sorted(self._outcomes.items())),
            "over_limit": dict(self._over_limit),
            "documents": len(self._calls),
            "answered": len(self._answered),
            "answered_more_than_once": sum(1 for times in self._answered.values() if times > 1),
            "unread": self._unread,
            "in_flight": self._in_flight,
            "max_in_flight": self._max_in_flight,
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._completion_tokens,
            "first_at": self._first_at or None,
            "last_at": self._last_at or None,
        }

    def calls(self, least: int = 1) -> dict[str, dict[str, int]]:
        """Calls and good answers of each document that was called at least ``least`` times."""
        return {
            document: {"calls": number, "ok": self._answered.get(document, 0)}
            for document, number in self._calls.items()
            if number >= least
        }

    def reset(self) -> None:
        """Count from nothing; calls in flight stay in flight. The log on disk is kept: it is append-only."""
        flying = self._in_flight
        self._forget()
        self._requests = self._in_flight = self._max_in_flight = flying

    def close(self) -> None:
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def _forget(self) -> None:
        self._calls: dict[str, int] = {}
        self._answered: dict[str, int] = {}
        self._outcomes: Counter[str] = Counter()
        self._over_limit: Counter[str] = Counter()
        self._requests = self._in_flight = self._max_in_flight = self._unread = 0
        self._prompt_tokens = self._completion_tokens = 0
        self._first_at = self._last_at = 0.0


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError as error:
        raise UsageProblem(
            f"--call-log: cannot write {str(path)!r}: {error.strerror}; give a file in a folder that exists"
        ) from error
