"""The engine's door: full but not flooded, long and short mixed, suspects apart."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_ledger.in_redis.batches import WorkerSeen
from penstock_producer.reporting.engines import engines_line, engines_of
from penstock_ratelimit import ServerGauges
from penstock_ratelimit.fairness import Flow, Priority
from penstock_ratelimit.shared.interactive import START
from penstock_workers.lanes.gpu.engine import engine_queue
from penstock_workers.lanes.gpu.engine.engine_queue import (
    BUFFER_MIN,
    PASSED_MAX,
    SUSPECTS_TOGETHER,
    EnginePlace,
    EngineQueue,
    EngineState,
)
from penstock_workers.lanes.gpu.sidecar import ServerQueue


async def turns(number: int = 3) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def fill(
    queue: EngineQueue, sizes: list[int]
) -> tuple[list[EnginePlace], list[asyncio.Task[EnginePlace]]]:
    """Those who got in, and the tasks of those who wait."""
    tasks = [asyncio.create_task(queue.enter(size)) for size in sizes]
    await turns()
    return [task.result() for task in tasks if task.done()], [
        task for task in tasks if not task.done()
    ]


async def end(tasks: list[asyncio.Task[EnginePlace]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_server_that_others_use_gets_no_more_than_the_ceiling() -> None:
    """What the server's own figures leave to batch work goes in, and more once they leave more."""
    line = ServerQueue(100, interactive_ttft_s=0.5)
    line.open()
    inside, waiting = await fill(line.items, [10] * 40)
    assert len(inside) == START
    assert line.gauges()["bound"] == "interactive"
    line.hear("", ServerGauges(8.0, 0.0))  # a server without a histogram
    await turns()
    assert line.items.inside == START
    told = {name: str(value) for name, value in line.gauges().items()}
    engines = engines_of([WorkerSeen("w1", 1.0, told | {"lane": "gpu"})], "gpu")
    assert engines is not None
    assert (
        "held back for interactive traffic: 8 calls at most while the server's figures cannot be "
        "read (it has no times to the first token)"
    ) in engines_line(engines)
    await end(waiting)
    free = ServerQueue(100)
    free.open()
    inside, waiting = await fill(free.items, [10] * 40)
    assert (len(inside), free.gauges()["bound"]) == (40, "queue")
    await end(waiting)


async def test_an_empty_engine_gets_all_it_can_run_and_a_buffer() -> None:
    """An engine takes as many items as it runs at once and a quarter more; the rest waits."""
    queue = EngineQueue()
    queue.open(max_seqs=100, kv_tokens=0)
    inside, waiting = await fill(queue, [10] * 300)
    assert len(inside) == 125
    assert queue.waiting == 175
    await end(waiting)


async def test_an_engine_whose_places_fall_free_together_gets_a_larger_buffer() -> None:
    """An engine that was full and had nothing left while items waited for it gets as many more as
    it could have run, and fewer with time, down to the usual quarter."""
    queue = EngineQueue()
    queue.open(max_seqs=100, kv_tokens=0)
    places, waiting = await fill(queue, [10] * 600)
    queue.heard(EngineState(running=100, waiting=25))
    for place in places[:100]:
        queue.leave(place)
    queue.heard(EngineState(running=25, waiting=0))
    await turns()
    assert queue.inside == 200, "25 that waited in it and 75 that it lacked, besides what it runs"
    queue.heard(EngineState(running=100, waiting=100))
    assert queue.inside == 200
    entered = [task.result() for task in waiting if task.done()]
    for _ in range(3_000):
        queue.heard(EngineState(running=100, waiting=100))
    for place in places[100:] + entered:
        queue.leave(place)
    await turns()
    assert queue.inside == 125
    await end([task for task in waiting if not task.done()])


async def test_an_engine_that_runs_dry_with_the_last_items_needs_no_larger_buffer() -> None:
    """Where no item waits for the engine, a larger buffer would have held none."""
    queue = EngineQueue()
    queue.open(max_seqs=100, kv_tokens=0)
    places, _ = await fill(queue, [10] * 125)
    queue.heard(EngineState(running=100, waiting=25))
    for place in places[:100]:
        queue.leave(place)
    queue.heard(EngineState(running=25, waiting=0))
    inside, waiting = await fill(queue, [10] * 300)
    assert len(inside) == 100, "125, and 25 are inside"
    await end(waiting)


async def test_an_empty_engine_begins_with_all_that_is_being_made_ready() -> None:
    """The first items wait for those that are nearly ready; once the engine has something to do,
    each enters at once."""
    queue = EngineQueue()
    queue.open(max_seqs=100, kv_tokens=0)
    first, second = queue.coming(), queue.coming()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    inside, waiting = await fill(queue, [10])
    assert not inside, "one is not ready yet"
    second.__exit__(None, None, None)
    await turns()
    assert waiting[0].done()
    with queue.coming():
        inside, _ = await fill(queue, [10])
        assert len(inside) == 1, "it is busy"


async def test_an_empty_engine_waits_for_no_more_than_it_runs() -> None:
    """As many as it runs at once are enough, whatever else is being made ready."""
    queue = EngineQueue()
    queue.open(max_seqs=3, kv_tokens=0)
    with queue.coming():
        inside, waiting = await fill(queue, [10] * 2)
        assert not inside
        more, late = await fill(queue, [10] * 2)
        assert (len(more), [task.done() for task in waiting]) == (2, [True, True])
        assert not late


async def test_an_empty_engine_does_not_wait_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """An item that takes long to be made ready, such as one with large images, holds up no
    other."""
    monkeypatch.setattr(engine_queue, "GATHER_S", 0.0)
    queue = EngineQueue()
    queue.open(max_seqs=100, kv_tokens=0)
    with queue.coming():
        place = await queue.enter(10)
        queue.leave(place)
        again = await queue.enter(10)
        assert (place.inside, again.inside) == (False, True)


async def test_an_item_of_several_answers_takes_as_many_places() -> None:
    """An engine runs sequences: with eight to each item it is full after an eighth of the items;
    one that is wider than the engine enters too."""
    queue = EngineQueue()
    queue.open(max_seqs=100, kv_tokens=0)
    tasks = [asyncio.create_task(queue.enter(10, sequences=8)) for _ in range(50)]
    await turns()
    inside = [task for task in tasks if task.done()]
    assert len(inside) == 16  # 125 sequences, and what is left of the last item
    assert queue.inside == 128
    queue.leave(inside[0].result())
    await turns()
    assert queue.inside == 128
    await end([task for task in tasks if not task.done()])
    for task in inside[1:]:
        queue.leave(task.result())
    late = tasks[16].result()
    queue.leave(late)
    assert queue.inside == 0
    wide = await queue.enter(10, sequences=1_000)
    assert queue.inside == 1_000
    queue.leave(wide)
    assert queue.inside == 0


async def test_nobody_enters_while_there_is_no_engine() -> None:
    """Items wait until an engine opens, and again after it closes."""
    queue = EngineQueue()
    inside, waiting = await fill(queue, [1] * 3)
    assert inside == []
    queue.open(max_seqs=10, kv_tokens=0)
    await turns()
    assert all(task.done() for task in waiting)
    queue.close()
    _, later = await fill(queue, [1])
    assert len(later) == 1
    await end(later)


async def test_an_engine_that_makes_some_wait_gets_no_more_than_its_buffer() -> None:
    """Memory lets only 40 of 100 run: what waits there stays near a quarter of that, not at all
    that was sent first."""
    queue = EngineQueue()
    queue.open(max_seqs=100, kv_tokens=0)
    inside, waiting = await fill(queue, [10] * 300)
    queue.heard(EngineState(running=40, waiting=85))
    for place in inside[:74]:
        queue.leave(place)
    await turns()
    assert queue.inside == 51  # above 40 and a quarter: no new one
    queue.leave(inside[74])
    queue.leave(inside[75])
    await turns()
    assert queue.inside == 50  # one out, one in: the line there never runs dry
    await end(waiting)


async def test_what_is_promised_stays_within_the_memory_and_a_buffer() -> None:
    """The tokens promised to admitted items stay within the KV memory and a quarter more."""
    queue = EngineQueue()
    queue.open(max_seqs=100, kv_tokens=1_000)
    queue.heard(EngineState(running=10, waiting=1))
    inside, waiting = await fill(queue, [300] * 20)
    assert len(inside) == 4  # 1,250 tokens
    await end(waiting)


async def test_a_starving_engine_gets_more_than_the_arithmetic_allows() -> None:
    """It reports memory to spare and no item waiting: answers are shorter than they might have
    been."""
    queue = EngineQueue()
    queue.open(max_seqs=100, kv_tokens=1_000)
    inside, waiting = await fill(queue, [1_000] * 50)
    before = len(inside)
    queue.heard(EngineState(running=before, waiting=0, kv_usage=0.2))
    await turns()
    assert queue.inside == before + BUFFER_MIN
    await end(waiting)


async def test_it_learns_how_much_of_their_promise_items_use() -> None:
    """Items that use a tenth of what they might are admitted in larger numbers afterwards."""
    queue = EngineQueue()
    queue.open(max_seqs=1_000, kv_tokens=1_000)
    queue.heard(EngineState(running=1, waiting=1, kv_usage=0.5))
    for _ in range(300):
        queue.leave(await queue.enter(100), used=10)
    queue.heard(EngineState(running=500, waiting=1, kv_usage=0.5))
    inside, waiting = await fill(queue, [100] * 200)
    assert len(inside) > 100  # not the 12 that their full length would allow
    await end(waiting)


async def test_short_items_pass_one_that_does_not_fit_but_not_for_ever() -> None:
    """Short items pass a long one that waits for memory, until `PASSED_MAX` of them have; then it
    is next."""
    queue = EngineQueue()
    queue.open(max_seqs=10_000, kv_tokens=1_000)
    queue.heard(EngineState(running=1_000, waiting=1))
    first, _ = await fill(queue, [1_000])
    long_one = asyncio.create_task(queue.enter(900))
    await turns()
    assert not long_one.done()
    passed = 0
    waiting: list[asyncio.Task[EnginePlace]] = []
    for _ in range(PASSED_MAX + 20):
        places, waiting = await fill(queue, [100])
        passed += len(places)
        for place in places:
            queue.leave(place)
        if waiting:
            break
    assert passed == PASSED_MAX
    queue.leave(first[0])
    await turns()
    assert long_one.done()
    queue.leave(long_one.result())
    await end(waiting)


async def test_an_item_larger_than_all_memory_runs_alone() -> None:
    """An item that exceeds the whole KV memory is admitted where it is alone."""
    queue = EngineQueue()
    queue.open(max_seqs=10, kv_tokens=100)
    inside, _ = await fill(queue, [5_000])
    assert len(inside) == 1


async def test_a_guest_that_is_cancelled_keeps_no_place() -> None:
    """An item cancelled while it waits takes no place, and leaving twice frees one place only."""
    queue = EngineQueue()
    queue.open(max_seqs=1, kv_tokens=0)
    inside, waiting = await fill(queue, [1] * 10)
    waiting[0].cancel()
    await turns()
    for place in inside:
        queue.leave(place)
        queue.leave(place)
    await turns()
    assert queue.inside == 4  # the other four of nine that waited; none is counted twice
    await end(waiting)


async def test_an_urgent_job_is_let_in_before_those_who_wait() -> None:
    """A free place goes to an urgent item first, though others have waited longer."""
    queue = EngineQueue()
    queue.open(max_seqs=1, kv_tokens=0)
    inside, waiting = await fill(queue, [1] * 20)
    urgent = asyncio.create_task(queue.enter(1, Flow(job="rush", priority=Priority.URGENT)))
    await turns()
    for place in inside[:2]:
        queue.leave(place)
    await turns()
    assert urgent.done()
    await end(waiting)


async def test_suspects_get_an_engine_without_the_others() -> None:
    """They wait until it is empty, run a few at a time, and only then do the others go on."""
    queue = EngineQueue()
    queue.open(max_seqs=100, kv_tokens=0)
    inside, _ = await fill(queue, [1] * 10)
    gate, running = asyncio.Event(), 0

    async def suspect() -> None:
        nonlocal running
        async with queue.isolated(alone=False):
            running += 1
            await gate.wait()
            running -= 1

    suspects = [asyncio.create_task(suspect()) for _ in range(SUSPECTS_TOGETHER + 3)]
    await turns()
    assert running == 0
    _, others = await fill(queue, [1] * 5)
    assert len(others) == 5
    for place in inside:
        queue.leave(place)
    await turns()
    assert running == SUSPECTS_TOGETHER
    gate.set()
    await asyncio.gather(*suspects)
    await turns()
    assert all(task.done() for task in others)


async def test_one_that_must_be_alone_is() -> None:
    """An item that must run alone starts when all others have ended, and others start when it
    has."""
    queue = EngineQueue()
    queue.open(max_seqs=100, kv_tokens=0)
    gates = [asyncio.Event() for _ in range(4)]
    running: set[int] = set()

    async def suspect(number: int, alone: bool) -> None:
        async with queue.isolated(alone=alone):
            running.add(number)
            await gates[number].wait()
            running.discard(number)

    kinds = [False, True, True, False]
    tasks = [asyncio.create_task(suspect(number, alone)) for number, alone in enumerate(kinds)]
    seen = []
    for number in range(4):
        await turns()
        seen.append(set(running))
        gates[number].set()
        await turns()
    assert seen == [{0}, {1}, {2}, {3}]
    await asyncio.gather(*tasks)


async def test_suspects_that_are_cancelled_hold_nobody_up() -> None:
    """Items that were to run alone and are cancelled keep no other item waiting."""
    queue = EngineQueue()
    queue.open(max_seqs=10, kv_tokens=0)

    async def suspect() -> None:
        async with queue.isolated(alone=True):
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(suspect()) for _ in range(3)]
    await turns()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    inside, _ = await fill(queue, [1] * 3)
    assert len(inside) == 3


class PlayedEngine:
    """A scheduler in miniature: first come, first served, as many as fit into its memory."""

    def __init__(self, max_seqs: int, kv_tokens: int) -> None:
        self.max_seqs, self.kv_tokens = max_seqs, kv_tokens
        self.waiting: list[tuple[EnginePlace, int, int]] = []
        self.running: list[tuple[EnginePlace, int, int]] = []
        self.idle_steps = self.flooded = self.steps = 0

    def step(self, queue: EngineQueue) -> None:
        held = sum(size for _, size, _ in self.running)
        while (
            self.waiting
            and len(self.running) < self.max_seqs
            and held + self.waiting[0][1] <= self.kv_tokens
        ):
            place, size, steps = self.waiting.pop(0)
            self.running.append((place, size, steps))
            held += size
        stepped = [(place, size, steps - 1) for place, size, steps in self.running]
        ended = [one for one in stepped if one[2] == 0]
        self.running = [one for one in stepped if one[2]]
        self.steps += 1
        self.flooded = max(self.flooded, len(self.waiting))
        queue.heard(EngineState(len(self.running), len(self.waiting), held / self.kv_tokens))
        for place, size, _ in ended:
            queue.leave(place, size)


@given(seed=st.integers(0, 10_000), share=st.floats(0.2, 1.0))
@settings(max_examples=25)
def test_a_played_engine_is_kept_full_and_not_flooded(seed: int, share: float) -> None:
    """Items of mixed length, answers a share of their longest: its memory or its places are used,
    its line stays short."""
    asyncio.run(_play(seed, share))


async def _play(seed: int, share: float) -> None:
    rng = random.Random(seed)
    queue, engine = EngineQueue(), PlayedEngine(max_seqs=64, kv_tokens=20_000)
    queue.open(engine.max_seqs, engine.kv_tokens)

    async def item() -> None:
        tokens = rng.choice([50, 200, 800, 2_000])
        place = await queue.enter(tokens)
        engine.waiting.append((place, max(1, int(tokens * share)), rng.randint(5, 40)))

    tasks = [asyncio.create_task(item()) for _ in range(1_500)]
    await turns()
    starved = 0
    for step in range(100_000):
        engine.step(queue)
        await turns(2)
        if not queue.inside and not queue.waiting:
            break
        if step > 50 and queue.waiting and not engine.waiting:
            used = sum(size for _, size, _ in engine.running) / engine.kv_tokens
            starved += len(engine.running) < engine.max_seqs and used < 0.6
    await asyncio.gather(*tasks)
    assert queue.inside == 0
    assert engine.flooded <= engine.max_seqs * 1.25 + BUFFER_MIN
    assert starved <= engine.steps * 0.05


@pytest.mark.parametrize("sizes", [[1] * 50, [1, 10_000, 1, 10_000] * 10])
async def test_everybody_gets_in_sooner_or_later(sizes: list[int]) -> None:
    """Every item is admitted in the end, also the long ones among short ones."""
    queue = EngineQueue()
    queue.open(max_seqs=4, kv_tokens=100)
    tasks = [asyncio.create_task(queue.enter(size)) for size in sizes]
    for _ in range(1_000):
        await turns()
        for task in tasks:
            if task.done():
                queue.leave(task.result(), 1)
        if all(task.done() for task in tasks):
            break
    assert all(task.done() for task in tasks)
