"""How an idle worker hears of urgent messages at once: it waits at a list in which each group of
them leaves a mark.

Redis cannot wait inside a script, so a worker that found nothing asks again twenty times a second.
Urgent messages have callers who wait for each; asking a hundred times a second for their sake costs
more than answering them. A mark wakes one worker, the one that has waited longest. It is a hint and
no more: where it is lost, or wakes a worker that has no room, the message is found by the next one
that asks, within IDLE_POLL_S.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Final

import redis

from penstock_ledger import in_words, keys
from penstock_workers.broker.leases import BROKER_ERRORS

log = logging.getLogger(__name__)

IDLE_POLL_S: Final = 0.05  # an idle worker costs Redis 20 small scripts per second
# that Redis waits for a mark; then it is asked again, for the queues that are consumed by then
WAIT_S: Final = 5.0
OVERDUE_S: Final = 10.0  # without an answer: the connection leads nowhere
RETRY_S: Final = 5.0  # after a failure; until then the worker asks at its usual pace


class Pause:
    """Of one channel: until when it does not ask again.

    A mark that comes while it asks counts, too: its message may have come behind the question."""

    def __init__(self) -> None:
        self._over_at = 0.0
        self._is_woken = False

    def is_over(self) -> bool:
        return monotonic() >= self._over_at

    def asking(self) -> None:
        self._is_woken = False

    def found_nothing(self, usual_s: float) -> None:
        self._over_at = 0.0 if self._is_woken else monotonic() + usual_s

    def woken(self) -> None:
        self._over_at, self._is_woken = 0.0, True


class Wake:
    """Of one connection to the broker, with an event loop.

    ``connect`` makes the client that waits, ``queues`` are those that are consumed now, and
    ``woken`` is called for each mark. Belongs to the loop's thread."""

    def __init__(
        self,
        loop: Any,
        connect: Callable[[], redis.Redis],
        queues: Callable[[], Sequence[str]],
        woken: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._connect = connect
        self._queues = queues
        self._woken = woken
        self._client: redis.Redis | None = None
        self._connection: Any = None  # while an answer is awaited
        self._descriptor = -1
        self._asked_at = 0.0
        self._not_before = 0.0

    def turn(self) -> None:
        """Once in each turn of the loop: wait where nothing is awaited, and no longer where nothing
        is consumed."""
        if self._connection is None:
            if monotonic() >= self._not_before and self._queues():
                self._guarded(self._begin)
        elif monotonic() > self._asked_at + OVERDUE_S or not self._queues():
            self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._loop.remove_reader(self._descriptor)
            self._connection.disconnect()
            self._connection = None
        if self._client is not None:
            self._client.close()
            self._client = None

    def _begin(self) -> None:
        self._client = self._connect()
        pool: Any = self._client.connection_pool
        self._connection = pool.get_connection()
        self._descriptor = self._connection._sock.fileno()
        self._ask()
        self._loop.add_reader(self._descriptor, self._readable)

    def _ask(self) -> None:
        self._connection.send_command("BLPOP", *map(keys.wakes, self._queues()), WAIT_S)
        self._asked_at = monotonic()

    def _readable(self) -> None:
        self._guarded(self._answered)

    def _answered(self) -> None:
        if self._connection.read_response() is not None:
            self._woken()
        if self._queues():
            self._ask()
        else:
            self.close()

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BROKER_ERRORS as error:
            log.info(
                "urgent messages are looked for at the usual pace for %g s: %s",
                RETRY_S,
                in_words(error),
            )
            self._not_before = monotonic() + RETRY_S
            self.close()
