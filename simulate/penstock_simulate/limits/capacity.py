"""How many calls the machines behind the provider work on, and what becomes of the others."""

from __future__ import annotations

import heapq
from collections import deque

from penstock_simulate.choices import Crowded
from penstock_simulate.presets import Metering


class ServerSlots:
    """An unbounded first-come-first-served queue in front of ``slots`` equal servers; times are
    known at once."""

    def __init__(self, slots: int) -> None:
        self._ends: list[float] = []  # when each server is free, a heap
        self._starts: deque[float] = deque()  # of the calls that wait, the earliest first
        self._slots = slots

    def enter(self, now: float, service_s: float) -> float:
        """Seconds that a call waits before its ``service_s`` seconds begin."""
        if len(self._ends) < self._slots:
            heapq.heappush(self._ends, now + service_s)
            return 0.0
        start = max(now, self._ends[0])
        heapq.heapreplace(self._ends, start + service_s)
        self._forget(now)
        if start > now:
            self._starts.append(start)
        return start - now

    def change(self, slots: int) -> None:
        """More servers are there at once; with fewer, those that are free last stay."""
        self._slots = slots
        while len(self._ends) > slots:
            heapq.heappop(self._ends)

    def running(self, now: float) -> int:
        return sum(1 for end in self._ends if end > now)

    def waiting(self, now: float) -> int:
        self._forget(now)
        return len(self._starts)

    def _forget(self, now: float) -> None:
        while self._starts and self._starts[0] <= now:
            self._starts.popleft()


def resized(slots: ServerSlots | None, metering: Metering) -> ServerSlots | None:
    """The queue under these settings, with the calls that are in it; None where none is kept."""
    if metering.crowded != Crowded.QUEUED or metering.max_concurrency is None:
        return None
    if slots is None:
        return ServerSlots(metering.max_concurrency)
    slots.change(metering.max_concurrency)
    return slots


def gauges(running: int, waiting: int, model: str) -> str:
    """vLLM's two queue gauges as Prometheus text."""
    labels = f'{{engine="0",model_name="{model}"}}'
    rows = (
        ("vllm:num_requests_running", "Number of requests in model execution batches.", running),
        ("vllm:num_requests_waiting", "Number of requests waiting to be processed.", waiting),
    )
    return "".join(
        f"# HELP {name} {meaning}\n# TYPE {name} gauge\n{name}{labels} {float(value)}\n"
        for name, meaning, value in rows
    )
