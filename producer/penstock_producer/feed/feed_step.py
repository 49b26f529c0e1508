"""What a feeder works with, and what one of its steps did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypedDict

from penstock_ledger import JobStore, OutcomeStore, RedisLedger


@dataclass(frozen=True, slots=True)
class FeedStep:
    """What one step did."""

    read: int = 0  # rows, good and bad
    published: int = 0  # new in the queue
    skipped: int = 0  # finished or in the window already
    refused: int = 0  # rows that are no documents
    exhausted: bool = False

    def plus(self, later: FeedStep) -> FeedStep:
        return FeedStep(
            self.read + later.read,
            self.published + later.published,
            self.skipped + later.skipped,
            self.refused + later.refused,
            later.exhausted,
        )


class TriedBefore(TypedDict, total=False):
    """What earlier attempts at a document used up, as ``encode_item`` takes it."""

    retries: int
    calls: int
    spent: tuple[int, ...]


Tried = Mapping[str, TriedBefore]  # by document id
NEVER_TRIED: Final = TriedBefore()
UNTRIED: Final[Tried] = {}


class FeedStores(NamedTuple):
    """The parts of the ledger that a feeder works with."""

    jobs: JobStore
    outcomes: OutcomeStore
    hot: RedisLedger
