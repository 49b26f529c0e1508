"""A worker for the queue path: `python -m benchmarks.harness.queue_worker
penstock|prefork|threads|gevent redis://…`."""

from __future__ import annotations

import sys

POOL, URL = [*sys.argv, "", ""][1:3]
if POOL == "gevent":  # before anything else is imported
    from gevent import monkey  # type: ignore[import-not-found,import-untyped,unused-ignore]

    monkey.patch_all()

import asyncio  # noqa: E402  # after the patch
from collections.abc import Iterable, Mapping  # noqa: E402
from typing import Any  # noqa: E402

from celery import Celery  # noqa: E402

from penstock_producer.feed.wire import TASK_NAME, queue_name  # noqa: E402
from penstock_workers.item.deliveries import Bridge, Delivery  # noqa: E402
from penstock_workers.item.outcome import Skipped  # noqa: E402
from penstock_workers.metrics.samples import Sample  # noqa: E402

QUEUE = queue_name("api")
LINGER_S = 0.02  # as if a group commit took place
CHILDREN, THREADS = 2, 64
WORKER = [
    "worker",
    "--loglevel",
    "WARNING",
    "--without-mingle",
    "--without-gossip",
    "-n",
    "bench@%h",
]


class NullEngine:
    """Concludes everything in groups, and does nothing else."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._concluded: list[tuple[Delivery, Skipped]] = []

    async def start(self, bridge: Bridge) -> None:
        self._bridge = bridge

    def accept(self, delivery: Delivery) -> None:
        self._bridge.started(delivery)
        self._concluded.append((delivery, Skipped("nothing to do")))
        if len(self._concluded) == 1:
            asyncio.get_running_loop().call_later(LINGER_S, self._flush)

    def abort(self, delivery: Delivery, why: str) -> None:
        """Nothing runs."""

    async def drain(self, deadline_s: float) -> None:
        self._flush()

    async def stop(self) -> None:
        """Nothing to close."""

    def slots(self) -> int:
        return self._concurrency

    def resize(self, concurrency: int) -> None:
        """Nothing waits."""

    def stuck(self) -> str | None:
        return None

    def trouble(self) -> str | None:
        return None

    def figures(self) -> Iterable[Sample]:
        return ()

    def stats(self) -> Mapping[str, int | float | str]:
        return {}

    def _flush(self) -> None:
        concluded, self._concluded = self._concluded, []
        self._bridge.conclude(concluded)


def run_ours() -> None:
    from penstock_workers.celery_app.app import create_app
    from penstock_workers.settings import WorkerSettings

    settings = WorkerSettings.load(lane="api", redis_url=URL)
    create_app(settings, lambda _app, settings: NullEngine(settings.concurrency)).worker_main(
        WORKER
    )


def run_stock() -> None:
    """Configured as well as stock Celery can be for this: no priorities, no results, no events,
    generous pools."""
    app = Celery("stock", broker=URL, backend=None)
    app.conf.update(
        task_acks_late=True,
        task_ignore_result=True,
        worker_prefetch_multiplier=2,
        task_default_queue=QUEUE,
        broker_transport_options={"priority_steps": [0], "max_connections": 600},
        task_serializer="json",
    )

    @app.task(name=TASK_NAME)  # type: ignore[untyped-decorator]  # Celery is untyped
    def item(**_: Any) -> None: ...

    concurrency = CHILDREN if POOL == "prefork" else THREADS
    # messages per child or thread: those of prefork need more to stay busy
    prefetch = 64 if POOL == "prefork" else 4
    app.worker_main(
        [*WORKER, "-P", POOL, "-c", str(concurrency), "--prefetch-multiplier", str(prefetch)]
    )


if __name__ == "__main__":
    run_ours() if POOL == "penstock" else run_stock()
