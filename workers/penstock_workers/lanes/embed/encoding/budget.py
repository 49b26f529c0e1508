"""How many tokens, padding included, a batch may have: by the throughput that was measured, and by
memory.

A ladder of budgets, each twice the one below. A trial on a rung ends with its rate, real tokens a
second; then it goes a step towards the smallest budget that is about as fast as any, or to a
neighbour of that which is not known yet. Running out of memory puts a ceiling on the ladder.
"""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)

MIN_TOKEN_BUDGET = 512  # below this even a slow CPU spends more on starting batches than on tokens
MAX_TOKEN_BUDGET = (
    65_536  # keeps the largest GPUs busy, and a large encoder's activations within two gigabytes
)
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
        """A batch was computed while others waited: only then does the budget decide how large it
        is."""
        self._tokens += tokens
        self._seconds += seconds
        self._batches += 1
        if self._fixed is None and self._batches >= TRIAL_BATCHES and self._seconds >= TRIAL_S:
            self._conclude_trial(self._tokens / self._seconds)

    def out_of_memory(self, padded: int) -> None:
        """A batch of ``padded`` tokens did not fit: for a long time not more than half of that."""
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
        self._rates[here] = rate = (
            rate + self._rates.get(here, rate)
        ) / 2  # one slow second is not to decide
        self._trials += 1
        if self._trials % RATES_KEPT == 0:
            self._rates = {here: rate}
            self._ceiling = min(
                MAX_TOKEN_BUDGET, self._ceiling * 2
            )  # memory that was taken may be free again
        goal = self._goal()
        if goal > here:
            self._rung += 1
        elif goal < here:
            self._rung -= 1
        self._begin_trial()

    def _goal(self) -> int:
        """The smallest budget that is about as fast as the fastest, or a neighbour of it that has
        not been tried."""
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
