"""What the product reads of the machine, as the world has it: clocks, randomness and threads.

``install`` comes before anything of the product is imported, since modules take these names when
they are imported. Outside of a world everything is as it always is.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from importlib import metadata
from typing import Any, Final

import greenlet

from explore.scheduler import EPOCH, PROCESS, Actor, Process, World, current_actor

_REAL: Final = {name: getattr(time, name) for name in ("time", "monotonic", "sleep", "thread_time")}
_URANDOM: Final = os.urandom


class Entered:
    """The world that this process is in now."""

    world: World | None = None
    chance = random.Random(0)


def install() -> None:
    """Let clocks and randomness of Python be the world's, while there is one."""
    changed: Any = time
    changed.time = _time
    changed.monotonic = _monotonic
    changed.time_ns = lambda: round(_time() * 1e9)
    changed.monotonic_ns = lambda: round(_monotonic() * 1e9)
    changed.perf_counter = _monotonic
    changed.thread_time = lambda: 0.0 if Entered.world is not None else _REAL["thread_time"]()
    changed.sleep = _sleep
    of_packages: Any = metadata
    of_packages.version = cache(metadata.version)  # each worker asks, and it reads files
    os.urandom = _urandom
    of_random: Any = random
    of_random._urandom = _urandom
    of_random.Random.seed = _seed
    of_executors: Any = ThreadPoolExecutor
    of_executors.submit = _submit
    of_asyncio: Any = asyncio
    of_asyncio.run_coroutine_threadsafe = _run_from_thread


def enter(world: World) -> None:
    """Begin a world; all that is random in the product comes from its seed."""
    Entered.world = world
    Entered.chance = world.choices.chance("the product")
    random.seed(Entered.chance.getrandbits(64))


def leave() -> None:
    Entered.world = None


def server_time() -> float:
    """Return the clock of the servers, which all of a world share."""
    assert Entered.world is not None
    return EPOCH + Entered.world.now


def _time() -> float:
    if Entered.world is None:
        return float(_REAL["time"]())
    process = PROCESS.get()
    return server_time() + (0.0 if process is None else process.drift_s)


def _monotonic() -> float:
    return float(_REAL["monotonic"]()) if Entered.world is None else Entered.world.now


def _sleep(seconds: float) -> None:
    actor = current_actor()
    if actor is not None:
        actor.sleep(seconds)
    elif Entered.world is None:
        _REAL["sleep"](seconds)


def _urandom(size: int) -> bytes:
    return _URANDOM(size) if Entered.world is None else Entered.chance.randbytes(size)


_seeded: Final = random.Random.seed


def _seed(self: random.Random, a: Any = None, version: int = 2) -> None:
    if a is None and Entered.world is not None:
        a = Entered.chance.getrandbits(64)
    _seeded(self, a, version)


class _Awaited(Future[Any]):
    """What an actor waits for."""

    def result(self, timeout: float | None = None) -> Any:
        while not self.done():
            _actor().sleep(0.01)
        return super().result()


_submitted: Final[Any] = ThreadPoolExecutor.submit
_from_thread: Final[Any] = asyncio.run_coroutine_threadsafe


def _run_from_thread(coro: Any, loop: Any) -> Future[Any]:
    if Entered.world is None:
        real: Future[Any] = _from_thread(coro, loop)
        return real
    future = _Awaited()

    def ended(task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            future.cancel()
        elif (error := task.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())

    loop.create_task(coro).add_done_callback(ended)
    return future


def _submit(executor: Any, func: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
    if Entered.world is None or PROCESS.get() is None:
        future: Future[Any] = _submitted(executor, func, *args, **options)
    else:
        future = _Awaited()
        Entered.world.loop.run_for(future, executor, partial(func, *args, **options))
    return future


# -- in place of `threading`, in modules that make threads or keep something for each --------------


class Local:
    """What each actor has of its own."""

    def __getattr__(self, name: str) -> Any:
        try:
            return _of_actor(self)[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        _of_actor(self)[name] = value


def _of_actor(local: Local) -> dict[str, Any]:
    here: Any = greenlet.getcurrent()
    books: dict[Local, dict[str, Any]] = here.__dict__.setdefault("locals", {})
    return books.setdefault(local, {})


class Condition:
    """A condition of actors. There is one thread, so none has to be locked out."""

    def __init__(self, lock: object = None) -> None:
        self._waking: list[Callable[[], object]] = []

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        """Do nothing: there was no lock."""

    def wait_for(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        until = None if timeout is None else _monotonic() + timeout
        while not condition():
            left = None if until is None else until - _monotonic()
            if left is not None and left <= 0:
                return False
            _actor().sleep(left, self._waking)
        return True

    def notify_all(self) -> None:
        waking, self._waking = self._waking, []
        for wake in waking:
            wake()


class Event:
    """An event of actors."""

    def __init__(self) -> None:
        self._is_set = False
        self._changed = Condition()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._changed.notify_all()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._changed.wait_for(self.is_set, timeout)


class Bell:
    """What an actor waits at, and other actors ring.

    Nothing else ends its wait: what the system reports has no place in the world's time."""

    def __init__(self) -> None:
        self._rung = Event()
        self.ring, self.clear = self._rung.set, self._rung.clear

    def wait(self, seconds: float, *_: int) -> list[int]:
        return [0] if self._rung.wait(seconds) else []


class Thread:
    """A thread of a process: an actor of it."""

    def __init__(
        self,
        target: Callable[..., object],
        args: Iterable[Any] = (),
        name: str = "thread",
        daemon: bool = True,
    ) -> None:
        self.name, self._work = name, lambda: target(*args)
        self._actor: Actor | None = None

    def start(self) -> None:
        process = PROCESS.get()
        assert isinstance(process, Process)
        self._actor = process.act(self.name, self._work)

    def is_alive(self) -> bool:
        return self._actor is not None and self._actor in self._actor.process.actors

    def join(self, timeout: float | None = None) -> None:
        until = None if timeout is None else _monotonic() + timeout
        while self.is_alive() and (until is None or _monotonic() < until):
            _sleep(0.1)


class Threading:
    """The module ``threading`` for code of the product that runs in a world."""

    Thread, Event, Condition, local = Thread, Event, Condition, Local
    Lock = RLock = Condition
    BoundedSemaphore, Timer, enumerate = threading.BoundedSemaphore, threading.Timer, (lambda: ())


def _actor() -> Actor:
    actor = current_actor()
    assert actor is not None, "only actors wait"
    return actor
