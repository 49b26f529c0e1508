"""A whole fleet on loopback, as `penstock chaos` has it, with a Redis of the tests.

`with Fleet(folder) as fleet` starts Redis; the rest is started by name. When the block fails, the
ends of all logs are printed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from forked import Penstock, run
from redis_sets import SentinelSet
from servers import RedisServer

from penstock_cli.chaos import fleet as chaos_fleet
from penstock_cli.chaos.fleet import LEASE_S, Account
from penstock_cli.chaos.processes import (
    START_S,
    Guard,
    NotInTime,
    Process,
    Provider,
    until,
)
from penstock_ledger.model import Job
from penstock_producer.reporting.reasons import retries

__all__ = [
    "LEASE_S",
    "START_S",
    "Account",
    "Fleet",
    "NotInTime",
    "Process",
    "Provider",
    "until",
]


class Fleet(chaos_fleet.Fleet):
    """Everything of one test. Not thread-safe but for ``submit`` through producers of your own."""

    def __init__(
        self,
        folder: Path,
        *,
        database_url: str | None = None,
        appendonly: bool = True,
        redis: RedisServer | SentinelSet | None = None,
        settings: Mapping[str, object] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """``settings`` are PENSTOCK_* variables of every process, ``variables`` others."""
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(
            folder,
            redis or RedisServer.start(folder / "redis", appendonly=appendonly),
            Guard(),
            database_url=database_url,
            settings=settings,
            variables=variables,
            start_process=Penstock,
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        if error is not None:
            self.print_tails()

    @property
    def redis(self) -> RedisServer:
        """The one server, for tests that kill, stop or flush it."""
        assert isinstance(self.store, RedisServer), (
            "this fleet's Redis is a set of servers behind Sentinels"
        )
        return self.store

    @contextmanager
    def explained(self) -> Iterator[Self]:
        """For tests that share a fleet: the ends of all logs when the block fails."""
        try:
            yield self
        except BaseException:
            self.print_tails()
            raise

    def print_tails(self) -> None:
        print("\n".join(process.tail() for process in self.processes))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run(arguments, START_S, env=self._environment({}))

    def wait_until_retried(self, job: Job, times: int) -> None:
        until(lambda: retries(self.counters(job)) >= times, 30, f"{times} tries have failed")

    def account(self, job: Job, documents: Collection[str] | int) -> Account:
        account = super().account(job, documents)
        assert account.problems == []
        return account
