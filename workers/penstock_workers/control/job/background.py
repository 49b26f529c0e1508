"""Runs work of the control loop that takes longer than a round, in threads.

So one job's files hold up no other job's feeding."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import NamedTuple


class Key(NamedTuple):
    """What a piece of work is for. One at a time has it."""

    job_id: str
    generation: int
    sink: str


class Background:
    """Runs at most ``at_once`` pieces of work at a time; a later round starts what finds no room.

    The threads are daemons: the process that leads the job next does all of it again, so no end of
    a process waits for them. ``start`` and ``ended`` belong to the control thread.
    """

    def __init__(self, at_once: int, on_ended: Callable[[], None]) -> None:
        self._at_once = at_once
        self._on_ended = on_ended  # called in the working thread, after success and failure
        # bounded by the jobs that are led here, and their sinks
        self._work: dict[Key, Future[None]] = {}

    def start(self, key: Key, work: Callable[[], None]) -> bool:
        """Start the work in a thread, unless it is under way or there is no room now.

        Return whether it was started."""
        under_way = sum(not future.done() for future in self._work.values())
        if key in self._work or under_way >= self._at_once:
            return False
        future = self._work[key] = Future()
        threading.Thread(target=self._run, args=(work, future), name=key.sink, daemon=True).start()
        return True

    def ended(self, key: Key) -> bool:
        """Return True once after the work that was started with this key has ended.

        Raises what the work raised."""
        future = self._work.get(key)
        if future is None or not future.done():
            return False
        del self._work[key]
        future.result()
        return True

    def keep_only(self, live: Collection[str]) -> None:
        """Forget what ended for jobs that are not live any more."""
        self._work = {
            key: future
            for key, future in self._work.items()
            if key.job_id in live or not future.done()
        }

    def _run(self, work: Callable[[], None], future: Future[None]) -> None:
        try:
            work()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(None)
        self._on_ended()
