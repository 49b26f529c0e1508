"""A whole fleet on loopback: a ledger, a simulated provider and worker processes around a Redis.

The provider's own call log says what was paid; the ledger says what came of it; ``Fleet.account``
compares.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from penstock_cli.chaos.bucket import CREDENTIALS, Bucket
from penstock_cli.chaos.processes import (
    PENSTOCK,
    START_S,
    Guard,
    NotInTime,
    Process,
    Provider,
    Start,
    start_penstock,
    until,
)
from penstock_cli.chaos.servers import OneRedis, OwnPostgres, RedisStore
from penstock_cli.settings import child_environment
from penstock_ledger import QueueBook, RedisLedger, keys
from penstock_ledger.model import Job, JobState
from penstock_producer import Producer
from penstock_producer.feed.queues import LOADS, queue_name

QUIET_S = 30.0  # for the last acknowledgements to reach Redis
LEASE_S = 3.0  # the shortest that workers take, so that a fault costs seconds


@dataclass(frozen=True)
class Account:
    """The end of a job, and what is wrong with it."""

    results: frozenset[str]
    dead: Mapping[str, str]  # document -> reason
    calls: Counter[str]
    problems: list[str] = field(default_factory=list)

    @property
    def extra_calls(self) -> int:
        """Oracle C: calls beyond one per document that was called at all."""
        return self.calls.total() - len(self.calls)


class Fleet:
    """A fleet of one folder. Not thread-safe but for ``submit`` through producers of one's own."""

    def __init__(
        self,
        folder: Path,
        store: RedisStore,
        guard: Guard,
        *,
        database_url: str | None = None,
        postgres: OwnPostgres | None = None,
        bucket: Bucket | None = None,
        settings: Mapping[str, object] | None = None,
        variables: Mapping[str, str] | None = None,
        start_process: Start = start_penstock,
    ) -> None:
        """Prepare it: ``settings`` are PENSTOCK_* of every process, ``variables`` others.

        ``postgres`` may be killed; a ``bucket`` gets the results of jobs."""
        self.folder = folder
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True)
        (folder / "settings.toml").touch()
        self.store: RedisStore = store
        self.guard = guard
        self.database_url = database_url or f"sqlite:///{folder}/ledger.db"
        self.postgres, self.bucket = postgres, bucket
        self.provider = Provider(folder, watch=guard.watch, start_process=start_process)
        self._start_process = start_process
        self._settings = settings or {}
        self._variables = variables or {}
        self._to_bucket: Mapping[str, object] = {}
        if bucket is not None:
            self._variables = {**self._variables, **CREDENTIALS}
            self._to_bucket = {
                "results_url": bucket.results,
                "results_parts": "until_end",
                "s3_endpoint_url": bucket.url,
            }
        self.processes: list[Process] = []
        # beginnings of names: what a supervisor would replace
        self.replaced: tuple[str, ...] = ("api",)
        self.deaths = 0  # of workers that ``replace_dead`` has replaced

    def __enter__(self) -> Self:
        self.producer = Producer(database_url=self.database_url)
        self.producer._database.migrate()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self.processes:
            process.kill()
        self.provider.kill()
        self.producer.close()
        self.store.stop()
        self.guard.close()

    @property
    def redis(self) -> OneRedis:
        """The one server, where it may be killed, stopped or emptied."""
        return cast(OneRedis, self.store)

    # -- processes ---------------------------------------------------------------------------------

    def worker(self, concurrency: int = 8, *, lane: str = "api", **settings: object) -> Process:
        """Start a worker; it is ready when it says so, which ``ready`` awaits.

        ``settings`` are PENSTOCK_* variables."""
        return self.worker_with(settings, concurrency, lane)

    def worker_with(
        self, settings: Mapping[str, object], concurrency: int, lane: str, off_s: float = 0.0
    ) -> Process:
        """Start a worker whose clock is off by so much."""
        words = ["worker", "--lane", lane, "-c", str(concurrency)]
        return self._start(lane, words, settings, off_s)

    def control(self, **settings: object) -> Process:
        """Start the control loop in a process of its own."""
        return self._start("control", ["control"], settings)

    def command(self, name: str, *arguments: str, **settings: object) -> Process:
        """Start another Penstock command that runs until it is ended."""
        return self._start(name, arguments, settings)

    def _start(
        self,
        lane: str,
        arguments: Sequence[str],
        settings: Mapping[str, object],
        off_s: float = 0.0,
    ) -> Process:
        name = f"{lane}-{len(self.processes)}"
        log = self.logs / f"{name}.log"
        start = partial(start_penstock, off_s=off_s) if off_s else self._start_process
        with log.open("ab") as out:
            popen = start(
                arguments,
                env=self._environment(settings),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.guard.watch(popen.pid)
        process = Process(name, log, popen)
        self.processes.append(process)
        return process

    def penstock(self, *arguments: str) -> str:
        """Return what a Penstock command prints, with the settings of this fleet."""
        done = self.run(*arguments)
        done.check_returncode()
        return done.stdout

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a Penstock command that may fail, with the settings of this fleet."""
        return subprocess.run(  # noqa: S603 -- ourselves
            [*PENSTOCK, *arguments],
            env=self._environment({}),
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )

    def heard_of(self) -> set[int]:
        """Return pids of workers whose heartbeat says that they take items.

        Of those that host a model: with the model up."""
        seen = RedisLedger(self.store.client(), "").workers()
        return {int(worker.name.rpartition("-")[2]) for worker in seen if LOADS not in worker.info}

    def ready(self, *workers: Process) -> None:
        """Wait until these are heard of, but for those that another fault kills meanwhile."""
        until(
            lambda: {one.popen.pid for one in workers if one.alive} <= self.heard_of(),
            START_S,
            "workers are ready",
        )

    def replace_dead(self, start: Callable[[], Process]) -> None:
        """Replace workers that have died, as a supervisor would."""
        for process in [
            one for one in self.processes if not one.alive and one.name.startswith(self.replaced)
        ]:
            self.deaths += 1
            process.name = f"dead-{process.name}"
            start()

    def _environment(self, settings: Mapping[str, object]) -> dict[str, str]:
        chosen: dict[str, object] = {
            "config": self.folder / "settings.toml",
            "redis_url": self.store.url,
            "database_url": self.database_url,
            "providers__default__base_url": self.provider.url,
            "visibility_timeout_s": LEASE_S,
            "reconcile_interval_s": 1.0,
            "retry_base_s": 0.2,
            "retry_cap_s": 2.0,
            "control": False,
            **self._to_bucket,
            **self._settings,
            **settings,
        }
        given = {f"PENSTOCK_{name.upper()}": str(value).strip() for name, value in chosen.items()}
        return child_environment({}) | dict(self._variables) | given

    @property
    def upstream(self) -> object:
        """Return the address at which workers reach the provider."""
        return self._settings.get("providers__default__base_url", self.provider.url)

    # -- jobs --------------------------------------------------------------------------------------

    @property
    def sources(self) -> Path:
        """The folder of ``source``, apart from the ledger: remote jobs may read it."""
        return self.folder / "sources"

    def source(self, documents: int, name: str = "docs") -> Path:
        self.sources.mkdir(parents=True, exist_ok=True)
        path = self.sources / f"{name}.jsonl"
        path.write_text(
            "".join(f'{{"id":"doc-{n}","text":"review {n}"}}\n' for n in range(documents))
        )
        return path

    def submit(self, documents: int, *, key: str | None = None, **spec: object) -> Job:
        source = self.source(documents, key or "docs")
        return self.producer.submit(source, self.spec(**spec), job_key=key)

    def submit_from_bucket(self, documents: int, key: str) -> Job:
        """Submit a job whose source is an object of the bucket."""
        assert self.bucket is not None
        source = self.bucket.put(f"sources/{key}.jsonl", self.source(documents, key).read_bytes())
        words = ("--prompt", str(self.spec()["prompt"]), "--model", str(self.spec()["model"]))
        return self.job(self.penstock("submit", source, "--job", key, *words).split()[0])

    def job(self, job_id: str) -> Job:
        return self.producer.status(job_id).job

    @staticmethod
    def spec(**more: object) -> dict[str, object]:
        return {"lane": "api", "model": "sim", "prompt": "Summarise: {text}"} | more

    def state(self, job: Job) -> JobState:
        return self.job(job.job_id).state

    def finished(self, job: Job) -> int:
        return self.producer.status(job.job_id).finished

    def wait_for(
        self, job: Job, state: JobState, timeout_s: float, meanwhile: Callable[[], object] = bool
    ) -> None:
        def reached() -> bool:
            meanwhile()
            return self.state(job) is state

        self._until(reached, timeout_s, f"the job is {state}", job)

    def wait_for_outcomes(self, job: Job, number: int, timeout_s: float = 60.0) -> None:
        self._until(lambda: self.finished(job) >= number, timeout_s, f"{number} outcomes", job)

    def _until(self, reached: Callable[[], bool], timeout_s: float, what: str, job: Job) -> None:
        try:
            until(reached, timeout_s, what)
        except NotInTime as error:
            raise NotInTime(f"{error}; {self.describe(job)}") from None

    def wait_for_quiet(self, job: Job) -> None:
        """Wait until nothing is in flight, claimed or queued; parked messages stay."""
        until(
            lambda: not any(self.depths(job)[place] for place in ("queued", "unacked", "delayed")),
            30,
            "quiet",
        )

    def provider_calls(self) -> int:
        return self.provider.calls().total()

    def counters(self, job: Job) -> dict[str, int]:
        """Return the live counters in Redis."""
        found: Any = self.store.client().hgetall(f"{keys.job_scope(job.job_id)}:stats")
        return {name.decode(): int(value) for name, value in found.items()}

    def describe(self, job: Job) -> str:
        status, calls = self.producer.status(job.job_id), self.provider.calls(job).total()
        counts, inside = status.counts, [f"{n} {name}" for name, n in self.depths(job).items() if n]
        return (
            f"the job is {status.job.state} ({status.job.reason}), {counts.succeeded} results, "
            f"dead: {counts.dead_by_reason}, in Redis: {', '.join(inside) or 'nothing'}, {calls} "
            "calls"
        )

    def depths(self, job: Job) -> dict[str, int]:
        client: Any = self.store.client()
        queues = QueueBook(client).of(queue_name(job.spec["lane"]))
        return {
            "queued": sum(map(client.llen, queues)),
            "unacked": sum(client.hlen(keys.unacked(queue)) for queue in queues),
            "leases": sum(client.zcard(keys.unacked_index(queue)) for queue in queues),
            "delayed": sum(client.zcard(keys.delayed(queue)) for queue in queues),
            "window": client.hlen(f"{keys.feed_scope(job.job_id, 1)}:window"),
            "starts": client.hlen(f"{keys.feed_scope(job.job_id, 1)}:starts"),
        }

    def account(self, job: Job, documents: Collection[str] | int) -> Account:
        """Compare what a job came to with what was asked (oracle L).

        Every document ends in exactly one outcome, and nothing is left in Redis."""
        if isinstance(documents, int):
            documents = [f"doc-{n}" for n in range(documents)]
        wanted = set(documents)
        results = [result.key.doc_id for result in self.producer.results(job.job_id)]
        letters = [
            (letter.key.doc_id, letter.reason) for letter in self.producer.dead_letters(job.job_id)
        ]
        dead, there = dict(letters), set(results)
        problems = []
        if (len(there), len(dead)) != (len(results), len(letters)):
            problems.append("an outcome is listed twice")
        if both := dead.keys() & there:
            problems.append(f"a result and a dead letter: {', '.join(sorted(both)[:3])}")
        if lost := wanted - there - dead.keys():
            problems.append(f"{len(lost)} lost: {', '.join(sorted(lost)[:3])}")
        if strange := (there | dead.keys()) - wanted:
            problems.append(f"outcomes of no document: {', '.join(sorted(strange)[:3])}")
        try:
            until(lambda: not any(self.depths(job).values()), QUIET_S, "Redis is empty of the job")
        except NotInTime as error:
            problems.append(f"{error}: {self.describe(job)}")
        if self.bucket is not None and self.state(job) is JobState.COMPLETED:
            for name, outcomes in (("output", results), ("errors", list(dead))):
                written = self.bucket.documents(f"{job.job_id}/{name}.jsonl")
                if sorted(written) != sorted(outcomes):
                    problems.append(
                        f"{name}.jsonl in the bucket has {len(written)} of {len(outcomes)} lines"
                    )
        return Account(frozenset(results), dead, self.provider.calls(job), problems)
