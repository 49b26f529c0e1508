"""These reasons keep a running job from going faster, or from going at all.

The sentences are for `status`, the screen of a run and the page.

Why documents wait is a ``Wait``: a code and the words of its sentence, which is in ``SENTENCES``.
What a pause waits for is in ``pauses``, and what bounds a provider's quota in the views of the
quota.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock_ledger import RETRIED
from penstock_ledger.texts import Command, Run, SetOption, Text
from penstock_producer.feed.queues import (
    ALIVE_S,
    MissingModel,
    missing_model,
    queue_name,
    serving_of,
    unserved_queues,
)
from penstock_producer.job.lanes import has_own_model, packs
from penstock_producer.pins import AWAITED
from penstock_producer.prices import next_month
from penstock_producer.reporting.money import MICRO
from penstock_producer.reporting.text import count, counted, duration, one_line

__all__ = [
    "CAUSE_FRESH_S",
    "FIRST",
    "INTERRUPTED",
    "SENTENCES",
    "UNLED_AFTER_S",
    "Standing",
    "Wait",
    "cause_line",
    "held_budget",
    "held_by_calls",
    "held_by_tenant",
    "in_hooks",
    "interrupted",
    "interrupted_line",
    "latest_cause",
    "no_worker",
    "retried_by_reason",
    "retried_line",
    "retries",
    "reused_lines",
    "standing_of",
    "unserved_models",
    "wait_for_model",
    "waits",
    "yields_line",
]

if TYPE_CHECKING:
    from penstock_ledger import (
        Account,
        Cause,
        Database,
        Depth,
        LaneMove,
        Memory,
        RedisLedger,
        WorkerSeen,
    )
    from penstock_ledger.model import Job

CAUSE_FRESH_S = 600.0  # a failure from before says nothing of now
CAUSE_CHARS = 300
RETRIED_SHOWN = 6


def latest_cause(causes: Sequence[Cause], now: float | None = None) -> Cause | None:
    """Return the newest failure, unless it is old. ``causes`` is as ``CauseBook.of`` gives them."""
    at = time.time() if now is None else now
    return causes[0] if causes and at - causes[0].last < CAUSE_FRESH_S else None


def cause_line(cause: Cause, now: float | None = None) -> str:
    """Return class, count, since when and the words of a failure, escaped and on one line."""
    at = time.time() if now is None else now
    since = time.strftime("%H:%M:%S", time.localtime(cause.since))
    times = "once" if cause.count == 1 else f"{count(cause.count)} times since {since}"
    ago = duration(max(0.0, at - cause.last))
    return f"{one_line(cause.name)} ({times}, last {ago} ago): {one_line(cause.text, CAUSE_CHARS)}"


def reused_lines(deduplicated: int, cached: int) -> list[str]:
    """Return how many documents took an answer that was there already.

    None where no job asks for it.
    """
    if not (deduplicated or cached):
        return []
    return [f"{count(deduplicated)} answered by an equal request, {count(cached)} from the cache"]


def retried_by_reason(stats: Mapping[str, int]) -> dict[str, int]:
    """Return how many attempts were followed by another, the most frequent reason first."""
    found = {
        name.removeprefix(RETRIED): count
        for name, count in stats.items()
        if name.startswith(RETRIED) and count
    }
    return dict(sorted(found.items(), key=lambda entry: (-entry[1], entry[0])))


def retries(stats: Mapping[str, int]) -> int:
    """Return how many attempts were followed by another, over the whole life of a job.

    This is the one figure that is shown as its retries.
    """
    return sum(retried_by_reason(stats).values())


def retried_line(by_reason: Mapping[str, int]) -> str | None:
    """Return why attempts were followed by another, the most frequent reasons first.

    None where none was.
    """
    if not by_reason:
        return None
    shown = list(by_reason.items())[:RETRIED_SHOWN]
    more = len(by_reason) - len(shown)
    words = [f"{one_line(name)} {count(number)}" for name, number in shown]
    return "retried: " + ", ".join([*words, f"and {more} more reasons"] if more else words)


def in_hooks(workers: Iterable[WorkerSeen], hooks: Iterable[str | None]) -> Iterator[str]:
    """Yield one sentence for each of a job's hooks that takes long in some worker."""
    for hook in filter(None, hooks):
        slow = [figures for seen in workers if (figures := _in_hook(seen, hook)) is not None]
        if slow:
            calls, seconds = sum(calls for calls, _ in slow), max(seconds for _, seconds in slow)
            inside = "1 document is" if calls == 1 else f"{count(calls)} documents are"
            yield (
                f"{inside} in the hook {one_line(hook)}, the longest for {duration(seconds)}; "
                "after a minute it counts as failed"
            )


def held_budget(
    budget_usd: float, account: Account | None, batches: Mapping[str, int]
) -> str | None:
    """Say that calls wait since batches may still cost what is left of the budget.

    None where none wait. ``batches``: what each may cost, in millionths of a dollar, by its tag.
    """
    held = sum(batches.values())
    if account is None or account.lacking is None or not held:
        return None
    if account.committed + account.lacking <= budget_usd * MICRO:
        return None
    first = min(batches)
    named = (
        f"batch {first}"
        if len(batches) == 1
        else f"{count(len(batches))} batches ({first} and others)"
    )
    until = "the provider ends it" if len(batches) == 1 else "the provider ends them"
    return (
        f"calls wait for the budget of {budget_usd:g} USD: {held / MICRO:.2g} USD of it are held "
        f"by {named} until {until}"
    )


def held_by_calls(
    budget_usd: float, account: Account | None, batches: Mapping[str, int]
) -> str | None:
    """Say that calls wait for money that calls under way hold.

    Those may be calls of a worker that died. None where batches say enough.
    """
    if (
        account is None
        or account.lacking is None
        or account.committed + account.lacking <= budget_usd * MICRO
    ):
        return None
    held = account.reserved - sum(batches.values())
    if held <= 0 or batches:
        return None
    return (
        f"calls wait for the budget of {budget_usd:g} USD: {held / MICRO:.2g} USD of it are held "
        "by calls that have begun; what a worker held that died is given back within two minutes"
    )


def held_by_tenant(job: Job, account: Account | None) -> str | None:
    """Say that calls of a running job wait for its tenant's budget of the month.

    None where they do not.
    """
    tenant = None if account is None else account.tenant
    if account is None or tenant is None or account.lacking is None:
        return None
    if tenant.committed + account.lacking <= tenant.budget:
        return None
    month = time.strftime("%Y-%m", time.gmtime(job.created_at))
    return (
        f"calls wait for the budget of tenant {one_line(str(job.spec.get('tenant')))}, "
        f"{tenant.budget / MICRO:g} USD for jobs of {month}: {tenant.spent / MICRO:.2g} USD are "
        f"spent, and {tenant.reserved / MICRO:.2g} may be needed by calls under way. Where these "
        "leave too little the job pauses, until a newer key of the tenant names a larger budget; "
        f"new jobs have the budget of the next month, from {next_month(month)} (UTC)"
    )


def _in_hook(seen: WorkerSeen, hook: str | None) -> tuple[int, float] | None:
    """Return how many calls are inside the hook, and the seconds of the longest.

    None unless a live worker says so in a way that makes sense.
    """
    if seen.info.get("hook") != hook or seen.seconds_ago >= ALIVE_S:
        return None
    try:
        calls, seconds = int(seen.info["hook_calls"]), float(seen.info["hook_s"])
    except (KeyError, ValueError):
        return None
    return (calls, seconds) if math.isfinite(seconds) else None


# -- why documents wait: codes with what they name, and the one table of their sentences -----------

QUEUES_SHOWN: Final = 5  # of models that no worker serves
WORDS_CHARS: Final = 300
# longer than a lease: a job that is new, or whose leader died, is led again before
UNLED_AFTER_S: Final = 20.0
FIRST: Final = 100
"""Documents that a stop-loss looks at first, together: of fewer a share says little, and no job
that has fewer is stopped for one."""

SENTENCES: Final[Mapping[str, str]] = {
    "no_worker": "no worker serves lane {lane}: start one with ",
    "no_model": "no worker serves {model}; served here: {served}",
    "model_loads": "no worker serves {model} yet, and a worker loads it; served here: {served}",
    "no_bound_model": (
        "no worker serves the model that began to answer this job (queue {queue}); served here: "
        "{served}"
    ),
    "no_model_of_queue": "no worker serves the models of queue {queues}; served here: {served}",
    "no_leader": (
        "no control process leads this job: nothing of it is fed, tried again or completed; start "
        "one with "
    ),
    "redis_full": (
        "Redis holds {used} of {most} MB: nothing more is fed until finished documents make room, "
        "or its maxmemory is raised"
    ),
    "store_away": (
        "outcomes wait in workers to be stored, the oldest for {seconds}: {store} does not take "
        "them"
    ),
    "suspects": (
        "waiting to be tried apart from others, since they were in flight when workers died: "
        "{number}"
    ),
    "leaving_batches": (
        "documents that went into batches of lane {before} are waited for before lane {lane} gets "
        "the others"
    ),
    "first_hundred": (
        "its stop-loss looks at the first hundred documents before the others are fed: {number} "
        "are done"
    ),
    "same_request": "waiting for the answers to equal requests that are in batches: {number}",
    "parked": "waiting outside the queue until control puts them back: {number} of this job",
    "all_delayed": "all that is left in the queue of lane {lane} waits for its next try: {number}",
    "slots_taken": "all {slots} slots of {workers} are taken; waiting for one: {number}",
    "set_aside": (
        "set aside in penstock:parked:unknown, since no worker could read or place them: {number}, "
        "of whichever job"
    ),
}
"""What is said of each reason. ``waits`` gives the words in braces."""


class Wait(NamedTuple):
    """One reason. ``params`` are the words of its sentence."""

    code: str
    params: Mapping[str, str] = {}  # never changed

    @property
    def said(self) -> str:
        sentence = SENTENCES[self.code].format_map(self.params)
        if self.code == "no_worker":
            worker = Run(Command.WORKER, (SetOption("lane", self.params["lane"]),))
            return Text(sentence, worker)
        return Text(sentence, Run(Command.CONTROL)) if self.code == "no_leader" else sentence


@dataclass(frozen=True, slots=True)
class Standing:
    """A running job and its surroundings at one moment."""

    job: Job
    workers: Sequence[WorkerSeen] = ()
    queues: Mapping[str, Depth] = field(default_factory=dict)  # of its lane
    # messages of the job in these, among the first of each
    waiting: Mapping[str, int] = field(default_factory=dict)
    bound: str | None = None  # queue of the model that answers a job which names none
    is_led: bool = True  # a control process leads its feeds
    memory: Memory | None = None  # of Redis
    parked: int = 0  # messages of the job
    set_aside: int = 0  # messages of all jobs
    moves: Sequence[LaneMove] = ()
    # documents that its stop-loss has seen, while others wait for that; None where none do
    seen: int | None = None
    equal: int = 0  # documents that wait for the answers to equal requests in batches
    at: float = field(default_factory=time.time)

    @property
    def living(self) -> list[WorkerSeen]:
        return _living(self.workers, self.job.lane)


def standing_of(
    hot: RedisLedger, database: Database, job: Job, workers: Sequence[WorkerSeen]
) -> Standing:
    """Return what both stores know of a job now. Raises what they raise."""
    from penstock_ledger import EqualRequestStore, JobStore, LaneMoves

    hosts, queues = has_own_model(job.lane), hot.depths(queue_name(job.lane))
    return Standing(
        job,
        workers,
        queues,
        {queue: hot.next_of(job.job_id, queue) for queue, depth in queues.items() if depth.queued}
        if hosts
        else {},
        hot.bound(job.job_id) if hosts and job.spec.get("model") is None else None,
        JobStore(database).is_led(job.job_id),
        hot.memory(),
        hot.parked([job.job_id])[0],
        hot.parked_unknown(),
        LaneMoves(database).of(job.job_id) if job.moves else (),
        _seen_first(hot, job),
        EqualRequestStore(database).count(job.job_id) if packs(job.lane) else 0,
    )


INTERRUPTED: Final = "interrupted"
"""The name, on screens, of a job that runs by its state alone."""


def interrupted(
    database: Database, jobs: Sequence[Job], workers: Callable[[], Sequence[WorkerSeen] | None]
) -> set[str]:
    """Return which jobs began and were left: no control process leads them, no worker lives.

    A job that was never led waits to begin. ``workers`` is asked only where
    it decides; it gives None where Redis does not answer. On one machine Redis ends with the
    processes, while that of a fleet may be away alone.
    """
    from penstock_ledger import JobStore

    running = [job for job in jobs if job.state == "running"]
    left = JobStore(database).left([job.job_id for job in running])
    seen = workers() if left else ()
    if seen is None:
        seen = ()
        left = left if database.is_sqlite else set()
    return {job.job_id for job in running if job.job_id in left and not _living(seen, job.lane)}


def interrupted_line(job: Job, *, one_machine: bool) -> str:
    """Return what it means for a job that it is interrupted, and how it goes on."""
    if one_machine:
        return (
            "interrupted: no process works on this job now, and what has ended is kept; the "
            "command that began it, given again, goes on where it stopped"
        )
    return (
        "interrupted: no control process leads this job and no worker of lane "
        f"{one_line(job.lane)} lives; once both do, it goes on where it stopped"
    )


def _seen_first(hot: RedisLedger, job: Job) -> int | None:
    from penstock_producer.job.spec import OFF

    has_bound = job.spec.get("stop_at_dead") != OFF or job.spec.get("stop_at_usd_per_doc")
    is_small = job.total is not None and job.total <= FIRST
    if not has_bound or is_small or packs(job.lane) or job.source.get(AWAITED):
        return None
    lately = hot.lately(job.job_id, job.generation)
    is_fed = lately.ended + hot.outstanding(job.job_id, job.generation) >= (job.total or 0)
    return None if is_fed else max(lately.ended, lately.answered)


def waits(standing: Standing, *, served: bool = False) -> Iterator[Wait]:
    """Yield why documents wait, the most serious first; nothing of a job that does not run.

    ``served``: the caller has workers of its own.
    """
    if standing.job.state != "running":
        return
    found = [*_not_served(standing, served=served), *_held_up(standing)]
    yield from found
    if not found:
        yield from _busy(standing)
    if standing.set_aside:
        yield Wait("set_aside", {"number": counted(standing.set_aside, "message")})


def _not_served(standing: Standing, *, served: bool) -> Iterator[Wait]:
    """Yield what has no process that does it."""
    job = standing.job
    if not served and (missing := no_worker(standing.workers, job.lane)) is not None:
        yield missing
    if has_own_model(job.lane):
        yield from unserved_models(standing)
    if not standing.is_led and standing.at - job.created_at > UNLED_AFTER_S:
        yield Wait("no_leader")


def no_worker(workers: Iterable[WorkerSeen], lane: str) -> Wait | None:
    """Return a wait where no worker of the lane lives, else None."""
    return None if _living(workers, lane) else Wait("no_worker", {"lane": lane})


def unserved_models(standing: Standing) -> Iterator[Wait]:
    """Yield a wait for the job's model where no worker serves it.

    Else it is for the models of queues in which its messages wait: its lines may name others than
    the job does.
    """
    job = standing.job
    serving = serving_of(standing.workers, job.lane)
    missing = missing_model(serving, job.spec.get("model"), standing.bound)
    if missing is not None:
        yield wait_for_model(missing)
        return
    queues = unserved_queues(serving, standing.waiting) if serving.workers else []
    if queues:
        shown = ", ".join(queues[:QUEUES_SHOWN]) + (
            " and more" if len(queues) > QUEUES_SHOWN else ""
        )
        words = {
            "queues": one_line(shown, WORDS_CHARS),
            "served": one_line(serving.in_words(), WORDS_CHARS),
        }
        yield Wait("no_model_of_queue", words)


def wait_for_model(missing: MissingModel) -> Wait:
    served = {"served": one_line(missing.served, WORDS_CHARS)}
    if missing.name is None:
        queue = one_line(missing.queue or "", WORDS_CHARS)
        return Wait("no_bound_model", {"queue": queue} | served)
    code = "model_loads" if missing.loads else "no_model"
    return Wait(code, {"model": one_line(missing.name, WORDS_CHARS)} | served)


def _held_up(standing: Standing) -> Iterator[Wait]:
    """Yield the waits for something that has to end first."""
    memory, moves = standing.memory, standing.moves
    if memory is not None and memory.is_tight:
        yield Wait(
            "redis_full", {"used": _megabytes(memory.used), "most": _megabytes(memory.maxmemory)}
        )
    away = [
        (seen.info["store_away"], _number(seen.info.get("store_s")))
        for seen in standing.living
        if seen.info.get("store_away")
    ]
    for store in sorted({name for name, _ in away}):
        longest = max(seconds for name, seconds in away if name == store)
        words = {"seconds": duration(longest), "store": one_line(store)}
        yield Wait("store_away", words)
    suspects = int(sum(_number(seen.info.get("suspects")) for seen in standing.living))
    if suspects:
        yield Wait("suspects", {"number": _documents(suspects)})
    if moves and moves[-1].left_at is None and moves[-1].before is not None:
        yield Wait("leaving_batches", {"before": moves[-1].before, "lane": moves[-1].lane})
    if standing.equal:
        yield Wait("same_request", {"number": _documents(standing.equal)})
    if standing.parked:
        yield Wait("parked", {"number": _documents(standing.parked)})


def _busy(standing: Standing) -> Iterator[Wait]:
    """Yield the waits of a job for which all is well, and there is no more of it."""
    queued = sum(depth.queued for depth in standing.queues.values())
    claimed = sum(depth.unacked for depth in standing.queues.values())
    delayed = sum(depth.delayed for depth in standing.queues.values())
    if delayed and not queued and not claimed:
        yield Wait("all_delayed", {"number": _documents(delayed), "lane": standing.job.lane})
    if standing.seen is not None and standing.seen < FIRST and not queued:
        yield Wait("first_hundred", {"number": count(standing.seen)})
    slots = sum(_number(seen.info.get("concurrency")) for seen in standing.living)
    taken = sum(_number(seen.info.get("in_flight")) for seen in standing.living)
    if queued and 0 < slots <= taken:
        living = len(standing.living)
        workers = "one worker" if living == 1 else f"{count(living)} workers"
        yield Wait(
            "slots_taken",
            {"slots": count(int(slots)), "workers": workers, "number": _documents(queued)},
        )


def _living(workers: Iterable[WorkerSeen], lane: str) -> list[WorkerSeen]:
    return [
        seen for seen in workers if seen.info.get("lane") == lane and seen.seconds_ago < ALIVE_S
    ]


def _number(text: str | None) -> float:
    """Return a number of a heartbeat; what is no number is 0.

    Heartbeats are text of other processes, perhaps of another release.
    """
    try:
        value = float(text or "")
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and value >= 0 else 0.0


def _documents(number: int) -> str:
    return "1 document" if number == 1 else f"{count(number)} documents"


def _megabytes(size: int) -> str:
    return count(round(size / 1_000_000))


class Yields(Protocol):
    """A decision of the limiter: ``penstock_ratelimit.shared.interactive`` explains its fields."""

    @property
    def code(self) -> str: ...

    @property
    def ceiling(self) -> float: ...

    @property
    def target_s(self) -> float: ...

    @property
    def ttft_s(self) -> float | None: ...

    @property
    def why(self) -> str: ...

    @property
    def binds(self) -> bool: ...


_YIELDS: Final[Mapping[str, str]] = {
    "start": "{most} until its server has said how long others wait",
    "under": "{ttft} of {target}, {most}, growing while that lasts",
    "quiet": "{most}, growing while others ask for little",
    "near": "{ttft} of {target}, {most}",
    "over": "{ttft} over {target}, {most}",
    "least": (
        "{ttft} over {target} although {most}: others alone are too many for the server, or the "
        "target is less than it can do; raise interactive_ttft_s, or give the server more room"
    ),
    "long": (
        "{ttft} over {target}, and fewer calls did not help: prompts are long; {most}, raise "
        "interactive_ttft_s to what the server can do"
    ),
    "unread": (
        "{most} while the server's figures cannot be read ({why}); correct metrics_url, or look at "
        "the server"
    ),
}


def yields_line(yields: Yields | None) -> str | None:
    """Say why a fleet is held back for interactive traffic at its server; None where it is not."""
    if yields is None or not (yields.binds or yields.code == "unread"):
        return None
    code = "quiet" if yields.code == "under" and yields.ttft_s is None else yields.code
    if code not in _YIELDS:
        return None
    said = _YIELDS[code].format(
        most=f"{counted(int(yields.ceiling), 'call')} at most",
        ttft=f"TTFT p95 {_short(yields.ttft_s or 0.0)}",
        target=_short(yields.target_s),
        why=one_line(yields.why, WORDS_CHARS),
    )
    return f"held back for interactive traffic: {said}"


def _short(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else duration(seconds)
