"""The list of jobs, as its page shows it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple
from urllib.parse import urlencode

from penstock_gateway.callers.caller import error_for
from penstock_gateway.render import Part, parts
from penstock_ledger import Counts, DoorBatch, Job, JobPage, JobPlace, JobState
from penstock_producer.reporting.money import money_of, together
from penstock_producer.reporting.reasons import INTERRUPTED
from penstock_producer.reporting.text import count, duration, one_line, percent

__all__ = [
    "Calls",
    "Tab",
    "ago",
    "calls_row",
    "job_rows",
    "page_links",
    "place_in",
    "place_text",
    "refused_batches",
    "tabs",
]

KEY_CHARS = 200
REASON_CHARS = 320  # what to do about a pause stands at the end of its reason
PLACE_CHARS = 200


class JobRow(NamedTuple):
    job_id: str
    key: str
    state: str
    reason: str
    tenant: str
    model: str
    lane: str
    bar: Sequence[Part]
    share: str
    finished: str
    dead: str
    cost: str
    submitted: str
    took: str


class Tab(NamedTuple):
    """One filter of the list."""

    name: str
    number: str
    href: str
    current: bool


class Calls(NamedTuple):
    """The jobs that hold calls that wait for their answers, as one row."""

    state: str
    jobs: str
    finished: str
    dead: str
    cost: str
    submitted: str


class RefusedBatch(NamedTuple):
    """A batch that never became a job."""

    batch_id: str
    tenant: str
    why: str
    created: str


def calls_row(jobs: Sequence[tuple[Job, Counts]], now: float) -> Calls | None:
    """Return one row for these jobs, newest first; None without any."""
    if not jobs:
        return None
    counts = [figures for _, figures in jobs]
    states = [job.state for job, _ in jobs]
    unended = next((state for state in states if not state.final), None)
    number = "1 job" if len(jobs) == 1 else f"{count(len(jobs))} jobs"
    return Calls(
        str(unended or states[0]),
        f"{number}, one for each kind of call and hour",
        count(sum(one.succeeded + one.dead for one in counts)),
        count(sum(one.dead for one in counts)),
        together(map(money_of, counts)).words,
        ago(jobs[0][0].created_at, now),
    )


def refused_batches(batches: Sequence[DoorBatch], now: float) -> list[RefusedBatch]:
    return [
        RefusedBatch(
            batch.batch_id,
            one_line(batch.tenant or ""),
            one_line(_why_refused(batch.errors or []), REASON_CHARS),
            ago(batch.created_at, now),
        )
        for batch in batches
    ]


def _why_refused(errors: Sequence[Mapping[str, Any]]) -> str:
    if not errors:
        return "no reason was recorded"
    first, others = errors[0], len(errors) - 1
    line = f"line {first['line']}: " if first.get("line") is not None else ""
    more = f" (and {count(others)} more)" if others else ""
    return f"{line}{first.get('message') or first.get('code')}{more}"


def job_rows(
    jobs: Sequence[tuple[Job, Counts]], now: float | None = None, left: Set[str] = frozenset()
) -> list[JobRow]:
    """Return a row for each job; those of ``left`` are interrupted."""
    at = time.time() if now is None else now
    return [_row(job, counts, at, is_left=job.job_id in left) for job, counts in jobs]


def _row(job: Job, figures: Counts, now: float, *, is_left: bool) -> JobRow:
    finished = figures.succeeded + figures.dead
    whole = job.total if job.total is not None else finished
    again = figures.succeeded_after_retry
    bar = parts(
        [("good", figures.succeeded - again), ("again", again), ("bad", figures.dead)], whole
    )
    took = (job.finished_at or now) - job.created_at
    return JobRow(
        job_id=job.job_id,
        key=one_line(job.job_key, KEY_CHARS),
        state=INTERRUPTED if is_left else str(job.state),
        reason=one_line(error_for(job, job.reason), REASON_CHARS),
        tenant=one_line(str(job.spec.get("tenant") or "")),
        model=one_line(str(job.spec.get("model") or "")),
        lane=one_line(job.lane),
        bar=bar,
        share="open" if job.total is None else percent(finished, whole) if whole else "0 %",
        finished=f"{count(finished)} so far"
        if job.total is None
        else f"{count(finished)} of {count(job.total)}",
        dead=count(figures.dead),
        cost=money_of(figures).words,
        submitted=ago(job.created_at, now),
        took=duration(max(0.0, took)),
    )


def tabs(states: Mapping[JobState, int], current: str, search: str) -> list[Tab]:
    """Return a tab for all jobs, and one for each state."""
    names = ["", *(str(state) for state in JobState)]
    numbers = {"": sum(states.values()), **{str(state): number for state, number in states.items()}}
    return [
        Tab(
            name or "all",
            count(numbers.get(name, 0)),
            f"/ui/jobs{_query(state=name, q=search)}",
            name == current,
        )
        for name in names
        if numbers.get(name) or name in ("", current)
    ]


def page_links(found: JobPage, state: str, search: str) -> tuple[str, str]:
    """Return the links to newer jobs and to older ones; empty where there are none."""
    if not found.jobs:
        return "", ""
    first, last = JobPlace.of(found.jobs[0][0]), JobPlace.of(found.jobs[-1][0])
    newer = (
        f"/ui/jobs{_query(state=state, q=search, after=place_text(first))}" if found.newer else ""
    )
    older = (
        f"/ui/jobs{_query(state=state, q=search, before=place_text(last))}" if found.older else ""
    )
    return newer, older


def place_text(place: JobPlace) -> str:
    return f"{place.created_at!r}~{place.job_id}"


def place_in(text: str) -> JobPlace | None:
    """Return the place that a text names; None for no place: the list begins at its start then."""
    at, _, job_id = text[:PLACE_CHARS].partition("~")
    try:
        return JobPlace(float(at), job_id) if job_id else None
    except ValueError:
        return None


def ago(at: float, now: float) -> str:
    """Return ``3 min 05 s ago`` for today, a date for what is older."""
    seconds = now - at
    if 0 <= seconds < 86_400:
        return f"{duration(seconds)} ago"
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at)) + " UTC"


def _query(**given: str) -> str:
    said = urlencode({name: value for name, value in given.items() if value})
    return f"?{said}" if said else ""
