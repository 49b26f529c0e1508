"""A channel reaches Redis, wakes for urgent messages, and orders its queues.

Redis cannot wait inside a script, so a worker that found nothing asks again twenty times a second.
Urgent messages have callers who wait for each; asking a hundred times a second for their sake costs
more than answering them. So each group of them leaves a mark in a list that idle workers wait at. A
mark wakes one worker, the one that has waited longest. It is a hint and no more: where it is lost,
or wakes a worker that has no room, the message is found by the next one that asks, within
IDLE_POLL_S.

Control messages are few and must not wait, so their queue comes first. The queues of a model's
names and adapters are equals: the one that was served last comes last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any, Final

import redis
from kombu.transport import redis as kombu_redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import SentinelManagedConnection

from penstock_ledger import RedisAddress, in_words, keys
from penstock_producer.feed.queues import queue_name
from penstock_workers.broker.lease_scripts import Keys
from penstock_workers.broker.leases import BROKER_ERRORS
from penstock_workers.settings import CONTROL_LANE

KEEPER_TIMEOUT_MIN_S = 1.0


class ConnectingChannel(kombu_redis.Channel):  # type: ignore[misc]  # kombu is untyped
    """A channel that connects as its ``Transport`` says.

    Its address is None where kombu reads the URL by itself."""

    connection: Any

    def broker_keys(self) -> Keys:
        prefix = self.global_keyprefix
        return Keys(
            unacked=prefix + self.unacked_key,
            unacked_index=prefix + self.unacked_index_key,
            visibility_timeout_s=float(self.visibility_timeout),
            prefix=prefix,
            steps=tuple(self.priority_steps),
        )

    @property
    def connection_class(self) -> type[Any]:
        """Return the class that kombu derives its connections from.

        TLS and unix sockets it finds out by itself."""
        address: RedisAddress | None = self.connection.address
        if address is None or not address.sentinels:
            return (
                redis.SSLConnection
                if address is not None and address.over_tls
                else redis.Connection
            )
        return (
            kombu_redis.SentinelManagedSSLConnection
            if address.over_tls
            else SentinelManagedConnection
        )

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        parameters: dict[str, Any] = dict(super()._connparams(asynchronous))
        address = self.connection.address
        if address is None:
            return parameters
        for name in ("host", "port", "username", "password"):
            parameters.pop(name, None)
        return {**parameters, **address.parameters}

    def _get_pool(self, asynchronous: bool = False) -> Any:
        address = self.connection.address
        if address is None:
            return super()._get_pool(asynchronous)
        parameters = self._connparams(asynchronous)
        self.keyprefix_fanout: str = self.keyprefix_fanout.format(db=parameters["db"])
        return address.pool(parameters.pop("connection_class"), parameters)

    def _connect_keeper(self) -> redis.Redis:
        """Return a client for the lease keeper, which notices a dead peer in time."""
        parameters = self._connparams()
        patience_s = max(KEEPER_TIMEOUT_MIN_S, float(self.visibility_timeout) / 6)
        parameters["socket_timeout"] = min(
            parameters.get("socket_timeout") or patience_s, patience_s
        )
        parameters["retry"] = Retry(NoBackoff(), 0)  # the keeper has retries of its own
        address = self.connection.address
        if address is None:
            return redis.Redis(connection_pool=redis.ConnectionPool(**parameters))
        return redis.Redis(
            connection_pool=address.pool(parameters.pop("connection_class"), parameters)
        )


log = logging.getLogger(__name__)

IDLE_POLL_S: Final = 0.05  # of a worker that has just found nothing
# and of one that finds nothing for seconds, and that marks wake
IDLE_POLL_MAX_S: Final = 0.5
SLOWER: Final = 1.25  # each further time
# that Redis waits for a mark; then it is asked again, for the queues that are consumed by then
WAIT_S: Final = 5.0
OVERDUE_S: Final = 10.0  # without an answer: the connection leads nowhere
RETRY_S: Final = 5.0  # after a failure; until then the worker asks at its usual pace


class Pause:
    """Until when one channel does not ask again.

    A mark that comes while it asks counts, too: its message may have come behind the question."""

    def __init__(self) -> None:
        self._over_at, self._pause_s = 0.0, 0.0
        self._is_woken = False

    def is_over(self) -> bool:
        return self.left_s() <= 0

    def left_s(self) -> float:
        return self._over_at - monotonic()

    def asking(self) -> None:
        """Begin the next pause: the answer wakes the loop, which need not turn before."""
        self._is_woken = False
        self._over_at = monotonic() + self._pause_s

    def found_some(self) -> None:
        self._over_at = self._pause_s = 0.0

    def found_nothing(self, usual_s: float, *, is_woken: bool) -> None:
        """Ask again after ``usual_s``, and where marks wake this worker later each further time."""
        longest_s = IDLE_POLL_MAX_S if is_woken else usual_s
        self._pause_s = max(usual_s, min(longest_s, self._pause_s * SLOWER))
        self._over_at = 0.0 if self._is_woken else monotonic() + self._pause_s

    def woken(self) -> None:
        self._over_at, self._is_woken = 0.0, True


class Wake:
    """Wakes one connection to the broker, with an event loop, when a queue is marked.

    ``connect`` makes the client that waits, ``queues`` are those that are consumed now, and
    ``woken`` is called for each mark. Belongs to the loop's thread.
    """

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

    def is_waiting(self) -> bool:
        """Return whether the next mark is heard."""
        return self._connection is not None

    def turn(self) -> None:
        """Wait at the list, once in each turn of the loop.

        Nothing is awaited where nothing is consumed."""
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


class Turns:
    """Has an event loop turn once more after each turn, when ``rest_s`` from then are over."""

    def __init__(self, loop: Any, rest_s: Callable[[], float]) -> None:
        self._loop, self._rest_s = loop, rest_s
        self._timer: Any = None

    def turn(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self._rest_s(), self._is_over)

    def close(self) -> None:
        """Forget the turn that is planned; the next one plans anew."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_over(self) -> None:
        self._timer = None


FIRST = queue_name(CONTROL_LANE)


class QueueOrder:
    """kombu's interface of a queue order strategy. Belongs to one channel."""

    def __init__(self, queues: Iterable[str] | None = None) -> None:
        self.items: list[str] = []  # the next one first
        self.update(queues or ())

    def update(self, queues: Iterable[str]) -> None:
        """Take the queues that are consumed now; those that stay keep their turns."""
        given = list(dict.fromkeys(queues))
        known = [queue for queue in self.items if queue in given]
        self.items = known + [queue for queue in given if queue not in known]

    def consume(self, n: int) -> list[str]:
        """Return the queues in their order."""
        return sorted(self.items, key=lambda queue: queue != FIRST)[:n]

    def rotate(self, last_used: str) -> None:
        """Put a queue that was served behind the others."""
        if last_used in self.items:
            self.items.remove(last_used)
            self.items.append(last_used)
