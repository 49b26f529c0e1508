"""How control processes share the shards of a source, and these the room in the queue."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_ledger import LiveFeed
from penstock_ledger.model import Feed, FeedKind
from penstock_workers.control.feeds.shares import WORTH_A_STEP, given_up, room_of, taken_on

LEASE_S = 15.0


def live(owners: dict[int, str | None]) -> list[LiveFeed]:
    return [
        LiveFeed(
            Feed("job", 1, FeedKind.SOURCE, {}, False, 0, shard=shard),
            owner,
            LEASE_S if owner else 0.0,
        )
        for shard, owner in owners.items()
    ]


def settle(owners: dict[int, str | None], processes: list[str], luck: random.Random) -> None:
    """Rounds of all processes in any order, until nothing changes."""
    for _ in range(4 * len(owners) + 4):
        for process in luck.sample(processes, len(processes)):
            for shard in given_up(live(owners), process, len(processes)):
                owners[shard.feed.shard] = None
            for shard in taken_on(live(owners), process, len(processes)):
                owners[shard.feed.shard] = process


@settings(max_examples=40)
@given(
    shards=st.integers(1, 12),
    numbers=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_shards_come_to_lie_evenly_whoever_joins_and_leaves(
    shards: int, numbers: list[int], seed: int
) -> None:
    """After each change of the number of processes every shard is led, and none leads more than its
    part."""
    luck = random.Random(seed)
    owners: dict[int, str | None] = dict.fromkeys(range(1, shards + 1))
    for number in numbers:
        processes = [f"process-{n}" for n in range(number)]
        # leases that ended
        owners = {shard: owner if owner in processes else None for shard, owner in owners.items()}
        settle(owners, processes, luck)
        led = Counter(owners.values())
        assert None not in led
        assert max(led.values()) <= -(-shards // number)
        before = dict(owners)
        settle(owners, processes, luck)
        assert owners == before, "shards that lie evenly stay where they are"


@given(shards=st.integers(1, 64), room=st.integers(0, 50_000))
def test_parts_of_the_room_add_up_to_it(shards: int, room: int) -> None:
    """Shards that feed at the same time fill the window once, not once each, and each step is worth
    its price."""
    parts = [room_of(place, shards, room) for place in range(shards)]
    assert sum(parts) == room
    assert parts == sorted(parts, reverse=True)
    assert all(part >= min(room, WORTH_A_STEP) for part in parts if part)


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_a_process_takes_one_shard_in_a_round(processes: int) -> None:
    """Processes that see the same free shards at once each get some of them."""
    free = live(dict.fromkeys(range(1, 11)))
    assert [shard.feed.shard for shard in taken_on(free, "a", processes)] == [1]
    assert given_up(free, "a", processes) == []
