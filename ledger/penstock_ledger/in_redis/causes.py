"""Why calls fail lately: one line per provider, job and class of failure, in Redis, for all
commands that show a job.

Nothing depends on it: it is lost with Redis, and expires an hour after the last failure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import redis

from penstock_ledger import keys
from penstock_ledger.in_redis.redis_scripts import Scripts
from penstock_ledger.stored_values import storable

KEEP_S: Final = 3600
"""After the last failure of a provider."""
GAP_S: Final = 300.0
"""A failure that comes longer than this after the one before begins a new count, and a new
"since"."""
FIELDS_MAX: Final = 200
"""Jobs times classes kept per provider: a few dozen kilobytes."""
TEXT_CHARS: Final = 300
"""Of what was said."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One class of failure. Times are Unix seconds, of the clocks of the workers that saw it."""

    provider: str
    job_id: str
    name: str  # of the failure, as in the workers' table of fates
    text: str  # the last message, cut; foreign text, to be escaped where it is shown
    count: int
    since: float
    last: float


class CauseBook:
    """Written by workers every few seconds while something fails. Raises redis.RedisError."""

    def __init__(self, client: redis.Redis) -> None:
        self._client: Any = client
        self._scripts = Scripts(client)

    def note(self, causes: Iterable[Cause]) -> None:
        """Add to what other workers have noted."""
        by_provider: dict[str, list[Cause]] = {}
        for cause in causes:
            by_provider.setdefault(cause.provider, []).append(cause)
        for provider, some in by_provider.items():
            entries = [
                (
                    f"{one.job_id}|{one.name}",
                    one.count,
                    one.since,
                    one.last,
                    storable(one.text[:TEXT_CHARS]),
                )
                for one in some
            ]
            self._scripts.causes(provider, entries, keep_s=KEEP_S, gap_s=GAP_S, most=FIELDS_MAX)

    def of(self, provider: str, job_id: str | None = None) -> list[Cause]:
        """What fails at a provider, of one job or of all, the latest first.

        What cannot be read is left out."""
        found = []
        for field, text in self._client.hgetall(keys.failing(provider)).items():
            job, _, name = _text(field).partition("|")
            if job_id is not None and job != job_id:
                continue
            try:
                count, since, last, said = json.loads(text)
                found.append(
                    Cause(provider, job, name, str(said), int(count), float(since), float(last))
                )
            except (ValueError, TypeError):
                continue
        return sorted(found, key=lambda cause: -cause.last)


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
