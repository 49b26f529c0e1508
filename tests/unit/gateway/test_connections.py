"""The book of connections: whose place goes to a newcomer, and which places are kept."""

from __future__ import annotations

import pytest

from penstock_gateway.connections import PROBE_PLACES, ConnectionBook, Waiting
from penstock_gateway.metrics import DoorMetrics


class Line:
    """A connection that remembers that it was dropped."""

    def __init__(self) -> None:
        self.is_open = True

    def drop(self) -> None:
        self.is_open = False


def book(most: int, of_address: int = 100) -> ConnectionBook:
    return ConnectionBook(most, DoorMetrics(), of_address=of_address)


def opened(
    found: ConnectionBook, number: int, address: str | None, kind: Waiting | None
) -> list[Line]:
    lines = [Line() for _ in range(number)]
    for line in lines:
        found.opened(line, address)
        found.waits(line, kind)
    return lines


def test_strangers_go_first_then_the_idle_then_callers() -> None:
    """Of each kind the one that has waited longest makes room; what the door works at never
    does."""
    doors = book(8)
    at_work = opened(doors, 2, "a", None)
    callers = opened(doors, 2, "a", Waiting.FOR_A_CALLER)
    idle = opened(doors, 2, "a", Waiting.FOR_A_REQUEST)
    strangers = opened(doors, 2, "a", Waiting.FOR_A_STRANGER)
    for line in (*strangers, *idle, *callers):
        assert line.is_open
        opened(doors, 1, "b", None)
        assert not line.is_open
    assert all(line.is_open for line in at_work)


def test_one_address_makes_room_for_itself() -> None:
    """Beyond its bound its own connections go, and where all of them are at work the new one;
    others do not notice."""
    doors = book(100, of_address=3)
    other, first = (
        opened(doors, 1, "b", Waiting.FOR_A_STRANGER),
        opened(doors, 3, "a", Waiting.FOR_A_REQUEST),
    )
    (fourth,) = opened(doors, 1, "a", None)
    assert [line.is_open for line in (*first, fourth, *other)] == [False, True, True, True, True]
    opened(doors, 2, "a", None)
    spare = opened(doors, PROBE_PLACES, "a", None)
    assert all(line.is_open and doors.is_spare(line) for line in spare), (
        "it has places for probes as well"
    )
    assert not opened(doors, 1, "a", None)[0].is_open
    assert opened(doors, 1, "b", None)[0].is_open
    for line in (fourth, *spare[1:]):
        doors.closed(line)
    assert not doors.is_spare(spare[0])


def test_balancers_are_not_bounded_but_who_is_behind_them() -> None:
    """Its connections are many; the requests of one address behind it are counted until they are
    answered or gone."""
    doors = book(100, of_address=2)
    lines = opened(doors, 5, None, None)
    assert [doors.requests.begin(line, "a") for line in lines[:3]] == [True, True, False]
    assert doors.requests.begin(lines[3], "b")
    doors.requests.end(lines[0])
    doors.closed(lines[1])
    assert [doors.requests.begin(line, "a") for line in (lines[2], lines[4], lines[0])] == [
        True,
        True,
        False,
    ]
    assert doors.requests.begin(lines[2], "b"), (
        "the next request on a connection may be of another address"
    )
    assert doors.requests.begin(lines[0], "a")


def test_places_are_kept_for_probes() -> None:
    """Where all places hold work some more are taken, for /health only, and the rest is dropped."""
    doors = book(2)
    held = opened(doors, 2, "a", None)
    spare = opened(doors, PROBE_PLACES, "b", None)
    assert all(line.is_open for line in (*held, *spare))
    assert [doors.is_spare(line) for line in (*held, *spare)] == [
        False,
        False,
        *[True] * PROBE_PLACES,
    ]
    assert not opened(doors, 1, "c", None)[0].is_open
    for line in (*held, *spare[1:]):
        doors.closed(line)
    assert not doors.is_spare(spare[0]), "there are places again"


def test_who_goes_on_sending_moves_to_the_end_of_the_line() -> None:
    """A caller whose body comes is closed after one whose body does not; the same news of a
    stranger earns nothing."""
    doors = book(2)
    slow, quick = opened(doors, 2, "a", Waiting.FOR_A_CALLER)
    doors.waits(slow, Waiting.FOR_A_CALLER)
    opened(doors, 1, "a", None)
    assert [slow.is_open, quick.is_open] == [True, False]
    doors = book(2)
    first, second = opened(doors, 2, "a", Waiting.FOR_A_STRANGER)
    doors.waits(first, Waiting.FOR_A_STRANGER, again=False)
    opened(doors, 1, "a", None)
    assert [first.is_open, second.is_open] == [False, True]


@pytest.mark.parametrize("most", [1, 2])
def test_the_book_forgets_who_has_gone(most: int) -> None:
    """Addresses come and go by the million: nothing is kept of those without a connection."""
    doors = book(most)
    for number in range(50):
        opened(doors, 1, f"address {number}", None if number % 2 else Waiting.FOR_A_REQUEST)
    left = [*doors._open]
    for line in left:
        doors.requests.begin(line, "asked by")
        doors.closed(line)
    under_way = (doors.requests._number, doors.requests._asked_by)
    assert (doors._by_address, under_way[0], doors._kinds, under_way[1], doors._spare) == (
        {},
        {},
        {},
        {},
        set(),
    )
