"""Moves a job to another state: in SQL, which decides, and then in Redis, for the workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from penstock_ledger import JobStore, RedisLedger
from penstock_ledger.model import Job, JobState
from penstock_ledger.reasons import Reason
from penstock_producer.errors import SourceError, SourceUnavailable
from penstock_workers.errors import stop_reason


class JobStates:
    """The states of jobs, as the control thread changes them.

    ``on_move`` is called behind each change."""

    def __init__(self, jobs: JobStore, hot: RedisLedger, on_move: Callable[[], None]) -> None:
        self._jobs = jobs
        self._hot = hot
        self._on_move = on_move

    def move(self, job: Job, to: JobState, why: Reason | None) -> bool:
        """Move a job from the state in which this round found it.

        Return False when others have moved it meanwhile, or have replayed it where it is over.
        That a job fails is said to workers first: no round looks at it any more, so that a Redis
        which did not take it would let them call what is in the queue. Where SQL does not take it,
        the next round says what SQL has."""
        if to is JobState.FAILED:
            self._hot.set_job_state(job.job_id, to)
        moved = self._jobs.set_state(
            job.job_id,
            to,
            why=why,
            expect={job.state},
            generation=job.generation if to.final else None,
        )
        if moved:
            self._hot.set_job_state(job.job_id, to)
            self._on_move()
        return moved

    @contextlib.contextmanager
    def of_source(self, job: Job) -> Iterator[None]:
        """Pause or fail a job whose source cannot be read in the block."""
        try:
            yield
        except SourceUnavailable as error:
            self.move(job, JobState.PAUSED, stop_reason(error))
        except SourceError as error:
            self.move(job, JobState.FAILED, stop_reason(error))
