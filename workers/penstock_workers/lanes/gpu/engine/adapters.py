"""The LoRA adapters of a worker: read before the engine starts, loaded as it does. A bad one refuses its own requests only.

An adapter that the engine first meets inside a request ends the engine when it cannot be loaded, and everything in it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

from penstock_workers.errors import BadEngineSettings
from penstock_workers.lanes.gpu.engine.upstream import upstream

log = logging.getLogger(__name__)

CONFIG: Final = "adapter_config.json"
ACTIVE_MAX: Final = 8  # adapters in one step; each takes GPU memory
RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # room that vLLM makes for adapters, where it does not say itself


@dataclass(slots=True)
class Adapter:
    """One of `gpu.lora`. ``problem`` says why requests that name it are refused; None while nothing is known against it."""

    name: str
    number: int  # vLLM's, from 1
    folder: str
    rank: int = 0
    problem: str | None = None

    def request(self) -> Any:
        """vLLM's LoRARequest."""
        return upstream("vllm.lora.request", "LoRARequest")(self.name, self.number, self.folder)

    def refuse(self, why: str) -> None:
        self.problem = why
        log.error(
            "gpu.lora.%s (%s) cannot be used: %s; requests for it are refused, all others are served",
            self.name,
            self.folder,
            why,
        )


class Adapters:
    """All of a worker's, by name. What is found against one stays true for the engines that are built later."""

    def __init__(self, folders: Mapping[str, str], model: str | None) -> None:
        self._all = {name: Adapter(name, at, folder) for at, (name, folder) in enumerate(folders.items(), 1)}
        for adapter in self._all.values():
            _read(adapter, model)

    def get(self, name: str) -> Adapter | None:
        return self._all.get(name)

    def names(self) -> frozenset[str]:
        return frozenset(self._all)

    def usable(self) -> Iterator[Adapter]:
        return (adapter for adapter in self._all.values() if adapter.problem is None)

    def arguments(self) -> dict[str, Any]:
        """The engine's arguments for them: room for the highest rank, and all kept in memory, so none is read again."""
        if not self._all:
            return {}
        self._refuse_high_ranks()
        usable = list(self.usable())
        if not usable:
            return {}
        highest = max(adapter.rank for adapter in usable)
        return {
            "enable_lora": True,
            "max_loras": min(len(usable), ACTIVE_MAX),
            "max_cpu_loras": len(usable),
            "max_lora_rank": next(room for room in _ranks() if room >= highest),
        }

    def _refuse_high_ranks(self) -> None:
        most = _ranks()[-1]
        for adapter in list(self.usable()):
            if adapter.rank > most:
                adapter.refuse(f"its rank is {adapter.rank}, and vLLM takes {most} at most")


def _ranks() -> tuple[int, ...]:
    """What vLLM takes as `max_lora_rank`, ascending."""
    try:
        return tuple(sorted(get_args(upstream("vllm.config.lora", "MaxLoRARanks"))))
    except BadEngineSettings:
        return RANKS


def _read(adapter: Adapter, model: str | None) -> None:
    """Its rank, and whether it is an adapter at all."""
    file = Path(adapter.folder) / CONFIG
    try:
        config = json.loads(file.read_bytes())
    except OSError as error:
        adapter.refuse(f"{file} cannot be read ({error.strerror}); give the folder that holds it")
        return
    except ValueError as error:
        adapter.refuse(f"{file} is not JSON: {error}")
        return
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA":
        adapter.refuse(f"{file}: peft_type is {kind!r}; only LORA adapters are served")
        return
    ranks = [config.get("r"), *(config.get("rank_pattern") or {}).values()]
    if not all(type(rank) is int and rank > 0 for rank in ranks):
        adapter.refuse(f"{file}: r is {config.get('r')!r}; a rank is a positive integer")
        return
    adapter.rank = max(ranks)
    base = config.get("base_model_name_or_path")
    if isinstance(base, str) and model and Path(base).name != Path(model).name:
        log.warning("gpu.lora.%s was made for the model %s, and this worker serves %s", adapter.name, base, model)
