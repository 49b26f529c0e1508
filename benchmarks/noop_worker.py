"""The real worker with a lane that answers at once: `python -m benchmarks.noop_worker`."""

from __future__ import annotations

from typing import Any

from penstock_workers.build import WorkerEngine
from penstock_workers.celery_app.app import create_app
from penstock_workers.item.answer import Answer, Tried
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.settings import WorkerSettings

BODY = (
    b'{"id":"chatcmpl-0","object":"chat.completion","model":"sim-small","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"A fox jumps over a dog."},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":120,"completion_tokens":8,"total_tokens":128}}'
)
HEADERS = {"Content-Type": "application/json", "x-request-id": "req_0"}


class NoopLane:
    """Every request is answered at once, by the same answer."""

    async def start(self) -> None:
        """Nothing to open."""

    async def prepare(self, request: Request) -> Prepared:
        return Prepared(request)

    def gauges(self) -> dict[str, float | str]:
        return {}

    async def infer(self, prepared: Prepared) -> Tried:
        return Answer(200, HEADERS, BODY, 1)

    def drain(self) -> None:
        """Nothing to begin that takes long."""

    async def close(self) -> None:
        """Nothing to close."""


def main() -> None:
    def build(_app: Any, settings: WorkerSettings) -> WorkerEngine:
        return WorkerEngine(settings, NoopLane())

    app = create_app(WorkerSettings.load(lane="api"), build)
    app.worker_main(
        ["worker", "--loglevel", "WARNING", "--without-mingle", "--without-gossip", "-n", "noop@%h"]
    )


if __name__ == "__main__":
    main()
