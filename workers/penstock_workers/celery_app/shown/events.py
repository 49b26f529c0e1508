"""Task events in groups, so that an open Flower costs the worker little.

Celery sends what has gathered at the end of each turn of the hub: nearly one PUBLISH per item,
which halves a worker's throughput. Half a second of delay in a dashboard does not matter.
``sampling.py`` chooses the items that send events.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from redis.exceptions import RedisError

from penstock_ledger import keys
from penstock_workers.celery_app.shown.firings import tell_firings
from penstock_workers.celery_app.shown.sampling import EventSample
from penstock_workers.decided_times import DecidedTimes

FLUSH_EACH_S = 0.5
BUFFER_MAX = 1_000  # events, some 300 bytes each; a full buffer is sent at once
UNSENT_MAX = 20  # groups that Redis would not take, kept until it is back: the oldest go first
FLEET_LOOK_EACH_S = 10.0


def gather_events(consumer: Any, sample: EventSample, decided: DecidedTimes | None = None) -> None:
    """To be called once per broker connection: each has a dispatcher of its own, and ends its
    timers.

    ``decided``: times of schedules, which are shown as well.
    """
    dispatcher = consumer.event_dispatcher
    if dispatcher is None:
        return
    dispatcher.buffer_limit = BUFFER_MAX
    dispatcher.on_send_buffered = None
    dispatcher._outbound_buffer = deque(dispatcher._outbound_buffer, maxlen=UNSENT_MAX)

    def flush() -> None:
        sample.turn()
        dispatcher.flush()

    consumer.timer.call_repeatedly(FLUSH_EACH_S, flush)
    count_workers(dispatcher, sample)
    consumer.timer.call_repeatedly(FLEET_LOOK_EACH_S, count_workers, (dispatcher, sample))
    if decided is not None:
        tell_firings(consumer, decided)


def count_workers(dispatcher: Any, sample: EventSample) -> None:
    """Count the workers that send events; while Redis does not answer, the last count stays."""
    if not dispatcher.groups or "task" in dispatcher.groups:
        try:
            sample.share_fleet(
                int(dispatcher.connection.default_channel.client.zcard(keys.WORKERS))
            )
        except (RedisError, AttributeError):  # another broker has no such client
            return
