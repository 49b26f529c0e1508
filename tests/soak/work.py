"""What a soak's fleet has to do: mixed jobs through every door, each audited when it has ended, and
then purged, so that nothing of it has a reason to stay.
"""

from __future__ import annotations

import io
import json
import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import httpx
import openai
from redis import RedisError

from penstock_cli.chaos.processes import NotInTime, until
from penstock_cli.chaos.stage import PRICE_USD
from penstock_ledger import JobStore
from penstock_ledger.errors import JobNotFound, PenstockError
from penstock_ledger.model import Counts, Job, JobState
from penstock_ledger.stores.account import cost_of_jobs
from soak.crew import Crew

T = TypeVar("T")
MICROUSD_PER_TOKEN = round(PRICE_USD)  # a million of each in a price of a million
SPEC: dict[str, Any] = {"max_attempts": 20, "timeout_s": 6, "stop_at_dead": "off"}
LANE_SPECS: dict[str, dict[str, Any]] = {
    "api": {},
    "gpu": {"lane": "gpu", "model": None},
    "embed": {"lane": "embed", "model": None, "prompt": "{text}", "endpoint": "/v1/embeddings"},
    "batch": {"lane": "batch", "batch_max_requests": 50},
}
LANES, WEIGHTS = tuple(LANE_SPECS), (4, 2, 1, 2)
DOCUMENTS = 50, 400  # of a job
LINES = 20, 200  # of a batch over HTTP
OF_SCHEDULE = 40
SCHEDULE = "each-minute"
CALLERS, MODEL = 4, "sim"
THINKS_S = 0.05, 0.5  # between two calls of a caller
STREAMED = 0.3  # of the calls
PATIENCE_S = 180.0  # with servers that are away
JOB_S = 900.0  # for a job to end, beside the others and under faults
RETRY_S = 0.5
LOOK_S = 0.5
REFUSED = {400, 401, 403, 404, 413, 422}  # what another try does not change
# What a call that failed may be called where the spec gives no 20 attempts: those of doors.
OF_FAULTS = {"connection_lost", "timeout", "server_error", "invalid_answer", "empty_answer"}
AWAY = (PenstockError, OSError, RedisError, openai.APIError, httpx.HTTPError)


@dataclass
class Totals:
    """What came of all of it so far. Each thread adds under the lock of ``Work``."""

    documents: int = 0  # of jobs that were audited
    waited: int = 0  # answers to calls that wait, until their jobs are audited
    jobs: Counter[str] = field(default_factory=Counter)  # by the way that they came
    dead: Counter[str] = field(default_factory=Counter)  # by reason
    twice: int = 0  # good answers of the provider and the engine beyond one for each document
    tokens: int = 0  # in the books, of calls to the provider
    answers: int = 0  # in the books, of batches at the provider
    cost_microusd: int = 0


class Work:
    """Threads that submit, wait, audit and purge until they are to end."""

    def __init__(self, crew: Crew, seed: int) -> None:
        self.crew, self.seed = crew, seed
        self.totals, self.problems = Totals(), list[str]()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._stopped = False
        self._asked: dict[str, set[str]] = {}  # job of calls that wait -> documents answered
        self._numbers = iter(range(1_000_000_000))
        ways: list[Callable[[random.Random], None]] = [
            self._by_producer,
            self._by_producer,
            self._by_command,
            self._by_batch,
            self._by_schedule,
            *[self._by_call] * CALLERS,
        ]
        self._threads = [
            threading.Thread(target=self._go, args=(way, number), name=f"soak-{number}")
            for number, way in enumerate(ways)
        ]

    @property
    def done(self) -> int:
        """What has been answered, by jobs that have ended and calls that wait."""
        return self.totals.documents + self.totals.waited

    def begin(self) -> None:
        source = self.crew.source(OF_SCHEDULE, SCHEDULE)
        words = ["--prompt", "Sum up: {text}", "--model", MODEL, "--overlap"]
        self.crew.penstock("schedule", "add", "* * * * *", str(source), "--name", SCHEDULE, *words)
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Submit nothing more, and wait until everything has ended."""
        self._insist("remove the schedule", lambda: self.crew.producer.schedules.remove(SCHEDULE))
        self._over.set()
        for thread in self._threads:
            thread.join(JOB_S)
            if thread.is_alive():
                self.problems.append(f"{thread.name} does not end")
        self._by_schedule(random.Random(self.seed))  # what its thread has not seen any more
        self._close_calls()

    def stop(self) -> None:
        """Tell the threads to end as soon as they can: the fleet is going."""
        self._stopped = True
        self._over.set()

    # -- ways --------------------------------------------------------------------------------------

    def _go(self, way: Callable[[random.Random], None], number: int) -> None:
        luck = random.Random(f"{self.seed}-{number}")
        while not self._over.is_set():
            try:
                way(luck)
            except Exception:
                if self._stopped:  # the fleet has gone from under it
                    return
                self.problems.append(traceback.format_exc())
                time.sleep(RETRY_S)

    def _by_producer(self, luck: random.Random) -> None:
        lane, documents = luck.choices(LANES, WEIGHTS)[0], luck.randrange(*DOCUMENTS)
        key = f"{lane}-{next(self._numbers)}"
        source = self.crew.source(documents, key)
        spec = self.crew.spec(**SPEC, **LANE_SPECS[lane])
        job = self._insist(
            f"submit {key}", lambda: self.crew.producer.submit(source, spec, job_key=key)
        )
        self._finish("producer", job.job_id, documents)
        source.unlink()

    def _by_command(self, luck: random.Random) -> None:
        lane, documents = luck.choice(("api", "batch")), luck.randrange(*DOCUMENTS)
        key = f"typed-{next(self._numbers)}"
        source = self.crew.source(documents, key)
        words = ["--lane", lane, "--model", MODEL, "--prompt", "Sum up: {text}", "--job", key]
        words += ["--max-attempts", "20", "--timeout", "6", "--stop-at-dead", "off"]
        self._insist(f"type {key}", lambda: self._typed("submit", str(source), *words))
        self._finish("command", key, documents)
        source.unlink()

    def _by_batch(self, luck: random.Random) -> None:
        lines, key = luck.randrange(*LINES), f"lines-{next(self._numbers)}"
        ids = [f"{key}-{number}" for number in range(lines)]
        asked = [
            {"custom_id": one, "method": "POST", "url": "/v1/chat/completions", "body": _chat(one)}
            for one in ids
        ]
        text = "".join(f"{json.dumps(one)}\n" for one in asked).encode()
        with self._client() as client:
            file = self._insist(
                "upload",
                lambda: client.files.create(file=("in.jsonl", io.BytesIO(text)), purpose="batch"),
            )
            batch = self._insist(
                "create a batch",
                lambda: client.batches.create(
                    input_file_id=file.id,
                    endpoint="/v1/chat/completions",
                    completion_window="24h",
                    metadata={"penstock.stop_at_dead": "off"},
                    extra_headers={"Idempotency-Key": key},
                ),
            )
            self._await(f"batch {batch.id}", partial(_ended, client, batch.id))
            ended = self._insist("look", lambda: client.batches.retrieve(batch.id))
            if ended.status != "completed":
                self.problems.append(f"batch {batch.id} has {ended.status}: {ended.errors}")
            found = Counter(
                json.loads(line)["custom_id"]
                for name in (ended.output_file_id, ended.error_file_id)
                if name is not None
                for line in self._insist("read", partial(_read, client, name))
            )
            if found != Counter(ids):
                self.problems.append(
                    f"batch {batch.id} has {found.total()} lines of {len(found)} documents for "
                    f"{lines} of {len(ids)}"
                )
            self._finish("HTTP batch", batch.id, ids)
            # a lost answer to an upload leaves a file whose name no one has heard
            for one in self._insist("list", lambda: list(client.files.list(purpose="batch"))):
                self._insist("delete", partial(_deleted, client, one.id))

    def _by_schedule(self, _: random.Random) -> None:
        jobs = self._insist("list jobs", lambda: JobStore(self.crew.producer._database).list())
        for job in jobs:
            if job.job_key.startswith(f"{SCHEDULE}@"):
                self._finish("schedule", job.job_id, OF_SCHEDULE)
        self._over.wait(LOOK_S)

    def _by_call(self, luck: random.Random) -> None:
        with self._client() as client:
            while not self._over.is_set():
                key, streamed = f"call-{next(self._numbers)}", luck.random() < STREAMED
                named = self._insist("call", partial(_call, client, key, streamed))
                with self._lock:
                    self.totals.waited += 1
                    if named is not None:
                        self._asked.setdefault(named[0], set()).add(named[1])
                self._over.wait(luck.uniform(*THINKS_S))

    def open_jobs(self) -> list[str]:
        """Return the jobs of calls that wait: one for each hour, which nothing purges yet."""
        with self._lock:
            return list(self._asked)

    # -- the audit ---------------------------------------------------------------------------------

    def _finish(self, way: str, name: str, documents: Collection[str] | int) -> None:
        """Wait for the end of a job, hold it to its promises, and purge it."""
        producer = self.crew.producer
        self._await(f"job {name} ends", lambda: producer.status(name).job.state.final)
        job = self._insist("status", lambda: producer.status(name).job)
        if job.state is not JobState.COMPLETED:
            self.problems.append(f"{job.job_key} is {job.state}: {job.reason}")
        account = self._insist("account", lambda: self.crew.account(job, documents))
        self.problems += [f"{job.job_key}: {problem}" for problem in account.problems]
        dead = Counter(account.dead.values())
        if strange := set(dead) - (OF_FAULTS if way in ("HTTP batch", "schedule") else set()):
            self.problems.append(f"{job.job_key} has dead letters of {strange}: {dict(dead)}")
        self._book(job, len(account.results) + len(account.dead), dead, way)
        self._insist("purge", lambda: self._purged(job))

    def _book(self, job: Job, documents: int, dead: Counter[str], way: str) -> None:
        """Compare a job's account with its rows, and add both to the totals."""
        outcomes = self.crew.producer._outcomes

        def read() -> tuple[Counts, Counts, int]:
            counts = self.crew.producer.status(job.job_id).counts
            with self.crew.producer._database.engine.connect() as connection:
                cost = cost_of_jobs(connection, [job.job_id])
            return counts, outcomes.recount(job.job_id), cost

        counts, rows, cost = self._insist("count", read)
        if counts != rows:
            self.problems.append(f"{job.job_key}: the account says {counts}, its rows {rows}")
        totals = self.totals
        with self._lock:
            totals.documents += documents
            totals.jobs[way] += 1
            totals.dead += dead
            totals.cost_microusd += cost
            if job.lane == "batch":
                totals.answers += counts.calls
            elif job.lane == "api":
                totals.tokens += cost // MICROUSD_PER_TOKEN
            if job.lane in ("api", "gpu"):
                called = self.crew.provider if job.lane == "api" else self.crew.engine
                totals.twice += called.twice(job.job_id)

    def _close_calls(self) -> None:
        """Audit the open jobs of calls that wait; they go on until their hour is over."""
        for job_id, answered in self._asked.items():
            job = self._insist("status", partial(self.crew.producer.status, job_id))
            until(partial(self._quiet, job_id), PATIENCE_S, "all calls have outcomes")
            results = [one.key.doc_id for one in self.crew.producer.results(job_id)]
            letters = list(self.crew.producer.dead_letters(job_id))
            known = set(results) | {one.key.doc_id for one in letters}
            if len(known) != len(results) + len(letters):
                self.problems.append(f"{job.job.job_key}: a call has two outcomes")
            if lost := answered - set(results):
                self.problems.append(
                    f"{job.job.job_key}: {len(lost)} answered calls have no result"
                )
            self._book(job.job, len(known), Counter(one.reason for one in letters), "calls")
        self.totals.waited = 0

    def _quiet(self, job_id: str) -> bool:
        status = self.crew.producer.status(job_id)
        return status.finished == status.job.total or not any(self.crew.depths(status.job).values())

    # -- servers that come and go ------------------------------------------------------------------

    def _insist(self, what: str, act: Callable[[], T]) -> T:
        """Do it until it works."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return act()
            except AWAY as error:
                # after FLUSHALL, until the workers of lane api are heard of again
                is_over_soon = getattr(error, "code", None) == "model_not_found"
                is_refused = getattr(error, "status_code", None) in REFUSED and not is_over_soon
                if is_refused or isinstance(error, JobNotFound):
                    raise
                if time.monotonic() >= end:
                    raise NotInTime(f"not within {PATIENCE_S:g} s: {what}: {error}") from error
            time.sleep(RETRY_S)

    def _await(self, what: str, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + JOB_S
        while not self._insist(what, condition):
            if time.monotonic() >= end:
                raise NotInTime(f"not within {JOB_S:g} s: {what}")
            time.sleep(LOOK_S)

    def _client(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.crew.door}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S
        )

    def _typed(self, *words: str) -> None:
        done = self.crew.run(*words)
        if done.returncode:
            raise OSError(f"status {done.returncode}: {done.stderr}")

    def _purged(self, job: Job) -> None:
        answer = httpx.delete(f"{self.crew.door}/v1/jobs/{job.job_id}", timeout=PATIENCE_S)
        if answer.status_code != 404:  # a try before has done it
            answer.raise_for_status()


def _chat(text: str) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": f"Sum up {text}"}]}


def _ended(client: openai.OpenAI, batch_id: str) -> bool:
    return client.batches.retrieve(batch_id).status in ("completed", "failed", "expired")


def _deleted(client: openai.OpenAI, file_id: str) -> None:
    """Delete a file, unless a try before has done it."""
    with suppress(openai.NotFoundError):
        client.files.delete(file_id)


def _read(client: openai.OpenAI, file_id: str) -> list[str]:
    return client.files.content(file_id).text.splitlines()


def _call(client: openai.OpenAI, key: str, streamed: bool) -> tuple[str, str] | None:
    """Make one call; return its job and document, which a stream does not name once it flows."""
    raw: Any = client.chat.completions.with_raw_response
    answer = raw.create(**_chat(key), stream=streamed, extra_headers={"Idempotency-Key": key})
    said = answer.parse()
    for _ in said if streamed else ():
        """An error within it is raised."""
    headers = answer.headers
    if streamed and "x-penstock-job" not in headers:
        return None
    return headers["x-penstock-job"], headers["x-penstock-document"]
