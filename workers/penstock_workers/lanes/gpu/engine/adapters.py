"""The LoRA adapters of a worker, by name. A bad one refuses its own requests only.

An adapter that the engine first meets inside a request ends the engine when it cannot be loaded,
and everything in it. So each is read and loaded before any request has it: those of `gpu.lora` as
the engine starts, those of `gpu.lora_from` as they are found (``adapter_watch.py``).
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, get_args

from penstock_workers.errors import BadEngineSettings, PackageMissing
from penstock_workers.lanes.gpu.engine.adapter_files import (
    AdapterFacts,
    UnusableAdapter,
    read_adapter,
)
from penstock_workers.lanes.gpu.engine.upstream import upstream

log = logging.getLogger(__name__)

ACTIVE_MAX: Final = 8  # adapters in one step; each takes GPU memory
RANKS: Final = (
    1,
    8,
    16,
    32,
    64,
    128,
    256,
    320,
    512,
)  # room that vLLM makes for adapters, where it does not say itself
# Where adapters may come later, an engine makes room for these; `gpu.engine` says otherwise by
# vLLM's own arguments.
ROOM_ACTIVE: Final = 4
ROOM_KEPT: Final = (
    32  # in the machine's memory; vLLM reads others again from the cache when a request needs them
)
ROOM_RANK: Final = 64


NOTHING_READ: Final = AdapterFacts(0)


@dataclass(slots=True, weakref_slot=True, eq=False)
class Adapter:
    """One adapter.

    ``problem`` says why requests that name it are refused; None while nothing is known against
    it."""

    name: str
    number: int  # vLLM's, from 1, never given twice
    folder: str
    facts: AdapterFacts = NOTHING_READ
    problem: str | None = None
    version: str = ""  # of its files, where they may be replaced; empty for those of `gpu.lora`
    setting: str = ""  # where it comes from, for people
    proved: bool = False  # an engine has loaded it

    @property
    def rank(self) -> int:
        return self.facts.rank

    def request(self) -> Any:
        """vLLM's LoRARequest.

        Another version has another name: vLLM keeps computed prefixes by the name alone."""
        name = f"{self.name}@{self.version}" if self.version else self.name
        return upstream("vllm.lora.request", "LoRARequest")(name, self.number, self.folder)

    def refuse(self, why: str) -> None:
        self.problem = why
        log.error(
            "%s (%s) cannot be used: %s; requests for it are refused, all others are served",
            self.setting,
            self.folder,
            why,
        )


class Adapters:
    """All of a worker's. What is found against one stays true for the engines that are built later.

    Changed on the event loop, read in any thread.
    """

    def __init__(
        self, folders: Mapping[str, str], model: str | None, *, more: bool = False
    ) -> None:
        """``more``: others may be added while the engine runs, so it makes room for them."""
        self._model, self._more = model, more
        self._numbers = count(1)
        self._all: dict[str, Adapter] = {}
        self._retired: set[Adapter] = set()
        for name, folder in folders.items():
            adapter = self._all[name] = Adapter(
                name, next(self._numbers), folder, setting=f"gpu.lora.{name}"
            )
            try:
                self._read(adapter)
            except UnusableAdapter as error:
                adapter.refuse(str(error))

    def get(self, name: str) -> Adapter | None:
        return self._all.get(name)

    def names(self) -> frozenset[str]:
        return frozenset(self._all)

    def announced(self) -> tuple[str, ...]:
        """Names under which requests are taken.

        That of an unusable one of `gpu.lora` too: its requests are to hear why."""
        return tuple(
            adapter.name
            for adapter in self._all.values()
            if adapter not in self._retired and (adapter.problem is None or not adapter.version)
        )

    def usable(self) -> Iterator[Adapter]:
        return (adapter for adapter in self._all.values() if adapter.problem is None)

    def to_load(self, most: int) -> list[Adapter]:
        """By a new engine, which keeps ``most``: those that no engine has loaded yet, and as many
        others as it keeps."""
        usable = list(self.usable())
        proved = [adapter for adapter in usable if adapter.proved]
        return [adapter for adapter in usable if not adapter.proved] + proved[:most]

    def arguments(self) -> dict[str, Any]:
        """The engine's arguments for them: room for the highest rank, and all kept in memory, so
        none is read again."""
        self._refuse_high_ranks()
        usable = list(self.usable())
        if not usable and not self._more:
            return {}
        active, kept, highest = (
            len(usable),
            len(usable),
            max((adapter.rank for adapter in usable), default=1),
        )
        if self._more:
            active, kept, highest = (
                max(active, ROOM_ACTIVE),
                max(kept, ROOM_KEPT),
                max(highest, ROOM_RANK),
            )
        return {
            "enable_lora": True,
            "max_loras": min(active, ACTIVE_MAX),
            "max_cpu_loras": kept,
            "max_lora_rank": next(room for room in _ranks() if room >= highest),
        }

    # -- while the engine runs ---------------------------------------------------------------------

    def found(self, name: str, folder: Path, version: str, setting: str) -> Adapter:
        """One whose files are there, not taken up yet. Raises UnusableAdapter."""
        adapter = Adapter(name, next(self._numbers), str(folder), version=version, setting=setting)
        self._read(adapter)
        most = _ranks()[-1]
        if adapter.rank > most:
            raise UnusableAdapter(_too_high(adapter.rank, most))
        return adapter

    def take_up(self, adapter: Adapter, release: Callable[[], None]) -> None:
        """Requests that come from now on use it, in place of an earlier version.

        ``release`` is called when none uses it."""
        weakref.finalize(
            adapter, release
        ).atexit = False  # each call of the engine keeps its adapter
        self._all[adapter.name] = adapter

    def retire(self, adapter: Adapter) -> None:
        """Not announced any more; requests that are on their way still find it."""
        self._retired.add(adapter)

    def drop_retired(self, adapter: Adapter) -> None:
        """Requests that name it find it no more, unless another has its name meanwhile."""
        self._retired.discard(adapter)
        if self._all.get(adapter.name) is adapter:
            del self._all[adapter.name]

    # -- reading -----------------------------------------------------------------------------------

    def _read(self, adapter: Adapter) -> None:
        adapter.facts = read_adapter(Path(adapter.folder))
        base = adapter.facts.base
        if base is not None and self._model and Path(base).name != Path(self._model).name:
            log.warning(
                "%s was made for the model %.200s, and this worker serves %s",
                adapter.setting,
                base,
                self._model,
            )

    def _refuse_high_ranks(self) -> None:
        most = _ranks()[-1]
        for adapter in list(self.usable()):
            if adapter.rank > most:
                adapter.refuse(_too_high(adapter.rank, most))


def _too_high(rank: int, most: int) -> str:
    return f"its rank is {rank}, and vLLM takes {most} at most"


def _ranks() -> tuple[int, ...]:
    """What vLLM takes as `max_lora_rank`, ascending."""
    try:
        return tuple(sorted(get_args(upstream("vllm.config.lora", "MaxLoRARanks"))))
    except (BadEngineSettings, PackageMissing):
        return RANKS
