"""A lane brings one row of the registry to a worker, light to import.

Its engine is imported when it starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from penstock_producer.feed.queues import Served
from penstock_workers.item.lane import Lane
from penstock_workers.lanes.lane_settings import LaneSettings
from penstock_workers.metrics import catalogue
from penstock_workers.metrics.samples import Metric, Sample
from penstock_workers.settings import ProviderSettings, WorkerSettings

if TYPE_CHECKING:
    from penstock_workers.children.child_pool import ChildPool
    from penstock_workers.item.answer import Tried
    from penstock_workers.item.attempt import Attempt
    from penstock_workers.item.deliveries import ItemEngine
    from penstock_workers.item.failures import Failure, Reply
    from penstock_workers.item.lane import Admission, Prepared, Turn
    from penstock_workers.item.run.quarantine import Quarantine

L = TypeVar("L", bound=Lane)

# 64 calls in each: suspects of most lanes wait for a provider, not for a processor
SUSPECT_CHILDREN = 4


class Gauge(NamedTuple):
    """The metric that shows one of the lane's gauges, and what the gauge is multiplied by."""

    metric: Metric
    factor: float = 1.0


# what every engine shows that a worker hosts, or waits for beside itself
ENGINE_GAUGES: Final[Mapping[str, Gauge]] = {
    "load_bytes": Gauge(catalogue.LOAD_READ),
    "load_total_bytes": Gauge(catalogue.LOAD_TOTAL),
    "deaths": Gauge(catalogue.ENGINE_DEATHS),
    "running": Gauge(catalogue.ENGINE_RUNNING),
    "waiting": Gauge(catalogue.ENGINE_WAITING),
    "queue_wait_ms": Gauge(catalogue.QUEUE_WAIT, 0.001),
}


class LaneFinding(NamedTuple):
    """One line of `penstock doctor`."""

    is_good: bool
    seen: str
    fix: str = ""
    subject: str = ""  # empty: the lane's name
    # no item is served so, whatever machine its workers run on: an error, where others are warnings
    stops: bool = False


class Beside(Protocol):
    """The work that keeps jobs moving, in a thread of its own."""

    def figures(self) -> Iterator[Sample]: ...


StartBeside = Callable[[WorkerSettings], AbstractContextManager[Beside]]


class LaneCheck(Protocol):
    """The questions of `penstock doctor` to a lane."""

    def __call__(self, settings: WorkerSettings, *, knock: bool) -> Iterator[LaneFinding]:
        """Check the lane; yield nothing for one that is not configured.

        Servers are asked only to ``knock``."""
        ...


class FreeTurn:
    """A turn that costs nothing."""

    def start(self) -> None:
        """Do nothing: there is nothing to spend."""

    def conclude(self, tried: Tried, happened: Failure | Reply) -> None:
        """Do nothing: there is nothing to learn from it."""

    def release(self) -> None:
        """Do nothing: there is nothing to give back."""


class Unpaced:
    """Implements ``lane.Admission``: every item starts at once, as far as the slots allow."""

    def at_once(self, attempt: Attempt) -> Turn | None:
        return FreeTurn()

    async def turn(self, attempt: Attempt, prepared: Prepared) -> Turn:
        return FreeTurn()

    def is_down(self, provider: str) -> bool:
        return False

    def may_retry(self, attempt: Attempt) -> bool:
        return True

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRow(Generic[L]):
    """One lane.

    ``make`` reads settings and opens nothing; it raises WorkerError where the lane cannot work.

    ``admission`` is called on the event loop; ``Unpaced`` where there is enough of everything.
    ``quarantine`` is where suspects run; None = in child processes of which each starts the lane
    anew, ``suspect_children`` of them.

    A lane whose workers host a model says which: ``serves`` by the settings alone, ``announces``
    once it is up, where it then knows more.
    """

    name: str
    make: Callable[[WorkerSettings], L]
    admission: Callable[[WorkerSettings, L], Admission]
    quarantine: Callable[[L], Quarantine] | None = None
    suspect_children: int = SUSPECT_CHILDREN
    serves: Callable[[WorkerSettings], Served] | None = None  # None: it hosts no model
    announces: Callable[[L], Served] | None = None
    # Items that a worker holds at once where its engine, once it is up, says more than the
    # settings; None = as they say.
    slots: Callable[[WorkerSettings, L], int | None] | None = None
    # the field of WorkerSettings that is named as the lane
    settings: type[LaneSettings] | None = None
    # checks, without a call, that it can work for a provider; raises WorkerError
    takes: Callable[[str, ProviderSettings], object] | None = None
    # what its start needs, imported ahead where a worker waits for its settings
    modules: tuple[str, ...] = ()
    # by the names that ``Lane.gauges`` gives
    gauges: Mapping[str, Gauge] = field(default_factory=dict)
    waits_for: str | None = None  # what an item with a slot waits for, in traces
    # OpenTelemetry's `gen_ai.provider.name` of what answers; None = the item's provider
    engine: str | None = None
    # where that is, should it be a server
    engine_url: Callable[[WorkerSettings], str | None] | None = None
    # the machine that this is run on
    inspect: Callable[[WorkerSettings], Iterator[LaneFinding]] | None = None
    # endpoints and bodies of one token, of which a model answers one
    tries: tuple[tuple[str, bytes], ...] = ()
    check: LaneCheck | None = None  # None: its settings hold nothing to look at
    # What runs in a worker whose documents are no items to be claimed; None: what runs items, with
    # ``make`` and ``admission``.
    runs: Callable[[WorkerSettings, StartBeside], ItemEngine] | None = None

    def place_of_suspects(self, lane: L, children: ChildPool) -> Quarantine:
        """Return where the lane's suspects run."""
        if self.quarantine is not None:
            return self.quarantine(lane)
        from penstock_workers.item.run.quarantine import ChildQuarantine

        return ChildQuarantine(children, self.suspect_children)
