"""The queue before an engine: keep it full, never flooded.

An engine that batches continuously is fastest with a few requests more than it can run, so that a
place that falls free is taken at the next step. More than that would wait there instead of here,
where items can still be ordered, given back or taken by another worker. What the engine reports at
each step decides: while nothing waits in it, it gets more. Where many answers end with one step, as
answers of one length do, their places are empty until the worker has taken the answers in and sent
others: an engine that was seen so gets as many more. What is counted are sequences, as the engine
counts them: an item with `n` answers is as many.

An engine that has nothing to do begins with all that is being made ready: it computes a step for
one request in the time of a step for twenty, and the places of one wave fall free together.

Items that were in engines that died are let in apart from all others: a few together, then alone.

What the engine reports at every step, gathered into the few figures that people and EngineQueue
need.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from penstock_ratelimit import Flow
from penstock_ratelimit.for_penstock import DEFAULT_FLOW, FairLine

# sequences that wait in the engine, as a part of those that run: 1.1 to 1.25 measured best
BUFFER_SHARE = 0.25
BUFFER_MIN = 4
# of the larger buffer, kept from step to step: half of it after some five hundred
LARGER_KEPT = 0.9986
# of the KV cache promised: what waits needs none yet, and answers end before their longest length
MEMORY_SHARE = 1.25
# an idle engine waits no longer for items that are being made ready: images may take seconds
GATHER_S = 0.05
KV_FULL = 0.9  # above this a waiting line of zero does not mean that the engine starves
LEARN_RATE = 0.02  # per item: how long answers really are is known after some fifty
# shorter items that may pass one too long for the memory that is free; then it goes first
PASSED_MAX = 64
HELD_MAX = 8  # such items set aside; beyond that the line waits
# about the root of what is in flight: two more deaths find one culprit among hundreds
SUSPECTS_TOGETHER = 16


@dataclass(frozen=True, slots=True)
class EngineState:
    """An engine's words on itself after a step."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0  # 0 to 1


@dataclass(slots=True, eq=False)
class EnginePlace:
    """The place of one item: waited for, taken, or given back."""

    tokens: int  # prompt and longest answer: what it may come to occupy
    entry: asyncio.Future[None]
    sequences: int = 1
    passed: int = 0  # shorter ones that were let in before it
    inside: bool = False


class EngineQueue:
    """The queue before one engine. Used on one event loop."""

    def __init__(self) -> None:
        self.inside = 0  # sequences
        self.ceiling = math.inf  # of them, where others use the engine, too
        self._tokens = 0.0  # promised to those inside
        self._share_used = 1.0  # of what items may come to occupy, learned from those that ended
        self._max_seqs = 0  # 0 while there is no engine
        self._kv_tokens = 0
        self._state = EngineState()
        self._larger = 0.0  # a buffer that an engine would have needed whose places fell free
        self._entered = 0  # sequences, since the engine last reported
        # Both bounded by the runner's slots: each place belongs to an item in one of them.
        self._line: FairLine[EnginePlace] = FairLine(gone=lambda place: place.entry.done())
        self._held: deque[EnginePlace] = deque()
        self._suspects: deque[tuple[asyncio.Future[None], bool]] = deque()
        self._isolated = 0  # suspects inside
        self._coming = 0  # items that are being made ready
        # while the first of them wait for the others
        self._gathering: asyncio.TimerHandle | None = None
        self._gathered = False  # for long enough

    def open(self, max_seqs: int, kv_tokens: int) -> None:
        """Open the queue.

        The engine runs up to ``max_seqs`` sequences at once and remembers ``kv_tokens`` tokens; 0 =
        it does not say.
        """
        self._max_seqs, self._kv_tokens = max_seqs, kv_tokens
        self._state = EngineState()
        self._let_in()

    def close(self) -> None:
        """Let no item in until there is an engine again."""
        self._max_seqs = 0

    def heard(self, state: EngineState) -> None:
        self._larger *= LARGER_KEPT
        if self._state.waiting and not state.waiting and self.waiting:
            self._larger = max(self._larger, self._buffer() + self._max_seqs - state.running)
        self._state = state
        self._entered = 0
        self._let_in()

    @property
    def waiting(self) -> int:
        """Items that are ready and have no place."""
        return len(self._line) + len(self._held)

    @contextmanager
    def coming(self) -> Iterator[None]:
        """Say that an item is being made ready, and enters after that unless it is refused."""
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1
            if not self._coming:
                self._let_in()

    async def enter(
        self, tokens: int, flow: Flow = DEFAULT_FLOW, *, sequences: int = 1
    ) -> EnginePlace:
        """Wait for a place. The caller gives it back with ``leave``.

        One of many sequences enters like any other, as soon as there is room for one of them: else
        it might wait for ever.
        """
        place = EnginePlace(tokens, asyncio.get_running_loop().create_future(), sequences)
        self._line.push(place, flow, float(max(1, tokens)))
        self._let_in()
        try:
            await place.entry
        except asyncio.CancelledError:
            self.leave(place)
            raise
        return place

    def leave(self, place: EnginePlace, used: int | None = None) -> None:
        """Give the place back; ``used`` are the tokens that it came to occupy, where known.

        Again changes nothing."""
        if not place.inside:
            return
        place.inside = False
        self.inside -= place.sequences
        self._tokens -= place.tokens
        if used is not None and place.tokens:
            self._share_used += LEARN_RATE * (min(1.0, used / place.tokens) - self._share_used)
        self._let_in()

    @asynccontextmanager
    async def isolated(self, *, alone: bool) -> AsyncIterator[None]:
        """Give a place among suspects only, or ``alone``; the engine is emptied first."""
        entry: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._suspects.append((entry, alone))
        self._let_in()
        try:
            await entry
        except asyncio.CancelledError:
            if entry.done() and not entry.cancelled():
                self._leave_isolation()
            self._let_in()
            raise
        try:
            yield
        finally:
            self._leave_isolation()

    def _leave_isolation(self) -> None:
        self._isolated -= 1
        self._let_in()

    # -- who is next -------------------------------------------------------------------------------

    def _let_in(self) -> None:
        if not self._max_seqs:
            return
        self._let_suspects_in()
        if self._suspects or self._isolated or self._gathers():
            return
        while self.inside < self._limit():
            place = self._next()
            if place is None:
                return
            place.inside = True
            place.entry.set_result(None)
            self.inside += place.sequences
            self._entered += place.sequences
            self._tokens += place.tokens

    def _gathers(self) -> bool:
        """Return whether the engine is empty, and more items are about to be ready for it."""
        if self.inside or not self._coming or self.waiting >= self._max_seqs:
            if self._gathering is not None:
                self._gathering.cancel()
            self._gathering, self._gathered = None, False
            return False
        if self._gathering is None and self.waiting:
            loop = asyncio.get_running_loop()
            self._gathering = loop.call_later(GATHER_S, self._let_gathered_in)
        return not self._gathered

    def _let_gathered_in(self) -> None:
        self._gathered = True
        self._let_in()

    def _let_suspects_in(self) -> None:
        """Let suspects in as soon as the engine is empty.

        One that must be alone, or some that need not."""
        while self._suspects and self._suspects[0][0].done():
            self._suspects.popleft()
        if self.inside or self._isolated:
            return
        while self._suspects and self._isolated < SUSPECTS_TOGETHER:
            entry, alone = self._suspects[0]
            if alone and self._isolated:
                return
            self._suspects.popleft()
            if entry.done():
                continue
            entry.set_result(None)
            self._isolated += 1
            if alone:
                return

    def _limit(self) -> float:
        """Return how many sequences may be inside.

        Where some wait already, those that run and a buffer; else as many as ever fit."""
        running = self._state.running if self._state.waiting else self._max_seqs
        return min(running + self._buffer(), self.ceiling)

    def _buffer(self) -> int:
        """Return how many sequences may wait in the engine."""
        running = self._state.running if self._state.waiting else self._max_seqs
        least = max(BUFFER_MIN, math.ceil(BUFFER_SHARE * running))
        return max(least, math.ceil(min(running, self._larger)))

    def _next(self) -> EnginePlace | None:
        """Take the first in line that fits into memory.

        One that does not fit is passed by shorter ones, but not for ever."""
        while self._held and self._held[0].entry.done():
            self._held.popleft()
        if self._held and (self._fits(self._held[0]) or self._held[0].passed >= PASSED_MAX):
            return self._held.popleft() if self._fits(self._held[0]) else None
        while len(self._held) < HELD_MAX:
            place = self._line.pop()
            if place is None:
                return None
            if self._fits(place):
                for longer in self._held:
                    longer.passed += 1
                return place
            self._held.append(place)
        return None

    def _fits(self, place: EnginePlace) -> bool:
        if not self._kv_tokens or not self.inside:
            return True
        promised = (self._tokens + place.tokens) * self._share_used
        return promised <= MEMORY_SHARE * self._kv_tokens or self._starves

    @property
    def _starves(self) -> bool:
        """The engine has memory left and nothing to fill it with: the estimate was too careful."""
        state = self._state
        return (
            not state.waiting
            and state.kv_usage < KV_FULL
            and self._entered < max(BUFFER_MIN, state.running // 4)
        )


SPAN_S = 5.0  # rates are those of the last seconds
QUEUE_WAIT_RATE = 0.05  # per item, for the mean time in the engine's own line
MEMORY_BOUND = 0.95  # of the KV cache: beyond it requests are preempted and computed again


class TokenRates:
    """Tokens per second, of prompts and of answers, over the latest span."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._began = clock, clock()
        self._prompt = self._generated = 0  # tokens since the span began
        self.prompt_per_s = self.generated_per_s = 0.0

    def add(self, prompt: int, generated: int) -> None:
        self._prompt += prompt
        self._generated += generated

    def roll(self) -> None:
        """Begin another span once this one is over."""
        now = self._clock()
        span = now - self._began
        if span >= SPAN_S:
            self.prompt_per_s, self.generated_per_s = self._prompt / span, self._generated / span
            self._prompt = self._generated = 0
            self._began = now

    def forget(self) -> None:
        self.prompt_per_s = self.generated_per_s = 0.0


class EngineFigures:
    """Figures of a group of engines, fed by the stat logger of each, read by any thread."""

    def __init__(
        self,
        report: Callable[[EngineState], None],
        stepped: Callable[[int, EngineState], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report, self._stepped = report, stepped  # the latter of one engine of the group
        self._states: dict[int, EngineState] = {}  # one per data-parallel engine
        self._rates = TokenRates(clock)
        self._queried = self._hit = 0
        self._preempted = 0
        self._queue_wait_s = 0.0

    def note(self, scheduler: Any, iteration: Any, engine: int = 0) -> None:
        """Note one step of an engine.

        ``scheduler`` and ``iteration`` are vLLM's SchedulerStats and IterationStats, or None."""
        if iteration is not None:
            self._rates.add(iteration.num_prompt_tokens, iteration.num_generation_tokens)
            self._preempted += iteration.num_preempted_reqs
            for finished in iteration.finished_requests:
                self._queue_wait_s += QUEUE_WAIT_RATE * (finished.queued_time - self._queue_wait_s)
        self._rates.roll()
        if scheduler is None:
            return
        cache = scheduler.prefix_cache_stats
        if cache is not None:
            self._queried += cache.queries
            self._hit += cache.hits
        # since 0.2x; they wait all the same
        deferred = getattr(scheduler, "num_skipped_waiting_reqs", 0)
        self._states[engine] = state = EngineState(
            scheduler.num_running_reqs,
            scheduler.num_waiting_reqs + deferred,
            scheduler.kv_cache_usage,
        )
        self._stepped(engine, state)
        self._report(self.state)

    def forget(self) -> None:
        """Forget the engine's last figures, since it is gone."""
        self._states.clear()
        self._rates.forget()

    @property
    def state(self) -> EngineState:
        """All engines of the group together; the fullest cache counts."""
        states = list(self._states.values())
        return EngineState(
            sum(state.running for state in states),
            sum(state.waiting for state in states),
            max((state.kv_usage for state in states), default=0.0),
        )

    def gauges(self, *, max_seqs: int, lined_up: int) -> dict[str, float | str]:
        """Return the figures; ``lined_up`` items are ready and wait for a place."""
        self._rates.roll()
        state = self.state
        return {
            "running": float(state.running),
            "waiting": float(state.waiting + lined_up),
            "kv_usage": state.kv_usage,
            "prefix_hit_rate": self._hit / self._queried if self._queried else 0.0,
            "prompt_tokens_per_s": self._rates.prompt_per_s,
            "generation_tokens_per_s": self._rates.generated_per_s,
            "preempted": float(self._preempted),
            "queue_wait_ms": self._queue_wait_s * 1000,
            "bound": bound(state, max_seqs=max_seqs, lined_up=lined_up),
        }


def bound(state: EngineState, *, max_seqs: int, lined_up: int) -> str:
    """Say what limits the worker now.

    It is `memory` (the KV cache is full), `engine` (it has all it can do) or `queue` (it starves).
    """
    if not max_seqs:
        return "starting"
    if state.kv_usage >= MEMORY_BOUND:
        return "memory"
    if state.waiting or lined_up or state.running >= max_seqs:
        return "engine"
    return "queue"
