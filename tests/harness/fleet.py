"""A whole fleet on loopback: Redis, a ledger, a simulated provider and worker processes, each
killed only by its own pid.

`with Fleet(folder) as fleet` starts Redis; the rest is started by name. When the block fails, the
ends of all logs are printed. The provider's own call log says what was paid; the ledger says what
came of it; ``Fleet.account`` compares.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from forked import Penstock, run
from redis_sets import SentinelSet
from servers import RedisServer, free_port

from penstock_ledger import QueueBook, RedisLedger, keys
from penstock_ledger.model import Job, JobState
from penstock_producer import Producer
from penstock_producer.feed.queues import LOADS
from penstock_producer.feed.wire import queue_name
from penstock_producer.reporting.reasons import retries

START_S = 120.0  # for a process to be ready, on a machine that is busy with others, too
QUIET_S = 30.0  # for the last acknowledgements to reach Redis
POLL_S = 0.02
LOG_TAIL = 4_000
LEASE_S = 3.0


def until(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    """Poll until ``condition`` holds; a named failure when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(POLL_S)


@dataclass
class Process:
    """One process that we started, and the file that it writes to."""

    name: str
    log: Path
    popen: subprocess.Popen[bytes]

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    def send(self, number: signal.Signals) -> None:
        if self.alive:
            os.kill(self.popen.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.popen.wait()

    def wait(self, timeout_s: float) -> int:
        return self.popen.wait(timeout_s)

    def tail(self) -> str:
        return (
            f"---- {self.name} ({self.popen.poll()})\n"
            f"{self.log.read_text(errors='replace')[-LOG_TAIL:]}"
        )


@dataclass
class Provider:
    """`penstock simulate` on a port that stays the same when it is killed and started again, as
    does its call log."""

    folder: Path
    port: int = field(default_factory=free_port)
    host: str = "127.0.0.1"
    process: Process | None = None
    scheme: str = "http"  # https where it is started with a certificate

    @property
    def root(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    @property
    def call_log(self) -> Path:
        return self.folder / "calls.jsonl"

    def start(self, *flags: str) -> Self:
        log = self.folder / "provider.log"
        words = ["simulate", "--port", str(self.port), "--call-log", str(self.call_log), *flags]
        with log.open("ab") as out:
            popen = Penstock(words, stdout=out, stderr=subprocess.STDOUT)
        self.process = Process("provider", log, popen)
        until(self._answers, START_S, f"the simulated provider answers: {self.process.tail()}")
        return self

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def tell(self, **controls: object) -> None:
        """Change its settings while it runs."""
        with self._open("/control", json.dumps(controls).encode()):
            pass

    def in_flight(self) -> int:
        return int(self._stats()["in_flight"])

    def calls(self, job: Job | None = None) -> Counter[str]:
        """Calls by document of one job, or by tag of all, as the provider wrote them down before it
        answered."""
        lines = self.call_log.read_text().splitlines() if self.call_log.exists() else []
        tags = Counter(json.loads(line)["document"] for line in lines)
        if job is None:
            return tags
        mine = f"{job.job_id}:"
        return Counter(
            {tag.removeprefix(mine): count for tag, count in tags.items() if tag.startswith(mine)}
        )

    def _stats(self) -> dict[str, Any]:
        with self._open("/stats") as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def _open(self, path: str, data: bytes | None = None) -> Any:
        """Whatever its certificate is: we are not the ones who must refuse it."""
        context = ssl._create_unverified_context() if self.scheme == "https" else None
        return urllib.request.urlopen(self.root + path, data=data, timeout=5, context=context)

    def _answers(self) -> bool:
        try:
            return bool(self._stats())
        except OSError:
            return False


@dataclass(frozen=True)
class Account:
    """What a job came to."""

    results: frozenset[str]
    dead: Mapping[str, str]  # document -> reason
    calls: Counter[str]

    @property
    def extra_calls(self) -> int:
        """Oracle C: calls beyond one per document that was called at all."""
        return self.calls.total() - len(self.calls)


class Fleet:
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
        self.folder = folder
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True)
        (folder / "settings.toml").touch()
        self.store: RedisServer | SentinelSet = redis or RedisServer.start(
            folder / "redis", appendonly=appendonly
        )
        self.database_url = database_url or f"sqlite:///{folder}/ledger.db"
        self.provider = Provider(folder)
        self._settings = settings or {}
        self._variables = variables or {}
        self.processes: list[Process] = []
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

    # -- processes ---------------------------------------------------------------------------------

    def worker(self, concurrency: int = 8, *, lane: str = "api", **settings: object) -> Process:
        """Start a worker; it is ready when it says so, which ``ready`` awaits.

        ``settings`` are PENSTOCK_* variables."""
        return self._start(lane, ["worker", "--lane", lane, "-c", str(concurrency)], settings)

    def control(self, **settings: object) -> Process:
        """The control loop in a process of its own."""
        return self._start("control", ["control"], settings)

    def command(self, name: str, *arguments: str, **settings: object) -> Process:
        """Another Penstock command that runs until it is ended."""
        return self._start(name, arguments, settings)

    def _start(
        self, lane: str, arguments: Sequence[str], settings: Mapping[str, object]
    ) -> Process:
        name = f"{lane}-{len(self.processes)}"
        log = self.logs / f"{name}.log"
        with log.open("ab") as out:
            popen = Penstock(
                arguments,
                env=self._environment(settings),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process = Process(name, log, popen)
        self.processes.append(process)
        return process

    def penstock(self, *arguments: str) -> str:
        """What a Penstock command prints, with the settings of this fleet."""
        done = self.run(*arguments)
        done.check_returncode()
        return done.stdout

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The same for a command that may fail."""
        return run(arguments, START_S, env=self._environment({}))

    def heard_of(self) -> set[int]:
        """Pids of workers whose heartbeat says that they take items: of those that host a model,
        with the model up."""
        seen = RedisLedger(self.store.client(), "").workers()
        return {int(worker.name.rpartition("-")[2]) for worker in seen if LOADS not in worker.info}

    def ready(self, *workers: Process) -> None:
        wanted = {worker.popen.pid for worker in workers}
        until(lambda: wanted <= self.heard_of(), START_S, "workers are ready")

    def replace_dead(self, start: Callable[[], Process]) -> None:
        """Replace workers that have died, as a supervisor would."""
        for process in [
            process for process in self.processes if not process.alive and process.name[:3] == "api"
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
            **self._settings,
            **settings,
        }
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")
        }
        return (
            kept
            | dict(self._variables)
            | {f"PENSTOCK_{name.upper()}": str(value).strip() for name, value in chosen.items()}
        )

    # -- jobs --------------------------------------------------------------------------------------

    @property
    def sources(self) -> Path:
        """The folder of ``source``, apart from the ledger, so that remote jobs may be allowed to
        read it."""
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

    @staticmethod
    def spec(**more: object) -> dict[str, object]:
        return {"lane": "api", "model": "sim", "prompt": "Summarise: {text}"} | more

    def state(self, job: Job) -> JobState:
        return self.producer.status(job.job_id).job.state

    def finished(self, job: Job) -> int:
        return self.producer.status(job.job_id).finished

    def wait_for(
        self, job: Job, state: JobState, timeout_s: float, meanwhile: Callable[[], object] = bool
    ) -> None:
        def reached() -> bool:
            meanwhile()
            return self.state(job) is state

        try:
            until(reached, timeout_s, f"the job is {state}")
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.describe(job)}") from None

    def wait_for_outcomes(self, job: Job, number: int, timeout_s: float = 60.0) -> None:
        until(
            lambda: self.finished(job) >= number,
            timeout_s,
            f"{number} outcomes; {self.describe(job)}",
        )

    def wait_until_retried(self, job: Job, times: int) -> None:
        until(lambda: retries(self.counters(job)) >= times, 30, f"{times} tries have failed")

    def wait_for_quiet(self, job: Job) -> None:
        """Nothing is in flight, claimed or queued; parked messages stay."""
        until(
            lambda: not any(self.depths(job)[place] for place in ("queued", "unacked", "delayed")),
            30,
            "quiet",
        )

    def provider_calls(self) -> int:
        return self.provider.calls().total()

    def counters(self, job: Job) -> dict[str, int]:
        """The live counters in Redis."""
        found: Any = self.store.client().hgetall(f"{keys.job_scope(job.job_id)}:stats")
        return {name.decode(): int(value) for name, value in found.items()}

    def describe(self, job: Job) -> str:
        status = self.producer.status(job.job_id)
        calls = self.provider.calls(job).total()
        return (
            f"{status.job.state} ({status.job.reason}), {status.counts}, {self.depths(job)}, "
            f"{calls} calls"
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
        """Oracle L: every document ends in exactly one outcome, and nothing is left in Redis."""
        wanted = (
            {f"doc-{n}" for n in range(documents)} if isinstance(documents, int) else set(documents)
        )
        results = [result.key.doc_id for result in self.producer.results(job.job_id)]
        letters = [
            (letter.key.doc_id, letter.reason) for letter in self.producer.dead_letters(job.job_id)
        ]
        dead = dict(letters)
        assert (len(set(results)), len(dead)) == (len(results), len(letters)), (
            "an outcome is listed twice"
        )
        assert not dead.keys() & set(results), "a document has a result and a dead letter"
        assert (wanted - set(results) - dead.keys(), (set(results) | dead.keys()) - wanted) == (
            set(),
            set(),
        )
        try:
            until(
                lambda: not any(self.depths(job).values()),
                QUIET_S,
                "Redis holds nothing of the job",
            )
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.describe(job)}") from None
        return Account(frozenset(results), dead, self.provider.calls(job))
