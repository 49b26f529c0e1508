"""Finds messages that are lost, and publishes their documents again.

Missing are fed - finished - queued - leased - delayed - parked, so a lost message costs time only.
A document must be missing in two rounds running before it is published again, because it may just
be moving from one place to another.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock_ledger import OutcomeStore, RedisLedger, buckets_for
from penstock_ledger.model import Feed, ItemKey, Job
from penstock_producer.feed.feeder import Feeder
from penstock_producer.feed.leased_feed import republish
from penstock_producer.feed.wire import item_tag
from penstock_producer.reporting.reasons import retries

log = logging.getLogger(__name__)

REPUBLISH_MAX = 5_000  # documents per round; the next round takes the rest


class Reconciler:
    """Publishes the lost documents of one feed again.

    Scans only when nothing moved since the last round, or when the counts do not add up."""

    def __init__(self, outcomes: OutcomeStore, hot: RedisLedger) -> None:
        self._outcomes = outcomes
        self._hot = hot
        self._suspects: frozenset[str] = frozenset()
        self._last_progress = -1

    def round(
        self,
        job: Job,
        feed: Feed,
        feeder: Feeder,
        queue: str,
        outstanding: int,
        besides: Sequence[str] = (),
    ) -> int:
        """Look for lost messages of a feed, and return how many documents were published again.

        ``outstanding`` is how many of its documents have no outcome. ``besides`` are the queues of
        lanes that the job has left, whose workers may still end what they hold.
        """
        if not outstanding or not self._worth_a_scan(job, queue, outstanding):
            self._suspects = frozenset()
            return 0
        missing = dict(
            self._hot.missing(queue, feed.job_id, feed.generation, item_tag, besides=besides)
        )
        confirmed = [doc for doc in missing if doc in self._suspects][:REPUBLISH_MAX]
        self._suspects = frozenset(missing)
        lost = self._drop_finished(job, feed, confirmed)
        if lost:
            log.warning(
                "job %s: %d documents were fed and their messages are lost; publishing them again",
                job.job_id,
                len(lost),
            )
            republish(feeder, [(doc, missing[doc]) for doc in lost])
        return len(lost)

    def _worth_a_scan(self, job: Job, queue: str, outstanding: int) -> bool:
        stats = self._hot.stats(job.job_id)
        progress = stats.get("succeeded", 0) + stats.get("dead", 0) + retries(stats)
        stalled, self._last_progress = progress == self._last_progress, progress
        depth = self._hot.depth(queue)
        return (
            stalled
            or bool(self._suspects)
            or outstanding > depth.queued + depth.unacked + depth.delayed
        )

    def _drop_finished(self, job: Job, feed: Feed, docs: list[str]) -> list[str]:
        """Return those of ``docs`` that have no outcome.

        The others were settled in SQL only: settle them in Redis, too."""
        keys = [ItemKey(feed.job_id, feed.generation, doc) for doc in docs]
        finished = self._outcomes.terminal(keys)
        if finished:
            self._hot.rehydrate(
                feed.job_id,
                feed.generation,
                [(key.doc_id, False) for key in finished],
                buckets_for(job),
            )
            self._hot.drop_from_window(sorted(finished))
        return [key.doc_id for key in keys if key not in finished]
