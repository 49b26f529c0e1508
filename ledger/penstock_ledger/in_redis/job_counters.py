"""The counters of jobs in Redis. They are for people; what decides is counted in SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from penstock_ledger import keys
from penstock_ledger.in_redis.batches import AskedAgain, Lately, SettledCrash, lately_of

FOREIGN_TO_SQL: Final = ("skipped", "rate_limited", "repairs", "fallbacks")  # only Redis has them: a reset keeps them


def stats(client: Any, job_id: str) -> dict[str, int]:
    """All of a job, since it started, as far as Redis remembers."""
    found = client.hgetall(_name(job_id))
    return {name.decode(): max(0, int(value)) for name, value in found.items()}


def finished_of(client: Any, job_ids: Collection[str]) -> list[int]:
    """Documents of each job that have an outcome."""
    with client.pipeline(transaction=False) as pipe:
        for job_id in job_ids:
            pipe.hmget(_name(job_id), "succeeded", "dead")
        return [sum(max(0, int(count or 0)) for count in counts) for counts in pipe.execute()]


def reset(client: Any, job_id: str, known: Mapping[str, int]) -> None:
    """Replace the counters by what SQL knows; those that SQL does not know stay."""
    kept = {name: value for name, value in stats(client, job_id).items() if _only_here(name)}
    with client.pipeline(transaction=True) as pipe:
        pipe.delete(_name(job_id))
        if kept or known:
            pipe.hset(_name(job_id), mapping={**kept, **known})
        pipe.execute()


def count_crashed(client: Any, crashed: Sequence[SettledCrash]) -> None:
    """Their starts stay counted, so nothing else is written of them."""
    _add(client, Counter((_name(key.job_id), f"{keys.RETRIED}{reason}") for key, reason, _ in crashed))


def count_asked_again(client: Any, asked: Sequence[AskedAgain]) -> None:
    """Their cost is in the sums of what was settled."""
    counts: Counter[tuple[str, str]] = Counter()
    for job_id, repairs, fallbacks in asked:
        counts[_name(job_id), "repairs"] += repairs
        counts[_name(job_id), "fallbacks"] += fallbacks
    _add(client, counts)


def count_tried_again(client: Any, tried: Sequence[SettledCrash]) -> dict[tuple[str, int], Lately]:
    """What these tries used up is counted with the outcome. Returns the latest documents of feeds of which first answers were
    refused, as lately.lua has them."""
    counts: Counter[tuple[str, str]] = Counter()
    feeds = dict[tuple[str, int], str]()
    for key, reason, refused_first in tried:
        counts[_name(key.job_id), "retries"] += 1
        counts[_name(key.job_id), f"{keys.RETRIED}{reason}"] += 1
        if refused_first:
            scope = feeds[key.job_id, key.generation] = keys.feed_scope(key.job_id, key.generation)
            for field in ("answered", "missed", f"why:{reason}"):
                counts[f"{scope}:lately", field] += 1
    _add(client, counts)
    return {
        feed: lately_of(*(client.hgetall(f"{scope}:{part}") for part in ("lately", "earlier")))
        for feed, scope in feeds.items()
    }


def _add(client: Any, counts: Mapping[tuple[str, str], int]) -> None:
    for (name, field), count in counts.items():
        if count:
            client.hincrby(name, field, count)


def _only_here(counter: str) -> bool:
    return counter in FOREIGN_TO_SQL or counter.startswith(keys.RETRIED)


def _name(job_id: str) -> str:
    return f"{keys.job_scope(job_id)}:stats"
