"""The control thread rests between rounds: for a time, or until something is committed.

The system reports commits in a SQLite file. In PostgreSQL they are looked for: a notification by
each would take a lock that all commits of the server share.
"""

from __future__ import annotations

import contextlib
import os
import select
from time import monotonic
from typing import Final

from penstock_ledger import Database

LISTEN_S: Final = 1.0
"""Where the system reports nothing, which may be wrong, the file is looked at this often."""
SEEN_AFTER_S: Final = (0.002, 0.01, 0.04, 0.15, 0.3)
"""Looks after a write, each so long after the one before: a commit is seen once the disk has it."""


class Bell:
    """Wakes a thread that waits. It is rung by any thread, and heard by one."""

    def __init__(self) -> None:
        self._heard, self._rung = os.pipe()
        os.set_blocking(self._heard, False)
        os.set_blocking(self._rung, False)

    def ring(self) -> None:
        """End the wait, or the next one."""
        with contextlib.suppress(BlockingIOError):  # it is full of the same
            os.write(self._rung, b"x")

    def clear(self) -> None:
        """Forget that it was rung."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._heard, select.PIPE_BUF)

    def wait(self, seconds: float, *others: int) -> list[int]:
        """Wait until it is rung, for ``seconds`` at most, or until one of ``others`` can be read.

        Return those of ``others`` that can be, and more where it was rung."""
        poll = select.poll()
        for descriptor in (self._heard, *others):
            poll.register(descriptor, select.POLLIN)
        return [descriptor for descriptor, _ in poll.poll(seconds * 1000)]

    def __del__(self) -> None:
        os.close(self._heard)
        os.close(self._rung)


class Rest:
    """Belongs to the control thread, but for ``wake``."""

    def __init__(self, database: Database) -> None:
        self._bell, self._commits = Bell(), database.commits()
        self.wake, self.forget = self._bell.ring, self._bell.clear

    def mark(self) -> int | str | None:
        """Return what each commit changes; None where nothing is known."""
        return self._commits.mark()

    def wait(self, seconds: float) -> bool:
        """Wait until it is woken, for ``seconds`` at most; return whether it was."""
        return bool(self._bell.wait(seconds))

    def until_commit(self, mark: int | str, look_s: float, longest_s: float) -> None:
        """Wait until it is woken, or something was committed after ``mark``.

        A commit does not end it within ``look_s``, so that many make no round each."""
        until = monotonic() + longest_s
        woken = self.wait(look_s)
        while not woken and monotonic() < until and self._commits.mark() == mark:
            reports = self._commits.descriptor()
            if reports is None:
                woken = self.wait(look_s)
            elif heard := self._bell.wait(LISTEN_S, reports):
                woken = heard != [reports] or self._seen_after(mark)

    def _seen_after(self, mark: int | str) -> bool:
        """Look for the commit whose write was reported; return whether the rest is over."""
        self._commits.hear()
        return any(self.wait(pause_s) or self._commits.mark() != mark for pause_s in SEEN_AFTER_S)

    def close(self) -> None:
        """Hear no commits any more."""
        self._commits.close()
