"""Deadline rescue with a clock that is played: a provider whose batches stall, and a real-time lane
that is no machine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest

from penstock_ledger import BatchesOpen, LaneMove
from penstock_ledger.model import Job, JobState
from penstock_ledger.reasons import read_reason
from penstock_producer.job.spec import JobSpec
from penstock_workers.control.lanes import speeds
from penstock_workers.control.lanes.seen import JobNow, LaneNow
from penstock_workers.control.lanes.speeds import Measured, Tokens
from penstock_workers.control.lanes.step import LaneChoices
from penstock_workers.lane_changes import LaneChangeSettings

BEGAN = 1_800_000_000.0
RULES = LaneChangeSettings()
STEP_S = 10.0
API_USD, BATCH_USD = 0.001, 0.0005


class PlayedJob:
    """One job, its provider, and the ledger's moves; what is known of them is what the real facts
    would say.

    The provider's batches took ``usual_s`` so far; the one of this job stands still. In real time
    it gives less than the limit that it declares, by chance more or less from minute to minute, and
    nothing in the first seconds after a move.
    """

    def __init__(
        self, seed: int, *, stalls: bool = True, history: bool = True, deadline: bool = True
    ) -> None:
        luck = Random(seed)
        self.luck = luck
        self.now = BEGAN
        self.documents = luck.randint(5_000, 60_000)
        self.per_minute = luck.uniform(300, 3_000)  # that the provider declares
        self.gives = luck.uniform(0.85, 1.0)  # of that
        need_s = self.documents / self.per_minute * 60
        self.usual_s = luck.uniform(600, 7_200)
        both_s = 1.6 * self.usual_s + 1.5 * need_s + 600
        tight_s = max(1.6 * self.usual_s, 2 * need_s + 600)
        span_s = (tight_s if stalls else both_s) * luck.uniform(1, 2)
        self.deadline_s = span_s if deadline else None
        self.lasted = [self.usual_s * luck.uniform(0.7, 1.1) for _ in range(12)] if history else []
        self.stops_at = luck.uniform(0, 0.9) if stalls else 1.0  # of the batch
        self.done = {"batch": 0.0, "api": 0.0}
        self.lane, self.moves = "batch", list[LaneMove]()
        self.arrived_at = BEGAN
        self.measured = Measured()
        self.paused_for: str | None = None
        self.older: str | None = None  # a worker that does not look at a job's lane
        spec = {"lane": "auto", "model": "m", "prompt": "{text}"} | (
            {"deadline_s": self.deadline_s} if deadline else {}
        )
        self.spec = JobSpec.from_json(spec)

    @property
    def finished(self) -> int:
        return int(sum(self.done.values()) + 1e-6)

    def job(self) -> Job:
        bare = Job(
            "job_1",
            "job_1",
            {"lane": "auto"},
            {},
            "",
            JobState.RUNNING,
            None,
            1,
            self.documents,
            BEGAN,
            None,
        )
        state = JobState.RUNNING if self.paused_for is None else JobState.PAUSED
        why = read_reason(None, self.paused_for)
        bare = replace(bare, state=state, reason=self.paused_for, why=why)
        return replace(bare, lane_now=self.lane, moves=len(self.moves))

    def pass_time(self) -> None:
        """The provider works."""
        self.now += STEP_S
        left = self.documents - sum(self.done.values())
        if self.lane == "api" and self.now - self.arrived_at > RULES.moving_s / 2:
            pace = self.per_minute / 60 * self.gives * self.luck.uniform(0.7, 1.3)
            self.done["api"] += min(left, pace * STEP_S)
        elif (
            self.lane == "batch"
            and self.stops_at == 1.0
            and self.now - self.arrived_at >= self.usual_s
        ):
            self.done["batch"] += left

    # -- the facts ---------------------------------------------------------------------------------

    def note(self, live: Sequence[Job]) -> None:
        """There is no other job."""

    def of(
        self, job: Job, moves: Sequence[LaneMove], outstanding: int
    ) -> tuple[JobNow, list[LaneNow]]:
        own = None
        if self.lane == "api":
            self.measured.note("job_1", ("api", "default", "m"), self.finished, 0.0, self.now)
            own = self.measured.of_job("job_1", "api")
        batches = (
            BatchesOpen(self.arrived_at, None, None, 0)
            if self.moves and self.lane == "batch"
            else None
        )
        batch = speeds.of_batches(
            self.lasted, batches, None, Tokens(100, 20), RULES.margin, self.now
        )
        limits = speeds.limits_of(None, {"requests": self.per_minute})
        api = speeds.one_by_one(own, None, limits, None, 0)
        late = frozenset(move.before for move in moves if move.before and move.reason == "deadline")
        deadline_at = None if self.deadline_s is None else BEGAN + self.deadline_s
        seen = JobNow(
            self.lane if self.moves else None,
            self.documents - self.finished,
            deadline_at,
            left_late=late,
        )
        return seen, [
            LaneNow("batch", BATCH_USD, batch.pace, batch.by, False),
            LaneNow("api", API_USD, api.pace, api.by, True),
        ]

    def moved(self, job: Job) -> None:
        self.measured.forget(job.job_id, job.lane)

    def older_worker(self) -> str | None:
        return self.older

    def keep_only(self, live: Collection[str]) -> None:
        """There is one job."""


class PlayedDoor:
    """The ledger's moves of that job."""

    def __init__(self, played: PlayedJob) -> None:
        self.played = played

    def move(
        self,
        job_id: str,
        before: str | None,
        lane: str,
        reason: str,
        why: str,
        figures: Mapping[str, float | str | None],
        *,
        now: float,
        paused_for: str | None = None,
        tier: str | None = None,
    ) -> LaneMove | None:
        assert tier is None, "the job has no tier to choose"
        if paused_for != self.played.paused_for:
            return None
        self.played.paused_for = None
        moved = LaneMove(
            job_id, len(self.played.moves) + 1, now, before, lane, reason, why, figures
        )
        self.played.moves.append(moved)
        self.played.lane, self.played.arrived_at = lane, now
        return moved

    def change_tier(self, *_: object, **__: object) -> LaneMove | None:
        raise AssertionError("the job has no tier to choose")

    def of(self, job: Job) -> Sequence[LaneMove]:
        return list(self.played.moves)


def play(played: PlayedJob, most_s: float) -> float:
    """Until all documents are done, or so long; returns how long it took."""
    door = PlayedDoor(played)
    choices = LaneChoices(played, door, door, RULES, clock=lambda: played.now)
    while played.finished < played.documents and played.now - BEGAN < most_s:
        choices.look(played.job(), played.spec, 0)
        played.pass_time()
    return played.now - BEGAN


@pytest.mark.parametrize("seed", range(20))
def test_a_rescue_meets_its_deadline(seed: int) -> None:
    """Batches that always took less stand still: what they leave is done in real time before the
    deadline, by one move."""
    played = PlayedJob(seed)
    assert played.deadline_s is not None
    took_s = play(played, 2 * played.deadline_s)
    assert took_s <= played.deadline_s, [move.why for move in played.moves]
    assert [(move.before, move.lane, move.reason) for move in played.moves] == [
        (None, "batch", "chosen"),
        ("batch", "api", "deadline"),
    ]
    assert took_s >= 0.3 * played.deadline_s  # not in a hurry: the batch had its time


@pytest.mark.parametrize("seed", range(20, 26))
def test_a_rescue_without_any_history_meets_its_deadline(seed: int) -> None:
    """No batch has ended here before: the lane is tried, and left in time."""
    played = PlayedJob(seed, history=False)
    assert played.deadline_s is not None
    assert play(played, 2 * played.deadline_s) <= played.deadline_s, [
        move.why for move in played.moves
    ]
    assert [move.lane for move in played.moves] == ["batch", "api"]


@pytest.mark.parametrize("seed", range(30, 36))
def test_batches_that_end_are_left_alone(seed: int) -> None:
    """Where the provider keeps to its time, and there is time for a rescue besides, all is paid at
    half the price."""
    played = PlayedJob(seed, stalls=False)
    assert played.deadline_s is not None
    assert play(played, 2 * played.deadline_s) <= played.deadline_s
    assert [move.lane for move in played.moves] == ["batch"]
    assert played.done["api"] == 0


@pytest.mark.parametrize("seed", range(40, 42))
def test_a_stuck_batch_without_a_deadline_pays_no_real_time_price(seed: int) -> None:
    """It stands still for hours, and the job waits for it."""
    played = PlayedJob(seed, deadline=False)
    play(played, 12 * 3_600)
    assert [move.lane for move in played.moves] == ["batch"]
    assert played.done["api"] == 0


@pytest.mark.parametrize("deadline", [True, False])
def test_a_job_that_its_lane_has_paused_goes_on_in_another_one(deadline: bool) -> None:
    """At once, and not back: but for a pause of any other kind, where a person acts, and where only
    the real-time price is left that is never paid without a deadline."""
    played = PlayedJob(0, deadline=deadline)
    door = PlayedDoor(played)
    choices = LaneChoices(played, door, door, RULES, clock=lambda: played.now)
    choices.look(played.job(), played.spec, 0)
    assert played.lane == "batch"
    played.now += 5
    played.paused_for = "account_stopped: no money"
    assert not choices.leave(played.job(), played.spec, 0)
    played.paused_for = "batch_refused: provider batch t1 of job job_1: there is no Batch API"
    assert choices.leave(played.job(), played.spec, 0) is deadline
    if not deadline:
        assert played.lane == "batch"
        return
    assert played.job().state is JobState.RUNNING
    assert (played.lane, played.moves[-1].reason) == ("api", "stuck")
    assert "batch stands still (batch_refused: " in played.moves[-1].why


def test_no_job_is_moved_beside_workers_of_an_older_release(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They do not look at its lane.

    That is said once, and the job moves as soon as they have ended."""
    played = PlayedJob(0)
    door = PlayedDoor(played)
    choices = LaneChoices(played, door, door, RULES, clock=lambda: played.now)
    played.older = "old@host:1"
    choices.look(played.job(), played.spec, 0)
    played.paused_for = "batch_refused: no"
    for _ in range(2):
        assert not choices.leave(played.job(), played.spec, 0)
        played.now += RULES.look_s
    assert (played.lane, len(played.moves)) == ("batch", 1)
    assert caplog.text.count("workers of an older release run, such as old@host:1") == 1
    played.older = None
    assert choices.leave(played.job(), played.spec, 0)
