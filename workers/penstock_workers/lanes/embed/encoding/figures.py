"""What the encoder did lately, for `penstock status`: is it the engine that holds the job up, or
the queue?"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

RECENT_S = 10.0  # rates are over this time: two heartbeats, so that no batch goes unseen
RECENT_BATCHES = 4_096  # kept at most; more than a GPU computes in that time


@dataclass(frozen=True, slots=True)
class Computed:
    """One batch."""

    at: float
    items: int
    tokens: int
    padded: int
    waited_s: float  # by its oldest row


class BatchFigures:
    """Written on the loop, read by any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = clock()
        self._recent: deque[Computed] = deque(maxlen=RECENT_BATCHES)
        self.tokens, self.padded, self.batches, self.items = 0, 0, 0, 0  # since the start

    def add(self, batch: Computed) -> None:
        self._recent.append(batch)
        self.batches += 1
        self.items += batch.items
        self.tokens += batch.tokens
        self.padded += batch.padded

    def lately(self) -> Mapping[str, float]:
        now = self._clock()
        recent = [batch for batch in tuple(self._recent) if batch.at > now - RECENT_S]
        seconds = max(1e-3, min(RECENT_S, now - self._since))
        tokens, padded = (
            sum(batch.tokens for batch in recent),
            sum(batch.padded for batch in recent),
        )
        items = sum(batch.items for batch in recent)
        return {
            "tokens_per_s": tokens / seconds,
            "items_per_s": items / seconds,
            "batch_items": items / len(recent) if recent else 0.0,
            "padding_efficiency": tokens / padded if padded else 1.0,
            "queue_wait_ms": 1000 * sum(batch.waited_s for batch in recent) / len(recent)
            if recent
            else 0.0,
        }
