"""Rebuilds Redis from SQL after it lost data, or may have, before a call is paid twice.

A sentinel in Redis holds the epoch of the ledger and the run id of the server that it was written
to. It is missing after a FLUSHALL or a lost disk, and names another run after a restart, when the
newest second of the append-only file, or a whole day with a restored backup, may be gone. Both are
repaired alike: the completed set and the counters are written again from SQL, and feeds of the jobs
that lost their window start from the beginning of their source, dropping what is finished. Where
such a job has documents in provider batches, since it was in that lane before, ``Feeding`` waits
for them at the start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from penstock_ledger import RETRIED, JobStore, LaneMoves, OutcomeStore, RedisLedger, buckets_for
from penstock_ledger.model import Counts, Job
from penstock_producer.job.lanes import packs
from penstock_producer.reporting.reasons import retries

log = logging.getLogger(__name__)

UNKNOWN = f"{RETRIED}unknown"
REHYDRATE_PAGE = 5_000  # finished documents per round trip while the completed set is rebuilt


class Recovery:
    """Makes Redis agree with SQL again. Idempotent: two processes may do it at once."""

    def __init__(
        self, jobs: JobStore, outcomes: OutcomeStore, hot: RedisLedger, moves: LaneMoves
    ) -> None:
        self._moves = moves
        self._jobs = jobs
        self._outcomes = outcomes
        self._hot = hot

    def rebuild_if_lost(self, live: Callable[[], Iterable[Job]]) -> bool:
        """Rebuild what Redis holds of live jobs if its sentinel is missing or another server's.

        True when it was rebuilt. ``live`` is asked once the rebuild has begun: of what was seen
        before, by a process that has stood still since, there may be other jobs by now."""
        if self._hot.check_epoch():
            return False
        self._hot.begin_rebuild()
        jobs = list(live())
        log.warning(
            "Redis is new, was restarted or lost its data: %d live jobs are rebuilt from SQL, then "
            "feeding goes on",
            len(jobs),
        )
        for job in jobs:
            self._rebuild(job)
        # what an old copy has of jobs that are over by now: no round looks at them
        if purged := self._hot.forget_ended(self._jobs.states):
            log.warning("Redis has come back with keys of %d purged jobs; they are deleted", purged)
        self._hot.install_epoch()
        return True

    def _rebuild(self, job: Job) -> None:
        self._hot.set_job_state(job.job_id, job.state)
        for generation in range(1, job.generation + 1):
            for page in self._outcomes.terminal_docs(job.job_id, generation, REHYDRATE_PAGE):
                self._hot.rehydrate(job.job_id, generation, page, buckets_for(job))
        known = stats_from(self._outcomes.counts(job.job_id), self._hot.stats(job.job_id))
        self._hot.reset_stats(job.job_id, known)
        self._end_calls(job)
        # the round after this reserves what SQL knows of batches
        self._hot.budgets.relearn(job.job_id)
        self._hot.set_job_lane(job)
        is_leaving = job.moves and self._moves.of(job.job_id)[-1].left_at is None
        if not packs(job.lane) or is_leaving:  # what is in batches is known to SQL alone
            self._jobs.rewind_feeds(job.job_id)

    def _end_calls(self, job: Job) -> None:
        """Drop reservations of calls whose outcome SQL has.

        Redis may have lost the end of such a call; nothing is reserved for its document any more.
        """
        calls = self._hot.budgets.calls(job.job_id)
        ended = self._outcomes.terminal(calls)
        self._hot.budgets.end_calls(
            job.job_id, {key: entry for key, entry in calls.items() if key in ended}
        )


def stats_from(counts: Counts, kept: Mapping[str, int]) -> dict[str, int]:
    """Return a job's counters as SQL knows them.

    ``kept`` are those that Redis still has: what finished documents were asked more often than
    these say was tried again for reasons that are lost.
    """
    asked_again = sum(kept.get(name, 0) for name in ("repairs", "fallbacks", "escalations"))
    tried_again = (
        counts.calls + sum(counts.reused.values()) - counts.succeeded - counts.dead - asked_again
    )
    lost = max(0, tried_again - retries(kept))
    return {
        "succeeded": counts.succeeded,
        "succeeded_after_retry": counts.succeeded_after_retry,
        "dead": counts.dead,
        "calls": counts.calls,
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "cost_microusd": counts.cost_microusd,
        **{f"reused:{reason}": number for reason, number in counts.reused.items()},
        **({UNKNOWN: kept.get(UNKNOWN, 0) + lost} if lost else {}),
    } | {f"dead:{reason}": number for reason, number in counts.dead_by_reason.items()}
