"""Control changes the service tier of a job that stays in its lane."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest

from penstock_ledger import Database, JobStore, LaneMove, LaneMoves, NewJob, open_database
from penstock_ledger.model import Job
from penstock_producer.job.spec import JobSpec
from penstock_producer.reporting.account import lane_line
from penstock_workers.control.lanes.seen import JobNow, LaneNow, OneByOne, name_of
from penstock_workers.control.lanes.step import LaneChoices
from penstock_workers.lane_changes import LaneChangeSettings

RULES = LaneChangeSettings()
SPEC = JobSpec.from_json(
    {"lane": "auto", "lanes": ["api"], "prompt": "{text}", "model": "m", "deadline_s": 7_200}
)


class MovesOfJobs:
    def __init__(self, moves: LaneMoves) -> None:
        self._moves = moves

    def of(self, job: Job) -> Sequence[LaneMove]:
        return self._moves.of(job.job_id)


class Played:
    """What is known of one job: how fast flex is."""

    def __init__(self, db: Database) -> None:
        self.jobs, self.moves = JobStore(db), LaneMoves(db)
        job, _ = self.jobs.create(
            NewJob("job", "job", SPEC.model_dump(mode="json"), {"kind": "file"}, "d", 1_000)
        )
        self.now, self.flex_per_s, self.left = job.created_at, 1.0, 1_000
        self.choices = LaneChoices(
            self, self.moves, MovesOfJobs(self.moves), RULES, clock=lambda: self.now
        )

    def look(self, after_s: float) -> Job:
        self.now += after_s
        job = self.jobs.get("job")
        self.choices.look(job, SPEC, 0)
        return self.jobs.get("job")

    def of(
        self, job: Job, moves: Sequence[LaneMove], outstanding: int
    ) -> tuple[JobNow, list[LaneNow]]:
        lane = name_of(job) if job.moves else None
        seen = JobNow(lane, self.left, job.created_at + 7_200)
        flex = OneByOne(self.flex_per_s)
        return seen, [
            LaneNow("flex", 0.0005, flex, "played", True, queue="api", tier="flex"),
            LaneNow("api", 0.001, OneByOne(1.0), "played", True),
        ]

    def note(self, live: Sequence[Job]) -> None: ...

    def moved(self, job: Job) -> None: ...

    def older_worker(self) -> str | None:
        return None

    def keep_only(self, live: Collection[str]) -> None: ...


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    db = open_database(f"sqlite:///{tmp_path}/ledger.db")
    db.migrate()
    yield Played(db)
    db.close()


def test_flex_is_left_at_the_last_moment_and_nothing_moves_for_it(played: Played) -> None:
    """Half the price while there is time, then the standard price in the same lane, with why: the
    rows of such changes have no lane before, so that no document is taken out of its queue."""
    job = played.look(0.0)
    assert (job.lane, job.tier_now, job.moves) == ("api", "flex", 1)
    assert "lane api in the flex tier since" in str(lane_line(played.moves.of("job")))
    played.flex_per_s = 0.001
    assert played.look(RULES.look_s).tier_now == "flex"
    job = played.look(7_200 - 1.25 * 1_000 - RULES.moving_s - RULES.look_s)
    assert (job.lane, job.tier_now) == ("api", None)
    first, last = played.moves.of("job")
    assert (first.reason, last.reason, last.before) == ("chosen", "deadline", None)
    assert (first.figures["tier"], last.figures["tier_before"]) == ("flex", "flex")
    assert played.moves.change_tier("job", "batch", "flex", "cheaper", "", {}, now=1.0) is None


def test_a_tier_stays_while_documents_are_on_their_way_out_of_a_lane(played: Played) -> None:
    """Its row would hide the move that is under way."""
    played.look(0.0)
    played.moves.move("job", "api", "gpu", "cheaper", "why", {}, now=played.now)
    assert played.moves.move("job", "gpu", "api", "cheaper", "why", {}, now=played.now)
    assert played.look(RULES.look_s).tier_now is None
    for move in played.moves.of("job"):
        played.moves.note_left(move, played.now)
    assert played.look(RULES.move_each_s).tier_now == "flex"
