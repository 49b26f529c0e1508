"""Keeps records of door tasks in Redis.

They hold how often each task was started, and why the last refused ones were refused."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import redis

from penstock_ledger import keys

__all__ = ["TaskRecords"]

REFUSED_KEPT = 1_000  # the newest; each some 500 bytes
STARTS_KEPT_S = 7 * 86_400  # for a task that never ends, as when its message was deleted
REASON_MAX_CHARS = 2_000  # of one refusal: twenty bad rows, or every field of a spec
ID_MAX_CHARS = 200  # of a client's name for a task or a job


@dataclass(frozen=True, slots=True)
class RefusedTask:
    """One task that was refused. ``reason`` holds nothing of documents, prompts and parameters."""

    at: float  # unix time
    task: str
    id: str
    job: str | None
    reason: str
    parked: bool = False  # its message is kept in `penstock:parked:unknown`


class TaskRecords:
    """Thread-safe, as the client is. All raise redis-py's errors."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def begin(self, task_id: str) -> int:
        """Count a start; returns how many there were before that have not ended."""
        key = keys.door_starts(task_id)
        with self._client.pipeline(transaction=True) as pipe:
            pipe.incr(key)
            pipe.expire(key, STARTS_KEPT_S)
            return int(pipe.execute()[0]) - 1

    def end(self, task_id: str) -> None:
        self._client.delete(keys.door_starts(task_id))

    def refuse(
        self, task: str, task_id: str, job: object, reason: str, *, parked: bool = False
    ) -> RefusedTask:
        named = job[:ID_MAX_CHARS] if isinstance(job, str) else None
        refusal = RefusedTask(
            round(time.time(), 3),
            task,
            task_id[:ID_MAX_CHARS],
            named,
            reason[:REASON_MAX_CHARS],
            parked,
        )
        with self._client.pipeline(transaction=True) as pipe:
            # ASCII: a lone surrogate cannot fail it
            pipe.lpush(keys.REFUSED, json.dumps(asdict(refusal)))
            pipe.ltrim(keys.REFUSED, 0, REFUSED_KEPT - 1)
            pipe.execute()
        return refusal

    def refusals(self) -> Iterator[RefusedTask]:
        """Yield the refused tasks, the newest first; entries that cannot be read are skipped."""
        rows: Any = self._client.lrange(keys.REFUSED, 0, REFUSED_KEPT - 1)
        for row in rows:
            try:
                yield RefusedTask(**json.loads(row))
            except (ValueError, TypeError):
                continue
