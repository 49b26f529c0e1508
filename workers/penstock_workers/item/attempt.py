"""The nouns of one try: the item that a message names, its job, the attempt and how it ended."""

from __future__ import annotations

from time import time_ns
from typing import Literal, NamedTuple

from msgspec import Struct

from penstock_ledger import ItemKey, Keep, Saving
from penstock_ledger.model import Paid
from penstock_producer.feed.wire import CALLS_HEADER, SPENT_HEADER, ItemMessage, item_tag
from penstock_producer.job.targets import Target
from penstock_producer.planning.prefixes import Behind, Level
from penstock_workers.item.answer import Room
from penstock_workers.item.deliveries import Delivery
from penstock_workers.item.failures import Failure, Reply
from penstock_workers.item.job_view import JobView
from penstock_workers.item.outcome import Outcome
from penstock_workers.item.passing import Passing
from penstock_workers.item.slots import SlotPlace
from penstock_workers.item.spent import NOTHING_PAID, NOTHING_SPENT, Spent, spent_before

# The moments of an item that traces are made of, in their order; a try apart repeats those from
# "seated" on.
Mark = Literal["claimed", "read", "seated", "prepared", "admitted", "called", "answered", "decided"]
Marks = dict[Mark, int]  # nanoseconds since 1970


class Item(Struct, eq=False):
    """A message that was read: its item, and what earlier attempts cost. Made by ``of``."""

    delivery: Delivery
    message: ItemMessage
    key: ItemKey  # of the message; kept, since every step asks for it
    marks: Marks | None = None  # None without tracing
    calls: int = 0  # requests sent in this attempt
    spent: Spent = NOTHING_SPENT  # by this attempt
    # why its body cannot be read any more, where it cannot: a row of a table that is gone
    lost: str = ""
    files_room: Room | None = None  # that a body with files in it takes, until it is settled

    @classmethod
    def of(cls, delivery: Delivery, message: ItemMessage, marks: Marks | None = None) -> Item:
        return Item(delivery, message, message.key, marks)

    @property
    def tag(self) -> str:
        return item_tag(self.message.key)

    @property
    def retries(self) -> int:
        """Attempts before this one that counted."""
        return self.delivery.retries

    @property
    def number(self) -> int:
        """The number of this attempt among those that count, from 1."""
        return self.delivery.retries + 1

    @property
    def calls_in_all(self) -> int:
        """Requests sent for this item, in earlier attempts and in this one."""
        earlier = self.delivery.headers.get(CALLS_HEADER)
        return self.calls + (earlier if isinstance(earlier, int) else 0)

    @property
    def spent_in_all(self) -> Spent:
        """Return what answers to this item cost, in earlier attempts and in this one."""
        earlier = self.delivery.headers.get(SPENT_HEADER)
        return self.spent if earlier is None else self.spent.plus(spent_before(earlier))

    @property
    def paid_before(self) -> Paid:
        """Return what the message says of earlier attempts; nothing where none was paid for."""
        header = self.delivery.headers.get(SPENT_HEADER)
        before = NOTHING_SPENT if header is None else spent_before(header)
        return before.paid(self.calls_in_all - self.calls) if any(before) else NOTHING_PAID

    def mark(self, name: Mark) -> None:
        if self.marks is not None:
            self.marks[name] = time_ns()


class Attempt(Item, kw_only=True, eq=False):
    """One try of an item: what the runner's steps pass on.

    Its job and its request body are known before there is one."""

    job: JobView
    given: bytes  # the request body as it came: what retries and replays start from
    body: bytes  # the same until the job's hook changes it
    first_body: bytes | None = None  # what follow-ups begin with, without a conversation
    next_body: bytes | None = None  # what is sent in a follow-up
    elsewhere: tuple[tuple[str, int, Spent], ...] = ()  # providers left: calls, and their cost
    models_left: int = 0  # given up so far: ``job`` is as the next one is asked
    step: int = 0  # of the job's `degrade`, that it was asked by
    targets: tuple[Target, ...] = ()  # of rules that it was turned to, in their order
    first_microusd: int = 0  # that answers had cost before the better model was asked
    begun: bool = False  # the ledger has counted this start and waits for its conclusion
    started: bool = False  # Celery knows that it runs
    crashes: int = 0  # earlier starts that were never concluded
    # a suspect: its hooks, its checks and the call itself run apart, see quarantine.py
    confined: bool = False
    line: int = 0  # of suspects: in how narrow a group; 0 is the widest
    sent_at: float = 0.0  # loop time at which the lane was asked; 0 before that
    last_answer: bytes | None = None
    place: SlotPlace | None = None  # its slot, until its outcome is in SQL
    # what a large answer takes of the memory for answers, until it is settled
    room: Room | None = None
    happened: Failure | Reply | None = None  # what the call came to, before the job's own checks
    keep: Keep | None = None  # where its result will answer equal requests
    levels: tuple[Level, ...] = ()  # beginnings of its prompt that other documents share
    behind: Behind | None = None  # an explicit cache, where its beginning has one
    passing: Passing | None = None  # to a caller who reads the answer as it comes
    savings: tuple[Saving, ...] = ()  # of this attempt's answers, by what caused them

    @property
    def repairs_left(self) -> int:
        """Return how often the current model may still be shown what is wrong."""
        return (
            self.job.spec.schema_repairs
            * (self.spent_in_all.fallbacks + self.spent_in_all.escalations + 1)
            - self.spent_in_all.repairs
        )

    @classmethod
    def at(cls, item: Item, job: JobView, given: bytes) -> Attempt:
        return Attempt(
            item.delivery,
            item.message,
            item.key,
            item.marks,
            lost=item.lost,
            files_room=item.files_room,
            job=job,
            given=given,
            body=given,
        )


class Settled(NamedTuple):
    """The end of an attempt.

    ``item`` is the attempt; the item while its job or body was not known, the delivery unread."""

    item: Delivery | Item | Attempt
    outcome: Outcome

    @property
    def delivery(self) -> Delivery:
        return self.item if isinstance(self.item, Delivery) else self.item.delivery
