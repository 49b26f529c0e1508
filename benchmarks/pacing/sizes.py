"""How large requests are: drawn with a seed, and never larger than what every limiter here can take
at once."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from benchmarks.pacing.provider import Call

OUTPUT_SHARE = 0.2
"""Of a request's tokens; batch work mostly reads."""
MAX_TOKENS_FACTOR = 2.0
"""max_tokens is asked for with room to spare: twice what comes."""
SIGMA = 1.0
SMALL, LARGE, LARGE_SHARE = 500.0, 30_000.0, 0.05
"""Two kinds of requests: 95 of 100 small, 5 of 100 sixty times as large. Scaled to the mean that a
case asks for."""
EVEN, LONG_TAIL, TWO_KINDS = "even", "lognormal", "bimodal"


@dataclass(frozen=True, slots=True)
class Sizes:
    """``mean`` and ``largest`` are tokens of a whole request, output included."""

    kind: str
    mean: float
    largest: float

    def draw(self, rng: random.Random) -> Call:
        total = min(self._total(rng), self.largest)
        output = max(1.0, round(total * OUTPUT_SHARE))
        return Call(max(1.0, round(total - output)), output, MAX_TOKENS_FACTOR * output)

    def _total(self, rng: random.Random) -> float:
        if self.kind == EVEN:
            return self.mean
        if self.kind == LONG_TAIL:
            return rng.lognormvariate(math.log(self.mean) - SIGMA**2 / 2, SIGMA)
        scale = self.mean / (SMALL * (1 - LARGE_SHARE) + LARGE * LARGE_SHARE)
        return scale * (LARGE if rng.random() < LARGE_SHARE else SMALL)
