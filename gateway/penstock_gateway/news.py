"""Background work rests until something is committed, by whichever process.

What waits for its time is looked at when that comes; so a door in which nothing happens asks a
PostgreSQL one short question twice a second, for all of its background work, and a SQLite file
nothing: the system reports writes to it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from penstock_gateway.backend import Backend
from penstock_gateway.refused import Refused

LOOK_EVERY_S: Final = 0.5
LISTEN_S: Final = 5.0  # at most, where the system reports nothing
# without news: where a commit was not noticed, it costs so much
REST_S: Final = 10.0


class News:
    """Tells the background work of one door of commits. Of the event loop."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._commits = backend.database.commits()
        self._mark: int | str | None = None
        self.coming = asyncio.Event()  # set with the next news: take it before you look
        # in the loop, where a look takes microseconds
        self._looks_here = backend.database.is_sqlite

    def tell(self) -> None:
        """Wake those who wait now: something was committed here."""
        self.coming.set()
        self.coming = asyncio.Event()

    async def look(self) -> None:
        """Look once; a database that does not answer is news, as nothing is known of it."""
        mark, seen = self._commits.mark, None
        with contextlib.suppress(Refused):  # too much waits for a thread
            seen = mark() if self._looks_here else await self._backend.run(mark)
        if seen is None or seen != self._mark:
            self._mark = seen
            self.tell()

    async def written(self) -> None:
        """Wait for the report of a write, ``LISTEN_S`` at most; not at all where none comes.

        The commit may be seen a little later."""
        descriptor = self._commits.descriptor() if self._looks_here else None
        if descriptor is None:
            return
        loop, reported = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(descriptor, reported.set)
        try:
            await rest(reported, LISTEN_S)
        finally:
            loop.remove_reader(descriptor)
        self._commits.hear()

    def close(self) -> None:
        self._commits.close()


async def rest(coming: asyncio.Event, pause_s: float = REST_S) -> bool:
    """Wait for news, or for a pause; return whether there was news."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(coming.wait(), pause_s)
    return coming.is_set()


class LookForNews:
    """The look, as a piece of background work."""

    async def run(self, backend: Backend) -> None:
        news = backend.part(News)
        try:
            while True:
                await news.look()
                backend.round_done(self)
                await news.written()
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            news.close()
