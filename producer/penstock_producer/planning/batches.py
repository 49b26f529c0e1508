"""How long documents take through a provider's batches: a simulation, one event for each batch.

One worker packs after another document, and a batch is created as soon as the account has room for
its tokens. The provider is done with it after a time that is drawn from those measured; the worker
notices at its next look, reads the answers, and what had none goes into batches of its own once the
others are through.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["BatchCourse", "Batches", "batches_played"]

PLAYED_MAX: Final = 20_000  # batches of a round; what goes beyond takes as long as those do
ROUNDS_MAX: Final = 20  # of what had no answer: attempts are bounded well below it
PACKER, ROOM, PROVIDER = "packing", "room for enqueued tokens", "the provider's time for a batch"


class Batches(NamedTuple):
    """What the batches of a job are like."""

    documents: int  # in one batch
    tokens: int  # that the account counts for a document
    turnarounds_s: Sequence[float]  # from create to end, each as likely as the others
    tokens_max: int | None = None  # that the account may have at the provider; None = no limit
    again: float = 0.0  # share of documents that come back without an answer
    attempts_max: int = 4
    pack_s: float = 0.0  # for a document, in one worker
    collect_s: float = 0.0  # likewise
    look_first_s: float = 5.0  # after its create a batch is looked at so often at first,
    look_growth: float = 1.5
    look_cap_s: float = 120.0  # and so often in the end
    rest_s: float = (
        2.0  # between the last answer of a round and the next round: a look at the journal, or two
    )


class BatchCourse(NamedTuple):
    """What was played."""

    seconds: float
    batches: int
    rounds: int
    at_once: int  # batches at the provider, at most
    unanswered: int
    binding: str


def batches_played(documents: int, given: Batches, *, seed: int = 0) -> BatchCourse:
    """Raises ValueError for a batch that never fits."""
    if documents < 1 or given.documents < 1 or not given.turnarounds_s:
        raise ValueError(
            "a job needs a document, a batch that takes one, and the time that batches take"
        )
    if (
        given.tokens_max is not None
        and given.documents * given.tokens > given.tokens_max
        and given.documents > 1
    ):
        raise ValueError(
            f"a batch of {given.documents} documents with {given.tokens} tokens each is more than "
            f"the {given.tokens_max} that the account may have at once"
        )
    luck = random.Random(seed)
    at_s, left, number, rounds, at_once = 0.0, documents, 0, 0, 0
    waits: dict[str, float] = {PACKER: 0.0, ROOM: 0.0, PROVIDER: 0.0}
    while left and rounds < min(given.attempts_max, ROUNDS_MAX):
        batches = math.ceil(left / given.documents)
        turn = _Round(given, luck, at_s + (given.rest_s if rounds else 0.0), waits)
        at_s = turn.through(_sizes(min(left, PLAYED_MAX * given.documents), given.documents))
        if batches > PLAYED_MAX:
            at_s += (at_s - turn.began_s) / PLAYED_MAX * (batches - PLAYED_MAX)
        number, rounds, at_once = number + batches, rounds + 1, max(at_once, turn.at_once)
        left = _binomial(luck, left, given.again)
    return BatchCourse(at_s, number, rounds, at_once, left, max(waits, key=waits.__getitem__))


class _Round:
    def __init__(
        self, given: Batches, luck: random.Random, began_s: float, waits: dict[str, float]
    ) -> None:
        self._given, self._luck, self.began_s, self._waits = given, luck, began_s, waits
        self._open: list[tuple[float, int]] = []  # when the provider frees its tokens, and how many
        self._held = 0
        self._last_s = began_s  # when the latest was created: they are in order
        self.at_once = 0

    def through(self, sizes: Sequence[int]) -> float:
        """When the last answer of these batches is stored."""
        given, packed_s, free_s = self._given, self.began_s, self.began_s
        noticed: list[tuple[float, int]] = []
        for size in sizes:
            packed_s += size * given.pack_s
            created_s = self._room(packed_s, size * given.tokens)
            took_s = self._luck.choice(given.turnarounds_s)
            seen_s = created_s + _noticed(took_s, given)
            heapq.heappush(self._open, (seen_s, size * given.tokens))
            self._held += size * given.tokens
            self.at_once = max(self.at_once, len(self._open))
            noticed.append((seen_s, size))
            self._waits[PROVIDER] += took_s / len(sizes)
        for seen_s, size in sorted(noticed):
            free_s = max(free_s, seen_s) + size * given.collect_s
        self._waits[PACKER] += packed_s - self.began_s
        self._waits[ROOM] += self._last_s - packed_s
        return free_s

    def _room(self, at_s: float, tokens: int) -> float:
        """When the account has room for so many tokens, from this time on."""
        most, at_s = self._given.tokens_max, max(at_s, self._last_s)
        while self._open and (
            self._open[0][0] <= at_s or (most is not None and self._held + tokens > most)
        ):
            freed_s, freed = heapq.heappop(self._open)
            self._held -= freed
            at_s = max(at_s, freed_s)
        self._last_s = at_s
        return at_s


def _noticed(took_s: float, given: Batches) -> float:
    """The first look at a batch that took so long, by the pauses between looks."""
    at_s, pause_s = 0.0, given.look_first_s
    while at_s < took_s:
        if pause_s >= given.look_cap_s:
            return at_s + math.ceil((took_s - at_s) / given.look_cap_s) * given.look_cap_s
        at_s, pause_s = at_s + pause_s, min(given.look_cap_s, pause_s * given.look_growth)
    return at_s


def _sizes(documents: int, most: int) -> list[int]:
    whole, rest = divmod(documents, most)
    return [most] * whole + ([rest] if rest else [])


def _binomial(luck: random.Random, number: int, share: float) -> int:
    """How many of ``number`` have the luck that a ``share`` has: by its normal form, which large
    numbers have."""
    if share <= 0:
        return 0
    drawn = luck.gauss(number * share, math.sqrt(number * share * (1 - share)))
    return min(number, max(0, round(drawn)))
