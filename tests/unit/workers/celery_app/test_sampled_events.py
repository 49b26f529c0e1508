"""Which items Flower hears of: by hash, by pace, and within a budget. The tests set the clock."""

from __future__ import annotations

import pytest

from penstock_workers.celery_app.events import (
    BURST_S,
    EVENTS_PER_ITEM,
    FLEET_EVENTS_PER_S,
    HASHES,
    WORKER_EVENTS_PER_S,
    EventSample,
    hash_of,
)

ITEMS_PER_S = WORKER_EVENTS_PER_S / EVENTS_PER_ITEM


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def ids(number: int, first: int = 0) -> list[str]:
    return [f"tickets-2026:document-{n:07d}" for n in range(first, first + number)]


def play(sample: EventSample, clock: Clock, items_per_s: float, seconds: float) -> list[int]:
    """Items taken in each second of a steady stream; the worker's timer turns twice a second."""
    taken, first = [], 0
    for _ in range(round(seconds)):
        count = 0
        for _ in range(2):
            number = round(items_per_s / 2)
            count += sum(sample.takes(tag) for tag in ids(number, first))
            first += number
            clock.now += 0.5
            sample.turn()
        taken.append(count)
    return taken


def test_the_hash_is_the_same_everywhere() -> None:
    """Other processes, other days and other versions choose the same items."""
    assert hash_of("tickets-2026:document-0000001") == 1688404502


def test_a_fixed_share_is_kept_whatever_the_pace(clock: Clock) -> None:
    """event_sample = 0.1 takes a tenth of 50,000 items of one second, though their ids only count
    up."""
    sample = EventSample(0.1, clock=clock)
    taken = sum(sample.takes(tag) for tag in ids(50_000))
    assert 4_500 <= taken <= 5_500


@pytest.mark.parametrize(("share", "taken"), [(0.0, 0), (1.0, 20_000)])
def test_none_and_all_are_exact(clock: Clock, share: float, taken: int) -> None:
    """event_sample = 0 sends no routine event, 1 sends all of them."""
    sample = EventSample(share, clock=clock)
    assert sum(sample.takes(tag) for tag in ids(20_000)) == taken


def test_a_smaller_share_is_part_of_a_larger(clock: Clock) -> None:
    """Two workers with different shares, and one whose share changes, agree as far as they can."""
    few, many = EventSample(0.05, clock=clock), EventSample(0.5, clock=clock)
    small = {tag for tag in ids(5_000) if few.takes(tag)}
    assert small <= {tag for tag in ids(5_000) if many.takes(tag)}
    assert all(hash_of(tag) < 0.05 * HASHES for tag in small)


def test_at_the_pace_of_a_provider_all_are_seen(clock: Clock) -> None:
    """Below the ceiling nothing is left out, not even of claims in groups of 64."""
    sample = EventSample(None, clock=clock)
    assert play(sample, clock, ITEMS_PER_S * 0.9, 30) == [round(ITEMS_PER_S * 0.9)] * 30


def test_a_fast_worker_stays_below_the_ceiling(clock: Clock) -> None:
    """At 5,000 items a second for a minute: one burst, then the ceiling, spread over the time."""
    sample = EventSample(None, clock=clock)
    taken = play(sample, clock, 5_000, 60)
    assert sum(taken) <= ITEMS_PER_S * (60 + BURST_S) + 1
    assert all(ITEMS_PER_S * 0.7 <= count <= ITEMS_PER_S * 1.3 for count in taken[10:])
    assert sample.share == pytest.approx(ITEMS_PER_S / 5_000, rel=0.05)


def test_after_the_rush_all_are_seen_again(clock: Clock) -> None:
    """The share comes back within seconds of the pace."""
    sample = EventSample(None, clock=clock)
    play(sample, clock, 5_000, 20)
    play(sample, clock, ITEMS_PER_S / 4, 10)
    assert sample.share == 1.0
    assert play(sample, clock, ITEMS_PER_S / 4, 5) == [round(ITEMS_PER_S / 4)] * 5


def test_a_large_fleet_shares_one_flower(clock: Clock) -> None:
    """A hundred workers at full pace send no more together than the fleet's ceiling."""
    sample = EventSample(None, clock=clock)
    sample.share_fleet(100)
    taken = play(sample, clock, 1_000, 60)[10:]
    assert sum(taken) / len(taken) * EVENTS_PER_ITEM * 100 <= FLEET_EVENTS_PER_S * 1.05


def test_a_small_fleet_shares_nothing(clock: Clock) -> None:
    """Up to three workers each have the whole ceiling of one; none known yet counts as one."""
    sample = EventSample(None, clock=clock)
    for workers in (0, 1, 3):
        sample.share_fleet(workers)
        assert sample.items_per_s == ITEMS_PER_S
