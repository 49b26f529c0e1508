"""The world of one seed: a clock, processes with their actors, and who goes on next.

An actor is a greenlet that runs blocking code of the product and stops before each call to a store.
Coroutines of the product run on one event loop, whose selector is the scheduler: where the loop has
nothing to do, one actor goes on to its next stop, or the clock jumps to the next timer. So one
thread runs everything, and a seed is one history.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import hashlib
import random
import selectors
import zlib
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import greenlet

T = TypeVar("T")

STEPS_MAX: Final = 20_000
"""Of one seed: one that takes more goes round in circles."""
FROZEN_S: Final = (5.0, 70.0)
"""How long a process stands still: less or more than leases last."""
TICK_S: Final = 1e-6
"""Each step takes a microsecond, so that no two have the same time."""
EPOCH: Final = 1_800_000_000.0
"""When worlds begin, Unix seconds."""


class Killed(BaseException):
    """The process is dead: its code goes no further."""


class Violation(AssertionError):
    """An invariant does not hold."""

    def __init__(self, invariant: str, detail: str) -> None:
        self.invariant, self.detail = invariant, detail
        super().__init__(f"{invariant}: {detail}")


class Fate(Enum):
    """What becomes of a call."""

    ANSWERED = "ok"
    REFUSED = "refused"  # it did not happen, and the caller sees an error
    LOST = "answer lost"  # it happened, and the caller sees an error
    DIES_BEFORE = "dies before it"
    DIES_AFTER = "dies after it"
    FREEZES = "freezes before it"  # and makes it when it thaws


class Call(NamedTuple):
    """A call at which an actor stops."""

    store: str
    what: str
    may_fail: bool = True


class Event(NamedTuple):
    """One line of a history."""

    step: int
    at: float
    who: str
    what: str
    fate: str


class Choices:
    """The choices of one seed. Each has a name, and none depends on the others.

    ``kept`` are the names of choices that are made; all others are the dull one, which is 0: the
    oldest actor goes on, and no call fails. So a history is shrunk by keeping fewer."""

    def __init__(self, seed: int, kept: frozenset[str] | None = None) -> None:
        self.seed, self._kept = seed, kept
        self.taken: dict[str, int] = {}

    def chance(self, name: str) -> random.Random:
        """Return what is random about the choice of this name."""
        return random.Random(zlib.crc32(name.encode(), self.seed) ^ (self.seed << 32))

    def choose(self, name: str, weights: Sequence[float]) -> int:
        """Return a number below that of the weights. The first one is the dull choice."""
        if self._kept is not None and name not in self._kept:
            return 0
        digest = hashlib.blake2b(f"{self.seed} {name}".encode(), digest_size=8).digest()
        left = int.from_bytes(digest) / 2**64 * sum(weights)
        chosen = 0
        while chosen < len(weights) - 1 and left >= weights[chosen]:
            left -= weights[chosen]
            chosen += 1
        if chosen:
            self.taken[name] = chosen
        return chosen


class Process:
    """What lives and dies as a whole: actors, coroutines, and a clock that may be wrong."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.is_dead = False
        self.drift_s = 0.0  # of its clock
        self.frozen_until = 0.0
        self.calls = 0  # that it has stopped at
        self.actors: list[Actor] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self._thawing: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def run(self, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        """Run a step of its coroutines, unless it is dead; once it thaws, while it is frozen."""
        if self.is_dead:
            return
        if self.is_frozen or self._thawing:
            if not self._thawing:
                self.world.loop.call_at(self.frozen_until, self._thaw)
            self._thawing.append((callback, arguments))
            return
        callback(*arguments)

    @property
    def is_frozen(self) -> bool:
        return self.frozen_until > self.world.now

    def act(self, what: str, work: Callable[[], object]) -> Actor:
        """Run ``work`` in an actor of this process."""
        actor = Actor(self, what, work)
        self.actors.append(actor)
        self.world.ready.append(actor)
        return actor

    def die(self) -> None:
        """End here: nothing of it runs any more, and its connections to databases are closed."""
        self.is_dead = True
        for actor in list(self.actors):
            actor.end()

    def _thaw(self) -> None:
        if self.is_frozen:
            self.world.loop.call_at(self.frozen_until, self._thaw)
            return
        while self._thawing and not self.is_dead:
            callback, arguments = self._thawing.popleft()
            callback(*arguments)


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Actor:
    """Blocking code of a process, in a greenlet of its own."""

    def __init__(self, process: Process, what: str, work: Callable[[], object]) -> None:
        self.process, self.what = process, what
        self.call = Call("", f"{what} begins", may_fail=False)
        self.in_transaction = False
        self.woken = False  # by what it waited for
        self._work = work
        self._greenlet: Any = greenlet.greenlet(self._main)
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        self._greenlet.gr_context = context
        self._greenlet.actor = self

    @property
    def name(self) -> str:
        return f"{self.process.name} {self.what}"

    def go_on(self, fate: Fate) -> None:
        """Run until its next stop, or its end."""
        self._greenlet.parent = greenlet.getcurrent()
        self._greenlet.switch(fate)

    def stop(self, call: Call) -> Fate:
        """Wait until the scheduler lets this actor go on."""
        self.call = call
        self.process.world.ready.append(self)
        return self._rest()

    def sleep(self, seconds: float | None, until: list[Callable[[], object]] | None = None) -> bool:
        """Wait for so long, or until what is put into ``until`` is called; return whether it was.

        None: for as long as it takes."""
        loop, done = self.process.world.loop, [False]

        def wake(called: bool) -> None:
            if not done[0]:
                done[0] = True
                self.woken = called
                self.call = Call("", f"{self.what} wakes", may_fail=False)
                self.process.world.ready.append(self)

        timer = None if seconds is None else loop.call_later(seconds, wake, False)
        if until is not None:
            until.append(lambda: loop.call_soon(wake, True))
        self._rest()
        if timer is not None:
            timer.cancel()
        return self.woken

    def end(self) -> None:
        """Unwind it: every call that it makes on the way out is refused."""
        if self in self.process.world.ready:
            self.process.world.ready.remove(self)
        if self._greenlet.dead or greenlet.getcurrent() is self._greenlet:
            return
        if not self._greenlet:  # it has not begun
            self.process.actors.remove(self)
            return
        self._greenlet.parent = greenlet.getcurrent()
        self._greenlet.throw(Killed)

    def _rest(self) -> Fate:
        fate: Fate = self._greenlet.parent.switch()
        if self.process.is_dead:
            raise Killed
        return fate

    def _main(self, _: Fate) -> None:
        try:
            if not self.process.is_dead:
                self._work()
        except Killed:
            pass
        except Violation as violation:
            self.process.world.violation = violation
        except Exception as error:
            self.process.world.violation = Violation(
                "no step fails in a way that nothing handles",
                f"{self.name}: {type(error).__name__}: {error}",
            )
        finally:
            if self in self.process.actors:
                self.process.actors.remove(self)


def current_actor() -> Actor | None:
    """Return the actor that runs now; None in coroutines and in what is not of a world."""
    return getattr(greenlet.getcurrent(), "actor", None)


class _Scheduling(selectors.DefaultSelector):
    """Lets the world take a step where the loop has nothing to do."""

    world: World

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self.world.turn(timeout)
        return []


class Loop(asyncio.SelectorEventLoop):
    """The event loop of a world. What a dead process has asked for is not run."""

    def __init__(self, world: World) -> None:
        selector = _Scheduling()
        selector.world = world
        self._world = world
        self._busy: dict[Executor, deque[Callable[[], object]]] = {}
        super().__init__(selector)
        self.set_task_factory(self._task)
        self.set_exception_handler(self._report)

    def time(self) -> float:
        return self._world.now

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        return super().call_soon(process.run, callback, args, context=context)

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is one thread

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is None or callback == process._thaw:
            return super().call_at(when, callback, *args, context=context)
        return super().call_at(when, process.run, callback, args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run a call in an actor; one after the other where the executor has one thread."""
        future: asyncio.Future[T] = self.create_future()
        self.run_for(future, executor, partial(func, *args))
        return future

    def run_for(
        self,
        future: asyncio.Future[T] | concurrent.futures.Future[T],
        executor: Executor | None,
        func: Callable[[], T],
    ) -> None:
        """Run a call in an actor and put what comes of it into ``future``."""
        process = PROCESS.get()
        assert process is not None, "calls to stores are made by processes"

        def work() -> None:
            try:
                answer = func()
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(answer)
            if executor is not None and (waiting := self._busy.get(executor)) is not None:
                if waiting:
                    waiting.popleft()()
                else:
                    del self._busy[executor]

        def start() -> None:
            prefix = getattr(executor, "_thread_name_prefix", "") or "thread"
            process.act(prefix, work)

        if executor is None or getattr(executor, "_max_workers", 2) > 1:
            start()
        elif executor in self._busy:
            self._busy[executor].append(start)
        else:
            self._busy[executor] = deque()
            start()

    def see(self, task: asyncio.Task[None]) -> None:
        """See that a task that a world has made ended well."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._report(self, {"exception": error})

    def _write_to_self(self) -> None:
        """Do nothing: there is no other thread to be woken by."""

    def _task(self, loop: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # those of the dead
        process = PROCESS.get()
        if process is not None:
            process.tasks.append(task)
        return task

    def _report(self, _loop: object, context: Mapping[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Violation):
            self._world.violation = error
        elif error is not None and not isinstance(error, Killed | asyncio.CancelledError):
            self._world.violation = Violation(
                "no step fails in a way that nothing handles", f"{type(error).__name__}: {error}"
            )


@dataclass
class Odds:
    """How often what happens to the calls of a seed, of a thousand."""

    refused: float = 0.0
    lost: float = 0.0
    dies_before: float = 0.0
    dies_after: float = 0.0
    freezes: float = 0.0
    shakes: float = 0.0  # Redis forgets, or restarts, before a call to it
    time_passes: float = 0.0  # though an actor could go on

    def weights(self, call: Call) -> list[float]:
        some = [self.refused, self.lost, self.dies_before, self.dies_after, self.freezes]
        return [1000.0 - sum(some), *some] if call.may_fail else [1.0]


FATES: Final = tuple(Fate)
PICKED_AMONG: Final = 8  # of those that can go on, the oldest


@dataclass
class World:
    """All of one seed."""

    choices: Choices
    odds: Odds
    now: float = 0.0
    is_peaceful: bool = False  # no faults any more
    has_plans: bool = False  # jobs start at their times, else no schedule is looked for
    steps: int = 0
    looks: int = 0  # whether time passes
    ready: list[Actor] = field(default_factory=list)
    history: list[Event] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    # until when a store refuses all that a process asks of it; "" is every process
    away: dict[tuple[str, str], float] = field(default_factory=dict)
    violation: Violation | None = None
    processes: list[Process] = field(default_factory=list)
    shake: Callable[[str], None] = lambda _: None
    state_of: Callable[[str], str] = lambda _: ""  # of a job, in SQL
    has_moved: Callable[[str], bool] = lambda _: False  # a job, to another lane
    is_held: Callable[[str], bool] = lambda _: False  # a message, by a worker that lives
    after_step: Callable[[Actor, Call, Fate], None] = lambda *_: None
    died: Callable[[Process], None] = lambda _: None

    def __post_init__(self) -> None:
        self.loop = Loop(self)

    def spawn(self, process: Process) -> None:
        self.processes.append(process)

    def note(self, who: str, what: str, fate: str = "") -> None:
        """Write a line of the history."""
        self.history.append(Event(self.steps, self.now, who, what, fate))

    def fault(self, kind: str, who: str, what: str) -> None:
        self.faults[kind] += 1
        self.note(who, what, kind)

    def freeze(self, process: Process, seconds: float) -> None:
        """Let a process stand still where it is."""
        process.frozen_until = self.now + seconds
        self.fault("freezes", process.name, f"until {process.frozen_until:.1f}")
        self.loop.call_at(process.frozen_until, lambda: None)  # then there is something to do

    def kill(self, process: Process) -> None:
        """End a process where it is."""
        if not process.is_dead:
            self.died(process)
            process.die()

    def turn(self, timeout: float | None) -> None:
        """Take one step: an actor goes on, or time passes."""
        self.now += TICK_S
        if self.violation is not None:
            self.loop.stop()
            return
        awake = [actor for actor in self.ready if not actor.process.is_frozen]
        if not awake or (timeout is not None and self._lets_time_pass()):
            if timeout is None:
                if any(process.is_frozen for process in self.processes):
                    self.now = min(p.frozen_until for p in self.processes if p.is_frozen)
                    return
                raise RuntimeError("none can go on, and none waits for a time to come")
            self.now += timeout
            return
        weights = [8.0, 4.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0][: min(len(awake), PICKED_AMONG)]
        picked = awake[0 if len(awake) == 1 else self.choices.choose(f"pick {self.steps}", weights)]
        self.ready.remove(picked)
        self._let_go_on(picked)

    def _lets_time_pass(self) -> bool:
        passes = self.odds.time_passes
        if self.is_peaceful or not passes:
            return False
        self.looks += 1
        return bool(self.choices.choose(f"time {self.looks}", [1000.0 - passes, passes]))

    def _let_go_on(self, actor: Actor) -> None:
        self.steps += 1
        if self.steps > STEPS_MAX:
            self.violation = Violation("a seed comes to an end", f"not within {STEPS_MAX} steps")
            return
        call, process = actor.call, actor.process
        fate, name = Fate.ANSWERED, f"{process.name} {process.calls + 1}"
        if call.may_fail and not self.is_peaceful:
            process.calls += 1
            fate = FATES[self.choices.choose(name, self.odds.weights(call))]
            if call.store == "redis" and (shakes := self.odds.shakes):
                name = f"redis {name}"
                if self.choices.choose(name, [1000.0 - shakes, shakes]):
                    self.shake(name)
            if any(self.away.get((call.store, who), 0.0) > self.now for who in ("", process.name)):
                fate = Fate.REFUSED
        if fate is not Fate.ANSWERED:
            self.faults[fate.value] += 1
        if call.store:
            self.note(actor.name, f"{call.store} {call.what}", fate.value)
        if fate is Fate.DIES_BEFORE:
            self.kill(process)
            return
        if fate is Fate.FREEZES:
            self.freeze(process, self.choices.chance(name).uniform(*FROZEN_S))
            self.ready.append(actor)
            return
        actor.go_on(fate)
        if fate is Fate.DIES_AFTER:
            self.kill(process)
        if call.store:
            self.after_step(actor, call, fate)

    def close(self) -> None:
        """End everything that is left of it."""
        self.is_peaceful = True
        for process in self.processes:
            process.die()
        for process in self.processes:
            for task in process.tasks:
                coroutine: Any = task.get_coro()
                try:
                    coroutine.close()
                except (Exception, asyncio.CancelledError, Killed):
                    continue
        self.loop.close()
