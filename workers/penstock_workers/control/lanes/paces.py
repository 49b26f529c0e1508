"""How long a lane needs for documents: one by one, or in batches that end as a whole."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

__all__ = ["InBatches", "OneByOne", "Pace"]


class Pace(Protocol):
    def seconds_for(self, documents: float) -> float: ...

    def done_in(self, seconds: float, documents: float) -> float:
        """Return how many of so many ``documents`` have an answer after so long."""
        ...


class OneByOne(NamedTuple):
    per_s: float  # above 0

    def seconds_for(self, documents: float) -> float:
        return documents / self.per_s

    def done_in(self, seconds: float, documents: float) -> float:
        return min(documents, self.per_s * max(0.0, seconds))


class InBatches(NamedTuple):
    lasts_s: float  # from creating a batch to its end
    at_once: int | None = None  # documents in batches at once; None: all of them
    first_s: float | None = None  # until those that run now end; None: none runs

    def seconds_for(self, documents: float) -> float:
        rounds = 1 if self.at_once is None else max(1, math.ceil(documents / self.at_once))
        return self._first + (rounds - 1) * self.lasts_s

    def done_in(self, seconds: float, documents: float) -> float:
        if seconds < self._first:
            return 0.0
        rounds = 1 + int((seconds - self._first) / self.lasts_s) if self.lasts_s else math.inf
        return documents if self.at_once is None else min(documents, rounds * self.at_once)

    @property
    def _first(self) -> float:
        return self.lasts_s if self.first_s is None else self.first_s
