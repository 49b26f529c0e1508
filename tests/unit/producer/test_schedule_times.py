"""When schedules are due: cron expressions in time zones, clocks that change, and what is done
about missed times."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import cronsim
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_ledger import CatchUp
from penstock_producer import ScheduleError
from penstock_producer.schedules.timetable import CATCH_UP_MAX, ON_TIME_S, Due, Timetable, due

HOUR = 3_600.0
DAY = 24 * HOUR


def at(text: str, zone: str = "UTC", fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def planned(cron: str, zone: str, start: str, number: int) -> list[str]:
    """The next planned times, as a clock in UTC shows them."""
    table, moment, found = Timetable(cron, zone), at(start), []
    for _ in range(number):
        moment = table.after(moment)
        found.append(datetime.fromtimestamp(moment, ZoneInfo("UTC")).strftime("%m-%d %H:%M"))
    return found


def test_a_night_job_comes_every_night_in_its_own_zone() -> None:
    """One o'clock in Berlin is midnight in UTC in winter, and 23:00 of the day before in summer."""
    assert planned("0 1 * * *", "Europe/Berlin", "2026-01-10T12:00", 2) == [
        "01-11 00:00",
        "01-12 00:00",
    ]
    assert planned("0 1 * * *", "Europe/Berlin", "2026-07-10T12:00", 2) == [
        "07-10 23:00",
        "07-11 23:00",
    ]


def test_a_time_that_does_not_exist_counts_after_the_gap() -> None:
    """On 2026-03-29 02:00 becomes 03:00 in Berlin: the job of 02:30 starts at 03:00 (01:00 UTC),
    once, not never."""
    assert planned("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00", 3) == [
        "03-28 01:30",
        "03-29 01:00",
        "03-30 00:30",
    ]


def test_two_times_of_one_gap_are_one() -> None:
    """02:00 and 02:30 both fall into the gap: one job, at its end."""
    assert planned("0,30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", 2) == [
        "03-29 01:00",
        "03-30 00:00",
    ]


def test_a_time_that_comes_twice_counts_the_first_time() -> None:
    """On 2026-10-25 the hour from 02:00 comes twice in Berlin: the job of 02:30 starts in the first
    (00:30 UTC), once."""
    assert planned("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", 2) == [
        "10-25 00:30",
        "10-26 01:30",
    ]


def test_a_control_process_that_comes_up_in_the_second_hour_does_not_start_it_again() -> None:
    """Asked in the second 02:15 for the next 02:30, the timetable names tomorrow's, not one that is
    past."""
    second = at("2026-10-25T02:15", "Europe/Berlin", fold=1)
    assert Timetable("30 2 * * *", "Europe/Berlin").after(second) == at(
        "2026-10-26T02:30", "Europe/Berlin"
    )


def test_every_half_hour_goes_by_real_time() -> None:
    """With `*` a schedule comes every half hour through gap and repetition, as cron does."""
    through_the_gap = planned("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:20", 4)
    assert through_the_gap == ["03-29 00:30", "03-29 01:00", "03-29 01:30", "03-29 02:00"]
    through_the_repetition = planned("*/30 * * * *", "Europe/Berlin", "2026-10-24T23:50", 5)
    assert through_the_repetition == [
        "10-25 00:00",
        "10-25 00:30",
        "10-25 01:00",
        "10-25 01:30",
        "10-25 02:00",
    ]


@given(
    cron=st.sampled_from(
        [
            "0 1 * * *",
            "30 2 * * *",
            "0,30 2,3 * * *",
            "*/7 * * * *",
            "0 0 * * *",
            "15 4 1 * *",
            "0 9 * * MON",
        ]
    ),
    zone=st.sampled_from(
        [
            "UTC",
            "Europe/Berlin",
            "America/New_York",
            "Australia/Lord_Howe",
            "Africa/Cairo",
            "Asia/Beirut",
        ]
    ),
    start=st.integers(1_767_225_600, 1_830_297_600),
)
def test_the_next_time_is_always_later(cron: str, zone: str, start: int) -> None:
    """Whatever the zone does with its clock, planned times only grow, and none is left out between
    two that follow."""
    table = Timetable(cron, zone)
    first = table.after(start)
    second = table.after(first)
    assert start < first < second
    assert table.after((first + second) / 2) == second


@pytest.mark.parametrize(
    ("cron", "says"),
    [
        ("", "five fields"),
        ("0 1 * *", "five fields"),
        ("0 0 1 * * *", "five fields"),
        ("@daily", "five fields"),
        ("61 1 * * *", "Bad minute"),
        ("0 1 * * MON#1/2", "Bad day-of-week"),
        ("0 0 30 2 *", "day-of-month"),
        ("* * * * " + "1," * 500 + "1", "five fields"),
        ("0 1 * * \x00", "Bad day-of-week"),
    ],
)
def test_an_expression_that_cannot_be_used_is_refused(cron: str, says: str) -> None:
    """What is wrong is said where the schedule is added, with the value seen."""
    with pytest.raises(ScheduleError, match=says):
        Timetable(cron, "UTC")


@pytest.mark.parametrize(
    "zone", ["Berlin", "", "../../etc/passwd", "/etc/passwd", "Europe", "Europe/Berlin\x00"]
)
def test_a_zone_that_is_not_known_is_refused(zone: str) -> None:
    """Nothing outside of the database of zones is opened, and the message names two zones that
    exist."""
    with pytest.raises(ScheduleError, match="Europe/Berlin or UTC"):
        Timetable("0 1 * * *", zone)


def test_times_are_shown_in_the_schedules_zone() -> None:
    """People read the time that they wrote, with the zone beside it."""
    assert (
        Timetable("0 1 * * *", "Europe/Berlin").shown(at("2026-07-10T23:00"))
        == "2026-07-11 01:00 CEST"
    )


def test_the_latest_times_are_found_however_long_the_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule of every minute that slept for years names the last minutes, without counting all
    of them."""
    looked = 0

    def counted(*given: object) -> object:
        nonlocal looked
        looked += 1
        return real(*given)  # type: ignore[arg-type]  # passed on

    real = cronsim.CronSim
    monkeypatch.setattr(cronsim, "CronSim", counted)
    found = Timetable("* * * * *", "UTC").latest(
        at("2020-01-01T00:00"), at("2026-01-01T00:00:30"), 3
    )
    assert found == [at("2025-12-31T23:58"), at("2025-12-31T23:59"), at("2026-01-01T00:00")]
    assert looked < 30


@pytest.mark.parametrize("until", ["2026-01-01T12:00", "2026-01-20T00:00", "2026-12-01T00:00"])
def test_the_latest_times_are_found_where_all_lie_at_the_beginning_of_the_sleep(until: str) -> None:
    """A schedule of every minute of one day of the year names the last minutes of that day, not
    those of an earlier hour."""
    found = Timetable("* * 1 1 *", "UTC").latest(at("2026-01-01T00:00"), at(until), 3)
    last = min(at(until), at("2026-01-01T23:59"))
    assert found == [last - 120, last - 60, last]


NIGHTLY = Timetable("0 1 * * *", "UTC")
FIRST = at("2026-03-10T01:00")


@pytest.mark.parametrize("policy", list(CatchUp))
def test_a_job_on_time_starts_whatever_the_policy(policy: CatchUp) -> None:
    """Some seconds late, because a control process was replaced, is not missed."""
    assert due(NIGHTLY, policy, FIRST, FIRST + ON_TIME_S) == Due(start=True, then=FIRST + DAY)


def test_skip_starts_nothing_that_was_missed() -> None:
    """An hour too late, and three nights too late, there is no job; the next night there is one."""
    assert due(NIGHTLY, CatchUp.SKIP, FIRST, FIRST + HOUR) == Due(start=False, then=FIRST + DAY)
    assert due(NIGHTLY, CatchUp.SKIP, FIRST, FIRST + 3 * DAY + HOUR) == Due(
        start=False, then=FIRST + 4 * DAY
    )
    assert due(NIGHTLY, CatchUp.SKIP, FIRST, FIRST + 3 * DAY) == Due(
        start=False, then=FIRST + 3 * DAY
    )


def test_once_starts_the_latest_missed_one() -> None:
    """After three missed nights one job starts, that of the last night; the others are shown as
    missed."""
    assert due(NIGHTLY, CatchUp.ONCE, FIRST, FIRST + 2 * DAY + HOUR) == Due(
        start=False, then=FIRST + 2 * DAY
    )
    assert due(NIGHTLY, CatchUp.ONCE, FIRST + 2 * DAY, FIRST + 2 * DAY + HOUR) == Due(
        start=True, then=FIRST + 3 * DAY
    )


def test_all_starts_each_but_not_without_end() -> None:
    """Every missed night gets its job, the oldest first; of a hundred nights the last 24 do."""
    assert due(NIGHTLY, CatchUp.ALL, FIRST, FIRST + 3 * DAY) == Due(start=True, then=FIRST + DAY)
    late = due(NIGHTLY, CatchUp.ALL, FIRST, FIRST + 99 * DAY)
    assert late == Due(start=False, then=FIRST + (100 - CATCH_UP_MAX) * DAY)
    assert due(NIGHTLY, CatchUp.ALL, late.then, FIRST + 99 * DAY).start
