"""The fleet of a soak: every lane and door, in `penstock chaos`'s own processes and proxies.

Of each kind the first process is never killed by a fault, so that it can leak for the whole time;
its twins die and are replaced.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from aiohttp import web
from embed_servers import OnThread, Vllm

from penstock_cli.chaos.campaign import Stroke, plan
from penstock_cli.chaos.fleet import Fleet
from penstock_cli.chaos.play import GOOD
from penstock_cli.chaos.processes import Guard, Process, Provider, keep_port
from penstock_cli.chaos.proxy import Proxy
from penstock_cli.chaos.servers import OwnRedis
from penstock_cli.chaos.stage import LANES, PRICE_USD, SLOTS, Fault, Lane, Stage
from penstock_cli.chaos.table import FAULTS
from penstock_ledger.model import Job

LATENCY_MS = 60  # what 16 slots can call is more than two cores can settle
PROVIDER = ("--latency-ms", str(LATENCY_MS), *LANES["batch"].provider)
ENGINE = ("--like", "vllm", "--max-concurrency", "16", "--latency-ms", str(LATENCY_MS))
PAUSE_S = 2.0, 10.0  # between two strokes: most of the time something is broken
# Two lanes whose calls are counted hold slots: a fault of a server that all share strikes both.
LANES_WITH_SLOTS = 2
# What its messages were, a person has to see: they stay in Redis for ever, on purpose.
LEFT_OUT = {"strays"}
HAS = {"own Redis", "proxies"}


@dataclass(frozen=True)
class Kind:
    """Processes that do the same."""

    name: str  # with which those of its processes begin
    twins: int  # beside the one that is not killed


KINDS = (Kind("control", 1), Kind("api", 1), Kind("batch", 1), Kind("gpu", 1), Kind("embed", 0))
DOOR = Kind("door", 0)


class CallLog(Provider):
    """A provider whose log is read on, not again: it has a line for each call of an hour."""

    def __init__(self, folder: Path, guard: Guard) -> None:
        super().__init__(folder, watch=guard.watch)
        self._read = 0
        self._called: dict[str, Counter[str]] = {}  # by job
        self._paid: dict[str, Counter[str]] = {}
        self._all = 0
        self._lock = threading.Lock()

    def calls(self, job: Job | None = None) -> Counter[str]:
        """Return the calls of a job by document, or how many there were in all."""
        with self._lock:
            self._go_on()
            if job is None:
                return Counter(all=self._all)
            return Counter(self._called.get(job.job_id, {}))

    def twice(self, job_id: str) -> int:
        """Return how many good answers a job has got beyond one each, and forget its calls."""
        with self._lock:
            self._go_on()
            self._called.pop(job_id, None)
            paid = self._paid.pop(job_id, Counter[str]())
        return paid.total() - len(paid)

    def _go_on(self) -> None:
        with self.call_log.open("rb") as log:
            log.seek(self._read)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in map(json.loads, whole.splitlines()):
            job, _, document = line["document"].partition(":")
            self._all += 1
            self._called.setdefault(job, Counter())[document] += 1
            if line["outcome"] in GOOD:
                self._paid.setdefault(job, Counter())[document] += 1


class Encoder(Vllm):
    """An embedding server as the tests of the lane play one, which keeps nothing."""

    async def read(self, request: web.Request) -> tuple[dict[str, Any], web.Response | None]:
        self.asked.clear()
        return await super().read(request)


class Crew(Fleet):
    """The fleet. Its dead are replaced by ``tend``, which one thread alone calls."""

    def __init__(self, folder: Path, store: OwnRedis, guard: Guard, settings: dict[str, object]):
        super().__init__(folder, store, guard, settings=settings)
        (folder / "engine").mkdir()
        self.provider: CallLog = CallLog(folder, guard)
        self.engine = CallLog(folder / "engine", guard)
        self.encoder_url = ""
        self.door_port = keep_port(self)
        self.veterans: dict[str, Process] = {}  # by kind
        self.problems: list[str] = []

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.engine.kill()
        super().__exit__(kind, error, trace)

    @property
    def door(self) -> str:
        return f"http://127.0.0.1:{self.door_port}"

    def depths(self, job: Job) -> dict[str, int]:
        """Return what Redis holds of this job: queues hold those of others."""
        found = super().depths(job)
        return {name: found[name] for name in ("window", "starts")}

    def begin(self, seed: int) -> None:
        """Start all of it, and wait until workers take items."""
        self.provider.start(*PROVIDER, "--seed", str(seed))
        self.engine.start(*ENGINE, "--seed", str(seed))
        for kind in (*KINDS, DOOR):
            self.veterans[kind.name] = self.start(kind)
            for _ in range(kind.twins):
                self.start(kind)
        self.ready(*(self.veterans[lane] for lane in ("api", "batch", "gpu", "embed")))

    def ready(self, *workers: Process) -> None:
        """Wait for workers that take items; control has no slots, and no heartbeat of them."""
        super().ready(*(one for one in workers if not one.name.startswith("control-")))

    def start(self, kind: Kind) -> Process:
        """Start one more process of a kind."""
        if kind.name == "control":
            return self.control()
        if kind is DOOR:
            return self.command("door", "gateway")
        own: dict[str, Mapping[str, object]] = {
            "batch": {**LANES["batch"].settings, "batch__folder": self.folder / "packed"},
            "gpu": {"gpu__upstream_url": self.engine.url, "gpu__max_num_seqs": SLOTS},
            "embed": {"embed__upstream_url": self.encoder_url},
        }
        slots = LANES["batch"].concurrency if kind.name == "batch" else SLOTS
        return self.worker(slots, lane=kind.name, **own.get(kind.name, {}))

    def twins(self, kind: str) -> list[Process]:
        """Return those that may be killed."""
        return [
            process
            for process in self.processes
            if process.alive
            and process.name.startswith(f"{kind}-")
            and process is not self.veterans[kind]
        ]

    def tend(self) -> None:
        """Replace what has died; one that no fault may kill is a problem as well."""
        for kind in (*KINDS, DOOR):
            veteran = self.veterans[kind.name]
            if not veteran.alive:
                self.problems.append(f"a process has ended that nothing killed: {veteran.tail()}")
            self.replaced = (f"{kind.name}-",)
            self.replace_dead(partial(self.start, kind))
            if not veteran.alive:
                self.veterans[kind.name] = self.processes[-1]


@dataclass
class Soaked(Stage):
    """The stage of a stroke: what it kills are twins, and a supervisor looks after all kinds."""

    def workers(self) -> list[Process]:
        return _crew(self).twins(self.lane.name)

    def replace_dead(self, off_s: Sequence[float] = ()) -> None:
        before = self.fleet.deaths
        _crew(self).tend()
        self.deaths += self.fleet.deaths - before


def _crew(stage: Stage) -> Crew:
    assert isinstance(stage.fleet, Crew)
    return stage.fleet


@dataclass
class Faults:
    """Strokes without an end, as a seed gives them."""

    crew: Crew
    proxies: Mapping[str, Proxy]
    job: Job  # an open one, for faults that want to know whether there is work
    seed: int
    struck: int = 0
    allowed: int = 0  # calls that may have been made twice
    _plan: Iterator[Stroke] = field(init=False)

    def __post_init__(self) -> None:
        self._plan = plan([fault for fault in FAULTS if may_strike(fault)], self.seed)
        self.luck = random.Random(self.seed)

    def strike(self) -> str:
        """Break the next thing, then leave it in peace for a while; return what was done."""
        stroke = next(self._plan)
        did = []
        for fault in stroke.faults:
            stage = Soaked(self.crew, stroke.seed, self.job, self._lane(fault), self.proxies)
            fault.strike(stage)
            did.append(f"{fault.name} ({stage.lane.name})")
            self.struck += 1
            self.allowed += LANES_WITH_SLOTS * stage.slots
            self.crew.problems += stage.problems
        return " + ".join(did)

    def pause(self) -> float:
        return self.luck.uniform(*PAUSE_S)

    def _lane(self, fault: Fault) -> Lane:
        """Return whom it strikes; workers of any lane die, and so does control."""
        if fault.group == "workers":
            name = self.luck.choice([kind.name for kind in KINDS if kind.twins])
        else:
            name = fault.lanes[0]
        return replace(LANES.get(name, LANES["api"]), name=name)


def may_strike(fault: Fault) -> bool:
    """Return whether a fault is one for a fleet that others use as well.

    It needs no person, leaves no document dead, and the provider's bill can be believed."""
    return (
        fault.honest
        and fault.waits_for is None
        and not fault.most_dead
        and fault.needs <= HAS
        and fault.name not in LEFT_OUT
    )


@contextmanager
def crew(folder: Path) -> Iterator[tuple[Crew, Mapping[str, Proxy]]]:
    """Make a crew with proxies before Redis and the provider; end all of it with the block."""
    with ExitStack() as exits:
        guard = Guard()
        exits.callback(guard.close)
        guard.remove(folder)
        store = OwnRedis(folder / "redis", guard.watch)
        exits.callback(store.stop)
        endpoint = store.server.endpoint
        behind: Any = endpoint.socket or ("127.0.0.1", endpoint.port)
        settings: dict[str, object] = {
            f"providers__default__usd_per_mtok_{side}": PRICE_USD for side in ("in", "out")
        }
        made = Crew(folder, store, guard, settings)
        proxies = {
            "redis": exits.enter_context(Proxy(behind)),
            "provider": exits.enter_context(Proxy(("127.0.0.1", made.provider.port))),
        }
        made.encoder_url = OnThread(Encoder()).begin()
        settings |= {
            "redis_url": f"redis://127.0.0.1:{proxies['redis'].port}/0",
            "providers__default__base_url": f"http://127.0.0.1:{proxies['provider'].port}/v1",
            "gateway__port": made.door_port,
            "gateway__files": folder / "files",
            "gateway__batches__lease_s": 1.0,
            "gateway__direct__keep_answers_s": 60.0,  # the least: so that rows end within the run
        }
        yield exits.enter_context(made), proxies
