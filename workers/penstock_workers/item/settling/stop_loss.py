"""The stop-loss of a job: it pauses where too many of its latest documents fail or cost too much.

``decide`` is the rule. What it looks at comes back from the call to Redis that settles a group, so
that a job whose every answer is refused stops with the group that shows it: what is paid besides is
what was in flight.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from penstock_ledger import JobStore, Lately, RedisLedger, storable
from penstock_ledger.model import Job, JobState
from penstock_ledger.reasons import (
    ACCEPTED_NOTHING,
    EXAMPLE_CHARS,
    Accepted,
    By,
    Reason,
    StopCode,
    explain,
)
from penstock_ledger.redaction import one_line, redact
from penstock_producer.job.spec import JobSpec
from penstock_producer.reporting.reasons import FIRST
from penstock_workers.item.attempt import Attempt, Settled
from penstock_workers.item.outcome import Dead, Outcome, Retry

log = logging.getLogger(__name__)

FAILING_MARGIN: Final = 0.15
"""By so much more than a person has accepted a share must be to stop the job again."""
COST_MARGIN: Final = 1.25
"""Likewise, so many times the cost."""
EXAMPLES: Final = 3
BOUNDS_S: Final = 5.0
"""Between two looks at the bounds of a job."""
JOBS_KEPT: Final = 1_000
"""Jobs of which examples are remembered; the one without a new example for longest is forgotten
first."""
MICROUSD: Final = 1_000_000

REFUSED: Final = frozenset({"schema_mismatch", "answer_cut", "invalid_result", "empty_answer"})
"""Failures of an answer that came, was paid for, and is not what the job asked for."""


class Bounds(NamedTuple):
    """The bounds of a job. None: no bound."""

    failing: float | None  # share of documents, more than 0 and at most 1
    usd_per_doc: float | None

    @classmethod
    def of(cls, spec: JobSpec) -> Bounds:
        return cls(spec.stop_at_share, spec.stop_at_usd_per_doc)


class Stop(NamedTuple):
    """A bound that was met."""

    code: StopCode
    bad: int  # documents that fail; all of them where they cost too much
    of: int


def decide(lately: Lately, bounds: Bounds, accepted: Accepted) -> Stop | None:
    """Return the bound that the latest documents of a feed meet; None where they meet none."""
    if bounds.failing is not None:
        least = (
            max(bounds.failing, accepted.failing + FAILING_MARGIN)
            if accepted.failing
            else bounds.failing
        )
        for code, bad, of in (
            (StopCode.MISSED, lately.missed, lately.answered),
            (StopCode.DEAD, lately.dead, lately.ended),
        ):
            if of >= FIRST and bad >= least * of:
                return Stop(code, bad, of)
    if bounds.usd_per_doc is not None:
        most = max(bounds.usd_per_doc, accepted.usd_per_doc * COST_MARGIN)
        if usd_per_document(lately) > most:
            return Stop(StopCode.COST, lately.ended, lately.ended)
    return None


def accepted_of(job: Job, generation: int) -> Accepted:
    """Return what a person has accepted of a feed by letting its job go on."""
    accepted = job.accepted
    return accepted if accepted and accepted.generation == generation else ACCEPTED_NOTHING


def usd_per_document(lately: Lately) -> float:
    """Return what a document costs at least: until the first hundred have ended, as if they had."""
    return lately.cost_microusd / MICROUSD / max(FIRST, lately.ended)


def failing_share(lately: Lately) -> float:
    """Return the larger of the two shares.

    What is refused now is a dead letter later, so that both are accepted as one."""
    dead = lately.dead / lately.ended if lately.ended else 0.0
    return max(dead, lately.missed / lately.answered if lately.answered else 0.0)


def is_refused_first(attempt: Attempt, outcome: Outcome) -> bool:
    """Return whether this is a document's first answer, paid for and refused by checks."""
    return attempt.retries == 0 and (_failure_of(outcome) or ("", ""))[0] in REFUSED


class StopLoss:
    """Stops jobs that go wrong, in the thread that settles groups."""

    def __init__(
        self, jobs: JobStore, hot: RedisLedger, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._jobs, self._hot, self._clock = jobs, hot, clock
        # by job, and when they were read
        self._bounds: OrderedDict[str, tuple[float, Bounds]] = OrderedDict()
        self._examples: OrderedDict[str, deque[dict[str, str]]] = OrderedDict()

    def look(self, group: Iterable[Settled], lately: Mapping[tuple[str, int], Lately]) -> None:
        """Pause jobs of this group whose latest documents meet a bound.

        A store that is away now is asked with the next group: what is settled must not wait for
        this."""
        watched = self._note(group)
        for (job_id, generation), figures in lately.items():
            says_nothing = (
                max(figures.ended, figures.answered) < FIRST and not figures.cost_microusd
            )
            if says_nothing or job_id not in watched:
                continue
            try:
                if decide(figures, self._bounds_of(job_id), ACCEPTED_NOTHING) is not None:
                    self._stop(job_id, generation, figures)
            except Exception as error:
                log.warning(
                    "job %s meets a stop-loss and could not be paused yet: %s",
                    job_id,
                    one_line(str(error)),
                )

    def _stop(self, job_id: str, generation: int, lately: Lately) -> None:
        """Pause the job as it is now.

        Other bounds may have been given, and a person may have accepted how it goes."""
        job = self._jobs.get(job_id)
        if job.state is not JobState.RUNNING:
            return
        spec = JobSpec.accepted(job.spec)
        stop = decide(lately, Bounds.of(spec), accepted_of(job, generation))
        if stop is None:
            return
        pause = Reason(
            stop.code,
            By.STOP_LOSS,
            self._params(job_id, generation, stop, lately, Bounds.of(spec)),
        )
        if self._jobs.set_state(job_id, JobState.PAUSED, why=pause, expect={JobState.RUNNING}):
            self._hot.set_job_state(job_id, JobState.PAUSED)
            log.error("job %s is paused: %s", job_id, explain(pause))

    def _params(
        self, job_id: str, generation: int, stop: Stop, lately: Lately, bounds: Bounds
    ) -> dict[str, Any]:
        """Return what is said of the stop, and what letting the job go on accepts."""
        params: dict[str, Any] = {
            "generation": generation,
            "bad": stop.bad,
            "of": stop.of,
            "failing": round(failing_share(lately), 4),
            "usd_per_doc": usd_per_document(lately),
            "examples": list(self._examples.get(job_id, ()))[:EXAMPLES],
        }
        if lately.reasons:
            reason, count = max(lately.reasons.items(), key=lambda one: (one[1], one[0]))
            params["cause"] = {"reason": reason, "count": count}
        if stop.code is StopCode.COST:
            return params | {"bound_usd": bounds.usd_per_doc}
        return params | {"bound": round((bounds.failing or 0.0) * 100, 4)}

    def _bounds_of(self, job_id: str) -> Bounds:
        """Return the job's bounds as they were given some seconds ago at most.

        A job may get others while it goes on."""
        now = self._clock()
        known = self._bounds.get(job_id)
        if known is None or now - known[0] >= BOUNDS_S:
            known = now, Bounds.of(JobSpec.accepted(self._jobs.get(job_id).spec))
            self._bounds[job_id] = known
            if len(self._bounds) > JOBS_KEPT:
                self._bounds.popitem(last=False)
        return known[1]

    def _note(self, group: Iterable[Settled]) -> set[str]:
        """Remember examples of what fails.

        Returns the jobs that may be stopped: callers who wait for their answers share a job, and
        one of them must not stop the others."""
        watched = set[str]()
        for attempt, outcome in group:
            if not isinstance(attempt, Attempt) or attempt.job.awaited:
                continue
            job_id = attempt.key.job_id
            watched.add(job_id)
            failure = _failure_of(outcome)
            if failure is not None:
                self._remember(job_id, attempt, *failure)
        return watched

    def _remember(self, job_id: str, attempt: Attempt, reason: str, detail: str) -> None:
        known = self._examples.setdefault(job_id, deque(maxlen=EXAMPLES))
        self._examples.move_to_end(job_id)
        doc_id = _short(attempt.key.doc_id)
        if all(one["doc_id"] != doc_id for one in known):
            known.append({"doc_id": doc_id, "reason": reason, "excerpt": _short(redact(detail))})
        if len(self._examples) > JOBS_KEPT:
            self._examples.popitem(last=False)


def _failure_of(outcome: Outcome) -> tuple[str, str] | None:
    """Return the name of a failure that counts here, and what was said of it."""
    if isinstance(outcome, Dead):
        return outcome.letter.reason, outcome.letter.last_error
    if isinstance(outcome, Retry) and outcome.name in REFUSED:
        return outcome.name, outcome.detail
    return None


def _short(text: str) -> str:
    shown = one_line(storable(text[: 2 * EXAMPLE_CHARS]))
    return shown if len(shown) <= EXAMPLE_CHARS else f"{shown[: EXAMPLE_CHARS - 1]}…"
