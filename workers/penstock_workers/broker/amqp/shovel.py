"""Moves messages from the lanes' lists in Redis to their queues in RabbitMQ.

One thread beside each control loop.

One shovel at a time moves a lane's messages, to save work; two at once are safe, too, since each
message is claimed, and what is published twice is taken once. Whatever fails, a message is in its
list, or is given back to it, or comes back when the lease ends under which it was being moved.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

from penstock_ledger import RedisAddress, keys
from penstock_ratelimit import full_jitter
from penstock_workers.amqp_address import AmqpAddress
from penstock_workers.broker.amqp.connect import AMQP_ERRORS, connect
from penstock_workers.broker.amqp.lane_shovel import LaneShovel
from penstock_workers.broker.amqp.relay_scripts import FleetQueues
from penstock_workers.broker.leases import BROKER_ERRORS
from penstock_workers.settings import WorkerSettings, process_name

log = logging.getLogger(__name__)

IDLE_S = 0.05  # between two turns that had nothing urgent to do
BACKOFF_BASE_S, BACKOFF_CAP_S = 0.5, 10.0  # while RabbitMQ or Redis cannot be reached
REDIS_TIMEOUT_S = 10.0


class Shovel:
    """Moves the messages of all lanes, on its own thread.

    Connects to RabbitMQ when there is something to move, or to look after."""

    def __init__(self, settings: WorkerSettings, address: AmqpAddress) -> None:
        self._address = address
        self._redis = RedisAddress.parse(settings.redis_url).connect(
            socket_timeout=REDIS_TIMEOUT_S,
            socket_connect_timeout=REDIS_TIMEOUT_S,
            socket_keepalive=True,
        )
        self._queues = FleetQueues(self._redis)
        self._timeout_s = settings.visibility_timeout_s
        self._lanes: list[LaneShovel] = []  # one for each queue of the fleet
        self._broker: Any = None  # kombu's connection
        self._faults = 0
        self._not_before = 0.0

    def run(self, stop: threading.Event) -> None:
        """Run until ``stop`` is set.

        An error is logged once, and the shovel tries again until it works."""
        while not stop.is_set():
            wait_s = IDLE_S
            try:
                wait_s = 0.0 if self._turn() else IDLE_S
            except (*BROKER_ERRORS, *AMQP_ERRORS) as error:
                wait_s = self._fail(error)
            # a defect of the shovel: messages wait in their lists meanwhile, and nothing is lost
            except Exception:
                log.exception(
                    "moving messages to RabbitMQ failed because of an error in Penstock; it goes "
                    "on. Please report this"
                )
                wait_s = self._fail(None)
            stop.wait(wait_s)
        self._disconnect()
        with contextlib.suppress(*BROKER_ERRORS):
            for lane in self._lanes:
                lane.lead.resign()
        self._redis.close()

    def _turn(self) -> bool:
        """Look once at each lane; return True when there is more to do at once."""
        self._meet_new_queues()
        counts = self._counts()
        more = False
        for lane, (waiting, relayed) in zip(self._lanes, counts, strict=True):
            lane.sweep.look()
            if lane.is_due(waiting, relayed) and lane.lead.leads():
                more = lane.turn(self._connected(), waiting, relayed) or more
                self._well()
        return more

    def _meet_new_queues(self) -> None:
        """Start a shovel for each new queue, and end those of queues that are gone.

        Queues of models come and go; one that is gone is empty."""
        known = {lane.queue: lane for lane in self._lanes}
        queues = self._queues.now()
        if queues != list(known):
            self._lanes = [
                known.get(queue)
                or LaneShovel(self._redis, queue, self._timeout_s, owner=process_name())
                for queue in queues
            ]

    def _counts(self) -> list[tuple[int, int]]:
        """Return for each lane how many messages wait in its list, and how many are relayed."""
        with self._redis.pipeline(transaction=False) as pipe:
            for lane in self._lanes:
                pipe.llen(lane.queue)
                pipe.zcard(keys.relayed(lane.queue))
            found = pipe.execute()
        return list(zip(found[::2], found[1::2], strict=True))

    def _connected(self) -> Any:
        """Return the connection, and make one where there is none."""
        if self._broker is None:
            self._broker = connect(self._address)
        return self._broker

    def _well(self) -> None:
        if self._faults:
            log.info("messages go to RabbitMQ at %s again", self._address.shown)
        self._faults = 0

    def _fail(self, error: Exception | None) -> float:
        """Leave the lanes to other processes; return how long to wait.

        Those may reach RabbitMQ."""
        wait_s = BACKOFF_BASE_S + full_jitter(
            self._faults, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S
        )
        if error is not None and self._faults == 0:
            log.warning(
                "messages cannot go to RabbitMQ at %s (%s: %s); they wait in Redis, and it is "
                "tried again",
                self._address.shown,
                type(error).__name__,
                error,
            )
        self._faults += 1
        self._disconnect()
        with contextlib.suppress(*BROKER_ERRORS):
            for lane in self._lanes:
                lane.lead.resign()
        return wait_s

    def _disconnect(self) -> None:
        for lane in self._lanes:
            lane.target.disconnect()
        broker, self._broker = self._broker, None
        if broker is not None:
            # py-amqp, of a connection that is gone
            with contextlib.suppress(*AMQP_ERRORS, AttributeError):
                broker.release()


@contextlib.contextmanager
def start_shovel(settings: WorkerSettings, broker_url: str) -> Iterator[None]:
    """Run a shovel to this RabbitMQ in a thread of its own until the block ends."""
    stop = threading.Event()
    shovel = Shovel(settings, AmqpAddress.parse(broker_url))
    thread = threading.Thread(target=shovel.run, args=(stop,), name="shovel", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
