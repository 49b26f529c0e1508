"""The no-op worker with one failure in a thousand, for flower.py; `stock` sends events as Celery
does by itself."""

from __future__ import annotations

import sys
from typing import Any

from celery.worker.request import Request as CelerysRequest

from benchmarks.noop_worker import BODY, HEADERS, NoopLane
from penstock_workers.build import WorkerEngine
from penstock_workers.celery_app import app as app_module
from penstock_workers.celery_app import handover
from penstock_workers.celery_app.requests import ShortRequest
from penstock_workers.item.answer import Answer, Tried
from penstock_workers.item.lane import Prepared
from penstock_workers.settings import WorkerSettings

FAILS_EACH = 1_000
REFUSED = b'{"error":{"message":"no such document","type":"invalid_request_error","code":null}}'


class FailingLane(NoopLane):
    """Each thousandth call is refused for good."""

    calls = 0

    async def infer(self, prepared: Prepared) -> Tried:
        self.calls += 1
        if self.calls % FAILS_EACH:
            return Answer(200, HEADERS, BODY, 1)
        return Answer(400, HEADERS, REFUSED, 1)


class StockRequest(CelerysRequest):  # type: ignore[misc]  # Celery is untyped
    """Celery's own, in a pool that tells requests of the sample."""

    def receive(self, _sample: Any) -> None:
        """Celery's strategy has sent task-received."""


def use_stock_events() -> None:
    app_module.ItemTask.Request = "benchmarks.parts.flower_worker:StockRequest"
    app_module.ItemTask.send_events = True
    vars(handover)["gather_events"] = lambda *_: None
    # each is Celery's whole request
    type.__setattr__(ShortRequest, "suits", staticmethod(lambda _message: False))


def main() -> None:
    if "stock" in sys.argv:
        use_stock_events()
    settings = WorkerSettings.load(lane="api")
    app = app_module.create_app(settings, lambda _app, given: WorkerEngine(given, FailingLane()))
    app.worker_main(
        ["worker", "--loglevel", "ERROR", "--without-mingle", "--without-gossip", "-n", "noop@%h"]
    )


if __name__ == "__main__":
    main()
