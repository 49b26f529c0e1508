"""Steps by which a job gives way: when they are taken, by whom, and that they never go back."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from penstock_ledger import StepsTaken, StepTaken, open_database, purge_job
from penstock_ledger.model import Job, JobState
from penstock_producer.job.spec import JobSpec
from penstock_workers.control.job.degrading import Degrading

SPEC: dict[str, Any] = {
    "deadline_s": 100.0,
    "budget_usd": 10.0,
    "degrade": [
        "model=small at 50% of deadline",
        "model=tiny at 80% of budget",
        "max_tokens=9 at 90% of deadline",
    ],
}


class House:
    """A database, and control processes over it."""

    def __init__(self, folder: Path) -> None:
        self.database = open_database(f"sqlite:///{folder}/ledger.db")
        self.database.migrate()
        self.store = StepsTaken(self.database)
        self.now, self.spent = 1_000.0, 0

    def process(self) -> Degrading:
        return Degrading(self.store, cast(Any, self), lambda: self.now)

    def spent_of(self, _: str) -> int:
        return self.spent

    def look(self, process: Degrading, **changes: Any) -> list[int]:
        job = Job("job", "key", {}, {}, "", JobState.RUNNING, None, 1, 9, 1_000.0, None)
        process.look(job, JobSpec.accepted(SPEC | changes))
        return [step.number for step in self.store.of("job")]


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_a_step_is_taken_when_its_share_is_gone(house: House) -> None:
    """Of the deadline by the time since submit, of the budget by what is spent."""
    process = house.process()
    house.now = 1_049.9
    assert house.look(process) == []
    house.now = 1_050.0
    assert house.look(process) == [1]
    house.spent = 8_000_000
    assert house.look(process) == [1, 2]
    assert house.store.of("job")[0] == StepTaken(1, 1_050.0, "deadline", 0.5)
    assert house.store.latest("job") == 2


def test_the_first_process_decides_and_its_time_stays(house: House) -> None:
    """Neither a second one, nor one that starts later, nor more time and money change it."""
    first, second = house.process(), house.process()
    house.now = 1_060.0
    assert house.look(first) == [1]
    house.now = 1_070.0
    assert house.look(second) == [1]
    assert house.store.of("job")[0].at == 1_060.0
    assert house.look(house.process(), deadline_s=9_000.0, budget_usd=None) == [1]
    house.now = 1_001.0
    assert house.look(house.process()) == [1], "a clock that was set back"


def test_steps_of_a_limit_that_was_lifted_are_not_taken(house: House) -> None:
    """Their moment never comes."""
    house.now, house.spent = 9_999.0, 99_000_000
    assert house.look(house.process(), deadline_s=None, budget_usd=None) == []


def test_a_job_that_is_purged_leaves_no_steps(house: House) -> None:
    """Another job of the same id does not begin where it was."""
    house.now = 1_060.0
    house.look(house.process())
    purge_job(house.database, "job")
    assert house.store.of("job") == []
