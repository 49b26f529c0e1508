"""Guess what a request will cost, and learn from what it did cost."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

CHARS_PER_TOKEN = 4.0
"""English prose with the common tokenizers; other languages and code are learned."""
SLOWEST_LEARNING = 0.05
"""Weight of a new observation once warm: about the last twenty count."""
MAX_RATIO = 50.0
"""A learned ratio stays within 1/50 and 50: a provider that reports nonsense must not stop or flood a quota."""
MAX_KEYS = 4096
"""Keys remembered (job and model, say); the least recently observed is forgotten first."""


class Estimator:
    """chars / 4 times a learned ratio per key. Not shared between processes: each warms up within a few requests."""

    def __init__(self) -> None:
        self._learned: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def estimate(self, key: Hashable, chars: int) -> float:
        """Tokens to expect for ``chars`` characters; at least one."""
        ratio, _ = self._learned.get(key, (1.0, 0))
        return max(1.0, chars / CHARS_PER_TOKEN * ratio)

    def observe(self, key: Hashable, chars: int, tokens: float) -> None:
        """Learn from a request that used ``tokens``: the first replaces the guess, later ones weigh max(0.05, 1/n)."""
        if chars <= 0 or not tokens >= 0:
            return
        ratio, seen = self._learned.pop(key, (1.0, 0))
        seen += 1
        weight = max(SLOWEST_LEARNING, 1.0 / seen)
        ratio += weight * (tokens * CHARS_PER_TOKEN / chars - ratio)
        self._learned[key] = (min(max(ratio, 1.0 / MAX_RATIO), MAX_RATIO), seen)
        if len(self._learned) > MAX_KEYS:
            self._learned.popitem(last=False)
