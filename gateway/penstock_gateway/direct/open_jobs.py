"""The open job that a call belongs to, shared by all doors of a fleet.

There is one for each tenant, endpoint, provider, lane and hour.

A job of an hour that is over gets no more documents and is closed, so that it completes, is
reported and kept like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from redis import RedisError

from penstock_gateway.backend import Backend
from penstock_gateway.refused import Refused
from penstock_gateway.settings import DirectFields
from penstock_ledger import DoorCallStore, JobConflict, JobStore, RedisLedger
from penstock_ledger.model import Job, JobState
from penstock_ledger.reasons import Code
from penstock_producer.dialects.translation import USUAL_TOKENS
from penstock_producer.feed.routes import GENERATION, FeedBeside
from penstock_producer.job.endpoints import MESSAGES
from penstock_producer.job.spec import JobSpec
from penstock_producer.open_job import DocumentChecker

__all__ = ["KEY_PREFIX", "CallJob", "OpenJobs", "Waiting", "too_many"]

LATEST: Final = 0.1  # of the newest call in the average of how long calls take
MOST_S: Final = 30  # that a caller is asked to stay away


class Waiting:
    """Counts the calls that wait; belongs to the event loop."""

    def __init__(self, limits: DirectFields) -> None:
        self._limits = limits
        self.now = 0
        self.of_tenant: Counter[str | None] = Counter()
        self._usual_s = 1.0

    @contextlib.contextmanager
    def room_for(self, tenant: str | None, calls: int) -> Iterator[None]:
        """Count waiting calls for as long as the block lasts. Raises Refused (429)."""
        if self.now + calls > self._limits.waiting:
            raise too_many(f"{self.now} calls wait at this server already", self.retry_after_s)
        if self.of_tenant[tenant] + calls > self._limits.tenant_waiting:
            raise too_many(
                f"{self.of_tenant[tenant]} calls of yours wait already", self.retry_after_s
            )
        self.now += calls
        self.of_tenant[tenant] += calls
        try:
            yield
        finally:
            self.now -= calls
            self.of_tenant[tenant] -= calls
            if not self.of_tenant[tenant]:
                del self.of_tenant[tenant]

    def note(self, took_s: float) -> None:
        """Note how long a call took to be answered."""
        self._usual_s += LATEST * (took_s - self._usual_s)

    @property
    def retry_after_s(self) -> int:
        """About as long as a call takes now."""
        return min(MOST_S, max(1, math.ceil(self._usual_s)))


def too_many(why: str, retry_after_s: int, code: str = "rate_limit_exceeded") -> Refused:
    return Refused(
        429,
        f"{why}; try again in {retry_after_s} s",
        code=code,
        kind="rate_limit_error",
        headers={"retry-after": str(retry_after_s)},
    )


KEY_PREFIX: Final = "direct/"
HOUR_S: Final = 3_600
# of one hour: a job may have been cancelled, or be another tenant's own of that name
NAMES_TRIED: Final = 8
KEPT: Final = 1_000  # tenants times endpoints that call at a time
# the state of a job is looked at anew after this, while calls go on with the one that was seen
FRESH_S: Final = 1.0
TENANT_CHARS: Final = 64
PAUSED_RETRY_S: Final = 30
# codes of pauses for which the provider wants less to be asked
THROTTLED: Final = ("rate_limited", "daily_limit", "slow_down")


@dataclass(slots=True)
class CallJob:
    """An open job, with what makes documents of it."""

    job: Job
    spec: JobSpec
    checker: DocumentChecker
    beside: FeedBeside
    hot: RedisLedger
    hour: int
    looked_at: float  # monotonic
    outstanding: int = 0  # queued or with a worker, of all doors, as of the last look
    is_over: bool = False  # it was closed or cancelled: the next call goes to another one

    @property
    def job_id(self) -> str:
        return self.job.job_id


class OpenJobs:
    """The open jobs of calls; belongs to the event loop, SQL is asked in threads."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._jobs = JobStore(backend.database)
        self._known: dict[tuple[str | None, str, str], CallJob] = {}
        self._opening = asyncio.Lock()
        self._looks: set[asyncio.Task[None]] = set()

    async def job_for(
        self, tenant: str | None, endpoint: str, lane: str, hot: RedisLedger
    ) -> CallJob:
        """Return the open job of a call, made where there is none.

        Raises Refused (429, 503) where the job is paused, and errors of the ledger.
        """
        name, hour = (tenant, endpoint, lane), hour_of(time.time())
        found = self._known.get(name)
        if found is None or found.hour != hour or found.is_over:
            async with self._opening:
                found = self._known.get(name)
                if found is None or found.hour != hour or found.is_over:
                    found = await self._backend.run(self._open, tenant, endpoint, lane, hour, hot)
                    self._keep(name, found)
        elif time.monotonic() - found.looked_at > FRESH_S:
            found.looked_at = time.monotonic()
            look = asyncio.create_task(self.look(found))
            self._looks.add(look)
            look.add_done_callback(self._looked)
        refuse_stopped(found.job)
        return found

    async def look(self, known: CallJob) -> None:
        """See how the job is now."""
        known.job, known.outstanding = await self._backend.run(self._look_at, known)
        known.looked_at = time.monotonic()
        known.is_over = known.job.total is not None or known.job.state not in (
            JobState.RUNNING,
            JobState.PAUSED,
        )

    def _look_at(self, known: CallJob) -> tuple[Job, int]:
        job = self._jobs.get(known.job_id)
        try:
            return job, known.hot.outstanding(job.job_id, GENERATION)
        except RedisError:  # calls find that out by themselves
            return job, 0

    def _looked(self, look: asyncio.Task[None]) -> None:
        self._looks.discard(look)
        if not look.cancelled():
            look.exception()  # a database that does not answer refuses the call itself

    def _keep(self, name: tuple[str | None, str, str], found: CallJob) -> None:
        self._known.pop(name, None)
        self._known[name] = found
        while len(self._known) > KEPT:
            self._known.pop(next(iter(self._known)))

    def _open(
        self, tenant: str | None, endpoint: str, lane: str, hour: int, hot: RedisLedger
    ) -> CallJob:
        settings = self._backend.settings
        direct = settings.gateway.direct
        given: dict[str, Any] = {
            "lane": lane,
            "endpoint": endpoint,
            "provider": direct.provider,
            "tenant": tenant,
            "priority": "urgent",
            "max_attempts": direct.max_attempts,
        }
        if endpoint == MESSAGES:
            given["params"] = {"max_tokens": USUAL_TOKENS}
        key = "/".join(
            (
                KEY_PREFIX + _named(tenant),
                endpoint.removeprefix("/v1/").replace("/", "."),
                direct.provider,
                lane,
            )
        )
        for number in range(1, NAMES_TRIED + 1):
            last = time.strftime("%Y-%m-%dT%H", time.gmtime(hour * HOUR_S)) + (
                f".{number}" if number > 1 else ""
            )
            try:
                opened = self._backend.producer.open_job(
                    given, job_key=f"{key}/{last}", awaited=True
                )
            except JobConflict:  # the settings have changed in this hour
                continue
            job = opened.job
            if job.total is None and job.state in (JobState.RUNNING, JobState.PAUSED):
                spec = JobSpec.accepted(job.spec)
                checker = DocumentChecker(spec, settings.max_line_bytes, settings.max_body_bytes)
                return CallJob(
                    job, spec, checker, FeedBeside(job, spec, hot), hot, hour, time.monotonic()
                )
        raise Refused(
            503,
            "the jobs of this hour were all cancelled; ask the operator",
            code="service_unavailable",
        )


def hour_of(now: float) -> int:
    return int(now // HOUR_S)


def close_old(store: DoorCallStore, jobs: JobStore, grace_s: float) -> int:
    """Close the jobs of hours that are over; returns how many.

    Any door may do it, and several at once."""
    before = hour_of(time.time() - grace_s)
    old = [
        job_id
        for job_id, _, created_at in store.open_jobs(KEY_PREFIX)
        if hour_of(created_at) < before
    ]
    for job_id in old:
        jobs.close(job_id)
    return len(old)


def refuse_stopped(job: Job) -> None:
    """Refuse calls for a job that takes nothing on now."""
    if job.state is not JobState.PAUSED:
        return
    wait_s = PAUSED_RETRY_S if job.resume_at is None else max(1, round(job.resume_at - time.time()))
    code = None if job.pause is None else job.pause.code
    if code in THROTTLED:
        raise too_many("the provider has asked this server to wait", wait_s)
    if code == Code.TENANT_BUDGET_EXHAUSTED:
        raise Refused(
            429,
            f"What is left of this month's budget does not pay for another call. {job.reason}",
            code="insufficient_quota",
            kind="insufficient_quota",
            headers={"retry-after": "3600", "x-should-retry": "false"},
        )
    raise Refused(
        503,
        "calls are paused, for a reason that the operator sees at the job",
        code="paused",
        kind="server_error",
        headers={"retry-after": str(wait_s), "x-penstock-job": job.job_id},
    )


def _named(tenant: str | None) -> str:
    """Return a tenant in the key of a job.

    One with characters that keys do not have, or a slash, by its digest."""
    if tenant is None:
        return "-"
    if len(tenant) <= TENANT_CHARS and "/" not in tenant:
        return tenant
    return hashlib.sha256(tenant.encode()).hexdigest()[:32]
