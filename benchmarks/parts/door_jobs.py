"""(j) Jobs over HTTP: from creating one until a worker has its first document, and status calls
while a job runs.

A worker has a document from its claim on, when the lease of it is in Redis; that is looked at every
LOOK_S. Beside jobs and batches that are created over HTTP stand jobs that a Producer submits in
this process, in turns with them. Status calls take turns with a server that answers as many bytes
and does nothing else; the job is slow enough to outlast them.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.harness.callers import Calls, Request, asked, get, medians, quantiles, weighed
from benchmarks.harness.door import door
from benchmarks.harness.fleet import Fleet, fleet
from benchmarks.harness.ground import (
    GroundError,
    RunningRedis,
    floor,
    folder,
    provider,
    redis_server,
    usage,
    write_documents,
)
from benchmarks.harness.report import Report, Row, median
from benchmarks.parts.door_uploads import upload
from penstock_ledger import keys
from penstock_producer import Producer

WORKER = "penstock_workers"
LATENCY_MS = 50.0
CONCURRENCY = 16  # with that latency at most 320 documents a second
DOCUMENTS = 20  # of a job that is only created: claimed at once
TIMES, QUICK_TIMES = 40, 8
# of the job whose status is asked: no batch has more
STATUS_DOCUMENTS, QUICK_DOCUMENTS = (50_000, 15_000)
CALLERS = (1, 8)
CALLS, ROUNDS = 400, 5  # status calls of a round, by all callers together
QUICK_CALLS, QUICK_ROUNDS = 80, 2
LOOK_S = 0.001
# between its looks for new jobs: each is created at any moment of that, not at one that the job
# before decides
CONTROL_S = 0.2
# bounds: until the first claim, until a small job has ended, until a batch runs
CLAIM_S, END_S, START_S = (60.0, 120.0, 60.0)
BATCH, JOB, PRODUCER = "POST /v1/batches", "POST /v1/jobs", "Producer.submit"
LEASES = keys.unacked_index(keys.QUEUE_PREFIX + "api")


def run(quick: bool) -> Report:
    times, rounds, each = (
        (QUICK_TIMES, QUICK_ROUNDS, QUICK_CALLS) if quick else (TIMES, ROUNDS, CALLS)
    )
    with (
        folder() as place,
        redis_server(place) as server,
        provider(LATENCY_MS) as answering,
        floor() as plain,
        fleet(
            place / "fleet", server, worker=WORKER, concurrency=CONCURRENCY, base_url=answering.url
        ) as running,
        door(place, running.database_url, server.url, place / "fleet" / "penstock.toml") as (
            port,
            door_pid,
        ),
    ):
        small = write_documents(place / "small.jsonl", DOCUMENTS)
        claims = Claims(server, running, port, door_pid, small)
        found = claims.measured(times)
        large = write_documents(
            place / "large.jsonl", QUICK_DOCUMENTS if quick else STATUS_DOCUMENTS
        )
        batch = _running(port, upload(port, large))
        floor_port = urlsplit(plain.url).port or 0
        looks = _status(port, door_pid, floor_port, plain.pid, batch, rounds, each)
    return Report(
        f"(j) jobs over HTTP: {times} of each kind, {rounds} round(s) of status calls",
        [*_claim_rows(found, claims.door_ms), *_status_rows(looks)],
    )


class Claims:
    """Creates small jobs one after the other, and waits for the first claim and for the end of
    each."""

    def __init__(
        self, server: RunningRedis, running: Fleet, port: int, door_pid: int, path: Path
    ) -> None:
        self._client = server.client()
        self._url = running.database_url
        self._port = port
        self._pid = door_pid
        self._path = path
        self._file = upload(port, path)
        self.door_ms: dict[str, list[float]] = defaultdict(list)  # the door's CPU until the claim

    def measured(self, times: int) -> Mapping[str, list[float]]:
        """Milliseconds of each kind, in turns."""
        took: dict[str, list[float]] = defaultdict(list)
        with Producer(database_url=self._url) as producer:

            def submitted() -> Callable[[], bool]:
                job_id = producer.submit(self._path, {}).job_id
                return lambda: producer.status(job_id).job.state.final

            moments = random.Random(1)
            for _ in range(times):
                for kind, create in ((BATCH, self._batch), (JOB, self._job), (PRODUCER, submitted)):
                    self._wait(
                        lambda: not self._claimed(),
                        END_S,
                        "documents of the job before are still with a worker",
                    )
                    time.sleep(moments.uniform(0.0, CONTROL_S))
                    spent, began = usage(self._pid).cpu_s, time.perf_counter()
                    is_over = create()
                    self._wait(
                        self._claimed, CLAIM_S, f"no worker has claimed a document of {kind}"
                    )
                    took[kind].append((time.perf_counter() - began) * 1e3)
                    self.door_ms[kind].append((usage(self._pid).cpu_s - spent) * 1e3)
                    self._wait(is_over, END_S, f"the job of {kind} has not ended", 0.02)
        return took

    def _batch(self) -> Callable[[], bool]:
        made = asked(self._port, _batch_of(self._file))
        return self._ended(f"/v1/batches/{made['id']}", "status")

    def _job(self) -> Callable[[], bool]:
        made = asked(self._port, Request("POST", "/v1/jobs", {"source": self._file}))
        return self._ended(f"/v1/jobs/{made['id']}", "state")

    def _ended(self, path: str, field: str) -> Callable[[], bool]:
        return lambda: asked(self._port, Request("GET", path))[field] in ("completed", "failed")

    def _claimed(self) -> bool:
        held: Any = self._client.zcard(LEASES)
        return bool(held)

    def _wait(
        self, is_so: Callable[[], bool], bound_s: float, otherwise: str, look_s: float = LOOK_S
    ) -> None:
        deadline = time.monotonic() + bound_s
        while not is_so():
            if time.monotonic() > deadline:
                raise GroundError(f"{otherwise} after {bound_s:g} s")
            time.sleep(look_s)


def _batch_of(file_id: str) -> Request:
    given = {
        "input_file_id": file_id,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    return Request("POST", "/v1/batches", given)


def _running(port: int, file_id: str) -> dict[str, Any]:
    """A batch that is under way. Raises GroundError."""
    made = asked(port, _batch_of(file_id))
    deadline = time.monotonic() + START_S
    while True:
        batch: dict[str, Any] = asked(port, Request("GET", f"/v1/batches/{made['id']}"))
        if batch["request_counts"]["completed"]:
            return batch
        if time.monotonic() > deadline or batch["status"] == "failed":
            raise GroundError(
                f"the batch is {batch['status']}, and nothing of it was answered in {START_S:g} s: "
                f"{batch['errors']}"
            )
        time.sleep(0.1)


def _status(
    port: int,
    door_pid: int,
    floor_port: int,
    floor_pid: int,
    batch: Mapping[str, Any],
    rounds: int,
    number: int,
) -> dict[tuple[str, int], tuple[list[Calls], list[Calls]]]:
    """By what is asked and the callers: calls of the door, and those of the floor.

    Raises GroundError where the job ends."""
    paths = {
        "GET /v1/jobs/ID": f"/v1/jobs/{batch['penstock']['job_id']}",
        "GET /v1/batches/ID": f"/v1/batches/{batch['id']}",
    }
    found: dict[tuple[str, int], tuple[list[Calls], list[Calls]]] = defaultdict(lambda: ([], []))
    for _ in range(rounds):
        for callers in CALLERS:
            for name, path in paths.items():
                one = weighed(port, callers, number // callers, get(path), (door_pid,))
                beside = weighed(
                    floor_port, callers, number // callers, get(f"/{one.size}"), (floor_pid,)
                )
                found[name, callers][0].append(one)
                found[name, callers][1].append(beside)
    now = asked(port, Request("GET", paths["GET /v1/batches/ID"]))["status"]
    if now != "in_progress":
        raise GroundError(
            f"the job did not outlast its status calls: it is {now}; give it more documents"
        )
    return found


def _claim_rows(
    took: Mapping[str, list[float]], door_ms: Mapping[str, list[float]]
) -> Iterator[Row]:
    beside = dict(zip(("p50", "p99"), quantiles(took[PRODUCER]), strict=True))
    for kind in (BATCH, JOB):
        for name, figure in zip(("p50", "p99"), quantiles(took[kind]), strict=True):
            ratio = f"+{figure - beside[name]:.0f} ms"
            yield Row(
                f"{kind} to the first claim: {name}",
                f"{figure:.0f} ms",
                f"{beside[name]:.0f} ms {PRODUCER}",
                ratio,
            )
        yield Row(f"{kind} to the first claim: CPU of the door", f"{median(door_ms[kind]):.0f} ms")


def _status_rows(looks: Mapping[tuple[str, int], tuple[list[Calls], list[Calls]]]) -> Iterator[Row]:
    for (name, callers), (ours, plain) in looks.items():
        one, beside = medians(ours), medians(plain)
        who = f"{name}, {callers} caller{'s' if callers > 1 else ''}"
        yield Row(
            f"{who}: p50, p99",
            f"{one.p50_ms:.1f}, {one.p99_ms:.1f} ms",
            f"{beside.p50_ms:.1f}, {beside.p99_ms:.1f} ms bare",
            f"{one.p50_ms / beside.p50_ms:.1f}x",
        )
        yield Row(f"{who}: calls a second", f"{one.per_s:.0f}", f"{beside.per_s:.0f} bare")
        yield Row(
            f"{who}: CPU of a call",
            f"{one.cpu_ms:.2f} ms",
            f"{beside.cpu_ms:.2f} ms bare",
            f"{one.cpu_ms / beside.cpu_ms:.1f}x",
        )
