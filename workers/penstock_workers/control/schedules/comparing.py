"""Compares runs of schedules with the run before, in a thread: it reads all outcomes of both."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from penstock_ledger import (
    Database,
    DriftRule,
    JobNotFound,
    JobStore,
    OnDrift,
    PenstockError,
    Run,
    RunStore,
)
from penstock_ledger.model import JobState
from penstock_producer.job.endpoints import EMBEDDINGS
from penstock_producer.reporting.words import moves_in_words
from penstock_producer.schedules.drift import (
    SAMPLE,
    Compared,
    compare,
    labels_of,
)
from penstock_workers.failure_log import FailureLog

log = logging.getLogger(__name__)


class Comparing:
    """Compares one run at a time. Its methods belong to the control thread."""

    def __init__(
        self,
        database: Database,
        compared: Counter[str],
    ) -> None:
        self._runs, self._jobs = RunStore(database), JobStore(database)
        self._compared = compared
        self._failures = FailureLog(log)
        self._thread: threading.Thread | None = None

    def waits_for(self, schedule_id: str, rule: DriftRule | None) -> str | None:
        """Return the job that has to be compared before the schedule may start another."""
        if rule is None or rule.then is not OnDrift.PAUSE:
            return None
        return self._runs.is_to_compare(schedule_id)

    def look(self) -> None:
        """Begin to compare the next run. Raises the database's errors; the next look goes on."""
        if self._thread is not None and self._thread.is_alive():
            return
        run = self._runs.next_to_compare()
        if run is not None:
            self._thread = threading.Thread(
                target=self._run, args=(run,), name="schedule-compare", daemon=True
            )
            self._thread.start()

    # -- in its thread -----------------------------------------------------------------------------

    def _run(self, run: Run) -> None:
        try:
            comparison = self._comparison(run)
        except PenstockError as error:  # the database is away: it is compared later
            self._failures.tell("control: a run could not be compared", error, "it is tried again")
            return
        except Exception:
            log.exception("job %s was not compared, because of an error in Penstock", run.job_id)
            comparison = {"before": run.before, "skipped": "error"}
        try:
            self._write(run, comparison)
        except PenstockError as error:
            self._failures.tell("control: a run could not be compared", error, "it is tried again")

    def _comparison(self, run: Run) -> dict[str, Any]:
        """Return what is kept: the run before, and what has moved, or why nothing is said."""
        if run.state is not JobState.COMPLETED:
            return {"before": run.before, "skipped": str(run.state)}
        if run.before is None:
            return {"before": None, "skipped": "first"}
        try:
            moved = compare(self._read(run, run.before), self._read(run, run.job_id))
        except JobNotFound:  # purged meanwhile
            return {"before": None, "skipped": "first"}
        if moved is None:
            return {"before": run.before, "skipped": "few_documents"}
        return {"before": run.before, "moved": [one.to_json() for one in moved]}

    def _read(self, run: Run, job_id: str) -> Compared:
        rule, endpoint = run.schedule.drift, str(self._jobs.get(job_id).spec["endpoint"])
        field = None if rule is None or endpoint == EMBEDDINGS else rule.field
        return Compared(
            self._runs.figures(job_id),
            None
            if field is None
            else self._runs.over_answers(job_id, SAMPLE, partial(labels_of, field, endpoint)),
        )

    def _write(self, run: Run, comparison: Mapping[str, Any]) -> None:
        moved = bool(comparison.get("moved"))
        rule = run.schedule.drift
        pauses = moved and rule is not None and rule.then is OnDrift.PAUSE
        kept = dict(comparison) | ({"paused": True} if pauses else {})
        if not self._runs.write(run, kept, moved=moved, pauses=pauses):
            return
        self._compared["skipped" if "skipped" in comparison else "moved" if moved else "same"] += 1
        if moved:
            log.warning(
                "schedule %s: job %s has moved away from job %s before it%s: %s",
                run.schedule.name,
                run.job_id,
                run.before,
                "; the schedule is paused" if pauses else "",
                "; ".join(moves_in_words(comparison)),
            )
