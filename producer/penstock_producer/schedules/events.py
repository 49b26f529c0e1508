"""Notifications for a schedule that watches a place: kept by name until its next job, from any
sender and however often.

Names come by `Schedules.notify` (a webhook's body) or from a queue of SQS, which is emptied when a
planned time has come.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final

from penstock_ledger import NoticedStore, Schedule
from penstock_producer.bucket.event_queue import EventQueue
from penstock_producer.schedules.marks import EVENTS, NEW_FILES, WEBHOOK
from penstock_producer.schedules.notices import Notice, NoticeOutcome, Place, read_notice

__all__ = ["collect", "keep"]

log = logging.getLogger(__name__)

RECEIVES_MAX: Final = (
    200  # from a queue for one planned time: 2,000 messages; the rest waits there for the next one
)
SHOWN_CHARS: Final = 200  # of a body that cannot be read, in the log


def keep(store: NoticedStore, schedule: Schedule, body: bytes | str) -> Mapping[NoticeOutcome, int]:
    """Keep what a body names for the schedule's next job; returns how many records came to what."""
    place = Place.of(str(schedule.source[NEW_FILES]))
    found = [Notice(NoticeOutcome.ELSEWHERE)] if place is None else read_notice(body, place)
    counts = Counter[NoticeOutcome](
        one.outcome for one in found if one.outcome is not NoticeOutcome.NOTICED
    )
    names = [one.name for one in found if one.outcome is NoticeOutcome.NOTICED]
    if names:
        noted = store.note(schedule.schedule_id, names)
        counts[NoticeOutcome.NOTICED] += len(noted.new)
        counts[NoticeOutcome.NO_ROOM] += len(noted.no_room)
        counts[NoticeOutcome.REPEATED] += len(names) - len(noted.new) - len(noted.no_room)
    return +counts


def collect(store: NoticedStore, schedule: Schedule) -> Mapping[NoticeOutcome, int]:
    """Empty the schedule's queue, where it has one.

    A message leaves it once what it names is kept, or can never be used.

    Raises SourceError and SourceUnavailable.
    """
    url = str(schedule.source[EVENTS])
    counts = Counter[NoticeOutcome]()
    if url == WEBHOOK:
        return counts
    queue = EventQueue(url)
    for _ in range(RECEIVES_MAX):
        if not store.has_room(schedule.schedule_id):
            break
        messages = queue.receive()
        if not messages:
            break
        done = []
        for message in messages:
            found = keep(store, schedule, message.body)
            counts.update(found)
            if NoticeOutcome.UNREADABLE in found:
                log.warning(
                    "schedule %s: a message of its queue is no notification of a bucket and is "
                    "removed: %.*r",
                    schedule.name,
                    SHOWN_CHARS,
                    message.body,
                )
            if NoticeOutcome.NO_ROOM not in found:
                done.append(message)
        queue.remove(done)
    return counts
