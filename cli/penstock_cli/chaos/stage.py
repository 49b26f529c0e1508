"""A fault strikes a stage: a fleet with one running job, and what the fault has done to it.

A `Fault` says what is done, and returns when it is over; it counts on its `Stage` which calls may
have been paid for twice.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock_cli.chaos.fleet import LEASE_S, Fleet
from penstock_cli.chaos.processes import Process, until
from penstock_cli.chaos.proxy import Proxy
from penstock_ledger.model import Job
from penstock_producer.feed.queues import queue_name

if TYPE_CHECKING:
    import redis

WORKERS, CONCURRENCY = 2, 8
SLOTS = CONCURRENCY  # of one worker: in a call, or answered and not stored yet
LEASE_PAST_S = LEASE_S + 1  # when a frozen worker has lost what it held
LATENCY_MS = 400  # so that a job outlasts its fault
BEGIN_S = 60.0  # for the first outcomes
END_S = 120.0  # from there to the job's end
AUTHORITY = "authority.pem"  # in the folder of the fleet, whose processes trust it
HOOKS = "penstock_cli.chaos.poison"
PRICE_USD = 1_000.0  # of a million tokens, in and out: no call is too cheap to be seen


@dataclass(frozen=True)
class Lane:
    """The way in which chaos runs one lane."""

    name: str
    concurrency: int = CONCURRENCY
    settings: Mapping[str, object] = field(default_factory=dict)  # of its workers
    spec: Mapping[str, Any] = field(default_factory=dict)
    provider: tuple[str, ...] = ("--latency-ms", str(LATENCY_MS))  # flags of `penstock simulate`
    upstream: bool = False  # its provider is a server beside it, which has the model


LANES = {
    "api": Lane("api"),
    "batch": Lane(
        "batch",
        1,
        {"batch__poll_first_s": 0.1, "batch__poll_cap_s": 0.3, "batch__unclear_s": 0.2},
        {"batch_max_requests": 30, "max_attempts": 20},
        ("--batch-s", "3", "--batch-sigma", "0.5", "--batch-step-s", "0.1"),
    ),
    "gpu": Lane("gpu", spec={"model": None}, upstream=True),
    "embed": Lane("embed", spec={"model": None, "endpoint": "/v1/embeddings"}, upstream=True),
}


@dataclass
class Stage:
    """A fleet with one running job, and what the fault has done to it."""

    fleet: Fleet
    seed: int
    job: Job
    lane: Lane = LANES["api"]
    proxies: Mapping[str, Proxy] = field(default_factory=dict)  # by what is behind them
    died: int = 0  # workers whose slots may have been paid for twice
    deaths: int = 0  # workers that died of the fault, and not by our hand
    ambiguous: int = 0  # calls that may be made twice, or be lost on the way to the books
    ended_at: float = 0.0
    did: list[str] = field(default_factory=list)  # in words, for the table
    problems: list[str] = field(default_factory=list)  # that the fault itself has seen

    def __post_init__(self) -> None:
        self.luck = random.Random(self.seed)

    @property
    def queue(self) -> str:
        return queue_name(self.lane.name)

    @property
    def client(self) -> redis.Redis:
        return self.fleet.store.client()

    def workers(self) -> list[Process]:
        return [
            process
            for process in self.fleet.processes
            if process.alive and process.name.startswith(self.lane.name)
        ]

    def kill(self, *workers: Process, off_s: Sequence[float] = ()) -> None:
        """Kill workers and start others in their place; what they held counts.

        The clocks of the new ones are off by so much, where it is given."""
        for worker in workers:
            worker.kill()
        self.replace_dead(off_s)
        self.died += len(workers)
        self.deaths -= len(workers)  # which are those that the fault had not asked for

    def replace_dead(self, off_s: Sequence[float] = ()) -> None:
        """Replace what has died, as a supervisor would.

        A worker that was not killed by the fault died of it, and its slots count."""
        before, clocks = self.fleet.deaths, iter(off_s)
        self.fleet.replace_dead(lambda: start_worker(self.fleet, self.lane, next(clocks, 0.0)))
        self.deaths += self.fleet.deaths - before

    def hold(self, seconds: float) -> None:
        """Let the fault last, with a supervisor at work."""
        until_at = time.monotonic() + seconds

        def over() -> bool:
            self.replace_dead()
            return time.monotonic() >= until_at

        until(over, seconds + 30, "the fault lasts")

    def hostile(self, kinds: str, seconds: float, share: float = 1.0) -> None:
        """Let the provider answer so for a while, and well afterwards."""
        self.fleet.provider.tell(hostile=kinds, hostile_share=share)
        try:
            self.hold(seconds)
        finally:
            self.fleet.provider.tell(hostile=None)

    def shown(self) -> str:
        return self.fleet.penstock("status", self.job.job_id)

    @property
    def slots(self) -> int:
        """Return how many calls may be made twice: none in batches, which are in a journal."""
        if self.lane.name == "batch":
            return 0
        return (self.died + self.deaths) * SLOTS + self.ambiguous


@dataclass(frozen=True)
class Fault:
    """One way to break a fleet. ``strike`` does it and returns when it is over."""

    group: str
    name: str
    does: str  # in words, for the table
    strike: Callable[[Stage], None]
    lanes: tuple[str, ...] = ("api",)
    documents: int = 240
    spec: tuple[tuple[str, Any], ...] = ()
    dead: frozenset[str] = frozenset()  # reasons that dead letters may have
    most_dead: int = 0
    waits_for: str | None = None  # a person: what `status` then says (a pattern)
    quick: bool = False  # in `make test` as well; it leaves the fleet as it was
    honest: bool = True  # what the provider says of tokens can be believed
    from_bucket: bool = False  # its job's source is an object
    needs: frozenset[str] = frozenset()  # of the fleet, see `arena.Arena.lacks`

    def __str__(self) -> str:
        return self.name


def start_worker(fleet: Fleet, lane: Lane, off_s: float = 0.0) -> Process:
    """Start a worker that also controls."""
    own: dict[str, object] = {"control": True, **lane.settings}
    if lane.name == "batch":
        own["batch__folder"] = fleet.folder / "packed"
    if lane.upstream:
        own[f"{lane.name}__upstream_url"] = fleet.upstream
    own |= {f"providers__default__usd_per_mtok_{side}": PRICE_USD for side in ("in", "out")}
    return fleet.worker_with(own, lane.concurrency, lane.name, off_s)


def start_provider(fleet: Fleet, lane: Lane, seed: int, certificate: str = "good") -> None:
    """Start the provider, with a certificate of this kind; the fleet trusts who signs it."""
    fleet.provider.scheme = "https"
    signed = ("--certificate", certificate, "--authority", str(fleet.folder / AUTHORITY))
    fleet.provider.start(*lane.provider, "--seed", str(seed), *signed)


def begin(fleet: Fleet, seed: int, lane: Lane = LANES["api"]) -> None:
    """Start what all faults have: a provider, and two workers that also control."""
    fleet.replaced = (lane.name,)
    start_provider(fleet, lane, seed)
    fleet.ready(*(start_worker(fleet, lane) for _ in range(WORKERS)))
