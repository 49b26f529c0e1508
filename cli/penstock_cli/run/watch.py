"""Follow one job: its figures look by look, why it is slow, and what holds it back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

from penstock_cli.run.all_alike import so_far
from penstock_cli.show.figures import Counter, JobFigures, Speed
from penstock_cli.show.quota import QuotaSeen, bound, lift_command, troubles
from penstock_producer.feed.queues import missing_provider, queue_name
from penstock_producer.job.lanes import has_own_model, packs
from penstock_producer.reporting.advice import on_terminal
from penstock_producer.reporting.batches import batch_troubles, batches_line
from penstock_producer.reporting.engines import engines_of
from penstock_producer.reporting.reasons import (
    cause_line,
    held_budget,
    held_by_calls,
    held_by_tenant,
    in_hooks,
    latest_cause,
    retried_by_reason,
    retries,
    standing_of,
    waits,
)
from penstock_producer.reporting.text import one_line

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_ledger import WorkerSeen
    from penstock_ledger.model import Counts, Job


# a look at heartbeats, the quota and the causes of failures costs three reads
REASONS_EVERY_S = 2.0
STALL_NOTICE_S = 30.0  # longer than most answers take, short enough for a person who watches


class _Reasons(TypedDict):
    reasons: tuple[str, ...]
    cause: str | None


class Watch:
    """Looks at a job from outside; ``seconds`` says how long the job has been worked on."""

    def __init__(self, books: Books, job: Job, seconds: Callable[[], float] | None = None) -> None:
        self._books = books
        self.job = job
        self._seconds = seconds if seconds is not None else self._since_submit
        self._speed = Speed()
        self._next_reasons = 0.0
        self._known: _Reasons = {"reasons": (), "cause": None}
        self._counter = Counter(lambda: books.outcomes.counts(job.job_id), lambda: books.stats(job))

    def refresh(self) -> Job:
        self.job = self._books.jobs.get(self.job.job_id)
        return self.job

    def look(self, workers: int | None = None) -> JobFigures:
        """Return the job's figures.

        ``workers`` is how many live where the caller knows, else those that Redis has heard of.
        """
        counts, moved = self._counter.look()
        stats = self._counter.stats
        redis = self._books.redis_if_running()
        depth = redis.depth(queue_name(self.job.lane)) if redis is not None else None
        seen = redis.workers() if redis is not None else []
        succeeded, dead = (
            counts.succeeded + moved.get("succeeded", 0),
            counts.dead + moved.get("dead", 0),
        )
        return JobFigures(
            total=self.job.total,
            succeeded=succeeded,
            succeeded_after_retry=counts.succeeded_after_retry,
            dead=dead,
            retries=retries(stats),
            retried_by_reason=retried_by_reason(stats),
            rate_limited=stats.get("rate_limited", 0),
            repairs=stats.get("repairs", 0),
            fallbacks=stats.get("fallbacks", 0),
            prompt_tokens=counts.prompt_tokens + moved.get("prompt_tokens", 0),
            completion_tokens=counts.completion_tokens + moved.get("completion_tokens", 0),
            cost_microusd=counts.cost_microusd + moved.get("cost_microusd", 0),
            unpriced=counts.unpriced or _unpriced_yet(counts, moved),
            deduplicated=counts.reused.get("dedup", 0) + moved.get("reused:dedup", 0),
            cached=counts.reused.get("cache", 0) + moved.get("reused:cache", 0),
            claimed=depth.unacked - depth.relayed if depth else 0,
            queued=depth.queued + depth.relayed if depth else 0,
            delayed=depth.delayed if depth else 0,
            workers=workers if workers is not None else len(seen),
            engines=engines_of(seen, self.job.lane),
            batches=self._batches(),
            **self._reasons(seen, counts, served=workers is not None),
            seconds=self._seconds(),
            per_second=self._speed.update(time.monotonic(), succeeded + dead),
        )

    def _batches(self) -> str | None:
        if not packs(self.job.lane):
            return None
        return batches_line(
            self._books.provider_batches(self.job), is_cancelled=self.job.state == "cancelling"
        )

    def _reasons(self, seen: Sequence[WorkerSeen], counts: Counts, *, served: bool) -> _Reasons:
        """Return why it is slow or stands still, looked up now and then.

        ``served``: the caller has workers of its own."""
        now = time.monotonic()
        if now >= self._next_reasons:
            self._next_reasons = now + REASONS_EVERY_S
            self._known = self._look_for_reasons(seen, served=served)
            alike = so_far(self._books, self.job, counts) if self.job.state == "running" else None
            first = [] if alike is None else [alike]
            if packs(self.job.lane) and not self.job.state.final:
                first += batch_troubles(self._books.provider_batches(self.job))
            self._known["reasons"] = (*first, *self._known["reasons"])
        return self._known

    def _look_for_reasons(self, seen: Sequence[WorkerSeen], *, served: bool) -> _Reasons:
        from penstock_ratelimit.for_penstock import read_quotas

        client, redis = self._books.redis_client, self._books.redis_if_running()
        if self.job.state != "running" or client is None or redis is None:
            return {"reasons": (), "cause": None}
        lane, provider = self.job.lane, str(self.job.spec.get("provider", "default"))
        cause = latest_cause(redis.failing.of(provider, self.job.job_id))
        line = None if cause is None else cause_line(cause)
        standing = standing_of(redis, self._books.database, self.job, seen)
        found: list[str | None] = [
            on_terminal(wait.said) for wait in waits(standing, served=served)
        ]
        found += in_hooks(seen, (self.job.spec.get("preprocess"), self.job.spec.get("postprocess")))
        budget_usd = self.job.spec.get("budget_usd")
        # there batches say it
        account, batches = (None, {}) if packs(lane) else self._books.held_by_batches(self.job)
        found.append(held_by_tenant(self.job, account))
        if budget_usd is not None:
            found += [
                held_budget(budget_usd, account, batches),
                held_by_calls(budget_usd, account, batches),
            ]
        if (
            packs(lane)
            and not served
            and (missing := missing_provider(seen, lane, provider)) is not None
        ):
            found.append(
                f"{one_line(missing)}: add [providers.{one_line(provider)}] and its key where one "
                "of them runs"
            )
        if not has_own_model(lane):
            for view in read_quotas(client, quota_ids=[provider]):
                look = QuotaSeen(view, None, lift_command(provider, self._books.option()))
                found += [
                    " ".join(part for part in (one.text, one.fix) if part)
                    for one in troubles(look)
                    if one.grave
                ]
                found.append(bound(view, self._books.option()))
        return {"reasons": tuple(one for one in found if one is not None), "cause": line}

    def _since_submit(self) -> float:
        kept = self._books.seconds(self.job)
        return (
            kept
            if kept is not None
            else (self.job.finished_at or time.time()) - self.job.created_at
        )


def _unpriced_yet(counts: Counts, moved: Mapping[str, int]) -> int:
    """Return how many answers may have no price, until SQL has counted the first ones."""
    is_priced = counts.calls or counts.cost_microusd or moved.get("cost_microusd")
    return 0 if is_priced else moved.get("calls", 0)


class Stall:
    """Notices that tries fail while nothing finishes. Says so once per stall."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._finished = -1
        self._retries = 0
        self._since = 0.0
        self._told = False

    def notice(self, figures: JobFigures) -> str | None:
        """Return what to tell, when it is time to."""
        if figures.finished != self._finished:
            self._finished, self._retries, self._since, self._told = (
                figures.finished,
                figures.retries,
                self._clock(),
                False,
            )
            return None
        failed, silent_s = figures.retries - self._retries, self._clock() - self._since
        if self._told or failed <= 0 or silent_s < STALL_NOTICE_S:
            return None
        self._told = True
        cause = f". The last failure: {figures.cause}" if figures.cause else ""
        return (
            f"nothing has finished for {silent_s:.0f} s, and {failed:,} attempts have failed "
            f"since; they are repeated{cause}"
        )


def resumed(ledger: Books, job: Job, say: Callable[[str], None]) -> Job:
    """Let a paused job go on. Raises JobRefused where it is not paused."""
    # before workers learn that it runs: a hold of its provider would stop its items
    lifted = "" if job.state.final else _lift_provider(ledger, job)
    if lifted:
        say(lifted)
    return ledger.operations.resume(job).job


def _lift_provider(ledger: Books, job: Job) -> str:
    """End what the shared quota of the job's provider keeps of a hold or a pause.

    Returns what to say, "" when nothing."""
    import redis

    from penstock_ledger import RedisAddress
    from penstock_ratelimit.for_penstock import Breaker, lift_hold, read_quotas
    from penstock_workers.settings import DEFAULT_PROVIDER

    if ledger.redis_if_running() is None or ledger.redis_url is None:
        return ""
    provider = str(job.spec.get("provider", DEFAULT_PROVIDER))
    client: redis.Redis = RedisAddress.parse(ledger.redis_url).connect()
    with client:
        views = read_quotas(client, quota_ids=[provider])
        if not views or not (
            views[0].hold or views[0].pause_left_s > 0 or views[0].breaker is Breaker.OPEN
        ):
            return ""
        lift_hold(client, provider)
    what = (
        "hold" if views[0].hold else "pause" if views[0].pause_left_s > 0 else "rest after failures"
    )
    return f"the {what} of provider {provider} is over: requests start again within 2 s"
