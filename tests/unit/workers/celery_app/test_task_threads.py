"""Ordinary tasks beside the items: one that hangs is given up, its thread replaced, and what it
says later not heard."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from penstock_workers.celery_app.door_threads import THREADS, TaskThreads

WAIT_S = 10.0  # for a thread to come to a point; it takes a millisecond


class Hub:
    """The hub thread of the test itself: calls are made when ``turn`` is called, timers when
    ``ring`` is."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def post(self, step: Callable[..., object], *arguments: Any, **more: Any) -> None:
        self.calls.put(lambda: step(*arguments))

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.timers.append((delay_s, callback))

    def turn(self, until: Callable[[], bool]) -> None:
        while not until():
            self.calls.get(timeout=WAIT_S)()


class Request:
    """What the pool hands over of one task."""

    def __init__(self, tag: str, told: SimpleQueue[str], limit_s: float | None = 5.0) -> None:
        self.id = tag
        self.kwargs = {"job_key": "night"}
        self.message = SimpleNamespace(delivery_tag=tag)
        self.task = SimpleNamespace(time_limit=limit_s, overdue=lambda *_: told.put(tag))
        self.acknowledged = False
        self.fates: list[str] = []

    def on_timeout(self, soft: bool, timeout: float) -> None:
        self.fates.append(f"timed out after {timeout:g}")

    def on_success(self, *_: Any) -> None:
        self.fates.append("done")

    def on_accepted(self, *_: Any) -> None:
        self.fates.append("accepted")


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def told() -> SimpleQueue[str]:
    return SimpleQueue()


@pytest.fixture
def threads(hub: Hub) -> TaskThreads:
    return TaskThreads(hub.post, lambda _message: None, hub.call_later)


def start(threads: TaskThreads, request: Request, target: Callable[[], object]) -> None:
    options = {"callback": request.on_success, "accept_callback": request.on_accepted}
    threads.run(request, target, (), options)


def test_a_task_that_hangs_is_given_up_and_its_thread_replaced(
    hub: Hub, threads: TaskThreads, told: SimpleQueue[str]
) -> None:
    """As many hanging tasks as there are threads fail by their limit, and the next task runs
    (B8)."""
    gate = threading.Event()
    hanging = [Request(f"t{number}", told) for number in range(THREADS)]
    try:
        for request in hanging:
            start(threads, request, lambda: gate.wait(WAIT_S))
        hub.turn(lambda: len(hub.timers) == THREADS)
        assert [delay for delay, _ in hub.timers] == [5.0] * THREADS
        for _, ring in hub.timers:
            ring()
        assert all(request.fates[-1] == "timed out after 5" for request in hanging)
        late = Request("later", told)
        start(threads, late, lambda: None)
        hub.turn(lambda: "done" in late.fates)
        assert {told.get(timeout=WAIT_S) for _ in hanging} == {request.id for request in hanging}
    finally:
        gate.set()


def test_what_a_given_up_task_says_later_is_not_heard(
    hub: Hub, threads: TaskThreads, told: SimpleQueue[str]
) -> None:
    """A task that ends after it was given up is not acknowledged or answered a second time (B8)."""
    gate, request, after = threading.Event(), Request("slow", told), Request("after", told)
    start(threads, request, lambda: gate.wait(WAIT_S))
    hub.turn(lambda: len(hub.timers) == 1 and "accepted" in request.fates)
    hub.timers[0][1]()
    gate.set()
    start(threads, after, lambda: None)
    hub.turn(lambda: "done" in after.fates and hub.calls.empty())
    assert request.fates == ["accepted", "timed out after 5"]


def test_a_task_that_ended_in_time_is_left_alone(
    hub: Hub, threads: TaskThreads, told: SimpleQueue[str]
) -> None:
    """Its timer finds nothing to give up."""
    request = Request("quick", told)
    start(threads, request, lambda: None)
    hub.turn(lambda: "done" in request.fates and not threads.tags)
    for _, ring in hub.timers:
        ring()
    assert request.fates == ["accepted", "done"]
