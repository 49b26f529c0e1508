"""Worker processes for tests: the real app with an engine that sleeps, and writes down what it ran
and finished.

What it ran goes to a file, because the tests also take Redis away; what it finished goes to Redis,
as in a real engine.

Run as a program it is such a worker; imported it starts, signals and awaits them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import redis
from attempts import dead, done
from forked import Penstock
from servers import RedisServer, as_bytes

from penstock_ledger.model import ItemKey
from penstock_producer.accepting.remote_limits import DoorSettings
from penstock_producer.feed.wire import encode_item
from penstock_workers.celery_app.app import PenstockApp
from penstock_workers.item.deliveries import Bridge, Delivery, ItemEngine
from penstock_workers.item.outcome import Outcome, Released, Retry
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.metrics.samples import Sample
from penstock_workers.settings import WorkerSettings

QUEUE = "penstock.api"
DONE = "test:done"  # set: task ids that were concluded durably
READY = "test:ready"  # set: worker names
LINGER_S = 0.02


@dataclass(frozen=True)
class Settings:
    """The part of WorkerSettings that the Celery edge reads, and what the test engine does."""

    redis_url: str
    broker_transport: str = "penstock"
    broker_url: str | None = None
    lane: str = "api"
    remote_control: bool = True
    concurrency: int = 32
    prefetch_multiplier: int = 2
    drain_seconds: float = 5.0
    visibility_timeout_s: float = 3.0
    event_sample: float | None = None
    uvloop: bool = True
    seconds: float = 0.0  # how long each item runs
    name: str = "w"
    runs: str = ""  # file: one line with the task id for every start
    fails_to_start: bool = False
    probe_dir: Path | None = None
    metrics_port: int | None = None
    spot_notices: None = None
    metrics_host: str = "127.0.0.1"
    stalled_s: float = 45.0  # see liveness.STALLED_S
    finds_slots: int | None = None  # other than ``concurrency``, once it is up
    starts_s: float = 0.0  # how long the engine takes to start
    control: bool = True
    result_backend_url: str | None = None
    hook_modules: tuple[str, ...] = ()
    doors = DoorSettings()  # no field: it does not travel to a worker

    @property
    def gpu(self) -> GpuSettings:
        """Of a worker that hosts no model, as beside a server that has not said what it serves."""
        return GpuSettings()

    def for_app(self) -> WorkerSettings:
        """As ``create_app`` takes them: it and what it makes read these fields and no others."""
        return cast("WorkerSettings", self)


def no_engine(_app: PenstockApp, _settings: WorkerSettings) -> ItemEngine:
    """Of an app in a test's own process, which starts no worker."""
    raise AssertionError("this app runs no items")


class RecordingEngine:
    """Runs up to ``concurrency`` items at once; kwargs may ask for another outcome than success."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loads = False
        self._redis = redis.Redis.from_url(settings.redis_url)
        self._runs = open(settings.runs, "a", buffering=1)  # noqa: SIM115 - for as long as the process lives
        self._slots = asyncio.Semaphore(self.slots())
        self._tasks: dict[Delivery, asyncio.Task[None]] = {}
        self._running: set[Delivery] = set()
        self._settled: list[Any] = []
        self.aborted: dict[str, int] = {}

    async def start(self, bridge: Bridge) -> None:
        if self._settings.fails_to_start:
            raise RuntimeError("the engine has no key")
        self._loads = True
        await asyncio.sleep(self._settings.starts_s)
        self._bridge = bridge
        self._loads = False

    def accept(self, delivery: Delivery) -> None:
        self._tasks[delivery] = asyncio.create_task(self._run(delivery))

    def abort(self, delivery: Delivery, why: str) -> None:
        self.aborted[why] = self.aborted.get(why, 0) + 1
        task = self._tasks.pop(delivery, None)
        if task is not None:
            task.cancel()

    async def drain(self, deadline_s: float) -> None:
        waiting = [delivery for delivery in self._tasks if delivery not in self._running]
        for delivery in waiting:
            self._tasks.pop(delivery).cancel()
        self._bridge.conclude([(delivery, Released("drain")) for delivery in waiting])
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=deadline_s)
        self._flush()
        self._bridge.conclude([(delivery, Released("drain")) for delivery in self._tasks])

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def slots(self) -> int:
        return self._settings.finds_slots or self._settings.concurrency

    def resize(self, concurrency: int) -> None:
        self.size = concurrency

    def stats(self) -> Mapping[str, int | float | str]:
        return {"aborted": sum(self.aborted.values()), "resized": getattr(self, "size", 0)}

    def stuck(self) -> str | None:
        return None

    def trouble(self) -> str | None:
        return "the model loads" if self._loads else None

    def figures(self) -> Iterable[Sample]:
        return ()

    async def _run(self, delivery: Delivery) -> None:
        async with self._slots:
            self._running.add(delivery)
            try:
                await self._bridge.sure()
                self._bridge.started(delivery)
                self._runs.write(f"{delivery.task_id}\n")
                await asyncio.sleep(self._settings.seconds)
                self._settle(delivery)
            finally:
                self._running.discard(delivery)

    def _settle(self, delivery: Delivery) -> None:
        self._tasks.pop(delivery, None)
        self._settled.append((delivery, _outcome(delivery)))
        if len(self._settled) == 1:
            asyncio.get_running_loop().call_later(LINGER_S, self._flush)

    def _flush(self) -> None:
        if not self._settled:
            return
        try:
            self._redis.sadd(DONE, *[delivery.task_id for delivery, _ in self._settled])
        except redis.RedisError:  # the store is away: try until it is back, as a real one does
            asyncio.get_running_loop().call_later(LINGER_S, self._flush)
            return
        settled, self._settled = self._settled, []
        self._bridge.conclude(settled)


def _outcome(delivery: Delivery) -> Outcome:
    body = delivery.kwargs.get("body") if isinstance(delivery.kwargs, dict) else None
    wish = (body or {}).get("outcome")
    if wish == "failed":
        return dead("the provider said no")
    if wish == "retried":
        return Retry(1.5, "rate limited")
    return done()


@dataclass
class WorkerProcess:
    """One worker in a process of its own."""

    settings: Settings
    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def launch(cls, settings: Settings, folder: Path, *options: str) -> WorkerProcess:
        log = folder / f"{settings.name}.log"
        with log.open("wb") as out:
            said = json.dumps(asdict(settings), default=str)
            process = Penstock(
                [said, *options], program=Path(__file__), stdout=out, stderr=subprocess.STDOUT
            )
        return cls(settings, process, log)

    def until_ready(self) -> WorkerProcess:
        client = redis.Redis.from_url(self.settings.redis_url)
        until(
            lambda: self.is_alive() and client.sismember(READY, self.settings.name), 30, self.text
        )
        return self

    def is_alive(self) -> bool:
        assert self.process.poll() is None, f"the worker has ended:\n{self.text()}"
        return True

    def text(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 30) -> int:
        self.send(number)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGCONT)
            self.process.kill()
            self.process.wait()


@dataclass
class Fleet:
    """Starts workers on one broker, and ends those that are left."""

    server: RedisServer
    folder: Path
    workers: list[WorkerProcess] = field(default_factory=list)

    def start(self, *options: str, **settings: Any) -> WorkerProcess:
        return self.launch(*options, **settings).until_ready()

    def launch(self, *options: str, **settings: Any) -> WorkerProcess:
        """A worker that may not be ready yet."""
        settings.setdefault("name", f"w{len(self.workers)}")
        settings["runs"] = str(self.folder / f"{settings['name']}.runs")
        worker = WorkerProcess.launch(Settings(self.server.url, **settings), self.folder, *options)
        self.workers.append(worker)
        return worker

    def publish(self, number: int, *, first: int = 0, **body: Any) -> list[str]:
        keys = [ItemKey("job", 1, f"d{n}") for n in range(first, first + number)]
        text = json.dumps({"model": "m", **body}).encode()
        pipe = self.server.client().pipeline(transaction=False)
        for key in keys:
            pipe.lpush(QUEUE, encode_item(key, queue=QUEUE, body=text, ref=None))
        pipe.execute()
        return [f"job:{key.doc_id}" for key in keys]

    def runs(self) -> dict[str, int]:
        """How often each task was started, over all workers."""
        return Counter(
            line for file in self.folder.glob("*.runs") for line in file.read_text().split()
        )

    def done(self) -> set[str]:
        return {as_bytes(tag).decode() for tag in self.server.client().smembers(DONE)}

    def queued(self) -> int:
        return int(self.server.client().llen(QUEUE))

    def held(self) -> int:
        return int(self.server.client().hlen("unacked.api"))

    def is_empty(self) -> bool:
        client = self.server.client()
        return bool(self.queued() == self.held() == client.zcard("unacked_index.api") == 0)

    def end(self) -> None:
        for worker in self.workers:
            worker.kill()


@contextlib.contextmanager
def fleet_on(server: RedisServer, folder: Path) -> Iterator[Fleet]:
    fleet = Fleet(server, folder)
    try:
        yield fleet
    finally:
        fleet.end()


def until(
    condition: Callable[[], Any], timeout_s: float = 20, explain: Callable[[], str] = str
) -> None:
    """Polls; fails with what ``explain`` says when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s. {explain()}"
        time.sleep(0.02)


def main() -> None:
    from celery.signals import worker_ready

    from penstock_workers.celery_app import liveness, pool
    from penstock_workers.celery_app.app import create_app

    settings = Settings(**json.loads(sys.argv[1]))
    probes = settings.probe_dir and Path(settings.probe_dir)
    settings = replace(settings, probe_dir=probes)
    setattr(pool, "BEAT_S", 0.1)  # noqa: B010 - the pool has imported the name, and for mypy it is not the pool's to set
    liveness.STALLED_S = settings.stalled_s
    client = redis.Redis.from_url(settings.redis_url)
    app = create_app(settings.for_app(), lambda _app, _settings: RecordingEngine(settings))

    hubs: list[Any] = []

    def add(a: int, b: int) -> None:
        client.set("test:sum", a + b)

    def go_deaf() -> None:
        """What a reconnect that went half wrong leaves behind: a hub that turns, and never asks for
        messages again."""
        hubs[0].call_soon(hubs[0].on_tick.clear)

    def tell(sender: Any, **_: Any) -> None:
        hubs.append(sender.hub)
        client.sadd(READY, settings.name)

    app.task(name="test.add")(add)
    app.task(name="test.go_deaf")(go_deaf)
    worker_ready.connect(tell, weak=False)
    app.worker_main(
        [
            "worker",
            "--loglevel",
            "WARNING",
            "--without-mingle",
            "--without-gossip",
            "-n",
            f"{settings.name}@test",
            *sys.argv[2:],
        ]
    )


if __name__ == "__main__":
    main()
