"""Jobs that start themselves, on SQLite and on a real PostgreSQL: control processes step by step,
with a played clock."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock_time
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from night import DAY, NOON, ONE, SPEC, Night, join_starts, ledger_of

from penstock_ledger import (
    FiringOutcome,
    JobConflict,
    JobState,
    Schedule,
    ScheduleExists,
    ScheduleNotFound,
    TooManySchedules,
    open_database,
    purge_job,
)
from penstock_ledger.schedules import store as schedule_store
from penstock_producer import ProducerSettings, ScheduleError, SpecError
from penstock_producer.errors import SinkError
from penstock_producer.schedules.timetable import ON_TIME_S, started_by
from penstock_workers.control.schedules import starts
from penstock_workers.control.schedules.schedule_steps import HOLD_S, RETRY_S, TRIES_MAX, WAIT_S
from penstock_workers.control.schedules.starts import Started


@pytest.fixture(params=["sqlite", "postgresql"])
def night(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Night]:
    with ledger_of(request, tmp_path) as database:
        yield Night(database, tmp_path)


def test_a_start_is_in_the_log(night: Night, caplog: pytest.LogCaptureFixture) -> None:
    """At the level that control processes log: which schedule, which time, which job."""
    night.add()
    night.now = ONE + 1
    with caplog.at_level(logging.WARNING):
        night.control("a").turn()
    assert (
        f"schedule nightly: 2026-03-10 01:00 UTC: started job {night.firings()[0].job_id}"
        in caplog.text
    )


def test_a_nightly_job_starts_each_night(night: Night) -> None:
    """Nothing before its time; then one job a night, named after schedule and time, which says
    where it comes from."""
    night.add()
    control = night.control("a")
    control.turn()
    assert night.firings() == []
    for nth in range(2):
        night.now = ONE + nth * DAY + 20
        control.turn()
        job = night.jobs.get(f"nightly@2026-03-1{nth}T01:00Z")
        assert started_by(job) == ("nightly", f"2026-03-1{nth}T01:00Z")
        assert night.firings()[0].job_id == job.job_id
        night.jobs.set_state(job.job_id, JobState.COMPLETED, expect=[JobState.RUNNING])
    assert night.outcomes() == [FiringOutcome.STARTED] * 2
    assert night.store.get("nightly").next_at == ONE + 2 * DAY


def test_two_control_processes_start_a_job_once(night: Night) -> None:
    """Both look at the same moment, and again afterwards: one job, one firing."""
    night.add()
    night.now = ONE + 1
    both = [night.control(owner) for owner in "ab"]
    at_once([one.look for one in both])
    join_starts()
    for one in both:
        one.turn()
    assert night.outcomes() == [FiringOutcome.STARTED]
    assert len(night.jobs.list()) == 1


def test_two_submits_of_one_time_are_one_job(night: Night) -> None:
    """Even if both processes believe that they hold the schedule, and even at the same moment,
    there is one job."""
    schedule = night.add()
    found: list[str | None] = []
    start = night.start
    at_once([lambda: found.append(start(schedule).job_id) for _ in range(4)])
    assert len(found) == 4
    assert len(set(found)) == len(night.jobs.list()) == 1


def test_a_process_that_dies_after_its_submit_is_followed_by_one_that_finds_the_job(
    night: Night,
) -> None:
    """Killed between starting and writing down: the next one notes that job, although the source
    has changed since."""
    night.add()
    night.now = ONE + 1
    submitted: list[str | None] = []

    def start_and_die(schedule: Schedule) -> Started:
        started = night.start(schedule)
        submitted.append(started.job_id)
        return started

    dying = night.control("a", start_and_die)
    dying.look()
    join_starts()
    night.write("rewritten meanwhile")
    successor = night.control("b")
    successor.turn()
    assert night.firings() == [], "the lease of the dead one holds still"
    night.now += HOLD_S + 1
    successor.turn()
    assert [firing.job_id for firing in night.firings()] == submitted
    assert len(night.jobs.list()) == 1
    dying.look()
    assert [firing.job_id for firing in night.firings()] == submitted, (
        "frozen, not dead: what it finds is decided"
    )


def test_a_process_that_ends_hands_over_at_once(night: Night) -> None:
    """After an orderly end the next process need not wait for a lease."""
    night.add()
    night.now = ONE + 1
    hung = threading.Event()
    ending = night.control("a", lambda _schedule: Started(str(hung.wait(30))))
    ending.look()
    ending.steps.close()
    other = night.control("b")
    other.look()
    hung.set()
    join_starts()
    other.look()
    assert night.outcomes() == [FiringOutcome.STARTED]


def test_a_clock_that_steps_back_starts_nothing_twice(night: Night) -> None:
    """An hour back, and again to one o'clock: the night has its job."""
    night.add(overlap=True)
    control = night.control("a")
    for moment in (ONE + 1, ONE - 3600, ONE + 1, ONE + 30):
        night.now = moment
        control.turn()
    assert night.outcomes() == [FiringOutcome.STARTED]


def test_nothing_overlaps_unless_asked(night: Night) -> None:
    """The second night waits for the first night's job, says so, and starts when that has ended;
    with overlap it does not."""
    night.add()
    night.add("eager", overlap=True)
    control = night.control("a")
    for nth in range(2):
        night.now = ONE + nth * DAY + 1
        control.turn()
    assert night.outcomes("eager") == [FiringOutcome.STARTED] * 2
    first = night.firings()[0].job_id
    assert night.outcomes() == [FiringOutcome.STARTED]
    assert first is not None
    assert night.store.get("nightly").waits_for == f"job {first} of an earlier time has not ended"
    night.jobs.set_state(first, JobState.COMPLETED, expect=[JobState.RUNNING])
    night.now += WAIT_S + 1
    control.turn()
    assert night.outcomes() == [FiringOutcome.STARTED] * 2
    assert night.store.get("nightly").waits_for is None


def test_a_time_that_waited_too_long_is_skipped_with_its_reason(night: Night) -> None:
    """With catch-up skip, a night whose predecessor does not end within minutes has no job, and
    says why."""
    night.add(catch_up="skip")
    control = night.control("a")
    for moment in (ONE + 1, ONE + DAY + 1, ONE + DAY + 3600):
        night.now = moment
        control.turn()
    assert night.outcomes() == [FiringOutcome.STARTED, FiringOutcome.SKIPPED]
    assert "has not ended" in str(night.firings()[0].reason)
    assert night.store.get("nightly").next_at == ONE + 2 * DAY


@pytest.mark.parametrize(
    ("policy", "jobs", "outcomes"),
    [("skip", 0, ["skipped"]), ("once", 1, ["skipped", "started"]), ("all", 3, ["started"] * 3)],
)
def test_missed_nights_are_caught_up_as_the_schedule_says(
    night: Night, policy: str, jobs: int, outcomes: list[str]
) -> None:
    """No control process ran for three nights."""
    night.add(catch_up=policy, overlap=True)
    night.now = ONE + 2 * DAY + 3600
    night.control("a").turn()
    assert night.outcomes() == outcomes
    assert len(night.jobs.list()) == jobs
    assert night.store.get("nightly").next_at == ONE + 3 * DAY


def test_a_source_that_is_late_is_waited_for(night: Night) -> None:
    """A file that comes two minutes after its time is read then; until then the schedule says that
    it is not there."""
    late = night.source.with_name("late.jsonl")
    night.add(source=late)
    control = night.control("a")
    night.now = ONE + 1
    control.turn()
    assert "there is no such file" in str(night.store.get("nightly").waits_for)
    night.write("here", late)
    night.now += RETRY_S + 1
    control.turn()
    assert night.outcomes() == [FiringOutcome.STARTED]
    assert night.store.get("nightly").tries == 0


def test_a_time_that_was_tried_in_vain_has_failed(night: Night) -> None:
    """The next time comes while the source of this one is still not there: it failed, and was not
    merely skipped."""
    night.add(cron="* * * * *", source=night.source.with_name("absent.jsonl"))
    control = night.control("a")
    night.now = night.store.get("nightly").next_at + 1
    control.turn()
    night.now += RETRY_S + 1
    control.turn(looks=1)
    assert night.outcomes() == [FiringOutcome.FAILED]
    assert "there is no such file" in str(night.firings()[0].reason)


def test_what_fails_is_told_and_stops_no_other(night: Night) -> None:
    """A source that never comes fails after some tries, an empty one and a key that is taken at
    once; the others start."""
    empty = night.source.with_name("empty.jsonl")
    empty.touch()
    night.add("absent", source=night.source.with_name("absent.jsonl"))
    night.add("empty", source=empty)
    night.add("taken")
    night.add("whole")
    night.producer.submit(
        night.source, {**SPEC, "model": "another"}, job_key="taken@2026-03-10T01:00Z"
    )
    control = night.control("a")
    for nth in range(TRIES_MAX):
        night.now = ONE + 1 + nth * (RETRY_S + 1)
        control.turn()
    reasons = {name: str(night.firings(name)[0].reason) for name in ("absent", "empty", "taken")}
    assert "there is no such file" in reasons["absent"]
    assert "empty_source" in reasons["empty"]
    assert "another spec or source" in reasons["taken"]
    assert {night.firings(name)[0].outcome for name in reasons} == {FiringOutcome.FAILED}
    assert night.outcomes("whole") == [FiringOutcome.STARTED]


def test_a_full_disk_is_told_and_tried_again(night: Night) -> None:
    """What the system refuses now may go later: the schedule shows it, and the job starts once
    there is room."""
    night.add()
    is_full = [True]

    def start(schedule: Schedule) -> Started:
        if is_full[0]:
            raise OSError(28, "No space left on device")
        return night.start(schedule)

    control = night.control("a", start)
    night.now = ONE + 1
    control.turn()
    assert "No space left on device" in str(night.store.get("nightly").waits_for)
    is_full[0] = False
    night.now += RETRY_S + 1
    control.turn()
    assert night.outcomes() == [FiringOutcome.STARTED]


def test_a_source_that_hangs_stops_no_other_and_is_given_up(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One submit hangs: the other schedule starts its job meanwhile, and in the end the hanging one
    has failed."""
    night.add("hangs")
    night.add("whole")
    released = threading.Event()

    def start(schedule: Schedule) -> Started:
        if schedule.name == "hangs":
            released.wait(60)
        return night.start(schedule)

    control = night.control("a", start)
    night.now = ONE + 1
    control.look()
    for thread in threading.enumerate():
        if thread.name == "schedule-start" and len(night.jobs.list()) == 0:
            thread.join(0.5)
    control.look()
    assert night.outcomes("hangs") == []
    monkeypatch.setattr(starts, "OVERDUE_S", 0.0)
    control.look()
    released.set()
    join_starts()
    control.look()
    assert night.outcomes("whole") == [FiringOutcome.STARTED]
    assert night.outcomes("hangs") == [FiringOutcome.FAILED]
    assert "hangs" in str(night.firings("hangs")[0].reason)


def test_a_paused_schedule_starts_nothing_and_catches_nothing_up(night: Night) -> None:
    """Nights that pass during a pause were not missed; after the resume the next one counts."""
    night.add(catch_up="all")
    assert night.schedules.pause("nightly")
    assert not night.schedules.pause("nightly")
    control = night.control("a")
    night.now = ONE + 2 * DAY
    control.turn()
    assert night.schedules.resume("nightly")
    assert not night.schedules.resume("nightly")
    control.turn()
    assert night.firings() == []
    assert night.store.get("nightly").next_at == ONE + 3 * DAY


def test_resuming_with_a_clock_that_went_back_repeats_no_night(night: Night) -> None:
    """A resume plans from now on, but never a time that was decided."""
    night.add()
    night.now = ONE + 1
    night.control("a").turn()
    night.now = NOON
    night.schedules.pause("nightly")
    night.schedules.resume("nightly")
    assert night.store.get("nightly").next_at == ONE + DAY


def test_a_schedule_that_is_removed_leaves_its_jobs(night: Night) -> None:
    """And its name is free again, without the firings of before."""
    night.add()
    night.now = ONE + 1
    night.control("a").turn()
    night.schedules.remove("nightly")
    with pytest.raises(ScheduleNotFound, match="schedule list"):
        night.schedules.get("nightly")
    with pytest.raises(ScheduleNotFound):
        night.schedules.remove("nightly")
    assert len(night.jobs.list()) == 1
    night.add()
    assert night.firings() == []


def test_a_purged_job_stays_among_the_firings(night: Night) -> None:
    """That it ran is remembered, and that it is gone is shown."""
    night.add()
    night.now = ONE + 1
    night.control("a").turn()
    job_id = str(night.firings()[0].job_id)
    night.jobs.set_state(job_id, JobState.COMPLETED, expect=[JobState.RUNNING])
    assert night.firings()[0].job_state is JobState.COMPLETED
    purge_job(night.db, job_id)
    assert (night.firings()[0].job_id, night.firings()[0].job_state) == (job_id, None)


def test_what_cannot_be_used_is_refused_when_it_is_added(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad name, cron, zone, policy or spec, a name that is taken, and more schedules than there
    may be."""
    night.add()
    with pytest.raises(ScheduleExists, match="remove it first"):
        night.add()
    for bad in (
        {"name": "job_1"},
        {"name": "a b"},
        {"cron": "0 25 * * *"},
        {"timezone": "Mars"},
        {"catch_up": "some"},
    ):
        with pytest.raises(ScheduleError):
            night.add(**{"name": "other", **bad})
    with pytest.raises(SpecError, match="did you mean"):
        night.schedules.add("other", "0 1 * * *", "x.jsonl", {**SPEC, "modle": "m"})
    monkeypatch.setattr(schedule_store, "SCHEDULES_MAX", 1)
    with pytest.raises(TooManySchedules):
        night.add("other")
    assert [schedule.name for schedule in night.schedules.list()] == ["nightly"]


def test_only_the_latest_firings_are_kept(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule of years does not grow its table without end."""
    monkeypatch.setattr(schedule_store, "FIRINGS_KEPT", 3)
    night.add(overlap=True)
    control = night.control("a")
    for nth in range(5):
        night.now = ONE + nth * DAY
        control.turn(looks=1)
    assert [firing.planned_at for firing in night.firings()] == [
        ONE + 4 * DAY,
        ONE + 3 * DAY,
        ONE + 2 * DAY,
    ]


def test_a_source_is_the_same_file_in_every_process(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path is kept whole, because control processes work in other folders; a URI is kept as it
    is."""
    monkeypatch.chdir(night.source.parent)
    assert night.add(source="tickets.jsonl").source == {"source": str(night.source)}
    assert night.add("other", source="s3://bucket/key.jsonl").source == {
        "source": "s3://bucket/key.jsonl"
    }
    folder = night.source.parent
    (folder / "in" / "deep").mkdir(parents=True)
    (folder / "link").symlink_to(folder / "in" / "deep")
    assert night.add("short", source="./in/../tickets.jsonl").source == {
        "source": str(night.source)
    }
    through = night.add("through", source="link/../tickets.jsonl").source["source"]
    assert through == f"{folder}/link/../tickets.jsonl", (
        "behind a link, the parent is another folder"
    )


def test_a_submit_by_hand_is_not_taken_for_the_schedules_own(night: Night) -> None:
    """Another job under the key of a planned time is not the schedule's: its key is taken, and that
    is said."""
    night.add()
    night.producer.submit(
        night.source, {**SPEC, "max_attempts": 2}, job_key="nightly@2026-03-10T01:00Z"
    )
    with pytest.raises(JobConflict, match="another spec or source"):
        night.start(night.store.get("nightly"))


def at_once(works: Sequence[Callable[[], None]]) -> None:
    """Each in a thread of its own, at the same moment."""
    together = threading.Barrier(len(works))

    def run(work: Callable[[], None]) -> None:
        together.wait(30)
        work()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


def test_schedules_are_counted_by_their_states(night: Night) -> None:
    """Active, paused, and late once the time of one that is not paused came longer ago than a start
    takes."""
    for name in ("nightly", "other", "paused"):
        night.add(name)
    night.schedules.pause("paused")
    assert night.store.states(300) == {"active": 2, "late": 0, "paused": 1}
    night.now = ONE + 299
    assert night.store.states(300) == {"active": 2, "late": 0, "paused": 1}
    night.now = ONE + 301
    assert night.store.states(300) == {"active": 0, "late": 2, "paused": 1}


def test_a_place_for_results_is_tried_at_each_time(tmp_path: Path) -> None:
    """What was good when the schedule was added and is gone at its time: no job, some tries, and
    the reason in its list."""
    place = tmp_path / "results"
    database = open_database(f"sqlite:///{tmp_path}/ledger.db", pool_size=8)
    database.migrate()
    night = Night(database, tmp_path, ProducerSettings(results_url=str(place)))
    night.add()
    place.rmdir()
    place.write_text("in the way")
    night.producer._probe._good_until = 0.0
    control = night.control("a")
    for nth in range(TRIES_MAX):
        night.now = ONE + 1 + nth * RETRY_S
        control.turn(2)
    assert night.outcomes() == [FiringOutcome.FAILED]
    assert "the setting results_url" in str(night.firings()[0].reason)
    assert night.jobs.list() == []
    with pytest.raises(SinkError, match="choose a folder that can be written"):
        night.add("another")
    place.unlink()
    night.now = ONE + DAY
    control.turn()
    assert night.outcomes() == [FiringOutcome.FAILED, FiringOutcome.STARTED]
    database.close()


def planned_in_berlin(first: date, days: int) -> list[float]:
    """Return half past two of each day: once where it comes twice, and the first moment after the
    gap where it does not come."""
    zone, found = ZoneInfo("Europe/Berlin"), []
    for nth in range(days):
        wall = datetime.combine(first + timedelta(days=nth), clock_time(2, 30), zone)
        exists = wall.astimezone(UTC).astimezone(zone).hour == 2
        found.append(
            (wall if exists else wall.replace(hour=2, minute=0).astimezone(UTC)).timestamp()
        )
    return found


def caught_up(policy: str, planned: Sequence[float], looks: Sequence[float]) -> list[float]:
    """Return the times whose jobs start, by the rule of docs/schedules.md, for looks at these
    moments."""
    left, started = list(planned), []
    for now in looks:
        come = [time for time in left if time <= now]
        left = left[len(come) :]
        match policy:
            case "all":
                started += come
            case "once":
                started += come[-1:]
            case _:
                started += [time for time in come[-1:] if now - time <= ON_TIME_S]
    return started


@pytest.mark.parametrize(
    "first", [date(2026, 3, 26), date(2026, 10, 22)], ids=["into summer time", "out of it"]
)
@pytest.mark.parametrize("seed", range(2))
def test_a_clock_that_moves_both_ways_starts_each_time_once(
    night: Night, first: date, seed: int
) -> None:
    """Days forward, hours and days back, a process that is replaced, and summer time in between: to
    the end of eight days each time that the catch-up rule starts has one job, and none has two
    (A10)."""
    planned = planned_in_berlin(first, 12)
    night.now = planned[0] - 3_600
    for policy in ("all", "once", "skip"):
        night.add(policy, "30 2 * * *", timezone="Europe/Berlin", catch_up=policy, overlap=True)
    chance, looks = random.Random(seed), [night.now]
    controls = [night.control("a"), night.control("b")]
    while night.now < planned[7]:
        ahead = next(time for time in planned if time > night.now)
        night.now = chance.choice(
            [ahead + 10, night.now + DAY, night.now + 2 * DAY, night.now + 600, night.now - 3_600]
        )
        # there, back, and there again
        for moment in (night.now, night.now - chance.choice([0, 600, 3_600, DAY]), night.now):
            night.now = moment
            looks.append(moment)
            chance.choice(controls).turn(9)
        # another takes its place, and knows nothing but what the ledger says
        if chance.random() < 0.3:
            controls[0] = night.control(f"a{len(looks)}")
    for policy in ("all", "once", "skip"):
        fired = [
            firing for firing in night.firings(policy) if firing.outcome is FiringOutcome.STARTED
        ]
        assert sorted(firing.planned_at for firing in fired) == caught_up(policy, planned, looks), (
            policy
        )
        assert len({firing.job_id for firing in fired}) == len(fired)
        assert {
            job.job_id for job in night.jobs.list() if job.job_key.startswith(f"{policy}@")
        } == {firing.job_id for firing in fired}
