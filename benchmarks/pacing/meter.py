"""What a limiter costs its Redis, as Redis itself counts it."""

from __future__ import annotations

from dataclasses import dataclass

import redis

SCRIPTS = ("evalsha", "eval", "fcall", "evalsha_ro", "eval_ro")


@dataclass(frozen=True, slots=True)
class RedisWork:
    """Scripts, since the time of the commands inside is part of theirs."""

    calls: int = 0  # scripts called: one round trip each
    busy_us: float = 0.0  # spent in scripts, or in all commands where a limiter uses no scripts

    def plus(self, other: RedisWork) -> RedisWork:
        return RedisWork(
            self.calls + other.calls,
            self.busy_us + other.busy_us,
        )

    def less(self, other: RedisWork) -> RedisWork:
        return RedisWork(
            self.calls - other.calls,
            self.busy_us - other.busy_us,
        )


def read_work(client: redis.Redis) -> RedisWork:
    """Since the server started, without the reading itself."""
    stats = client.info("commandstats")
    rows = {
        name.removeprefix("cmdstat_"): row
        for name, row in stats.items()
        if not name.startswith("cmdstat_info")
    }
    scripts = [row for name, row in rows.items() if name in SCRIPTS]
    counted = scripts or list(rows.values())
    return RedisWork(
        sum(row["calls"] for row in scripts),
        sum(row["usec"] for row in counted),
    )


class Meter:
    """Adds up over the restarts of a server, each of which begins to count from nothing."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._since = read_work(client)
        self._before = RedisWork()

    def stops(self) -> None:
        """Call before the server goes."""
        self._before = self.read()
        self._since = RedisWork()

    def read(self) -> RedisWork:
        """Work since the meter was made."""
        return self._before.plus(read_work(self._client).less(self._since))
