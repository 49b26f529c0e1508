"""The end of a worker by the clock: its parts add up to less than what is left before it is
killed."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from penstock_cli.processes import gpu_workers
from penstock_cli.run import services
from penstock_workers.celery_app import drain, ending
from penstock_workers.celery_app.drain import Drain
from penstock_workers.celery_app.ending import MachineEnd
from penstock_workers.lanes.gpu.engine import child_engine, guard, in_process_engine
from penstock_workers.spot import BACKOFF_S, NOTICE_S, Notice

DRAIN_S = 25.0
TURNS_S = 3 * drain.TURN_S  # of the drain's own loop


class Clock:
    """Stands still until a part of the end takes its time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in (drain, ending):
            monkeypatch.setattr(module, "monotonic", lambda: self.now)
        monkeypatch.setattr(ending, "time", SimpleNamespace(time=lambda: self.now))


class SlowWorker:
    """Pool, engine and hub in one, each of them as slow as it may be; notes what happened when."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.happened: list[tuple[str, float]] = []

    def note(self, what: str, took_s: float = 0.0) -> None:
        self.happened.append((what, self._clock.now))
        self._clock.now += took_s

    def when(self, what: str) -> float:
        return dict(self.happened)[what]

    def drain(self, _deadline_s: float) -> Future[None]:
        return Future()

    def stop(self, timeout_s: float) -> bool:
        self.note("stop", timeout_s)
        return False

    def deliver(self) -> None:
        self._clock.now += drain.TURN_S

    def is_idle(self) -> bool:
        return False

    def fire_timers(self) -> None:
        """It has none."""

    def give_back_all(self) -> int:
        self.note("give back")
        return 7

    def finish(self, timeout_s: float) -> None:
        self.note("finish", timeout_s)
        self.note("end")


def ended(monkeypatch: pytest.MonkeyPatch, notice_s: float | None) -> tuple[SlowWorker, float]:
    """A worker at the end of its drain, and when that began."""
    clock = Clock(monkeypatch)
    end = MachineEnd()
    if notice_s is not None:
        end.noticed(Notice("gcp", "TRUE", clock.now + notice_s), "gpu")
    began, worker = clock.now, SlowWorker(clock)
    double: Any = worker
    made = Drain(double, double, double, DRAIN_S, end)
    monkeypatch.setattr(made._hurried, "wait", lambda _: False)
    made.run()
    return worker, began


def test_the_slowest_end_fits_what_a_worker_is_killed_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With an engine that does not stop and a Redis that does not answer it is over END_S after the
    drain, as the sum says."""
    worker, began = ended(monkeypatch, None)
    assert worker.when("end") - began - DRAIN_S <= ending.END_S + TURNS_S
    for margin_s in (services.DRAIN_MARGIN_S, gpu_workers.DRAIN_MARGIN_S):
        assert margin_s > ending.END_S


def test_items_are_back_before_the_machine_of_a_notice_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are given back before the engine stops, with RETURN_S left to write that; the engine's
    end may be cut off."""
    worker, began = ended(monkeypatch, NOTICE_S)
    assert [what for what, _ in worker.happened] == ["give back", "stop", "finish", "end"]
    assert began + NOTICE_S - worker.when("give back") >= ending.RETURN_S - TURNS_S


def test_the_shortest_notice_leaves_time_to_finish_items() -> None:
    """Also where the metadata service had failed, and was asked again only after its longest
    pause."""
    assert NOTICE_S - BACKOFF_S - ending.FINISH_S >= 10


def test_an_engine_may_end_before_its_worker_is_given_up() -> None:
    """The pool waits for the engine for longer than the engine waits for vLLM, the killing of its
    processes included (H12)."""
    slowest_s = max(child_engine.SHUTDOWN_S + guard.GONE_S, in_process_engine.STOP_S)
    assert slowest_s <= ending.STOP_TIMEOUT_S
