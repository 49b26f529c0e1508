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


class Rest:
    """Belongs to the control thread, but for ``wake``."""

    def __init__(self, database: Database) -> None:
        self._heard, self._tell = os.pipe()
        os.set_blocking(self._heard, False)
        os.set_blocking(self._tell, False)
        self._commits = database.commits()

    def wake(self) -> None:
        """End the rest, or the next one. Any thread."""
        with contextlib.suppress(BlockingIOError):  # it is full of the same
            os.write(self._tell, b"x")

    def forget(self) -> None:
        """Forget what was to wake it."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._heard, select.PIPE_BUF)

    def mark(self) -> int | str | None:
        """Return what each commit changes; None where nothing is known."""
        return self._commits.mark()

    def wait(self, seconds: float, *others: int) -> list[int]:
        """Wait until it is woken, for ``seconds`` at most; return the descriptors that said so.

        Or until one of ``others`` can be read."""
        poll = select.poll()
        for descriptor in (self._heard, *others):
            poll.register(descriptor, select.POLLIN)
        return [descriptor for descriptor, _ in poll.poll(seconds * 1000)]

    def until_commit(self, mark: int | str, look_s: float, longest_s: float) -> None:
        """Wait until it is woken, or something was committed after ``mark``.

        A commit does not end it within ``look_s``, so that many make no round each."""
        until = monotonic() + longest_s
        woken = bool(self.wait(look_s))
        while not woken and monotonic() < until and self._commits.mark() == mark:
            reports = self._commits.descriptor()
            if reports is None:
                woken = bool(self.wait(look_s))
            elif heard := self.wait(LISTEN_S, reports):
                woken = self._heard in heard or self._seen_after(mark)

    def _seen_after(self, mark: int | str) -> bool:
        """Look for the commit whose write was reported; return whether the rest is over."""
        self._commits.hear()
        return any(self.wait(pause_s) or self._commits.mark() != mark for pause_s in SEEN_AFTER_S)

    def close(self) -> None:
        """Hear no commits any more. It may be woken, in vain, for as long as it is there."""
        self._commits.close()

    def __del__(self) -> None:
        os.close(self._heard)
        os.close(self._tell)
