"""The loop that items run on: uvloop where it is installed and wanted, asyncio's own elsewhere."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from unittest.mock import AsyncMock

import pytest
from celery.exceptions import WorkerShutdown
from celery.worker import state

from penstock_cli.doctor.checks import _loop
from penstock_workers.celery_app import engine_thread


@pytest.fixture
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


class Circle:
    itself: Circle


def module_of_loop(factory: engine_thread.LoopFactory | None) -> str:
    """The module whose loop a thread beside the main one runs on, a child process included."""
    found: list[str] = []

    async def main() -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(3)")
        assert await process.wait() == 3
        found.append(type(asyncio.get_running_loop()).__module__.partition(".")[0])

    def run() -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    return found[0]


def test_uvloop_is_taken_where_it_is_installed() -> None:
    """And child processes, which hooks run in, are started and waited for from its thread."""
    pytest.importorskip("uvloop")
    assert module_of_loop(engine_thread.loop_factory(uvloop=True)) == "uvloop"
    assert _loop(wanted=True).startswith("items run on uvloop ")


def test_the_setting_turns_it_off() -> None:
    """``uvloop = false`` is asyncio's own loop."""
    assert engine_thread.loop_factory(uvloop=False) is None
    assert module_of_loop(None) == "asyncio"
    assert _loop(wanted=False) == "items run on asyncio's own loop: uvloop = false"


def test_without_uvloop_items_run_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it has no wheel, nothing else changes."""
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert engine_thread.loop_factory(uvloop=True) is None


def test_the_collector_walks_seldom_and_never_what_was_there_at_start(thresholds: None) -> None:
    """Hundreds of items hold more new objects than Python's threshold: they are not walked with
    every few of them."""
    engine_thread.spare_the_collector()
    assert gc.get_threshold() == (
        engine_thread.NEW_OBJECTS,
        engine_thread.YOUNG_WALKS,
        engine_thread.MIDDLE_WALKS,
    )
    assert gc.get_freeze_count() > 10_000


def test_a_circle_is_freed_in_a_process_that_makes_few_objects(
    monkeypatch: pytest.MonkeyPatch, thresholds: None
) -> None:
    """Statements of SQL are circles: a control process that is idle for most of an hour kept all of
    that hour."""
    monkeypatch.setattr(engine_thread, "FREE_EACH_S", 0.0)
    monkeypatch.setattr(engine_thread, "FREE_REST", 0.0)
    monkeypatch.setattr(engine_thread, "LOOP_BEAT_S", 0.001)
    hosting, freed = engine_thread.EngineThread(lambda: AsyncMock()), threading.Event()
    hosting.start(AsyncMock())
    try:
        circle = Circle()
        circle.itself = circle
        weakref.finalize(circle, freed.set)
        del circle
        assert freed.wait(10)
    finally:
        assert hosting.stop(10)


@pytest.mark.parametrize(
    ("took_s", "next_s"), [(0.005, engine_thread.FREE_EACH_S), (0.2, 200.0)], ids=["small", "large"]
)
def test_walks_of_everything_take_a_thousandth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, took_s: float, next_s: float
) -> None:
    """Where much is in flight a walk takes longer, and the next one comes later."""
    now, walks = 0.0, list[float]()

    def walk() -> int:
        nonlocal now
        walks.append(now)
        now += took_s
        return 0

    monkeypatch.setattr(gc, "collect", walk)
    freeing = engine_thread.Freeing(lambda: now)
    for second in range(600):
        now = max(now, float(second))
        freeing.look()
    assert walks[0] == engine_thread.FREE_EACH_S
    assert walks[1] - walks[0] == pytest.approx(next_s + took_s, abs=1.0)


def test_an_engine_that_is_up_when_its_worker_is_asked_to_stop_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The signal came while it started, and was looked for after that."""
    engine, signalled = AsyncMock(), threading.Event()

    async def come_up(_bridge: object) -> None:
        await asyncio.to_thread(signalled.wait, 10)

    engine.start.side_effect = come_up
    hosting = engine_thread.EngineThread(lambda: engine)
    monkeypatch.setattr(engine_thread, "START_LOOK_S", 0.01)
    monkeypatch.setattr(state, "should_stop", None)

    def signal_comes() -> None:
        monkeypatch.setattr(state, "should_stop", 0)
        signalled.set()
        concurrent.futures.wait([hosting._ready], 10)

    with pytest.raises(WorkerShutdown):
        hosting.start(AsyncMock(), signal_comes)
    engine.start.assert_awaited_once()
    engine.stop.assert_awaited_once()
    assert hosting.stop(0)  # its thread has ended
