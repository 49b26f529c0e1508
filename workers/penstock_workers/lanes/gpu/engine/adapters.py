"""The LoRA adapters of a worker, by name. A bad one refuses its own requests only.

An adapter that the engine first meets inside a request ends the engine when it cannot be loaded,
and everything in it. So each is read and loaded before any request has it: those of `gpu.lora` as
the engine starts, those of `gpu.lora_from` as they are found (``adapter_watch.py``).

What the files of a LoRA adapter say of it, read before an engine has it: its rank, and whether
its weights are whole.
"""

from __future__ import annotations

import json
import logging
import re
import struct
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from penstock_workers.errors import BadEngineSettings, PackageMissing
from penstock_workers.lanes.gpu.engine.engines import upstream

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
CONFIG_BYTES_MAX: Final = 1024**2
HEADER_BYTES_MAX: Final = 100_000_000  # the format's own limit
# A layer of the text model, by PEFT's names; layers of other parts, such as one that sees, have
# other widths.
LAYER: Final = re.compile(
    r"base_model\.model\.(?:(?:language_model|model)\.)*layers\.(\d{1,6})\.(?:[\w.]+\.)?(\w+)\.lora_([AB])\.weight",
    re.ASCII,
)
# their input is as wide as the model
TAKE_WIDTH: Final = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
GIVE_WIDTH: Final = ("o_proj", "down_proj")  # their output is


class UnusableAdapter(Exception):
    """An adapter cannot be used; it says why, for an operator."""


class AdapterFacts(NamedTuple):
    """The facts in the files of one adapter."""

    rank: int  # the highest of its layers
    base: str | None = None  # the model that it was made for, as its makers call it
    widths: frozenset[int] = frozenset()  # of the models that its layers fit
    layers: int = 0  # that such a model has at least


def read_adapter(folder: Path) -> AdapterFacts:
    """Read what kind of model an adapter is for.

    Weights of another format are left for vLLM to check. Raises UnusableAdapter."""
    facts = _read_config(folder / CONFIG)
    weights = folder / WEIGHTS
    if not weights.exists():
        return facts
    header = _read_header(weights)
    found = [
        (match, _shape(tensor))
        for name, tensor in header.items()
        if (match := LAYER.fullmatch(name)) is not None
    ]
    widths = frozenset(
        width for match, shape in found if (width := _width(match[2], match[3], shape)) is not None
    )
    return facts._replace(
        widths=widths, layers=max((int(match[1]) + 1 for match, _ in found), default=0)
    )


def misfit(facts: AdapterFacts, text_config: Any) -> str | None:
    """Say why an adapter is for another model than the one with this configuration of transformers.

    None where nothing shows that. vLLM takes smaller layers than the model's, and what they answer
    makes no sense.
    """
    width, layers = (
        getattr(text_config, "hidden_size", None),
        getattr(text_config, "num_hidden_layers", None),
    )
    others = sorted(facts.widths - {width})
    if others and type(width) is int:
        return f"it is for a model of width {others[0]}, and this one has {width}"
    if type(layers) is int and facts.layers > layers:
        return f"it has weights for {facts.layers} layers, and this model has {layers}"
    return None


def _read_config(file: Path) -> AdapterFacts:
    try:
        if file.stat().st_size > CONFIG_BYTES_MAX:
            raise UnusableAdapter(
                f"{file} has more than {CONFIG_BYTES_MAX:,} bytes: it is no adapter's"
            )
        config = json.loads(file.read_bytes())
    except OSError as error:
        why = f"{file} cannot be read ({error.strerror}); give the folder that holds it"
        raise UnusableAdapter(why) from error
    except (ValueError, RecursionError) as error:
        raise UnusableAdapter(f"{file} is not JSON: {error}") from error
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA":
        raise UnusableAdapter(f"{file}: peft_type is {kind!r:.40}; only LORA adapters are served")
    base = config.get("base_model_name_or_path")
    return AdapterFacts(_rank(file, config), base if isinstance(base, str) else None)


def _rank(file: Path, config: Mapping[str, Any]) -> int:
    others = config.get("rank_pattern") or {}
    if not isinstance(others, dict):
        raise UnusableAdapter(
            f"{file}: rank_pattern is {others!r:.40}; it is an object of layers and ranks"
        )
    ranks = [config.get("r"), *others.values()]
    if not all(type(rank) is int and rank > 0 for rank in ranks):
        raise UnusableAdapter(f"{file}: r is {config.get('r')!r:.40}; a rank is a positive integer")
    return int(max(ranks))


def _read_header(file: Path) -> dict[str, Any]:
    """Read the header of a safetensors file, and check the file's size by it.

    The header says how long the file is: one that was cut has fewer bytes."""
    size = length = 0
    header: Any = None
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            if length <= min(size, HEADER_BYTES_MAX):
                header = json.loads(opened.read(length))
    except OSError as error:
        raise UnusableAdapter(f"{file} cannot be read ({error.strerror})") from error
    except (struct.error, ValueError, RecursionError):
        pass
    if not isinstance(header, dict):
        raise UnusableAdapter(
            f"{file} is no safetensors file, or only the beginning of one; copy it again"
        )
    end = 8 + length + max((_end(tensor) for tensor in header.values()), default=0)
    if end != size:
        raise UnusableAdapter(
            f"{file} has {size:,} bytes, and its header speaks of {end:,}; copy it again"
        )
    return header


def _end(tensor: Any) -> int:
    """Return where the bytes of a tensor end.

    0 for what is none, as the notes of the file's makers."""
    offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
    match offsets:
        case [int(), int(end)]:
            return end
        case _:
            return 0


def _shape(tensor: Any) -> list[int]:
    shape = tensor.get("shape") if isinstance(tensor, dict) else None
    return shape if isinstance(shape, list) and all(type(size) is int for size in shape) else []


def _width(layer: str, part: str, shape: list[int]) -> int | None:
    """Return how wide a model the adapter is for, as far as this tensor tells.

    A is rank by input, B is output by rank."""
    if len(shape) != 2:
        return None
    if part == "A" and layer in TAKE_WIDTH:
        return shape[1]
    return shape[0] if part == "B" and layer in GIVE_WIDTH else None


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
# in the machine's memory; vLLM reads others again from the cache when a request needs them
ROOM_KEPT: Final = 32
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
        """Make vLLM's LoRARequest.

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
        """Read the adapters of ``folders``.

        ``more``: others may be added while the engine runs, so it makes room for them."""
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
        """Return the names under which requests are taken.

        That of an unusable one of `gpu.lora` too: its requests are to hear why."""
        return tuple(
            adapter.name
            for adapter in self._all.values()
            if adapter not in self._retired and (adapter.problem is None or not adapter.version)
        )

    def usable(self) -> Iterator[Adapter]:
        return (adapter for adapter in self._all.values() if adapter.problem is None)

    def to_load(self, most: int) -> list[Adapter]:
        """Return the adapters that a new engine, which keeps ``most``, is to load.

        They are those that no engine has loaded yet, and as many others as it keeps."""
        usable = list(self.usable())
        proved = [adapter for adapter in usable if adapter.proved]
        return [adapter for adapter in usable if not adapter.proved] + proved[:most]

    def arguments(self) -> dict[str, Any]:
        """Return the engine's arguments for the adapters.

        There is room for the highest rank, and all are kept in memory, so none is read again."""
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

    def warn_of_ranks(self, rank: int) -> None:
        """Say that adapters are slow, for an engine on a CPU that makes room for this rank.

        There each request is computed with that room, those for the model too."""
        if rank <= ROOM_RANK:
            return
        high = [adapter.setting for adapter in self.usable() if adapter.rank > ROOM_RANK]
        log.warning(
            "%s: this engine computes on a CPU with room for adapters of rank %d, and that makes "
            "every request several times slower, those for the model too; serve adapters above "
            "rank %d by workers of their own, or on a GPU",
            ", ".join(high) or "gpu.engine.max_lora_rank",
            rank,
            ROOM_RANK,
        )

    # -- while the engine runs ---------------------------------------------------------------------

    def found(self, name: str, folder: Path, version: str, setting: str) -> Adapter:
        """Make an adapter whose files are there, and which is not taken up yet.

        Raises UnusableAdapter."""
        adapter = Adapter(name, next(self._numbers), str(folder), version=version, setting=setting)
        self._read(adapter)
        most = _ranks()[-1]
        if adapter.rank > most:
            raise UnusableAdapter(_too_high(adapter.rank, most))
        return adapter

    def take_up(self, adapter: Adapter, release: Callable[[], None]) -> None:
        """Use this adapter for requests that come from now on, in place of an earlier version.

        ``release`` is called when none uses it."""
        # each call of the engine keeps its adapter
        weakref.finalize(adapter, release).atexit = False
        self._all[adapter.name] = adapter

    def retire(self, adapter: Adapter) -> None:
        """Announce an adapter no more; requests that are on their way still find it."""
        self._retired.add(adapter)

    def drop_retired(self, adapter: Adapter) -> None:
        """Drop an adapter, so that requests that name it find it no more.

        Another one may have its name meanwhile, and stays."""
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
    """Return what vLLM takes as `max_lora_rank`, ascending."""
    try:
        return tuple(sorted(get_args(upstream("vllm.config.lora", "MaxLoRARanks"))))
    except (BadEngineSettings, PackageMissing):
        return RANKS
