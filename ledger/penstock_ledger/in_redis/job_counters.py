"""The counters of jobs in Redis. They are for people; what decides is counted in SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from penstock_ledger import keys
from penstock_ledger.in_redis.batches import AskedAgain, Lately, SettledCrash, lately_of

# only Redis has them: a reset keeps them
FOREIGN_TO_SQL: Final = ("skipped", "rate_limited", "repairs", "fallbacks", "escalations")


def stats(client: Any, job_id: str) -> dict[str, int]:
    """Return all counters of a job, since it started, as far as Redis remembers."""
    found = client.hgetall(_name(job_id))
    return {name.decode(): max(0, int(value)) for name, value in found.items()}


def finished_of(client: Any, job_ids: Collection[str]) -> list[int]:
    """Return how many documents of each job have an outcome."""
    with client.pipeline(transaction=False) as pipe:
        for job_id in job_ids:
            pipe.hmget(_name(job_id), "succeeded", "dead")
        return [sum(max(0, int(count or 0)) for count in counts) for counts in pipe.execute()]


def purged(client: Any, job_ids: Collection[str]) -> set[str]:
    """Return those of them that were purged lately: no key of theirs is written any more.

    Scripts ask likewise (purged.lua)."""
    states = client.mget([keys.job_state(job_id) for job_id in job_ids]) if job_ids else []
    return {
        job_id
        for job_id, state in zip(job_ids, states, strict=True)
        if state == keys.PURGED.encode()
    }


def reset(client: Any, job_id: str, known: Mapping[str, int]) -> None:
    """Replace the counters by what SQL knows; those that SQL does not know stay."""
    if purged(client, [job_id]):
        return
    kept = {name: value for name, value in stats(client, job_id).items() if _only_here(name)}
    with client.pipeline(transaction=True) as pipe:
        pipe.delete(_name(job_id))
        if kept or known:
            pipe.hset(_name(job_id), mapping={**kept, **known})
        pipe.execute()


def count_crashed(client: Any, crashed: Sequence[SettledCrash]) -> None:
    """Count crashed attempts. Their starts stay counted, so nothing else is written of them."""
    _add(client, Counter((key.job_id, f"{keys.RETRIED}{reason}") for key, reason, _ in crashed))


def count_asked_again(client: Any, asked: Sequence[AskedAgain]) -> None:
    """Count what was asked again. Its cost is in the sums of what was settled."""
    counts: Counter[tuple[str, str]] = Counter()
    for job_id, repairs, fallbacks, escalations in asked:
        counts[job_id, "repairs"] += repairs
        counts[job_id, "fallbacks"] += fallbacks
        counts[job_id, "escalations"] += escalations
    _add(client, counts)


def count_tried_again(client: Any, tried: Sequence[SettledCrash]) -> dict[tuple[str, int], Lately]:
    """Count these tries; what they used up is counted with the outcome.

    Returns the latest documents of feeds of which first answers were refused, as lately.lua has
    them.
    """
    counts: Counter[tuple[str, str]] = Counter()
    refused: Counter[tuple[str, int, str]] = Counter()
    for key, reason, refused_first in tried:
        counts[key.job_id, f"{keys.RETRIED}{reason}"] += 1
        if refused_first:
            refused.update(
                (key.job_id, key.generation, field)
                for field in ("answered", "missed", f"why:{reason}")
            )
    _add(client, counts)
    gone = purged(client, {job_id for job_id, _, _ in refused})
    feeds = dict[tuple[str, int], str]()
    for (job_id, generation, field), count in refused.items():
        if job_id not in gone:
            scope = feeds[job_id, generation] = keys.feed_scope(job_id, generation)
            client.hincrby(f"{scope}:lately", field, count)
    return {feed: lately(client, scope) for feed, scope in feeds.items()}


def lately(client: Any, scope: str) -> Lately:
    """Return what lately.lua keeps of a feed, by its prefix."""
    return lately_of(*(client.hgetall(f"{scope}:{part}") for part in ("lately", "earlier")))


def _add(client: Any, counts: Mapping[tuple[str, str], int]) -> None:
    gone = purged(client, {job_id for job_id, _ in counts})
    for (job_id, field), count in counts.items():
        if count and job_id not in gone:
            client.hincrby(_name(job_id), field, count)


def _only_here(counter: str) -> bool:
    return counter in FOREIGN_TO_SQL or counter.startswith(keys.RETRIED)


def _name(job_id: str) -> str:
    return f"{keys.job_scope(job_id)}:stats"
