"""Shows how far the load of a model is, as it can be seen from outside the engine.

That is by the files' sizes, and by what its processes have read. What ``gauges`` give is in
heartbeats, so in `penstock status`, and in metrics; the worker's probes print its words. vLLM says
little while it loads, and differently in each version. What the kernel counts is the same
everywhere: bytes that processes took from files or from storage. Weights that lie in memory already
are read without either, and quickly.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from penstock_workers.lanes.machine import GIB, weight_bytes

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0
SAY_EACH_S: Final = 30.0  # in the log; a heartbeat carries it every 5 s
PIDS_MAX: Final = 512  # processes of one engine whose counters are read
# of the weights: what is left is in files that only some of the processes read
NEARLY: Final = 0.97

FILES_MAX: Final = 4096  # of one model in the cache
BLOBS, UNFINISHED = "blobs", ".incomplete"  # as huggingface_hub names them
STARTING: Final = "starting the engine"
FETCHING: Final = "fetching the model"
READING: Final = "reading weights"
WARMING: Final = "compiling and warming up"


class Load(NamedTuple):
    """The progress of loading. ``total`` is 0 where the size of the weights is not known."""

    phase: str
    read: int  # bytes, never more than ``total`` where that is known
    total: int
    seconds: float

    def in_words(self) -> str:
        """Say how far the load is, such as ``reading weights, 3.1 of 15.0 GiB after 42 s``."""
        if self.phase not in (READING, FETCHING):
            return f"{self.phase}, after {self.seconds:.0f} s"
        size = f" of {self.total / GIB:.1f}" if self.total else ""
        return f"{self.phase}, {self.read / GIB:.1f}{size} GiB after {self.seconds:.0f} s"


class LoadWatch:
    """Looks at one engine after another while each loads, and at nothing between.

    ``latest`` is None then."""

    def __init__(
        self,
        setting: str,
        model: str,
        *,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
        cached: Callable[[str], Path | None] | None = None,
    ) -> None:
        """Watch the load of ``model``; ``setting`` is the name of its setting, for the log."""
        self._setting, self._model, self._proc, self._clock = setting, model, proc, clock
        self._folder = model
        self._cached = cached or cache_folder
        self._before: dict[int, int] = {}  # what processes had read when the load began
        self.latest: Load | None = None

    @contextlib.asynccontextmanager
    async def during(self, pids: Callable[[], Iterable[int]]) -> AsyncIterator[None]:
        """Watch the load while the block runs.

        ``pids`` returns the engine's processes; it is called in a thread."""
        watching = asyncio.create_task(self._watch(pids), name="load watch")
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    @contextlib.contextmanager
    def fetching(self, total: int) -> Iterator[Callable[[int], None]]:
        """Watch how files come from elsewhere while the block runs.

        What it gives is called with their bytes so far, in any thread, one at a time."""
        began = said = self._clock()

        def note(read: int) -> None:
            nonlocal said
            now = self._clock()
            self.latest = Load(FETCHING, read, total, now - began)
            if now - said >= SAY_EACH_S:
                said = now
                log.info("%s %s: %s", self._setting, self._model, self.latest.in_words())

        note(0)
        try:
            yield note
        finally:
            self.latest = None

    def lies_in(self, folder: str) -> None:
        """Note in which folder a model lies that came from elsewhere."""
        self._folder = folder

    def gauges(self) -> Mapping[str, float | str]:
        """Describe a load that goes on; nothing is shown of it after that. Any thread may ask."""
        load = self.latest
        if load is None:
            return {}
        return {
            "loading": load.in_words(),
            "load_bytes": float(load.read),
            "load_total_bytes": float(load.total),
        }

    async def _watch(self, pids: Callable[[], Iterable[int]]) -> None:
        began = said = self._clock()
        self.latest = Load(STARTING, 0, 0, 0.0)
        try:
            self._before = await asyncio.to_thread(self._counters, pids)
            while True:
                self.latest = await asyncio.to_thread(self.look, pids, began)
                if self._clock() - said >= SAY_EACH_S:
                    said = self._clock()
                    log.info("%s %s: %s", self._setting, self._model, self.latest.in_words())
                await asyncio.sleep(LOOK_S)
        finally:
            self.latest = None

    def look(self, pids: Callable[[], Iterable[int]], began: float) -> Load:
        seconds = self._clock() - began
        size, is_whole = self._size()
        if not is_whole:
            return Load(FETCHING, size, 0, seconds)
        counters = self._counters(pids)
        read = sum(max(0, count - self._before.get(pid, 0)) for pid, count in counters.items())
        if not read:
            return Load(STARTING, 0, size, seconds)
        if not size:
            return Load(READING, read, 0, seconds)
        return Load(READING if read < NEARLY * size else WARMING, min(read, size), size, seconds)

    def _size(self) -> tuple[int, bool]:
        """Return how many bytes the model's files have here.

        Return also whether none of them is still being fetched. 0 where they are not found."""
        folder = Path(self._folder)
        size, is_whole = 0, True
        try:
            if folder.is_dir():
                return weight_bytes(folder), True
            cached = self._cached(self._model)
            files = [] if cached is None else list(islice((cached / BLOBS).iterdir(), FILES_MAX))
            for file in files:
                size += file.stat().st_size
                is_whole = is_whole and file.suffix != UNFINISHED
        except OSError:  # not there yet, or renamed meanwhile
            return size, True
        return size, is_whole

    def _counters(self, pids: Callable[[], Iterable[int]]) -> dict[int, int]:
        return {
            pid: count
            for pid in islice(pids(), PIDS_MAX)
            if (count := self._read_by(pid)) is not None
        }

    def _read_by(self, pid: int) -> int | None:
        """Return how many bytes a process has read.

        It reads by calls, or from storage where files are mapped. None for a process that is gone
        or not ours.
        """
        try:
            lines = (self._proc / str(pid) / "io").read_text().splitlines()
        except OSError:
            return None
        counted = {
            name: int(value)
            for name, _, value in (line.partition(": ") for line in lines)
            if value.isdecimal()
        }
        return max(counted.get("rchar", 0), counted.get("read_bytes", 0))


def this_process() -> list[int]:
    """Return the process of a model that is loaded in the worker's own."""
    return [os.getpid()]


def cache_folder(model: str) -> Path | None:
    """Return where huggingface_hub keeps a model that is given by its name.

    None where huggingface_hub is not installed."""
    try:
        root = importlib.import_module("huggingface_hub.constants").HF_HUB_CACHE
    except (ImportError, AttributeError):
        return None
    return Path(root) / f"models--{model.replace('/', '--')}"
