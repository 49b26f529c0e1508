"""Slots bound what is in flight, and let in first those who came first."""

from __future__ import annotations

import asyncio

import pytest

from penstock_ratelimit.fairness import DEFAULT_FLOW, Flow, Priority
from penstock_workers.item.slots import ALL_ANSWERED_S, ITEM_CPU_S, Slots


async def settle_loop() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_no_more_than_size_at_once_and_in_order() -> None:
    """With two slots the third waits until one is given up, and order of arrival is kept."""
    slots, order, gates = Slots(2), [], [asyncio.Event() for _ in range(4)]

    async def item(number: int) -> None:
        place = await slots.place()
        order.append(number)
        await gates[number].wait()
        place.leave()

    tasks = [asyncio.create_task(item(number)) for number in range(4)]
    await settle_loop()
    assert order == [0, 1]
    gates[1].set()
    await settle_loop()
    assert order == [0, 1, 2]
    for gate in gates:
        gate.set()
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3]
    assert slots.taken == 0


async def test_an_urgent_item_is_let_in_before_those_who_wait() -> None:
    """A claimed urgent item does not wait behind all that its worker claimed before it."""
    slots, order = Slots(1), []

    async def item(name: str, flow: Flow) -> None:
        place = await slots.place(flow)
        order.append(name)
        place.leave()

    await slots.take(DEFAULT_FLOW)
    waiting = [item(f"n{number}", Flow(job="big")) for number in range(20)]
    waiting += [
        item(f"u{number}", Flow(job="small", priority=Priority.URGENT)) for number in range(2)
    ]
    tasks = [asyncio.create_task(one) for one in waiting]
    await settle_loop()
    slots.give_up()
    await asyncio.gather(*tasks)
    assert set(order[:3]) >= {"u0", "u1"}
    assert [name for name in order if name[0] == "n"] == [f"n{number}" for number in range(20)]


async def test_a_cancelled_waiter_takes_no_slot() -> None:
    """Cancelling one who waits, even in the instant it was let in, leaves the slot for the next."""
    slots = Slots(1)
    await slots.take(DEFAULT_FLOW)
    first, second = (
        asyncio.create_task(slots.take(DEFAULT_FLOW)),
        asyncio.create_task(slots.take(DEFAULT_FLOW)),
    )
    await settle_loop()
    slots.give_up()  # lets `first` in …
    first.cancel()  # … which is cancelled before it runs
    await asyncio.gather(first, return_exceptions=True)
    await asyncio.wait_for(second, 1)
    assert slots.taken == 1


async def test_resize_lets_waiters_in() -> None:
    """Growing admits who waits at once."""
    slots = Slots(1)
    await slots.take(DEFAULT_FLOW)
    waiter = asyncio.create_task(slots.take(DEFAULT_FLOW))
    await settle_loop()
    slots.resize(2)
    await asyncio.wait_for(waiter, 1)
    assert slots.taken == 2


async def test_closed_slots_turn_everybody_away() -> None:
    """A draining worker starts nothing: waiters and newcomers are cancelled."""
    slots = Slots(1)
    await slots.take(DEFAULT_FLOW)
    waiter = asyncio.create_task(slots.take(DEFAULT_FLOW))
    await settle_loop()
    slots.close()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    with pytest.raises(asyncio.CancelledError):
        await slots.take(DEFAULT_FLOW)


async def test_a_place_that_was_left_is_given_up_once() -> None:
    """Leaving lets the next one in at once, and leaving again frees no slot of another."""
    slots = Slots(1)
    first = await slots.place()
    first.leave()
    second = await slots.place()
    first.leave()
    assert slots.taken == 1
    again = asyncio.create_task(first.take_again())
    await settle_loop()
    assert not again.done()
    second.leave()
    await asyncio.wait_for(again, 1)
    assert slots.taken == 1
    first.leave()
    assert slots.taken == 0


async def test_slots_are_short_where_stored_answers_would_let_others_in() -> None:
    """Only while items wait, and more than a few slots are held by what waits to be stored, and no
    more often than the slots can turn round; always, where all slots are."""
    now = [0.0]
    slots = Slots(32, lambda: now[0])
    for _ in range(32):
        await slots.take(DEFAULT_FLOW)
    assert not slots.are_short(31), "no item waits"
    waiter = asyncio.create_task(slots.take(DEFAULT_FLOW))
    await settle_loop()
    assert [slots.are_short(answered) for answered in (0, 3, 4)] == [False, False, True]
    assert not slots.are_short(31), "it was said just now"
    assert slots.are_short(32), "no call is under way that could be answered meanwhile"
    now[0] = 32 * ITEM_CPU_S
    assert not slots.are_short(31, all_of_them=True), "the store is slow"
    assert slots.are_short(31)
    slots.give_up()
    await waiter
    now[0] = 1.0
    assert not slots.are_short(31)


async def test_what_is_answered_is_stored_at_once_where_nothing_else_is_in_flight() -> None:
    """The last outcomes of a job wait for no others; where items come one by one, each answered
    before the next, they are stored together all the same."""
    now = [0.0]
    slots = Slots(32, lambda: now[0])
    places = [await slots.place() for _ in range(3)]
    assert [slots.are_short(answered) for answered in (1, 2, 3)] == [False, False, True]
    for place in places:
        place.leave()
    await slots.take(DEFAULT_FLOW)
    assert not slots.are_short(1), "that is too soon after the last time"
    now[0] = ALL_ANSWERED_S
    assert slots.are_short(1)
