"""Takes up adapters that come and go while the engine runs.

They lie in the folder or the bucket of `gpu.lora_from`. An adapter is taken up when both of its
files are there and rest, are in the cache, hold together and were loaded by the engine; only then
is its name announced. One that cannot be used is in the log once, with the reason, until its files
change. Where the place cannot be listed, everything stays as it is: an outage withdraws nothing.

The module also loads adapters into an engine: all of a worker's as it starts, and one that was
found while it runs.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from penstock_producer.errors import seen
from penstock_producer.feed.queues import NAMES_MAX
from penstock_workers.errors import FilesUnusable
from penstock_workers.lanes.gpu.engine.adapters import (
    CONFIG,
    CONFIG_BYTES_MAX,
    WEIGHTS,
    Adapter,
    Adapters,
    UnusableAdapter,
    misfit,
)
from penstock_workers.lanes.gpu.engine.engines import Engine, EngineDied
from penstock_workers.lanes.model_cache import FileCache, Wanted
from penstock_workers.lanes.model_stores import Store, StoredFile, in_thread

LOAD_S: Final = 120.0  # to load one adapter


class EngineEnded(Exception):
    """The engine is dead, or is to be ended: loading an adapter did that."""


async def load_all(engine: Engine, adapters: Adapters) -> bool:
    """Load the adapters into a new engine.

    Return False where one of them ended the engine; it is left out of the next."""
    lora = getattr(engine.config, "lora_config", None)
    kept = 0 if lora is None else int(lora.max_cpu_loras or lora.max_loras)
    for adapter in adapters.to_load(kept):
        try:
            await load(engine, adapter)
        except EngineEnded as error:
            adapter.refuse(str(error))
            engine.kill()
            return False
        except UnusableAdapter as error:
            adapter.refuse(str(error))
    return True


async def load(engine: Engine, adapter: Adapter) -> None:
    """Load an adapter into the engine.

    Raises UnusableAdapter for what is wrong with it, and EngineEnded."""
    why = misfit(adapter.facts, getattr(engine.config.model_config, "hf_text_config", None))
    if why is not None:
        raise UnusableAdapter(why)
    try:
        async with asyncio.timeout(LOAD_S):
            await engine.load(adapter.request())
    except (EngineDied, TimeoutError) as error:
        raise EngineEnded(
            f"it ends the engine that loads it ({type(error).__name__} {error})"
        ) from error
    except Exception as error:  # in whatever class
        raise UnusableAdapter(f"{type(error).__name__}: {error}") from error
    adapter.proved = True


log = logging.getLogger(__name__)

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
# a name is found for so long after it is not announced any more: items of it are on their way
RETIRE_S: Final = 30.0
SHOWN_MAX: Final = 100  # problems at a time that are in the log, each once
MIB: Final = 1024**2


@dataclass(frozen=True, slots=True)
class _Held:
    key: str
    adapter: Adapter


class AdapterWatch:
    """Watches the adapters of one worker, on its event loop.

    ``load`` has the engine load one, and is False where there is no engine just now."""

    def __init__(
        self,
        store: Store,
        cache: FileCache,
        adapters: Adapters,
        load: Callable[[Adapter], Awaitable[bool]],
        *,
        taken: Collection[str],
        every_s: float,
        most_bytes: int,
    ) -> None:
        """Watch the place without looking at it yet.

        ``taken`` are names that the model has itself; an adapter is no larger than ``most_bytes``.
        """
        self._store, self._cache, self._adapters, self._load = store, cache, adapters, load
        self._taken = frozenset(taken) | adapters.names()
        self._most = NAMES_MAX - len(self._taken)
        self._every_s, self._most_bytes = every_s, most_bytes
        self._held: dict[str, _Held] = {}  # bounded by _most
        # keys at the last look, of what was not held then; this and the next as listed
        self._seen: dict[str, str] = {}
        self._refused: dict[str, str] = {}  # keys of what cannot be used
        self._said: dict[str, str] = {}
        self._lacked: set[str] = set()  # had no weights at the last look

    async def run(self) -> None:
        """Look again and again, until it is cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.look()
            except Exception:
                log.exception(
                    "%s could not be listed because of an error in Penstock; the next look follows",
                    self._store.place,
                )

    async def look(self) -> None:
        """Take up what is new, and withdraw what is gone."""
        try:
            listed, lacking = by_name(await in_thread(self._store.files))
        except FilesUnusable as error:
            self._say("", f"{error}; the adapters that were found before are served")
            return
        self._forget({*listed, *lacking})
        for name in [name for name in self._held if name not in listed]:
            self._withdraw(name)
        for name, files in sorted(listed.items()):
            try:
                await self._consider(name, files)
            except UnusableAdapter as error:
                self._refused[name] = self._wanted(name, files).key
                before = name in self._held
                meanwhile = "the one before is served on" if before else "it is not served"
                self._say(name, f"{error}; {meanwhile}")
            except FilesUnusable as error:
                self._say(name, f"{error}; it is tried again in {self._every_s:g} s")
        for name in lacking & self._lacked:  # at two looks: an upload that is under way is no news
            self._say(
                name,
                f"it has no {WEIGHTS}; weights of another format are not read, as they may hold "
                "programs",
            )
        self._lacked = lacking

    async def _consider(self, name: str, files: Sequence[StoredFile]) -> None:
        """Take an adapter up if it is new or has changed, and is whole.

        Raises UnusableAdapter for what stays unusable until its files change, FilesUnusable for
        what may pass.
        """
        wanted = self._wanted(name, files)
        held, key = self._held.get(name), wanted.key
        if key in (held and held.key, self._refused.get(name)):
            return
        self._check(name, wanted)
        if not self._rests(name, wanted):
            return
        if held is None and len(self._held) >= self._most:
            raise FilesUnusable(
                f"this worker serves {self._most} adapters already, which is all that it may"
            )
        await self._take_up(name, wanted)

    async def _take_up(self, name: str, wanted: Wanted) -> None:
        entry = await in_thread(partial(self._cache.take, wanted))
        try:
            adapter = self._adapters.found(
                name, entry.folder, wanted.key, f"the adapter {wanted.name}"
            )
            is_loaded = await self._load(adapter)
        except BaseException:
            entry.release()
            raise
        if not is_loaded:
            entry.release()
            return
        replaced = name in self._held
        self._adapters.take_up(adapter, entry.release)
        self._held[name] = _Held(wanted.key, adapter)
        self._say(name, None)
        rank, size = adapter.rank, wanted.size / MIB
        log.info(
            "%s is %s: rank %d, %.1f MiB",
            wanted.name,
            "replaced" if replaced else "served",
            rank,
            size,
        )

    def _withdraw(self, name: str) -> None:
        adapter = self._held.pop(name).adapter
        self._adapters.retire(adapter)
        asyncio.get_running_loop().call_later(RETIRE_S, self._adapters.drop_retired, adapter)
        log.warning(
            "%s has no adapter %s any more; this worker stops serving it",
            self._store.place,
            name,
        )

    # -- what is there -----------------------------------------------------------------------------

    def _wanted(self, name: str, files: Sequence[StoredFile]) -> Wanted:
        return Wanted(self._store, f"{self._store.place}/{name}", tuple(files), inside=f"{name}/")

    def _check(self, name: str, wanted: Wanted) -> None:
        if NAME.fullmatch(name) is None:
            raise UnusableAdapter(
                "its name is no adapter's: letters, digits, `.`, `_` and `-`, at most 128 of them"
            )
        if name in self._taken:
            raise UnusableAdapter(
                "its name is one of the model's own, or one of gpu.lora; rename the folder"
            )
        if wanted.size > self._most_bytes:
            raise UnusableAdapter(
                f"it has {wanted.size / MIB:,.1f} MiB, and gpu.lora_max_bytes allows "
                f"{self._most_bytes / MIB:,.1f}"
            )
        if wanted.here[CONFIG].size > CONFIG_BYTES_MAX:
            raise UnusableAdapter(f"its {CONFIG} has more than {CONFIG_BYTES_MAX:,} bytes")

    def _rests(self, name: str, wanted: Wanted) -> bool:
        """Return whether the files are whole, as far as can be seen.

        They are the same at two looks, or unchanged for as long as one takes."""
        before, self._seen[name] = self._seen.get(name), wanted.key
        return (
            before == wanted.key
            or max(file.changed for file in wanted.files) < time.time() - self._every_s
        )

    # -- what is said ------------------------------------------------------------------------------

    def _say(self, name: str, problem: str | None) -> None:
        """Say what is wrong with an adapter once, until something else is."""
        if problem == self._said.get(name):
            return
        if problem is None:
            del self._said[name]
        elif name in self._said or len(self._said) < SHOWN_MAX:
            self._said[name] = problem
            log.error(
                "gpu.lora_from: %s%s: %s",
                self._store.place,
                f", {seen(name)}" if name else "",
                problem,
            )

    def _forget(self, listed: Collection[str]) -> None:
        """Forget what is not there any more, so that this grows with what is there alone."""
        self._say("", None)
        for known in (self._seen, self._refused, self._said):
            for name in [name for name in known if name not in listed]:
                del known[name]


def by_name(files: Sequence[StoredFile]) -> tuple[dict[str, list[StoredFile]], set[str]]:
    """Return the two files of each folder that has both.

    Return also the names of folders that lack weights. What else lies there is left out."""
    found: dict[str, list[StoredFile]] = {}
    for file in files:
        name, _, rest = file.path.partition("/")
        if rest in (CONFIG, WEIGHTS):
            found.setdefault(name, []).append(file)
    lacking = {
        name for name, own in found.items() if len(own) == 1 and own[0].path.endswith(CONFIG)
    }
    return {name: both for name, both in found.items() if len(both) == 2}, lacking
