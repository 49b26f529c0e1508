"""One item on its way through the worker: the single value that the runner's steps pass on."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import time_ns
from typing import TYPE_CHECKING, Literal, NamedTuple

from penstock_ledger.model import ItemKey
from penstock_producer.spec import JobSpec
from penstock_producer.wire import CALLS_HEADER, SPENT_HEADER, ItemMessage, item_tag
from penstock_ratelimit.fairness import DEFAULT_FLOW, Flow
from penstock_workers.celery_app.bridge import Delivery
from penstock_workers.item.judge import Failure, Reply
from penstock_workers.lanes.base import Prepared, Request
from penstock_workers.settings import ProviderSettings

if TYPE_CHECKING:
    from penstock_workers.item.admission import Turn
    from penstock_workers.lanes.answer_memory import Room

# The moments of an item that traces are made of, in their order; a try apart repeats those from "seated" on.
Mark = Literal["claimed", "read", "seated", "prepared", "admitted", "called", "answered", "decided"]


class Spent(NamedTuple):
    """What answers cost, whatever became of them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_microusd: int = 0


NOTHING_SPENT = Spent()
MOST_SPENT = 10**15  # of one item: what a message says beyond that is not believed


def _is_sum(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST_SPENT


@dataclass(frozen=True, slots=True)
class JobView:
    """What a worker keeps of a job: the parts that never change while it runs."""

    job_id: str
    spec: JobSpec
    provider: ProviderSettings
    buckets: int  # of the completed set
    flow: Flow = DEFAULT_FLOW  # where its items stand in the lines of a worker


@dataclass(slots=True, eq=False)
class Flight:
    """Written by the runner's steps in their order; decide.py and settle.py only read it."""

    delivery: Delivery
    message: ItemMessage = field(init=False)  # set by the step "open", as are the next three
    job: JobView = field(init=False)
    given: bytes = field(init=False)  # the request body as it came: what retries and replays start from
    body: bytes = field(init=False)  # the same, and from "prepare" on as the job's hook has changed it
    prepared: Prepared = field(init=False)  # set by the step "prepare"
    turn: Turn = field(init=False)  # set by the step "admit"
    sent_at: float = 0.0  # loop time at which the lane was asked
    begun: bool = False  # the ledger has counted this start and waits for its conclusion
    started: bool = False  # Celery was told that it runs
    crashes: int = 0  # earlier starts that nobody concluded
    confined: bool = False  # under suspicion: hooks, checks and the call itself run apart, see quarantine.py
    line: int = 0  # in how narrow a group; 0 is the widest
    calls: int = 0  # requests sent in this try
    last_answer: bytes | None = None
    spent: Spent = NOTHING_SPENT  # of this try: what its answer cost, accepted or not
    room: Room | None = None  # that a large answer takes in memory, until the item is settled
    happened: Failure | Reply | None = None  # what the call to the model came to, before the job's own checks
    marks: dict[Mark, int] | None = None  # when the item came to which moment, in ns since 1970; None without tracing

    def mark(self, name: Mark) -> None:
        if self.marks is not None:
            self.marks[name] = time_ns()

    @property
    def opened(self) -> bool:
        return hasattr(self, "body")

    @property
    def key(self) -> ItemKey:
        return self.message.key

    @property
    def tag(self) -> str:
        return item_tag(self.message.key)

    @property
    def retries(self) -> int:
        """Counted tries before this one."""
        return self.delivery.retries

    @property
    def calls_in_all(self) -> int:
        """Requests sent for this item, in earlier tries and in this one."""
        earlier = self.delivery.headers.get(CALLS_HEADER)
        return self.calls + (earlier if isinstance(earlier, int) else 0)

    @property
    def spent_in_all(self) -> Spent:
        """What answers to this item cost, in earlier tries and in this one."""
        earlier = self.delivery.headers.get(SPENT_HEADER)
        if earlier is None:
            return self.spent
        if not isinstance(earlier, list) or len(earlier) != len(self.spent) or not all(map(_is_sum, earlier)):
            return self.spent  # headers come from outside
        return Spent(*(now + before for now, before in zip(self.spent, earlier, strict=True)))

    @property
    def attempt(self) -> int:
        """Which counted try this is, from 1."""
        return self.delivery.retries + 1

    def request(self) -> Request:
        spec = self.job.spec
        return Request(
            self.tag,
            spec.provider,
            spec.endpoint,
            self.body,
            spec.timeout_s,
            schema=spec.response_schema,
            priority=spec.priority,
            on_overflow=spec.on_overflow,
        )
