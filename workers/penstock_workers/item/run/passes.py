"""Passes streamed answers on to the doors whose callers read them.

For display alone: a piece that is lost costs nothing but time, since the door sends what is missing
from the stored answer. So nothing here is repeated, and nothing waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import redis

from penstock_ledger import keys
from penstock_producer.feed.wire import door_of
from penstock_workers.failure_log import FailureLog
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.passing import Passing
from penstock_workers.item.settling.groups import Gatherer

log = logging.getLogger(__name__)

GROUP_MAX = 100  # pieces in one pipeline, of 64 KiB at most: while it is written the next gathers


class Passes:
    """``of`` is called on the item loop; a thread writes to Redis."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._waiting: Gatherer[Passing] = Gatherer(
            self._publish_all, group_max=GROUP_MAX, linger_s=0
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pass on")
        self._failures = FailureLog(log)

    def start(self) -> None:
        self._waiting.start()

    async def close(self) -> None:
        await self._waiting.close()
        self._thread.shutdown()

    def of(self, attempt: Attempt) -> Passing | None:
        """Return what passes the answer on; None where it is stored before anyone sees it.

        So it is where a job checks answers: what fails its schema or its hook is asked again."""
        door = door_of(attempt.delivery.headers)
        if door is None or not attempt.job.awaited or attempt.confined:
            return None
        spec = attempt.job.spec
        if spec.response_schema is not None or spec.postprocess or spec.fallback or spec.escalate:
            return None
        return Passing(attempt.key, keys.passed_to(door), self._waiting.put)

    async def _publish_all(self, group: Sequence[Passing]) -> None:
        pieces = [(passing, piece) for passing in group if (piece := passing.take()) is not None]
        if not pieces:
            return
        loop = asyncio.get_running_loop()
        try:
            heard = await loop.run_in_executor(
                self._thread,
                self._publish,
                [(passing.channel, piece) for passing, piece in pieces],
            )
        except redis.RedisError as error:
            self._failures.tell("a piece of an answer", error, "the rest of it comes in one piece")
            for passing, _ in pieces:  # it may be there all the same
                passing.stop()
            return
        for (passing, _), readers in zip(pieces, heard, strict=True):
            if not readers:
                passing.unheard()

    def _publish(self, pieces: Sequence[tuple[str, bytes]]) -> list[int]:
        """Publish pieces; return how many doors have heard each."""
        with self._client.pipeline(transaction=False) as pipe:
            for channel, piece in pieces:
                pipe.publish(channel, piece)
            return [int(readers) for readers in pipe.execute()]
