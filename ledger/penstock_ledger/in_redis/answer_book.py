"""Redis knows which requests are answered or on their way, so that equal ones are sent once.

A book is a hash, of one job or of a tenant, by the digests of requests. It holds no answers: those
are results in SQL, and an entry says whose. All of it may be lost at any time, which costs calls
and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple

import redis

from penstock_ledger.in_redis.redis_scripts import BATCH_MAX, packed, registered
from penstock_ledger.keys import ANSWERS_MAX
from penstock_ledger.model import ItemKey

LEASE_S: Final = 60.0
"""How long a claim lasts after its owner last asked: an equal request waits so long for an owner
that died."""


class RequestName(NamedTuple):
    """An item's request: the book of its job or tenant, and its digest there."""

    book: str
    digest: str


class Asked(NamedTuple):
    """A question about a request and its equals."""

    name: RequestName
    oldest_s: float  # an older answer is none
    idle_s: int  # the book is forgotten when it was not written to for so long


class InFlight(NamedTuple):
    """An equal request is with another owner."""

    age_s: float


class AnswerBook:
    """``client`` answers in bytes. Raises redis.RedisError."""

    def __init__(
        self, client: redis.Redis, owner: str, *, most: int = ANSWERS_MAX, lease_s: float = LEASE_S
    ) -> None:
        self._script = registered(client, "lead")
        self._owner, self._most, self.lease_s = owner, most, lease_s

    def ask(
        self, asked: Sequence[Asked], released: Sequence[RequestName] = ()
    ) -> list[ItemKey | InFlight | None]:
        """Return for each whose result answers it, or who else is at it.

        None: the owner sends it, and has the claim for ``lease_s`` seconds. Asking again keeps a
        claim. ``released`` claims end."""
        answers: list[bytes | int] = []
        for at in range(0, len(released), BATCH_MAX):
            self._lead((), released[at : at + BATCH_MAX])
        for at in range(0, len(asked), BATCH_MAX):
            answers += self._lead(asked[at : at + BATCH_MAX], ())
        return [_answer(one) for one in answers]

    def _lead(self, asked: Sequence[Asked], released: Sequence[RequestName]) -> list[bytes | int]:
        by_book: dict[tuple[str, int], list[int]] = {}
        for number, ((book, _), _, idle_s) in enumerate(asked):
            by_book.setdefault((book, idle_s), []).append(number)
        asks = [
            (
                *book,
                [asked[number].name.digest for number in numbers],
                [asked[number].oldest_s for number in numbers],
            )
            for book, numbers in by_book.items()
        ]
        given = [self._owner, self.lease_s, self._most, packed((asks, released))]
        answers: list[bytes | int] = self._script([], given)
        numbered = zip(chain.from_iterable(by_book.values()), answers, strict=True)
        return [answer for _, answer in sorted(numbered, key=itemgetter(0))]


def _answer(said: bytes | int) -> ItemKey | InFlight | None:
    if isinstance(said, int):
        return None if said < 0 else InFlight(said / 1000)
    job_id, generation, doc_id = said.decode().split(":", 2)
    return ItemKey(job_id, int(generation), doc_id)
