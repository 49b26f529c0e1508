"""Our gpu lane without queue and ledger: `python -m benchmarks.engines.lane_alone SETUP`.

As many items at once as a worker would hold; each waits for room in the engine like a worker's.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator

import orjson

from benchmarks.engines.items import Item, items
from benchmarks.engines.offline_vllm import WARM_UP
from benchmarks.engines.setup import SERVED_AS, Setup
from benchmarks.engines.work import Work, cpu_seconds, orders, say, setup_of
from benchmarks.harness.ground import GroundError
from penstock_workers.item.answer import Answer
from penstock_workers.item.lane import Request
from penstock_workers.lanes.gpu.gpu_lane import GpuLane
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.settings import WorkerSettings

TIMEOUT_S = 600.0


async def measure(setup: Setup) -> None:
    gpu = GpuSettings(
        model=setup.model,
        names=(SERVED_AS,),
        max_num_seqs=setup.max_num_seqs,
        max_num_batched_tokens=setup.max_num_batched_tokens,
        engine=setup.engine,
    )
    settings = WorkerSettings(lane="gpu", gpu=gpu)
    lane = GpuLane(settings)
    started = time.monotonic()
    await lane.start()
    start_s = time.monotonic() - started
    try:
        await _run(lane, settings, items(setup, setup.max_num_seqs, first=WARM_UP))
        say(start_s)
        told = orders()
        while (order := await asyncio.to_thread(next, told, None)) is not None:
            _, number, first = order
            say(await _run(lane, settings, items(setup, number, first=first)))
    finally:
        await lane.close()


async def _run(lane: GpuLane, settings: WorkerSettings, lines: list[Item]) -> Work:
    # encoded beforehand: the worker finds them so in its queue
    requests = [_request(line) for line in lines]
    answers: list[bytes] = []
    started, cpu_s = time.monotonic(), cpu_seconds()
    shared = iter(requests)
    async with asyncio.TaskGroup() as slots:
        for _ in range(settings.concurrency):
            slots.create_task(_slot(lane, shared, answers))
    seconds, cpu_s = time.monotonic() - started, cpu_seconds() - cpu_s
    return Work(len(answers), seconds, cpu_s)


async def _slot(lane: GpuLane, requests: Iterator[Request], answers: list[bytes]) -> None:
    for request in requests:
        prepared = await lane.prepare(request)
        place = await lane.queue.enter(prepared.tokens)
        try:
            tried = await lane.infer(prepared)
        finally:
            lane.queue.leave(place)
        if not isinstance(tried, Answer):
            raise GroundError(f"{request.tag}: {tried}")
        answers.append(tried.body)


def _request(line: Item) -> Request:
    return Request(line["custom_id"], "default", line["url"], orjson.dumps(line["body"]), TIMEOUT_S)


def main() -> None:
    asyncio.run(measure(setup_of(sys.argv)))


if __name__ == "__main__":
    main()
