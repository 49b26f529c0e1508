"""Turns: jobs that are too many to share a window by handfuls are fed whole steps one after the
other, each by its part."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock_workers.control.feeds.shares import TURNS, Turns

WINDOW, PER_S = 800, 160.0  # the fleet works off a window in five seconds
STEP = WINDOW // TURNS


class Queue:
    """Jobs with endless documents, fed by turns; ``work`` is what a fleet does."""

    def __init__(self, weights: dict[str, float]) -> None:
        self.turns = Turns()
        self.weights = weights
        self.outstanding = dict.fromkeys(weights, 0)
        self.fed = Counter[str]()
        self.now = 100.0

    def round(self, seconds: float = 0.2) -> None:
        self.now += seconds
        whole = sum(self.weights.values())
        parts = {job: weight / whole for job, weight in self.weights.items()}
        self.turns.begin(parts, self.outstanding, WINDOW, PER_S, self.now)
        for job in sorted(self.weights, key=self.turns.place):
            room = self.turns.room() if self.turns.applies_to(job) else 0
            if room:
                self.turns.note(job, room)
                self.outstanding[job] += room
                self.fed[job] += room

    def work(self, *, without: tuple[str, ...] = ()) -> None:
        """A step's worth is finished, of the jobs that were fed longest ago."""
        left = STEP
        for job in self.weights:
            if job not in without:
                done = min(left, self.outstanding[job])
                self.outstanding[job] -= done
                left -= done


def test_a_window_is_filled_by_whole_steps_of_a_few_jobs() -> None:
    """A hundred jobs get no handful each: eight of them get a step each, and the window holds no
    more."""
    queue = Queue({f"job-{n}": 1.0 for n in range(100)})
    queue.round()
    assert Counter(queue.fed.values()) == {STEP: TURNS}
    queue.round()
    assert sum(queue.outstanding.values()) == WINDOW


def test_every_job_has_its_turn_before_one_has_two() -> None:
    """Jobs of equal weight are fed in turns."""
    queue = Queue({f"job-{n}": 1.0 for n in range(20)})
    for _ in range(100):
        queue.round()
        queue.work()
    assert len(queue.fed) == 20
    assert max(queue.fed.values()) - min(queue.fed.values()) <= STEP


def test_a_heavier_job_has_its_turn_more_often() -> None:
    """Over many turns jobs get documents in proportion to their weights."""
    queue = Queue({"heavy": 4.0} | {f"job-{n}": 1.0 for n in range(36)})
    for _ in range(800):
        queue.round()
        queue.work()
    assert queue.fed["heavy"] == pytest.approx(4 * queue.fed["job-0"], rel=0.15)


def test_a_job_that_comes_later_waits_for_one_turn_of_each_and_has_no_credit_for_the_time_before() -> (
    None
):
    """It has its first turn before any other has two more, and from then on no more turns than the
    others."""
    queue = Queue({f"job-{n}": 1.0 for n in range(20)})
    for _ in range(100):
        queue.round()
        queue.work()
    queue.weights["late"], queue.outstanding["late"] = 1.0, 0
    queue.fed.clear()
    for turns in (1, 2, 3):
        for _ in range(21):
            queue.round()
            queue.work()
        assert abs(queue.fed["late"] - turns * STEP) <= STEP
        assert max(queue.fed.values()) - queue.fed["late"] <= STEP


def test_documents_that_wait_for_something_else_do_not_keep_the_others_from_their_turns() -> None:
    """Jobs whose documents do not move, as while their provider is away, hold no more than their
    parts of the window."""
    stuck = tuple(f"stuck-{n}" for n in range(20))
    queue = Queue(dict.fromkeys((*stuck, *(f"job-{n}" for n in range(20))), 1.0))
    for _ in range(400):
        queue.round()
        queue.work(without=stuck)
    before = Counter(queue.fed)
    for _ in range(100):
        queue.round()
        queue.work(without=stuck)
    grown = queue.fed - before
    assert not any(job in stuck for job in grown)
    assert sum(grown.values()) >= 50 * STEP


def test_the_room_of_a_low_class_is_shared_by_steps_that_fit_into_it() -> None:
    """Beside a job that has most of the window to itself, the small jobs' steps are at most half of
    what is theirs."""
    turns = Turns()
    parts = {f"low-{n}": 0.1 / 50 for n in range(50)}
    turns.begin(parts, dict.fromkeys(parts, 0), WINDOW, PER_S, 100.0)
    assert turns.room() == 40


def test_nothing_moves_and_nothing_is_called_stuck_while_no_pace_is_known() -> None:
    """Before a fleet has finished anything, every job counts with all that it holds."""
    turns = Turns()
    parts = dict.fromkeys(["a", *map(str, range(9))], 0.1)
    for now in (100.0, 100_000.0):
        turns.begin(parts, dict.fromkeys(parts, WINDOW // 10), WINDOW, 0.0, now)
        assert turns.applies_to("a")
        assert turns.room() == 0
