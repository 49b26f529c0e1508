"""What keeps a running job from going faster, or from going at all: sentences for `status`, the panel and the log."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock_ledger import RETRIED
from penstock_producer.feed.served import ALIVE_S
from penstock_producer.prices.spent_budget import next_month
from penstock_producer.reporting.money import MICRO
from penstock_producer.reporting.text import count, duration, one_line

__all__ = [
    "CAUSE_FRESH_S",
    "cause_line",
    "held_budget",
    "held_by_calls",
    "held_by_tenant",
    "in_hooks",
    "latest_cause",
    "retried_by_reason",
    "retried_line",
    "retries",
    "reused_lines",
]

if TYPE_CHECKING:
    from penstock_ledger import Account, Cause, WorkerSeen
    from penstock_ledger.model import Job

CAUSE_FRESH_S = 600.0  # a failure from before says nothing of now
CAUSE_CHARS = 300
RETRIED_SHOWN = 6


def latest_cause(causes: Sequence[Cause], now: float | None = None) -> Cause | None:
    """The newest failure, unless it is old. ``causes`` as ``CauseBook.of`` gives them."""
    at = time.time() if now is None else now
    return causes[0] if causes and at - causes[0].last < CAUSE_FRESH_S else None


def cause_line(cause: Cause, now: float | None = None) -> str:
    """Class, count, since when and the words, escaped and on one line."""
    at = time.time() if now is None else now
    since = time.strftime("%H:%M:%S", time.localtime(cause.since))
    times = "once" if cause.count == 1 else f"{count(cause.count)} times since {since}"
    ago = duration(max(0.0, at - cause.last))
    return f"{one_line(cause.name)} ({times}, last {ago} ago): {one_line(cause.text, CAUSE_CHARS)}"


def reused_lines(deduplicated: int, cached: int) -> list[str]:
    """How many documents took an answer that was there already; none where no job asks for it."""
    if not (deduplicated or cached):
        return []
    return [f"{count(deduplicated)} answered by an equal request, {count(cached)} from the cache"]


def retried_by_reason(stats: Mapping[str, int]) -> dict[str, int]:
    """Attempts that were followed by another, the most frequent reason first."""
    found = {name.removeprefix(RETRIED): count for name, count in stats.items() if name.startswith(RETRIED) and count}
    return dict(sorted(found.items(), key=lambda entry: (-entry[1], entry[0])))


def retries(stats: Mapping[str, int]) -> int:
    """Attempts that were followed by another, over the whole life of a job: the one figure that is shown as its retries."""
    return sum(retried_by_reason(stats).values())


def retried_line(by_reason: Mapping[str, int]) -> str | None:
    """Why attempts were followed by another, the most frequent reasons first; None where none was."""
    if not by_reason:
        return None
    shown = list(by_reason.items())[:RETRIED_SHOWN]
    more = len(by_reason) - len(shown)
    words = [f"{one_line(name)} {count(number)}" for name, number in shown]
    return "retried: " + ", ".join([*words, f"and {more} more reasons"] if more else words)


def in_hooks(workers: Iterable[WorkerSeen], hooks: Iterable[str | None]) -> Iterator[str]:
    """One sentence for each of a job's hooks that takes long in some worker."""
    for hook in filter(None, hooks):
        slow = [figures for seen in workers if (figures := _in_hook(seen, hook)) is not None]
        if slow:
            calls, seconds = sum(calls for calls, _ in slow), max(seconds for _, seconds in slow)
            inside = "1 document is" if calls == 1 else f"{count(calls)} documents are"
            yield (
                f"{inside} in the hook {one_line(hook)}, the longest for {duration(seconds)}; after a minute it counts as "
                "failed"
            )


def held_budget(budget_usd: float, account: Account | None, batches: Mapping[str, int]) -> str | None:
    """That calls wait since batches may still cost what is left of the budget; None where none do. ``batches``: what
    each may cost, in millionths of a dollar, by its tag."""
    held = sum(batches.values())
    if account is None or account.lacking is None or not held:
        return None
    if account.committed + account.lacking <= budget_usd * MICRO:
        return None
    first = min(batches)
    named = f"batch {first}" if len(batches) == 1 else f"{count(len(batches))} batches ({first} and others)"
    until = "the provider ends it" if len(batches) == 1 else "the provider ends them"
    return f"calls wait for the budget of {budget_usd:g} USD: {held / MICRO:.2g} USD of it are held by {named} until {until}"


def held_by_calls(budget_usd: float, account: Account | None, batches: Mapping[str, int]) -> str | None:
    """Likewise of calls under way, which may be those of a worker that died; None where batches say enough."""
    if account is None or account.lacking is None or account.committed + account.lacking <= budget_usd * MICRO:
        return None
    held = account.reserved - sum(batches.values())
    if held <= 0 or batches:
        return None
    return (
        f"calls wait for the budget of {budget_usd:g} USD: {held / MICRO:.2g} USD of it are held by calls that have begun; "
        "what a worker held that died is given back within two minutes"
    )


def held_by_tenant(job: Job, account: Account | None) -> str | None:
    """That calls of a running job wait since its tenant may not spend more in the month of the job; None where they do not."""
    tenant = None if account is None else account.tenant
    if account is None or tenant is None or account.lacking is None:
        return None
    if tenant.committed + account.lacking <= tenant.budget:
        return None
    month = time.strftime("%Y-%m", time.gmtime(job.created_at))
    return (
        f"calls wait for the budget of tenant {one_line(str(job.spec.get('tenant')))}, {tenant.budget / MICRO:g} USD for jobs of "
        f"{month}: {tenant.spent / MICRO:.2g} USD are spent, and {tenant.reserved / MICRO:.2g} may be needed by calls under way. "
        "Where these leave too little the job pauses, until a newer key of the tenant names a larger budget; new jobs have the "
        f"budget of the next month, from {next_month(month)} (UTC)"
    )


def _in_hook(seen: WorkerSeen, hook: str | None) -> tuple[int, float] | None:
    """Calls inside it and seconds of the longest, of a live worker that says so in a way that makes sense."""
    if seen.info.get("hook") != hook or seen.seconds_ago >= ALIVE_S:
        return None
    try:
        calls, seconds = int(seen.info["hook_calls"]), float(seen.info["hook_s"])
    except (KeyError, ValueError):
        return None
    return (calls, seconds) if math.isfinite(seconds) else None
