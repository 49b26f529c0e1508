"""What one seed is about: its jobs, its processes, what nature does, and what people do.

Each seed has its own few kinds of faults, some often and some not at all: where everything fails
at once, little is found that needs a long way.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from explore import virtual
from explore.actors import (
    COST,
    TOKENS_OUT,
    USD_PER_MTOK_IN,
    USD_PER_MTOK_OUT,
    Answering,
    ControlProcess,
    Desk,
    Person,
    Provider,
    Worker,
    write_source,
)
from explore.batches import DISCOUNT, Batches, BatchWorker
from explore.databases import Place
from explore.invariants import G4, REBUILT, SCHEDULED, Invariants
from explore.losses import LOSES, Holdings
from explore.scheduler import (
    EPOCH,
    FROZEN_S,
    Actor,
    Call,
    Choices,
    Event,
    Fate,
    Odds,
    Process,
    Violation,
    World,
)
from explore.seams import RedisOfWorld
from penstock_ledger import (
    ApiKeyStore,
    Database,
    KeyLimits,
    NewApiKey,
    ScheduleExists,
    ScheduleNotFound,
    keys,
    open_database,
)
from penstock_workers.settings import WorkerSettings

T = TypeVar("T")

PEACE_AFTER_S: Final = 90.0
"""Faults stop then at the latest."""
QUIET_WITHIN_S: Final = 1_200.0
"""After them every job ends by itself within this time: leases of a minute, rounds of reconciling,
and retries whose waits have doubled."""
TENANT: Final = "t"
REBUILT_WITHIN_S: Final = 140.0
"""Control processes that all stand still, or die, go on within this time; and clocks are wrong."""
LOOK_S: Final = 5.0
CARE_S: Final = 20.0
"""Between two looks of a person at jobs that are paused."""

NATURE: Final = (
    "forgets",
    "restarts",
    "is wiped",
    "is restored",
    "stands still",
    "dies",
    "is away",
    "steps back",
)
"""Does what, to Redis or a process."""
UNSERVED: Final = "gpu"
TWINS: Final = 0.25
"""Of jobs: these have equal requests."""
API: Final = ("api",)
BATCH: Final = ("batch",)
BOTH: Final = ("api", "batch")
FORGOTTEN: Final[dict[str, tuple[Any, ...]]] = {
    "lanes": (API,), "workers": (2, 3), "controls": (2,), "slots": (2,), "prefetch": (4,),
    "lease": (90.0,), "jobs": (1,), "documents": ((16, 24),), "takes": (4.0,), "slow": (0,),
    "forgets": (10.0,), "stands still": (0.0,), "freezes": (0, 0, 3), "is restored": (0.0,),
    "steps back": (0.0,), "pace": (6.0,), "deeds": (0, 1), "shakes": (0,), "budgets": (0.1,),
}  # fmt: skip
"""What waits in workers while Redis forgets: leases that are renewed less often than Redis is
rebuilt, and calls that last."""
THEMES: Final[tuple[dict[str, tuple[Any, ...]], ...]] = (
    {},
    FORGOTTEN,
    # processes that stand still for longer than a lease
    {
        "lanes": (API,), "workers": (2,), "slots": (1, 2), "slow": (500,), "hangs": (30,),
        "stands still": (10.0,), "freezes": (3, 8), "ends": (3,), "pace": (6.0,),
    },
    {},
    # moves
    {
        "lanes": (BOTH,), "moves": (12,), "deeds": (2, 3, 4), "documents": ((6, 10),),
        "forgets": (0.0, 3.0), "slow": (0, 500),
    },
    # old copies of Redis
    {
        "lanes": (API, API, BOTH), "is restored": (10.0,), "documents": ((4, 12),), "pace": (6.0,),
        "deeds": (1, 2), "ends": (0, 3),
    },
    FORGOTTEN,
    # a database that is away, and retries
    {
        "lanes": (API,), "is away": (10.0,), "pace": (6.0,), "fails": (250,), "throttles": (60, 250),
        "slots": (1, 2), "dies": (3, 8), "slow": (60,),
    },
    # two packers
    {
        "lanes": (BATCH,), "batch workers": (2,), "lines": (100.0, 250.0), "jobs": (2, 3),
        "documents": ((4, 10),), "dies": (0, 3), "ends": (0, 3),
    },
    # moves to a lane of messages that no worker serves, and back
    {
        "lanes": (API,), "visits": (6,), "deeds": (2, 3), "documents": ((6, 10),), "dies": (0,),
        "slow": (500,), "slots": (1, 2), "forgets": (0.0,), "is wiped": (0.0,), "is restored": (0.0,),
        "pace": (15.0, 40.0), "shakes": (0,), "budgets": (0.0,),
    },
    # money
    {
        "budgets": (1.0,), "tenants": (0.2, 0.5), "says nothing": (100, 250), "replays": (4,),
        "refuses": (250,), "forgets": (0.0, 5.0), "restarts": (5.0,), "pace": (6.0, 15.0),
        "deeds": (2, 3, 4),
    },
    # clocks that step back
    {
        "lanes": (API,), "steps back": (10.0,), "dies": (3, 8), "fails": (250,), "throttles": (250,),
        "pace": (6.0, 15.0), "workers": (2,),
    },
)  # fmt: skip
"""What seeds are about, in turns: the first of twelve, for example, is about nothing. Each names
what some choices of a night are made among; all others are as always."""


@dataclass
class Ground:
    """What all worlds of a run share: the servers and a folder."""

    server: RedisOfWorld
    redis_url: str
    folder: Path
    database: Place
    settings: WorkerSettings = field(init=False)

    def __post_init__(self) -> None:
        self.settings = self._settings()

    def clear(self) -> None:
        """Empty the stores."""
        shutil.rmtree(self.folder / "packed", ignore_errors=True)
        self.database.clear()
        self.server.clear()

    def _settings(self) -> WorkerSettings:
        settings: dict[str, Any] = {
            "redis_url": self.redis_url,
            "database_url": self.database.url,
            "control": False,
            "concurrency": 4,
            "control_interval_s": 7.0,
            "reconcile_interval_s": 10.0,
            "visibility_timeout_s": 30.0,
            "retry_base_s": 1.0,
            "retry_cap_s": 10.0,
            "providers": {
                "default": {
                    "usd_per_mtok_in": USD_PER_MTOK_IN,
                    "usd_per_mtok_out": USD_PER_MTOK_OUT,
                    "batch_discount": DISCOUNT,
                }
            },
            "batch": {
                "folder": self.folder / "packed",
                "poll_first_s": 5.0,
                "poll_cap_s": 15.0,
                "lost_after_s": 60.0,
                "answers_kept_s": 120.0,
            },
        }
        return WorkerSettings(**settings)


@dataclass
class Run:
    """What came of one seed."""

    seed: int
    steps: int
    seconds: float  # of virtual time
    faults: dict[str, int]
    violation: Violation | None
    history: list[Event]
    taken: dict[str, int]


class Scenario:
    """One seed from its start to its end."""

    def __init__(self, ground: Ground, seed: int, kept: frozenset[str] | None = None) -> None:
        choices = Choices(seed, kept)
        self.chance = choices.chance("scenario")
        self._theme = THEMES[seed % len(THEMES)]
        self.world = World(choices, self._odds())
        ground.clear()
        self.ground = ground
        slots = {
            "concurrency": self._draw("slots", 1, 2, 4, 4),
            "prefetch_multiplier": self._draw("prefetch", 2),
            "visibility_timeout_s": self._theme.get("lease", (30.0,))[0],
        }
        self.settings = ground.settings.model_copy(update=slots)
        self.provider = Provider(self.world, self._answering())
        self.workers: list[Worker] = []
        self.controls: list[ControlProcess] = []
        self.documents: dict[str, int] = {}  # of each job, by its key
        self._planned = 0  # that people have yet to do
        self._scheduled = False  # a plan starts jobs
        self._shaken_at = -REBUILT_WITHIN_S  # when Redis came back last
        self.lanes = self._draw("lanes", API, BATCH, BOTH)
        self.batch_workers: list[BatchWorker] = []
        rates = (self._draw("lines", 0.0, 0.0, 100.0) for _ in range(3))
        self.batches = Batches(
            self.world,
            self.provider,
            (next(rates), next(rates), next(rates)),
            self._draw("hides", 0.0, 0.0, 150.0),
            self._draw("loses", 0.0, 0.0, 0.0, 300.0),
        )
        self.invariants = Invariants(
            self.world, self.provider, self.batches, ground.database.look(), self.workers
        )
        self.provider.suspected = self.invariants.suspected
        self.provider.asked = self.invariants.asked
        self.invariants.keys_of = self._keys_of
        self.holdings = Holdings(self.world, ground.server, self.provider, self.workers)
        self.world.shake = lambda name: self._shake_redis(choices.chance(name).choice((1, 1, 2)))
        self.world.after_step = self._after_step
        self.world.died = self._died
        self.world.state_of = self.invariants.state_of
        self.world.has_moved = self.invariants.has_moved
        self.person, self._people = Person(self.world, "person-1", self.settings), 1
        self.world.spawn(self.person)

    def run(self) -> Run:
        """Play it."""
        world = self.world
        virtual.enter(world)
        try:
            world.loop.run_until_complete(self._play())
        except Violation as violation:
            world.violation = violation
        except RuntimeError:
            if world.violation is None:
                raise
        finally:
            world.close()
            virtual.leave()
            self.invariants.close()
        taken = world.choices.taken
        return Run(
            world.choices.seed,
            world.steps,
            world.now,
            dict(world.faults),
            world.violation,
            world.history,
            taken,
        )

    # -- what kind of a night it is ----------------------------------------------------------------

    def _draw(self, knob: str, *among: T) -> T:
        """Draw one of these, or of what the theme of this seed has for it."""
        drawn: T = self.chance.choice(self._theme.get(knob, among))
        return drawn

    def _odds(self) -> Odds:
        draw = self._draw
        return Odds(
            refused=draw("refused", 0, 0, 4, 15),
            lost=draw("lost", 0, 0, 4, 15, 40),
            dies_before=draw("dies", 0, 0, 1, 3, 8),
            dies_after=draw("dies", 0, 0, 1, 3, 8),
            freezes=draw("freezes", 0, 0, 0, 3, 8),
            shakes=draw("shakes", 0, 0, 0, 0, 5),
            time_passes=draw("time passes", 0, 5, 30, 100),
        )

    def _answering(self) -> Answering:
        draw = self._draw
        return Answering(
            fails=draw("fails", 0, 0, 60, 250),
            throttles=draw("throttles", 0, 0, 60, 250),
            hangs=draw("hangs", 0, 0, 30),
            refuses=draw("refuses", 0, 0, 60, 250),
            slow=draw("slow", 0, 60, 500),
            says_nothing=draw("says nothing", 0, 0, 100),
            takes=draw("takes", 1.0),
        )

    # -- processes ---------------------------------------------------------------------------------

    def start_worker(self) -> None:
        worker = Worker(self.world, f"worker-{len(self.workers) + 1}", self.settings, self.provider)
        looks = self.invariants
        worker.claimed, worker.let_go, worker.began = looks.claimed, looks.let_go, looks.began
        self._start(worker)
        self.workers.append(worker)

    def start_control(self) -> None:
        control = ControlProcess(self.world, f"control-{len(self.controls) + 1}", self.settings)
        self._start(control)
        self.controls.append(control)

    def _start_person(self, before: Person) -> None:
        """Begin anew what a program of a person did as it died."""
        self._people += 1
        self.person = Person(self.world, f"person-{self._people}", self.settings)
        self.world.spawn(self.person)
        for what, work in before.undone.items():
            self.person.does(what, work)

    def start_batch_worker(self) -> None:
        number = len(self.batch_workers) + 1
        worker = BatchWorker(self.world, f"batch-{number}", self.settings, self.batches)
        self._start(worker)
        self.batch_workers.append(worker)

    def _start(self, process: Worker | ControlProcess | BatchWorker) -> None:
        if not self.world.is_peaceful:
            name = f"clock of {process.name}"
            if self.world.choices.choose(name, [5, 1]):
                process.drift_s = self.world.choices.chance(name).uniform(-40.0, 40.0)
                self.world.fault("wrong clock", process.name, f"{process.drift_s:+.0f} s")
        self.world.spawn(process)
        process.start()

    def _died(self, process: Process) -> None:
        self.invariants.died(process)
        self.world.note(process.name, "is dead")
        start = {
            Worker: self.start_worker,
            ControlProcess: self.start_control,
            BatchWorker: self.start_batch_worker,
        }.get(type(process))
        if start is None:
            start = partial(self._start_person, self.person)
        wait_s = self.world.choices.chance(f"after {process.name}").uniform(1.0, 10.0)
        self.world.loop.call_later(wait_s, start)

    def _after_step(self, actor: Actor, call: Call, fate: Fate) -> None:
        self.invariants.after_step(actor, call, fate)
        try:
            if call.what.startswith("LeaseScripts."):
                self.holdings.look()
            elif call.what.endswith("writes"):
                self.holdings.look_at_slots(self.invariants.ended(), self.settings.concurrency)
        except Violation as violation:
            self.world.violation = self.world.violation or violation

    def _keys_of(self, job_id: str) -> set[str]:
        """Return the keys of a job that are not for late workers, where Redis has kept those."""
        if not LOSES.isdisjoint(self.world.faults):
            return set()
        found: list[bytes] = self.ground.server.ask("KEYS", f"penstock:{job_id}:*")
        return {key.decode() for key in found} - {f"penstock:{job_id}:state"}

    # -- the play ----------------------------------------------------------------------------------

    async def _play(self) -> None:
        world = self.world
        for _ in range(self._draw("controls", 1, 2, 2)):
            self.start_control()
        for _ in range(self._draw("workers", 1, 2, 2) if "api" in self.lanes else 1):
            self.start_worker()
        for _ in range(self._draw("batch workers", 1, 2) if "batch" in self.lanes else 0):
            self.start_batch_worker()
        self._plan()  # before any of them goes on
        nature = world.loop.create_task(self._nature())
        while world.now < PEACE_AFTER_S and not self._is_over():  # noqa: ASYNC110  # it is asked of SQL
            await asyncio.sleep(LOOK_S)
        nature.cancel()
        self._make_peace()
        until, care_at = world.now + QUIET_WITHIN_S, world.now
        while not self._is_over():
            if world.now > until:
                raise Violation(G4, f"not over {QUIET_WITHIN_S:.0f} s after the last fault")
            if world.now >= care_at:
                self._care()
                care_at = world.now + CARE_S
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(LOOK_S)
        self._look_at_redis()
        self.invariants.in_the_end(self.documents)

    def _look_at_redis(self) -> None:
        """See that Redis was rebuilt where a job ran for long after it came back."""
        ended = self.invariants.look("SELECT max(finished_at) FROM jobs")[0][0] or 0.0
        if ended - EPOCH > self._shaken_at + REBUILT_WITHIN_S:
            server = self.ground.server
            if (run := server.ask("GET", keys.EPOCH_RUN)) != server.run_id.encode():
                raise Violation(REBUILT, f"it says that {run!r} was, and runs as {server.run_id}")

    def _is_over(self) -> bool:
        if self._planned or self._scheduled or self.person.undone:
            return False
        if any(one.is_frozen or self._holds(one) for one in self._living()):
            return False  # what it does late is looked at, too
        return self.invariants.all_over()

    @staticmethod
    def _holds(process: Process) -> bool:
        return isinstance(process, Worker) and len(process.leases) > 0

    def _make_peace(self) -> None:
        """Let nothing fail any more, and let a process be there to go on."""
        world = self.world
        world.is_peaceful = True
        world.note("world", "peace")
        for process in world.processes:
            process.drift_s = 0.0
        for living, start in (
            (self.workers, self.start_worker),
            (self.controls, self.start_control),
            (self.batch_workers, self.start_batch_worker),
        ):
            if living and all(process.is_dead for process in living):
                start()

    async def _nature(self) -> None:
        """Do what happens to servers and machines, now and then."""
        choices = self.world.choices
        pace = self._draw("pace", 6.0, 15.0, 40.0)
        often = [20.0, *(self._draw(kind, 0.0, 0.0, 3.0, 10.0) for kind in NATURE)]
        turn = 0
        while True:
            await asyncio.sleep(choices.chance(f"pace {turn}").expovariate(1 / pace))
            turn += 1
            name = f"nature {turn}"
            what = choices.choose(name, often)
            if what:
                self._happens(what, choices.chance(f"{name} how"))

    def _happens(self, what: int, chance: random.Random) -> None:
        world, server = self.world, self.ground.server
        kind = NATURE[what - 1]
        if kind in ("forgets", "restarts", "is wiped"):
            self._shake_redis(what)
        elif kind == "is restored":
            server.tick()
            server.copy()
            world.note("redis", "a backup is taken")
            world.loop.call_later(chance.uniform(3.0, 40.0), self._restore)
        elif kind == "stands still":
            living = self._living()
            if living:
                world.freeze(chance.choice(living), chance.uniform(*FROZEN_S))
        elif kind == "is away":
            store = chance.choice(("sql", "sql", "redis"))
            who = chance.choice(("", *(one.name for one in self._living())))
            until = world.away[store, who] = world.now + chance.uniform(5.0, 60.0)
            world.fault("is away", store, f"for {who or 'all'} until {until:.1f}")
        elif kind == "steps back":
            server.behind_s += 3600.0
            world.fault("steps back", "redis", "its clock, by an hour")
        else:
            living = self._living()
            if living:
                dying = chance.choice(living)
                world.fault("dies", dying.name, "while it waits")
                world.kill(dying)

    def _shake_redis(self, how: int) -> None:
        world, server = self.world, self.ground.server
        self._shaken_at = world.now
        if how != 2:
            self.invariants.forgot_at = world.now
        if how == 1:
            world.fault("Redis forgets", "redis", "FLUSHALL")
            server.forget()
        elif how == 2:
            world.fault("Redis restarts", "redis", "it keeps what it held")
            server.restart(keeps=True)
        else:
            world.fault("Redis restarts empty", "redis", "all is lost")
            server.restart(keeps=False)

    def _living(self) -> list[Process]:
        every: list[Process] = [*self.workers, *self.controls, *self.batch_workers]
        return [one for one in every if not one.is_dead]

    def _restore(self) -> None:
        if not self.world.is_peaceful:
            self._shaken_at = self.invariants.forgot_at = self.world.now
            self.world.fault("Redis is restored", "redis", "a backup of before comes back")
            self.ground.server.restore()

    # -- people ------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Plan what people do, and when."""
        chance = self.chance
        if chance.random() < self._draw("tenants", 0.2):
            database = open_database(self.settings.database_url)
            self._budget_of_tenant(database, chance.randint(2, 12))
            database.close()
        for name in ("one", "two", "three")[: self._draw("jobs", 1, 1, 2, 3)]:
            documents = chance.randint(*self._draw("documents", (2, 8)))
            asks: dict[str, Any] = {
                "params": {"max_tokens": TOKENS_OUT},
                "max_attempts": chance.choice((2, 4)),
                "lane": self.chance.choice(self.lanes),
            }
            if self.invariants.tenants_budget is not None:
                asks["tenant"] = TENANT
            if chance.random() < self._draw("budgets", 0.4):
                affords = chance.choice((2, 3, 3, 4, documents + 2))
                self._grant(name, affords)
                asks["budget_usd"] = COST * affords / 1e6
            if name == "one" and chance.random() < 0.15:
                self.provider.poison.add(f"{name}-d{chance.randrange(documents)}")
            if self.world.choices.chance(f"twins of {name}").random() < TWINS:
                self.invariants.twins.add(name)
                asks["dedup"] = "always"
            at = 0.0 if name == "one" else chance.uniform(0.0, 10.0)
            self._at(at, partial(self._submit, name, documents, asks))
            for number in range(self._draw("deeds", 0, 1, 2, 3, 4)):
                does = chance.choice(self._deeds())
                self._at(at + chance.uniform(0.5, 12.0) * (number + 1), partial(does, name))

        if chance.random() < 0.15:
            self.world.has_plans = True
            self._at(chance.uniform(0.0, 30.0), self._schedule)

    def _deeds(self) -> list[Callable[[str], object]]:
        """Return what may be done to a job; where most were cancelled, little would come of them."""
        ends = self.chance.choice((self._cancel, self._be_rid_of))
        deeds: list[Callable[[str], object]]
        deeds = [self._pause, self._pause, self._replay, self._replay, self._purge, ends]
        deeds += [self._replay] * self._draw("replays", 0) + [self._be_rid_of] * self._draw(
            "ends", 0
        )
        deeds += [self._visit] * self._theme.get("visits", (0,))[0]
        return deeds + [self._move] * self._draw("moves", 3) if len(self.lanes) > 1 else deeds

    def _at(self, seconds: float, does: Callable[[], object]) -> None:
        self._planned += 1

        def now() -> None:
            self._planned -= 1
            does()

        self.world.loop.call_later(seconds, now)

    def _grant(self, name: str, answers: int) -> None:
        self.invariants.budgets[name] = max(self.invariants.budgets.get(name, 0), COST * answers)

    def _budget_of_tenant(self, database: Database, answers: int) -> None:
        """Give the tenant of all jobs a budget for so many answers, by a key of it."""
        self.invariants.tenants_budget = COST * answers
        limits = KeyLimits(budget_usd=COST * answers / 1e6)
        ApiKeyStore(database).create(NewApiKey("budget", TENANT, frozenset(), limits=limits))

    def _submit(self, name: str, documents: int, asks: dict[str, Any]) -> None:
        twins = name in self.invariants.twins
        source = write_source(self.ground.folder, name, documents, twins=twins)
        self.documents[name] = documents
        spec = {"prompt": "{text}", "model": "m", **asks}
        self.person.does(
            f"submits {name}", lambda desk: desk.producer.submit(source, spec, job_key=name)
        )

    def _pause(self, name: str) -> None:
        self.person.does(
            f"pauses {name}", lambda desk: desk.operations.pause(desk.jobs.get(name), "to look")
        )
        self._at(self.chance.uniform(1.0, 15.0), partial(self._resume, name))

    def _resume(self, name: str) -> None:
        self.person.does(
            f"resumes {name}", lambda desk: desk.operations.resume(desk.jobs.get(name))
        )

    def _cancel(self, name: str) -> None:
        self.person.does(
            f"cancels {name}", lambda desk: desk.operations.cancel(desk.jobs.get(name), "enough")
        )

    def _replay(self, name: str) -> None:
        """Replay a job now and later: most are replayed once they have ended."""

        def now() -> None:
            self.person.does(
                f"replays {name}", lambda desk: desk.operations.replay(desk.jobs.get(name))
            )

        for seconds in (0.0, 15.0, 40.0):
            self._at(seconds, now)

    def _purge(self, name: str) -> None:
        def work(desk: Desk) -> None:
            job = desk.jobs.get(name)
            desk.operations.check_purge(job)
            self.invariants.purged.add(name)
            desk.operations.purge(job)
            self.invariants.left[job.job_id] = self._keys_of(job.job_id)

        self.person.does(f"purges {name}", work)

    def _be_rid_of(self, name: str) -> None:
        """Cancel and purge a job while a worker of it stands still."""
        living = [one for one in self.workers if not one.is_dead]
        if living:
            self.world.freeze(self.chance.choice(living), self.chance.uniform(60.0, 150.0))
        self._cancel(name)
        for seconds in (40.0, 55.0, 70.0):
            self._at(seconds, partial(self._purge, name))

    def _move(self, name: str, lane: str | None = None) -> None:
        def work(desk: Desk) -> None:
            job = desk.jobs.get(name)
            other = "api" if job.lane == "batch" else "batch"
            desk.operations.move(job, lane or other, "to try it")

        self.person.does(f"moves {name}", work)

    def _visit(self, name: str) -> None:
        """Move a job to a lane of messages that no worker serves, and back."""
        self._move(name, UNSERVED)
        self._at(self.chance.uniform(12.0, 40.0), partial(self._move, name, "api"))

    def _schedule(self) -> None:
        """Have a job start each minute until peace comes."""
        name = SCHEDULED
        self.documents[name] = 2
        source = write_source(self.ground.folder, name, 2)
        spec: dict[str, Any] = {
            "prompt": "{text}",
            "model": "m",
            "params": {"max_tokens": TOKENS_OUT},
        }
        if self.invariants.tenants_budget is not None:
            spec["tenant"] = TENANT

        drift = self.world.choices.chance("drift").choice((None, "report", "pause"))

        def work(desk: Desk) -> None:
            with contextlib.suppress(ScheduleExists):  # its answer was lost
                desk.producer.schedules.add(name, "* * * * *", source, spec, drift=drift)

        self.person.does(f"plans {name}", work)
        self._scheduled = True

    def _unschedule(self) -> None:
        def work(desk: Desk) -> None:
            with contextlib.suppress(ScheduleNotFound):
                desk.producer.schedules.pause(name)

        name = SCHEDULED
        self._scheduled = False
        self.person.does(f"pauses the plan {name}", work)

    def _care(self) -> None:
        """Let every paused job go on, with a larger budget where it has one."""
        if self._scheduled:
            self._unschedule()
        if self.invariants.tenants_budget is not None:
            self.person.does(
                "makes a key", lambda desk: self._budget_of_tenant(desk.database, 1_000)
            )
        away = "SELECT job_key FROM jobs WHERE state = 'running' AND lane = ?"
        for (name,) in self.invariants.look(away, UNSERVED):
            self._move(name, "api")
        for (name,) in self.invariants.look("SELECT job_key FROM jobs WHERE state = 'paused'"):
            if name in self.invariants.budgets:
                self._grant(name, 100)
                limits = {"budget_usd": COST * 100 / 1e6}
                self.person.does(
                    f"gives more for {name}",
                    lambda desk, name=name, limits=limits: desk.operations.limit(  # type: ignore[misc]
                        desk.jobs.get(name), limits
                    ),
                )
            self._resume(name)


def play(ground: Ground, seed: int, kept: frozenset[str] | None = None) -> Run:
    """Play one seed, or what is kept of it."""
    return Scenario(ground, seed, kept).run()
