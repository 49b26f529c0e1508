"""Decides which of the waiting texts go together, and how many tokens a batch may have.

Rows wait in buckets by length, and a batch has neighbours in length. An encoder computes a
rectangle, as long as its longest row; what is not text in it is padding, computed for nothing.
Batches in order of arrival spend three quarters of a CPU on that (benchmarks/RESULTS.md). No clock
in here: callers pass the time.

How many tokens, padding included, a batch may have is found by the throughput that was measured,
and by memory. There is a ladder of budgets, each twice the one below. A trial on a rung ends with
its rate, real tokens a second; then it goes a step towards the smallest budget that is about as
fast as any, or to a neighbour of that which is not known yet. Running out of memory puts a ceiling
on the ladder.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Any

from penstock_producer.job.spec import Priority

# rows of one bucket differ by at most an eighth in length: little padding among themselves
STEPS_PER_DOUBLING = 8
# a fuller batch gains a CPU nothing beyond a few rows, and padding costs it as much as text does
MIN_EFFICIENCY = 0.75
# How much later than it came a row is treated as having come. Fixed when it comes, so a row that
# waits goes before any newcomer in the end: urgent rows overtake a low one for a minute, and then
# none does.
HANDICAPS_S: Mapping[Priority, float] = {"urgent": 0.0, "normal": 5.0, "low": 60.0}

TokenIds = Sequence[int]
# called with true when the encoder begins the row, with false when it ends
Tell = Callable[[bool], None]
Vector = Any  # a row of float32: numpy's from a real encoder, any sequence of floats from another


def ignored(_: bool) -> None:
    """Do nothing, for rows that are not waited for by the clock."""


@dataclass(slots=True, eq=False)
class TextRow:
    """One text on its way to the encoder.

    ``future`` ends with its vector; cancelled, it is not wanted any more."""

    ids: TokenIds
    arrived: float  # seconds on the batcher's clock
    priority: Priority
    future: asyncio.Future[Vector]
    tell: Tell = ignored

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def rank(self) -> float:
        """Smaller goes first."""
        return self.arrived + HANDICAPS_S[self.priority]


def bucket_of(length: int) -> int:
    """Return the number of the bucket for a length; it grows with the length.

    Buckets are exact up to sixteen tokens, then each power of two begins ``STEPS_PER_DOUBLING`` of
    them.
    """
    shift = max(0, length.bit_length() - STEPS_PER_DOUBLING.bit_length())
    return shift * STEPS_PER_DOUBLING + (length >> shift)


def padded_tokens(rows: Sequence[TextRow]) -> int:
    """Count the cells of the rectangle that the encoder computes for these rows."""
    return max(row.length for row in rows) * len(rows)


class Buckets:
    """The rows that wait. Bounded by their callers; not thread-safe."""

    def __init__(self, *, batch_items: int, window_s: float) -> None:
        self._batch_items = batch_items
        self._window_s = window_s
        # bucket -> priority -> rows by arrival, which within one priority is by rank, too
        self._lines: dict[int, dict[Priority, dict[TextRow, None]]] = {}
        self._count = 0
        self._tokens = 0

    def __len__(self) -> int:
        return self._count

    def add(self, row: TextRow) -> None:
        line = self._lines.setdefault(bucket_of(row.length), {}).setdefault(row.priority, {})
        line[row] = None
        self._count += 1
        self._tokens += row.length

    def discard(self, row: TextRow) -> None:
        """Take a row out; do nothing when it is gone already."""
        number = bucket_of(row.length)
        lines = self._lines.get(number, {})
        line = lines.get(row.priority, {})
        if row not in line:
            return
        del line[row]
        self._count -= 1
        self._tokens -= row.length
        if not line:
            del lines[row.priority]
        if not lines:
            del self._lines[number]

    def due(self) -> float:
        """Return when the oldest row will have waited for the whole window.

        Then a batch goes, full or not."""
        return min(row.arrived for row in self._heads()) + self._window_s

    def batches(self, token_budget: int) -> float:
        """Return how many full batches wait, about: lengths may differ too much for as many."""
        return max(self._tokens / token_budget, self._count / self._batch_items)

    def take(self, now: float, token_budget: int, *, only_full: bool = False) -> list[TextRow]:
        """Take the next batch out.

        Nothing is taken while it pays to wait for more, or if it is not full and ``only_full`` is
        set. The padded tokens of a batch fit into the budget, unless it is a single row that is
        longer than all of it.
        """
        if not self._count:
            return []
        rows, full = self._neighbours(min(self._heads(), key=_rank), token_budget)
        if not full and (only_full or now < self.due()):
            return []
        for row in rows:
            self.discard(row)
        return rows

    def clear(self) -> list[TextRow]:
        rows = [row for lines in self._lines.values() for line in lines.values() for row in line]
        self._lines.clear()
        self._count = self._tokens = 0
        return rows

    def _heads(self) -> Iterator[TextRow]:
        return (next(iter(line)) for lines in self._lines.values() for line in lines.values())

    def _neighbours(self, leader: TextRow, token_budget: int) -> tuple[list[TextRow], bool]:
        """Return the leader with its neighbours in length, nearest first.

        Return also whether the batch is full, which it is when no other row of their length fits.
        """
        rows, longest, real = [leader], leader.length, leader.length
        for number in self._outwards(bucket_of(leader.length)):
            for row in merge(*self._lines[number].values(), key=_rank):
                if row is leader:
                    continue
                padded = max(longest, row.length) * (len(rows) + 1)
                if len(rows) == self._batch_items or padded > token_budget:
                    break
                if real + row.length < MIN_EFFICIENCY * padded:
                    break
                rows.append(row)
                longest, real = max(longest, row.length), real + row.length
        full = len(rows) >= self._batch_items or longest * (len(rows) + 1) > token_budget
        return rows, full

    def _outwards(self, home: int) -> list[int]:
        """Return the buckets by their distance from ``home``.

        Of two equally far the shorter comes first: it adds no padding."""
        return sorted(self._lines, key=lambda number: (abs(number - home), number))


def _rank(row: TextRow) -> float:
    return row.rank


log = logging.getLogger(__name__)

MIN_TOKEN_BUDGET = 512  # below this even a slow CPU spends more on starting batches than on tokens
# keeps the largest GPUs busy, and a large encoder's activations within two gigabytes
MAX_TOKEN_BUDGET = 65_536
START_TOKEN_BUDGET = 2_048  # about right for a CPU; a GPU climbs from here within seconds
TRIAL_BATCHES = 8  # of different lengths, or a rung would be measured by its texts
TRIAL_S = 1.0  # of computing; shorter trials measure the scheduler
CLEARLY_FASTER = 1.03  # a smaller difference is noise, and smaller batches answer sooner
# trials until the rungs beside are tried again: texts change, and so does who else uses the machine
RATES_KEPT = 64

RUNGS = tuple(
    MIN_TOKEN_BUDGET << step for step in range((MAX_TOKEN_BUDGET // MIN_TOKEN_BUDGET).bit_length())
)  # 512, 1024, … 65536


class TokenBudget:
    """The budget now is ``limit``. With ``fixed`` only memory can lower it. Not thread-safe."""

    def __init__(self, fixed: int | None = None) -> None:
        self._fixed = fixed
        self._ceiling = MAX_TOKEN_BUDGET if fixed is None else fixed
        self._rung = RUNGS.index(START_TOKEN_BUDGET)
        self._rates: dict[int, float] = {}
        self._trials = 0
        self._begin_trial()

    @property
    def limit(self) -> int:
        return self._ceiling if self._fixed is not None else min(RUNGS[self._rung], self._ceiling)

    def computed(self, tokens: int, seconds: float) -> None:
        """Note that a batch was computed while others waited.

        Only then does the budget decide how large a batch is."""
        self._tokens += tokens
        self._seconds += seconds
        self._batches += 1
        if self._fixed is None and self._batches >= TRIAL_BATCHES and self._seconds >= TRIAL_S:
            self._conclude_trial(self._tokens / self._seconds)

    def out_of_memory(self, padded: int) -> None:
        """Note that a batch of ``padded`` tokens did not fit into memory.

        For a long time no batch has more than half of that."""
        self._ceiling = min(self._ceiling, max(MIN_TOKEN_BUDGET, padded // 2))
        log.warning(
            "the encoder ran out of memory at %d tokens; batches have at most %d from now",
            padded,
            self.limit,
        )
        while self._rung > 0 and RUNGS[self._rung] > self._ceiling:
            self._rung -= 1
        self._begin_trial()

    def _begin_trial(self) -> None:
        self._tokens, self._seconds, self._batches = 0, 0.0, 0

    def _conclude_trial(self, rate: float) -> None:
        here = self._rung
        # one slow second is not to decide
        self._rates[here] = rate = (rate + self._rates.get(here, rate)) / 2
        self._trials += 1
        if self._trials % RATES_KEPT == 0:
            self._rates = {here: rate}
            # memory that was taken may be free again
            self._ceiling = min(MAX_TOKEN_BUDGET, self._ceiling * 2)
        goal = self._goal()
        if goal > here:
            self._rung += 1
        elif goal < here:
            self._rung -= 1
        self._begin_trial()

    def _goal(self) -> int:
        """Return the rung to go to.

        It is the smallest budget that is about as fast as the fastest, or a neighbour of it that
        has not been tried.
        """
        rates = {rung: rate for rung, rate in self._rates.items() if RUNGS[rung] <= self._ceiling}
        if not rates:
            return self._rung
        best = min(
            rung for rung, rate in rates.items() if rate * CLEARLY_FASTER >= max(rates.values())
        )
        for rung in (best + 1, best - 1):
            if 0 <= rung < len(RUNGS) and RUNGS[rung] <= self._ceiling and rung not in rates:
                return rung
        return best
