"""The list of jobs, as its page shows it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlencode

from penstock_gateway.for_tenants import told_of
from penstock_gateway.pages.chart import Part, parts
from penstock_ledger import Counts, Job, JobPage, JobPlace, JobState
from penstock_producer.reporting.prices import money_of
from penstock_producer.reporting.text import count, duration, one_line, percent

__all__ = ["JobRow", "Tab", "ago", "job_rows", "page_links", "place_in", "place_text", "tabs"]

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


def job_rows(jobs: Sequence[tuple[Job, Counts]], now: float | None = None) -> list[JobRow]:
    at = time.time() if now is None else now
    return [_row(job, counts, at) for job, counts in jobs]


def _row(job: Job, figures: Counts, now: float) -> JobRow:
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
        state=str(job.state),
        reason=one_line(told_of(job, job.reason), REASON_CHARS),
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
