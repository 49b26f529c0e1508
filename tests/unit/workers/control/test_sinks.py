"""Passes of the control loop over what results are written into: when they begin, fail, and are
given up."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from penstock_ledger import OutcomesHeldBack
from penstock_ledger.model import Job, JobState
from penstock_producer import JobSpec
from penstock_producer.errors import SinkError, SinkTaken, SinkUnfit
from penstock_workers.control.job.sinks import (
    PASS_EVERY_S,
    PASSES_AT_ONCE,
    RETRY_CAP_S,
    TRIES,
    JobSinks,
    SinkGivenUp,
)

SPEC = JobSpec()


class Played:
    """A sink whose passes end as a test wants them to."""

    def __init__(self, *, grows: bool = True, fails: Iterator[Exception] | None = None) -> None:
        self.name = "played"
        self.grows = grows
        self.passes: list[bool] = []
        self.forgotten: list[str] = []
        self.open = threading.Event()
        self.open.set()
        self._fails = fails or iter(())

    def is_wanted(self, spec: JobSpec) -> bool:
        return True

    def write(self, job: Job, spec: JobSpec, *, whole: bool) -> None:
        self.passes.append(whole)
        assert self.open.wait(10)
        error = next(self._fails, None)
        if error is not None:
            raise error

    def forget(self, job_id: str) -> None:
        self.forgotten.append(job_id)


class Loop:
    """The control thread, with a clock of its own."""

    def __init__(self, sink: Played) -> None:
        self.now = 100.0
        self.ended = threading.Semaphore(0)
        self.sinks = JobSinks((sink,), self.ended.release, clock=lambda: self.now)

    def pass_ends(self) -> None:
        assert self.ended.acquire(timeout=10)


def job(name: str = "job_1", generation: int = 1) -> Job:
    return Job(name, name, {}, {}, "digest", JobState.RUNNING, None, generation, 1, 0.0, None)


def test_what_grows_has_a_pass_now_and_then_and_a_whole_one_at_the_end() -> None:
    """Passes follow one another at a distance while the job runs; it has ended once a pass that
    began after all outcomes has."""
    sink = Played()
    loop = Loop(sink)
    loop.sinks.look(job(), SPEC)
    loop.pass_ends()
    loop.sinks.look(job(), SPEC)
    assert sink.passes == [False]
    loop.now += PASS_EVERY_S
    sink.open.clear()
    loop.sinks.look(job(), SPEC)
    assert not loop.sinks.written(job(), SPEC)
    sink.open.set()
    loop.pass_ends()
    assert not loop.sinks.written(job(), SPEC), (
        "the pass that was under way had begun before the last outcome"
    )
    loop.pass_ends()
    assert loop.sinks.written(job(), SPEC)
    assert loop.sinks.written(job(), SPEC)
    assert sink.passes == [False, False, True]
    loop.sinks.keep_only(())
    assert sink.forgotten == ["job_1"]


def test_files_are_written_at_the_end_alone_and_one_job_after_the_other() -> None:
    """While the job runs nothing is written; of two that end, the second waits, and a replay is
    written anew."""
    sink = Played(grows=False)
    loop = Loop(sink)
    loop.sinks.look(job(), SPEC)
    sink.open.clear()
    assert not loop.sinks.written(job(), SPEC)
    assert not loop.sinks.written(job("job_2"), SPEC)
    sink.open.set()
    loop.pass_ends()
    assert sink.passes == [True]
    assert loop.sinks.written(job(), SPEC)
    assert not loop.sinks.written(job("job_2"), SPEC)
    loop.pass_ends()
    assert loop.sinks.written(job("job_2"), SPEC)
    assert not loop.sinks.written(job(generation=2), SPEC)
    loop.pass_ends()
    assert loop.sinks.written(job(generation=2), SPEC)


def test_a_database_that_hangs_holds_up_no_more_than_its_own_job() -> None:
    """A few passes at a time; what finds no room begins in a later round."""
    sink = Played()
    loop = Loop(sink)
    sink.open.clear()
    for number in range(PASSES_AT_ONCE + 2):
        loop.sinks.look(job(f"job_{number}"), SPEC)
    sink.open.set()
    for _ in range(PASSES_AT_ONCE):
        loop.pass_ends()
    assert len(sink.passes) == PASSES_AT_ONCE
    loop.sinks.look(job(f"job_{PASSES_AT_ONCE}"), SPEC)
    loop.pass_ends()
    assert len(sink.passes) == PASSES_AT_ONCE + 1


def test_a_failure_is_tried_again_later_and_given_up_in_the_end() -> None:
    """Each wait is longer than the last, up to a bound; then the reason is given, and a resumed job
    begins anew."""
    sink = Played(fails=iter([SinkError("the server is down")] * TRIES))
    loop = Loop(sink)
    for number in range(TRIES):
        assert not loop.sinks.written(job(), SPEC)
        assert len(sink.passes) == number + 1
        loop.pass_ends()
        if number < TRIES - 1:
            assert not loop.sinks.written(job(), SPEC)
            assert len(sink.passes) == number + 1, "not before its time"
            loop.now += RETRY_CAP_S
    with pytest.raises(SinkGivenUp, match="results_not_written: the server is down"):
        loop.sinks.written(job(), SPEC)
    assert not loop.sinks.written(job(), SPEC)
    loop.pass_ends()
    assert loop.sinks.written(job(), SPEC)


def test_a_job_that_runs_does_not_wait_for_a_server_that_is_down() -> None:
    """While it runs no number of failures stops it, and its end has as many tries as any."""
    sink = Played(fails=iter([SinkError("the server is down")] * (3 * TRIES - 1)))
    loop = Loop(sink)
    for _ in range(2 * TRIES):
        loop.sinks.look(job(), SPEC)
        loop.pass_ends()
        loop.sinks.look(job(), SPEC)
        loop.now += RETRY_CAP_S
    for number in range(TRIES):
        assert not loop.sinks.written(job(), SPEC)
        loop.pass_ends()
        assert loop.sinks.written(job(), SPEC) == (number == TRIES - 1)
        loop.now += RETRY_CAP_S


@pytest.mark.parametrize("error", [SinkUnfit("table t has no column 'id'")])
def test_what_will_not_change_by_itself_is_told_at_once(error: Exception) -> None:
    """A table that does not fit pauses its job after the first pass."""
    loop = Loop(Played(fails=iter([error])))
    loop.sinks.look(job(), SPEC)
    loop.pass_ends()
    with pytest.raises(SinkGivenUp, match="no column 'id'"):
        loop.sinks.look(job(), SPEC)


def test_another_process_at_the_same_place_is_no_failure() -> None:
    """However often it is met, the job goes on; what is held back is tried again, too."""
    taken: list[Exception] = [SinkTaken("another process")] * (2 * TRIES)
    sink = Played(fails=iter([*taken, OutcomesHeldBack("job_1", 5.0)]))
    loop = Loop(sink)
    for _ in range(2 * TRIES + 1):
        assert not loop.sinks.written(job(), SPEC)
        loop.pass_ends()
        assert not loop.sinks.written(job(), SPEC)
        loop.now += RETRY_CAP_S
    assert not loop.sinks.written(job(), SPEC)
    loop.pass_ends()
    assert loop.sinks.written(job(), SPEC)


def test_a_job_that_was_given_up_is_forgotten_at_its_end_as_well() -> None:
    """It was paused, and then cancelled: what a sink knows of it, such as the source that its rows
    stand in, does not stay for as long as the process lives."""
    sink = Played(fails=iter([SinkUnfit("no such column")]))
    loop = Loop(sink)
    loop.sinks.look(job(), SPEC)
    loop.pass_ends()
    with pytest.raises(SinkGivenUp):
        loop.sinks.look(job(), SPEC)
    loop.sinks.keep_only({"job_1"})
    assert sink.forgotten == []
    loop.sinks.keep_only(())
    assert sink.forgotten == ["job_1"]
