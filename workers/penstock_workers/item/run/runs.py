"""A failure is one document's fault or that of its whole job; why calls fail is noted.

A wrong URL, a firewall, a proxy, or a provider that does not take the `response_format` that the
job puts into its requests answers all of them alike, and as dead letters a job would be gone in
seconds. So a 404, a 403, a redirect, a page or a refused format waits for the next answer to a
request sent after it: a good one shows that the document was at fault, and the document gets the
outcome of its failure. Without one, ``pauses_at`` of them in a row pause the job, and none is dead.
After that one document at a time goes out until one succeeds. Kept per worker process, in memory:
no store is asked.

A line that names another path than its job is its own fault alone where the provider has answered
the job on other paths and has no such path: the address is right, so no number of them pauses the
job.

Why calls fail is in the worker's log, and in Redis for `penstock status`, `limits` and the panel. A
good answer costs nothing here. Failures are added up in memory and written every ``FLUSH_S``; the
log has a line at the first of a kind and then one in ``LOG_EVERY_S``, with the count.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from penstock_ledger import Cause
from penstock_ledger.reasons import By, Code, Reason
from penstock_ledger.redaction import one_line
from penstock_ledger.texts import SetOption, SetSetting, Text
from penstock_workers.background import BackgroundTasks
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import Failure, Reply, TurnedAway, refuses_format
from penstock_workers.item.outcome import Parked

__all__ = ["other_format", "to_check"]


log = logging.getLogger(__name__)

FLUSH_S: Final = 2.0
LOG_EVERY_S: Final = 60.0
KINDS_MAX: Final = 500
"""Jobs times classes remembered between two lines in the log, and between two writes."""
LOGGED_CHARS: Final = 300

Note = Callable[[Iterable[Cause]], None]
Kind = tuple[str, str, str]  # provider, job, class


class Causes:
    """Causes of failures, noted on the item loop and written in a thread.

    Without a ``write`` there is only the log."""

    def __init__(
        self,
        write: Note | None = None,
        clock: Callable[[], float] = time.time,
        *,
        engine: str | None = None,
    ) -> None:
        """Write nothing yet; ``engine`` names what answers where that is no provider."""
        self._write, self._clock, self._engine = write, clock, engine
        self._fresh: dict[Kind, Cause] = {}  # not written yet
        # when the last line was logged, and how many failures since
        self._logged: dict[Kind, tuple[float, int]] = {}
        self._tasks = BackgroundTasks()

    def start(self) -> None:
        self._tasks.start(self._run(), "causes of failures")

    async def close(self) -> None:
        await self._tasks.close()
        await self.flush()

    def note(self, attempt: Attempt, happened: Failure | Reply) -> None:
        """Count what one call came to."""
        if isinstance(happened, Reply):
            return
        now = self._clock()
        kind = (attempt.job.spec.provider, attempt.key.job_id, happened.name)
        cause = self._fresh.get(kind)
        if cause is not None:
            self._fresh[kind] = replace(
                cause, text=happened.detail, count=cause.count + 1, last=now
            )
        elif len(self._fresh) < KINDS_MAX:
            self._fresh[kind] = Cause(*kind[:2], kind[2], happened.detail, 1, now, now)
        self._log(kind, happened, now)

    async def flush(self) -> None:
        """Write to Redis; while it is away the causes are kept for the next time."""
        if self._write is None or not self._fresh:
            return
        causes, self._fresh = self._fresh, {}
        try:
            await asyncio.to_thread(self._write, list(causes.values()))
        except Exception as error:
            log.debug(
                "causes of failures are not written yet (%s); next try in %.0f s", error, FLUSH_S
            )
            for kind, cause in causes.items():
                newer = self._fresh.get(kind)
                if newer is not None:
                    cause = replace(newer, count=cause.count + newer.count, since=cause.since)
                self._fresh[kind] = cause

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.flush()

    def _log(self, kind: Kind, failure: Failure, now: float) -> None:
        logged_at, unlogged = self._logged.pop(kind, (float("-inf"), 0))
        if now - logged_at < LOG_EVERY_S:
            self._logged[kind] = (logged_at, unlogged + 1)
            return
        # at the end: the first is the one that was logged longest ago
        self._logged[kind] = (now, 0)
        if len(self._logged) > KINDS_MAX:
            del self._logged[next(iter(self._logged))]
        more = f", and {unlogged} more since the last such line" if unlogged else ""
        provider, job, name = kind
        log.warning(
            "job %s: %s failed: %s: %s%s",
            job,
            f"a call to provider {provider}" if self._engine is None else self._engine,
            name,
            one_line(failure.detail[:LOGGED_CHARS]),
            more,
        )


PROVEN_WAIT_S: Final = 2.0
"""An answer of a job that has succeeded here waits so long for another one; then it is the
document's own."""
UNPROVEN_WAIT_S: Final = 10.0
"""The same in a job that never succeeded here: long enough for the first good answer of a slow
model."""
PROBE_S: Final = 3.0
"""After a run one document is sent every so often, until one succeeds."""
NO_ROUTE: Final = (404, 405, 501)
"""How a server answers that has not the path."""
JOBS_KEPT: Final = 1_000
"""As many as a worker knows; each costs less than two kilobytes."""


class Run:
    """The latest answers to one job. ``sent``: loop times at which requests went out."""

    def __init__(self, pauses_at: int) -> None:
        self.proven_at = float("-inf")  # when the newest request went out that was answered well
        # sent, and what came: since then
        self.astray: deque[tuple[float, str]] = deque(maxlen=max(1, pauses_at))
        # paths that lines name and that were answered well; None: the job's own
        self.answers_on: set[str | None] = set()
        # bounded by what the worker holds
        self.waiting: list[tuple[float, asyncio.Future[None]]] = []
        self.probe_at = float("-inf")  # when the next document may go out after a run

    @property
    def is_long(self) -> bool:
        return len(self.astray) == self.astray.maxlen

    def succeed(self, sent: float) -> None:
        if sent <= self.proven_at:
            return
        self.proven_at = sent
        if self.astray:
            later = [entry for entry in self.astray if entry[0] > sent]
            self.astray.clear()
            self.astray.extend(later)
            self._let_go(sent)

    def fail(self, sent: float, what: str) -> None:
        if sent > self.proven_at:
            self.astray.append((sent, what))
        if self.is_long:
            self._let_go(float("inf"))

    def _let_go(self, sent: float) -> None:
        """Let documents that wait and were sent until then look again."""
        for at, future in self.waiting:
            if at <= sent and not future.done():
                future.set_result(None)

    def in_words(self) -> str:
        kinds = Counter(what for _, what in self.astray)
        answers = (
            ", ".join(f"{times} x {what}" for what, times in kinds.most_common())
            if len(kinds) > 1
            else next(iter(kinds))
        )
        return f"the last {len(self.astray)} answers were all {answers}"


class Runs:
    """Runs of equal failures by job, on the item loop.

    ``pauses_at``: answers in a row that pause the job; 0 = each is its document's own."""

    def __init__(self, pauses_at: int, clock: Callable[[], float] | None = None) -> None:
        self._pauses_at = pauses_at
        self._clock = clock or asyncio.get_running_loop().time
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._closed = False

    def check(self, attempt: Attempt) -> None:
        """Let one document out every ``PROBE_S`` after a run of failures.

        Raises TurnedAway for the others: they are parked."""
        run = self._runs.get(attempt.key.job_id)
        if run is None or not self._pauses_at or not run.is_long:
            return
        now = self._clock()
        if now < run.probe_at:
            raise TurnedAway(
                Parked(
                    "one document of its job goes first, to see whether the provider answers again"
                )
            )
        run.probe_at = now + PROBE_S

    def note(self, attempt: Attempt, happened: Failure | Reply) -> bool:
        """Take in what one call came to.

        True where other answers decide what this one means: ``weigh`` waits for them."""
        if not self._pauses_at:
            return False
        if isinstance(happened, Failure) and (
            happened.astray or _is_format_refused(attempt, happened)
        ):
            return not self._has_no_such_path(attempt, happened)
        if happened.status == 200:
            run = self._run(attempt)
            run.answers_on.add(attempt.job.named_endpoint)
            run.succeed(attempt.sent_at)
        return False

    def _has_no_such_path(self, attempt: Attempt, failure: Failure) -> bool:
        """Return whether the provider answers the job, and not on the path that this line names."""
        named, run = attempt.job.named_endpoint, self._runs.get(attempt.key.job_id)
        if named is None or run is None or failure.status not in NO_ROUTE or failure.page:
            return False
        return bool(run.answers_on) and named not in run.answers_on

    async def weigh(self, attempt: Attempt, happened: Failure | Reply) -> None:
        """Raise TurnedAway, which pauses the job, unless the failure is the document's own."""
        assert isinstance(happened, Failure), "a reply is never in doubt"
        run = self._run(attempt)
        page = ", an HTML page" if happened.page else ""
        run.fail(attempt.sent_at, f"{happened.status or 'none'} ({happened.name}{page})")
        if not run.is_long and attempt.sent_at > run.proven_at:
            await self._wait(run, attempt.sent_at)
        if not run.is_long or attempt.sent_at <= run.proven_at:
            return
        raise TurnedAway(Parked(pauses=_alike(run, attempt, happened)))

    def close(self) -> None:
        """Release the documents that still wait here: the worker drains.

        They count as not sent."""
        self._closed = True
        for run in self._runs.values():
            for _, future in run.waiting:
                future.cancel()

    async def _wait(self, run: Run, sent: float) -> None:
        """Wait for an answer; raise CancelledError once closed."""
        if self._closed:
            raise asyncio.CancelledError("this worker is draining")
        entry = (sent, asyncio.get_running_loop().create_future())
        run.waiting.append(entry)
        wait_s = PROVEN_WAIT_S if run.proven_at > float("-inf") else UNPROVEN_WAIT_S
        try:
            async with asyncio.timeout(wait_s):
                await entry[1]
        except TimeoutError:
            pass
        finally:
            run.waiting.remove(entry)

    def _run(self, attempt: Attempt) -> Run:
        job_id = attempt.key.job_id
        run = self._runs.get(job_id)
        if run is None:
            run = self._runs[job_id] = Run(self._pauses_at)
            if len(self._runs) > JOBS_KEPT:
                self._forget_one()
        return run

    def _forget_one(self) -> None:
        """Forget the oldest run in which no document waits."""
        oldest = next((job_id for job_id, run in self._runs.items() if not run.waiting), None)
        if oldest is not None:
            del self._runs[oldest]


def _is_format_refused(attempt: Attempt, failure: Failure) -> bool:
    """Return whether the job's own form is refused, so that no request is answered."""
    return (
        refuses_format(failure.name, failure.detail)
        and attempt.job.spec.asked_format.format is not None
    )


def _alike(run: Run, attempt: Attempt, failure: Failure) -> Reason:
    provider, url = attempt.job.spec.provider, attempt.job.provider.base_url
    said = {
        "detail": f"{run.in_words()}; the last said: {failure.detail}",
        "failure": failure.name,
        "provider": provider,
    }
    if _is_format_refused(attempt, failure):
        fix = {"fix": other_format(provider)}
        return Reason(Code.FORMAT_REFUSED, By.PROVIDER, said | fix)
    fix = {"fix": f"{to_check(failure.name, provider, url)}, then resume"}
    return Reason(Code.ANSWERS_ALIKE, By.PROVIDER, said | fix)


def other_format(provider: str) -> str:
    """Return what to do where a provider refuses a job's `response_format`."""
    return Text(
        f"provider {provider} refuses the response_format of the job's requests: submit the "
        "documents as a new job with ",
        SetOption("response_format", "json_object"),
        " or none, and say in the prompt which JSON is wanted",
    )


def to_check(failure: str, provider: str, url: str | None) -> str:
    """Return what a person should look at when all answers were of this kind.

    ``url`` is None where it is not known."""
    if failure == "forbidden":
        at = f"provider {provider}" if url is None else f"provider {provider}, {url}"
        return (
            f"the key may not use this model or project, or a firewall is in between ({at}): "
            "change either"
        )
    at = "" if url is None else f" (now {url})"
    setting = SetSetting(f"providers.{provider}.base_url")
    return Text("check ", setting, f"{at}, the endpoint and the model")
