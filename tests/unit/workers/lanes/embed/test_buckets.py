"""Which texts make a batch: those next in length, within the budget, the most urgent first, and
each one in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_producer.job.spec import Priority
from penstock_workers.lanes.embed.buckets import (
    HANDICAPS_S,
    MIN_EFFICIENCY,
    Buckets,
    TextRow,
    bucket_of,
    padded_tokens,
)

LOOP = asyncio.new_event_loop()
BIG = 1_000_000


@pytest.fixture(autouse=True, scope="module")
def close_the_loop() -> Iterator[None]:
    yield
    LOOP.close()


def row(length: int, arrived: float = 0.0, priority: Priority = "normal") -> TextRow:
    future: asyncio.Future[Any] = LOOP.create_future()
    return TextRow([7] * length, arrived, priority, future)


def holding(*rows: TextRow, batch_items: int = 1_000) -> Buckets:
    buckets = Buckets(batch_items=batch_items, window_s=1.0)
    for one in rows:
        buckets.add(one)
    return buckets


def lengths(rows: list[TextRow]) -> list[int]:
    return sorted(one.length for one in rows)


def test_a_bucket_holds_lengths_within_an_eighth_of_each_other() -> None:
    """Buckets follow each other without gaps, and the longest of one pads its shortest by an eighth
    at most."""
    numbers = [bucket_of(length) for length in range(1, 5_000)]
    assert all(after - before in (0, 1) for before, after in pairwise(numbers))
    for number in set(numbers):
        inside = [length for length in range(1, 5_000) if bucket_of(length) == number]
        assert inside[-1] <= inside[0] * 1.125


def test_a_batch_waits_for_the_window_and_no_longer() -> None:
    """Alone, a row waits for company until the oldest is a window old."""
    buckets = holding(row(10, arrived=5.0), row(10, arrived=5.5))
    assert buckets.take(5.9, BIG) == []
    assert buckets.due() == 6.0
    assert lengths(buckets.take(6.0, BIG)) == [10, 10]
    assert len(buckets) == 0


def test_a_batch_closes_on_count() -> None:
    """A batch is taken once it has `batch_items` rows, and a lone row waits."""
    buckets = holding(*[row(10) for _ in range(5)], batch_items=4)
    assert lengths(buckets.take(0.0, BIG)) == [10] * 4
    assert buckets.take(0.0, BIG) == []


def test_a_batch_closes_on_padded_tokens() -> None:
    """Four rows of ten fill a budget of 40 to 49."""
    buckets = holding(*[row(10) for _ in range(5)])
    assert lengths(buckets.take(0.0, 49)) == [10] * 4
    assert buckets.take(0.0, 49) == []


def test_a_row_longer_than_the_budget_goes_alone() -> None:
    """A row that exceeds the token budget is a batch of its own."""
    buckets = holding(row(100), row(100))
    assert lengths(buckets.take(0.0, 50)) == [100]
    assert lengths(buckets.take(0.0, 50)) == [100]


def test_batches_are_made_of_neighbours_in_length() -> None:
    """Short and long rows that came by turns go in batches of short ones and of long ones."""
    buckets = holding(
        *[row(length, arrived=n) for n, length in enumerate([5, 200, 6, 210, 5, 205, 6, 220])]
    )
    assert lengths(buckets.take(10.0, BIG)) == [5, 5, 6, 6]
    assert lengths(buckets.take(10.0, BIG)) == [200, 205, 210, 220]


def test_who_comes_first_leads() -> None:
    """The oldest row is in the next batch, however odd its length."""
    odd = row(77, arrived=0.0)
    buckets = holding(*[row(10, arrived=0.1) for _ in range(50)], odd)
    assert odd in buckets.take(2.0, 100)


def test_urgent_goes_before_normal_and_normal_before_low() -> None:
    """The most urgent row is taken first, whatever its length and arrival."""
    late: dict[Priority, TextRow] = {
        "low": row(10, 0.0, "low"),
        "normal": row(100, 0.1, "normal"),
        "urgent": row(1_000, 0.2, "urgent"),
    }
    buckets = holding(*late.values())
    order = [buckets.take(10.0, 1)[0].priority for _ in range(3)]
    assert order == ["urgent", "normal", "low"]


def test_low_is_overtaken_for_a_time_and_then_by_nobody() -> None:
    """However many urgent rows keep coming, a low one leads once it has waited for its handicap."""
    low = row(10, arrived=0.0, priority="low")
    buckets = holding(low)
    for second in range(1, 200):
        buckets.add(row(500, arrived=float(second), priority="urgent"))
        if low in buckets.take(float(second) + 0.5, 1):
            assert second == HANDICAPS_S["low"]
            return
    pytest.fail("starved")


def test_who_left_is_not_taken_and_may_leave_twice() -> None:
    """A discarded row is never in a batch, and discarding it again changes nothing."""
    stays, leaves = row(10), row(10)
    buckets = holding(stays, leaves)
    buckets.discard(leaves)
    buckets.discard(leaves)
    assert len(buckets) == 1
    assert buckets.take(9.0, BIG) == [stays]


@given(
    sizes=st.lists(st.integers(1, 600), min_size=1, max_size=80),
    priorities=st.lists(st.sampled_from(["urgent", "normal", "low"]), min_size=80, max_size=80),
    budget=st.integers(1, 4_096),
    batch_items=st.integers(1, 64),
)
def test_no_batch_is_above_its_limits_and_everybody_goes_once(
    sizes: list[int], priorities: list[Priority], budget: int, batch_items: int
) -> None:
    """Whatever waits: budget, count and padding hold for each batch of more than one, and no row is
    lost or doubled."""
    rows = [row(size, arrived=n / 10, priority=priorities[n]) for n, size in enumerate(sizes)]
    buckets = holding(*rows, batch_items=batch_items)
    gone: list[TextRow] = []
    while len(buckets):
        batch = buckets.take(1_000.0, budget)
        assert 1 <= len(batch) <= batch_items
        if len(batch) > 1:
            assert padded_tokens(batch) <= budget
            assert sum(one.length for one in batch) >= MIN_EFFICIENCY * padded_tokens(batch)
        gone += batch
    assert len(gone) == len(rows)
    assert set(gone) == set(rows)
