"""Which workers live, and how those that ended stopped, for everyone who looks at a fleet."""

from __future__ import annotations

from typing import Any, Final

from penstock_ledger import keys
from penstock_ledger.in_redis.batches import Drained, Drains, WorkerSeen

WORKERS_READ: Final = 10_000  # heartbeats that one look reads; more than any fleet has
INFO_CHARS: Final = 16_384  # of one text of a heartbeat; a longer one is left out
WORKER_FORGOTTEN_S: Final = 60  # a worker without a heartbeat for so long is not listed


def workers(client: Any, now: float) -> list[WorkerSeen]:
    """Workers heard of in the last minute, by name."""
    oldest, newest = now - WORKER_FORGOTTEN_S, now + WORKER_FORGOTTEN_S
    seen = client.zrangebyscore(
        keys.WORKERS, oldest, newest, start=0, num=WORKERS_READ, withscores=True
    )
    names = [name.decode("utf-8", "replace") for name, _ in seen]
    with client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.hgetall(keys.worker(name))
        infos = pipe.execute(raise_on_error=False)
    return sorted(
        WorkerSeen(name, max(0.0, now - at), _info(info))
        for name, (_, at), info in zip(names, seen, infos, strict=True)
    )


def note_drain(client: Any, drained: Drained) -> None:
    """Count how a worker stopped."""
    lane, finished, requeued = drained
    with client.pipeline(transaction=True) as pipe:
        pipe.hincrby(keys.drains(lane), "items_finished", finished)
        pipe.hincrby(keys.drains(lane), "items_requeued", requeued)
        pipe.hincrby(keys.drains(lane), "requeued" if requeued else "finished", 1)
        pipe.execute()


def drains(client: Any, lane: str) -> Drains:
    return Drains(*(int(count or 0) for count in client.hmget(keys.drains(lane), Drains._fields)))


def _info(found: Any) -> dict[str, str]:
    """What a worker said of itself.

    Anyone who reaches Redis may write there: what makes no sense is left out."""
    if not isinstance(found, dict):
        return {}
    return {
        field.decode("utf-8", "replace"): text.decode("utf-8", "replace")
        for field, text in found.items()
        if len(text) <= INFO_CHARS
    }
