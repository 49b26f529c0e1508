"""A small fleet as users run it: a control process, a worker process under Celery, SQLite and
Redis. One job at a time."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import orjson

from benchmarks.harness.ground import (
    ROOT,
    GroundError,
    RunningRedis,
    Usage,
    process,
    usage,
    write_documents,
)

Ask = Callable[[Mapping[str, Any]], dict[str, Any]]
"""One question to the process of submitting.py, and its answer."""

# connections are open and every path has been walked before anything is counted
WARM_UP_DOCS = 1_000
READY_TIMEOUT_S = 240.0  # a machine with much else to do starts a fleet slowly
# without a single conclusion: something is broken, and waiting longer tells nothing
STALLED_S = 120.0
LOOK_EACH_S = 0.05
# of a job's items: between these marks its start, its ramp and its end are over or yet to come
STEADY = (0.2, 0.8)


@dataclass(frozen=True)
class JobCost:
    """What one job cost.

    CPU in milliseconds per item, of each process; peaks in bytes, since the process started.

    ``steady_ms`` is the workers' CPU per item over the middle of the job; all others are of the
    whole job.
    """

    items: int
    wall_s: float
    submit_ms: float
    worker_ms: float
    control_ms: float
    redis_ms: float
    worker_peak: int
    control_peak: int
    dead: int = 0
    steady_ms: float = 0.0

    @property
    def ours_ms(self) -> float:
        return self.submit_ms + self.worker_ms + self.control_ms

    @property
    def all_ms(self) -> float:
        """Every Penstock process: the workers once they are under way, and the whole of Redis,
        control and submit."""
        return self.steady_ms + self.redis_ms + self.control_ms + self.submit_ms


@dataclass
class _Job:
    """One job while it is measured."""

    items: int
    before: tuple[Usage, Usage, Usage]
    started: float
    after: tuple[Usage, Usage, Usage] = field(init=False)
    wall_s: float = 0.0
    submit_s: float = 0.0
    steady_ms: float = 0.0
    dead: int = 0

    def cost(self) -> JobCost:
        pairs = zip(self.before, self.after, strict=True)
        worker, control, server = ((b.cpu_s - a.cpu_s) * 1000 / self.items for a, b in pairs)
        return JobCost(
            self.items,
            self.wall_s,
            self.submit_s * 1000 / self.items,
            worker,
            control,
            server,
            self.after[0].peak_bytes,
            self.after[1].peak_bytes,
            self.dead,
            self.steady_ms,
        )


class Fleet:
    """Runs jobs, one after the other, and says what each cost."""

    def __init__(
        self,
        place: Path,
        server: RunningRedis,
        worker_pids: Sequence[int],
        control_pid: int,
        database_url: str,
        ask: Ask,
    ) -> None:
        self.database_url = database_url
        self._ask = ask
        self.last_job = ""  # the id of the job that was submitted last
        self.pids = (*worker_pids, control_pid, server.pid)
        self._place = place
        self._server = server
        self._worker_pids = worker_pids
        self._control_pid = control_pid
        self._client = server.client()
        self._jobs = 0

    def run(
        self, items: int, spec: Mapping[str, Any] | None = None, *, texts: int | None = None
    ) -> JobCost:
        """Submit a file of ``items`` documents, of ``texts`` requests where not all are different,
        and wait for its end.

        Raises GroundError when it stalls.
        """
        self._jobs += 1
        path = write_documents(self._place / f"job-{self._jobs}.jsonl", items, texts=texts)
        with self._measured(items) as found:
            self.last_job, found.submit_s = self._submit(path, spec or {})
            found.steady_ms = self._wait(self.last_job, items)
            found.dead = int(self._client.hget(_stats(self.last_job), "dead") or 0)
        path.unlink()
        return found.cost()

    def run_many(self, jobs: int, each: int) -> JobCost:
        """The same for many small jobs at once."""
        path = write_documents(self._place / "many.jsonl", each)
        with self._measured(jobs * each) as found:
            submitted = [self._submit(path, {}) for _ in range(jobs)]
            found.submit_s = sum(cpu_s for _, cpu_s in submitted)
            for job_id, _ in submitted:
                self._wait(job_id, each)
        return found.cost()

    def _submit(self, path: Path, spec: Mapping[str, Any]) -> tuple[str, float]:
        """Return the job's id, and the seconds of CPU that submitting took."""
        answer = self._ask({"path": str(path), "spec": dict(spec)})
        return answer["job"], answer["cpu_s"]

    def done(self) -> int:
        """Documents of the last job that have an outcome; 0 while it is being submitted."""
        counts = self._client.hmget(f"penstock:{self.last_job}:stats", ["succeeded", "dead"])
        return sum(int(count or 0) for count in cast(list[bytes | None], counts))

    def redis_info(self, section: str) -> Mapping[str, Any]:
        info: Any = self._client.info(section)
        return cast(Mapping[str, Any], info)

    def redis_peak(self) -> int:
        """The most bytes of Redis at one time since the last job began."""
        return int(self.redis_info("memory")["used_memory_peak"])

    @contextlib.contextmanager
    def _measured(self, items: int) -> Iterator[_Job]:
        self._client.config_resetstat()  # so that the peak is this job's
        found = _Job(items, self.usages(), time.monotonic())
        yield found
        found.wall_s, found.after = time.monotonic() - found.started, self.usages()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while int(self._client.zcard("penstock:workers")) < len(self._worker_pids):
            if time.monotonic() > deadline:
                raise GroundError(
                    f"no worker reported within {READY_TIMEOUT_S:.0f} s; see {self._place}"
                )
            time.sleep(LOOK_EACH_S)

    def _wait(self, job: str, items: int) -> float:
        """Looks at one counter in Redis, so that waiting costs the measured processes nothing.

        Returns ``steady_ms``."""
        last, moved_at = -1, time.monotonic()
        # items done and seconds of CPU, where each of STEADY was passed
        marks: list[tuple[int, float]] = []
        while True:
            done = sum(
                int(count or 0) for count in self._client.hmget(_stats(job), ["succeeded", "dead"])
            )
            while len(marks) < len(STEADY) and done >= STEADY[len(marks)] * items:
                marks.append((done, self._workers().cpu_s))
            if done >= items and self._ask({"job": job})["over"]:
                (first, before), (second, after) = marks
                return (after - before) * 1000 / max(1, second - first)
            if done != last:
                last, moved_at = done, time.monotonic()
            elif time.monotonic() - moved_at > STALLED_S:
                raise GroundError(
                    f"{done} of {items} items after {STALLED_S:.0f} s of silence; see {self._place}"
                )
            time.sleep(LOOK_EACH_S)

    def usages(self) -> tuple[Usage, Usage, Usage]:
        return self._workers(), usage(self._control_pid), usage(self._server.pid)

    def _workers(self) -> Usage:
        """All of them together; the peak is that of the largest."""
        each = [usage(pid) for pid in self._worker_pids]
        return Usage(sum(one.cpu_s for one in each), max(one.peak_bytes for one in each))


@contextlib.contextmanager
def fleet(
    place: Path,
    server: RunningRedis,
    *,
    worker: str,
    concurrency: int,
    base_url: str = "http://127.0.0.1:9/v1",
    lane: str = "api",
    settings: Mapping[str, str] | None = None,
    workers: int = 1,
    checkout: Path = ROOT,
    database_url: str | None = None,
    warm_up: Mapping[str, Any] | None = None,
) -> Iterator[Fleet]:
    """``worker`` is the module of the worker process, the real one or one with another lane;
    ``lane`` its argument.

    ``settings`` are further variables of all processes, which run the code of ``checkout``;
    ``warm_up`` are the options of the first job, which nothing is measured of.
    """
    place.mkdir(parents=True, exist_ok=True)
    database_url = database_url or f"sqlite:///{place / 'ledger.db'}"
    variables = _variables(place, server, concurrency, base_url, database_url) | dict(
        settings or {}
    )
    with contextlib.ExitStack() as processes:
        submitting = processes.enter_context(
            process(
                [sys.executable, str(ROOT / "benchmarks/harness/submitting.py"), database_url],
                variables=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                log=place / "submitting.log",
                checkout=checkout,
            )
        )

        def read() -> dict[str, Any]:
            assert submitting.stdout is not None
            line = submitting.stdout.readline()
            if not line:
                raise GroundError(f"the process that submits has ended; see {place}")
            answer: dict[str, Any] = orjson.loads(line)
            return answer

        def ask(question: Mapping[str, Any]) -> dict[str, Any]:
            assert submitting.stdin is not None
            submitting.stdin.write(orjson.dumps(question) + b"\n")
            submitting.stdin.flush()
            return read()

        read()  # the database is migrated

        def start(module: str, argument: str, log: str) -> int:
            command = [sys.executable, "-m", module, argument]
            return processes.enter_context(
                process(command, variables=variables, log=place / log, checkout=checkout)
            ).pid

        control = start("penstock_workers", "control", "c.log")
        running = Fleet(
            place,
            server,
            [start(worker, lane, f"w{n}.log") for n in range(workers)],
            control,
            database_url,
            ask,
        )
        running.wait_ready()
        running.run(WARM_UP_DOCS, warm_up)
        yield running


def _variables(
    place: Path, server: RunningRedis, concurrency: int, base_url: str, database_url: str
) -> dict[str, str]:
    config = place / "penstock.toml"
    config.write_text("")
    return {
        "PENSTOCK_CONFIG": str(config),
        "PENSTOCK_REDIS_URL": server.url,
        "PENSTOCK_DATABASE_URL": database_url,
        "PENSTOCK_CONCURRENCY": str(concurrency),
        "PENSTOCK_CONTROL": "false",
        "PENSTOCK_PROVIDERS": orjson.dumps({"default": {"base_url": base_url}}).decode(),
    }


def _stats(job_id: str) -> str:
    return f"penstock:{job_id}:stats"
