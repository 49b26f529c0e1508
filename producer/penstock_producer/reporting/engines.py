"""The engines of a lane are added up from the heartbeats of its workers.

It says what bounds the fleet.

Heartbeats are text from other processes, perhaps of another version: what is missing or makes no
sense is left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock_ledger import yields_of
from penstock_producer.feed.queues import ALIVE_S
from penstock_producer.reporting.reasons import yields_line
from penstock_producer.reporting.text import count, one_line

__all__ = ["Engines", "engines_line", "engines_of", "gpus_in_words"]

if TYPE_CHECKING:
    from penstock_ledger import WorkerSeen


MACHINES_SHOWN = 6
WORKERS_SHOWN = 16  # of one machine
CARD_CHARS = 60  # of what one worker says
LOADING_CHARS = 120  # of what one worker says
_SUMMED = (
    "running",
    "waiting",
    "prompt_tokens_per_s",
    "generation_tokens_per_s",
    "tokens_per_s",
    "items_per_s",
)
_AVERAGED = ("kv_usage", "prefix_hit_rate", "padding_efficiency", "queue_wait_ms")
_SHARES = frozenset({"kv_usage", "prefix_hit_rate", "padding_efficiency"})  # 0..1
_BOUND_BY = {
    "engine": "the engine: it has all it can do",
    "queue": "the queue: too few items reach it",
    "memory": "memory: its KV cache is full",
    "interactive": "interactive traffic: others at its server go first",
    "starting": "its start: the engine loads",
}


@dataclass(frozen=True, slots=True)
class Engines:
    """All engines of one lane together. None is a figure that no engine reports."""

    lane: str
    engines: int
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    prefix_hit_rate: float | None = None
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    queue_wait_ms: float | None = None
    tokens_per_s: float | None = None
    items_per_s: float | None = None
    padding_efficiency: float | None = None
    bound: str | None = None  # what most of them say
    held_back: str | None = None  # why one is held back for others at its server
    loading: str | None = None  # of those whose model loads, how far the first is
    cards: str | None = None  # those that they use, where they say it

    def to_json(self) -> dict[str, Any]:
        """Return only what is known."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def engines_of(workers: Iterable[WorkerSeen], lane: str) -> Engines | None:
    """Return the sums of a lane's engines; None when no live worker reports an engine."""
    workers = list(workers)
    live = [
        seen.info
        for seen in workers
        if seen.seconds_ago < ALIVE_S and seen.info.get("lane") == lane
    ]
    telling = [
        (figures, info.get("bound"))
        for info in live
        if (figures := _figures(info)) or info.get("bound") in _BOUND_BY
    ]
    if not telling:
        return None
    known: dict[str, list[float]] = {}
    for figures, _ in telling:
        for name, value in figures.items():
            known.setdefault(name, []).append(value)
    bounds = Counter(bound for _, bound in telling if bound in _BOUND_BY)
    return Engines(
        lane,
        len(telling),
        **{name: _together(name, values) for name, values in known.items()},
        # Of as many votes each, the first by name, so that the line does not flicker.
        bound=min(bounds, key=lambda bound: (-bounds[bound], bound)) if bounds else None,
        held_back=_held_back(live),
        loading=_loading(live),
        cards=gpus_in_words(workers, lane),
    )


def engines_line(engines: Engines) -> str:
    """Return one line about the engines of a lane.

    ``gpu: 2 engines · 250 running, 31 waiting · KV 41 % · … · bound by the engine: it has all it
    can do``
    """
    parts = [
        f"{engines.lane}: {engines.engines} engine{'' if engines.engines == 1 else 's'}",
        _joined(", ", _number(engines.running, "running"), _number(engines.waiting, "waiting")),
        _percent("KV", engines.kv_usage),
        _percent("prefix hits", engines.prefix_hit_rate),
        _percent("padding efficiency", engines.padding_efficiency),
        _tokens(engines),
        _number(engines.items_per_s, "items/s"),
        "" if engines.queue_wait_ms is None else f"{engines.queue_wait_ms:,.0f} ms in line",
        engines.loading or "",
        engines.cards or "",
        f"bound by {_BOUND_BY[engines.bound]}" if engines.bound in _BOUND_BY else "",
        engines.held_back or "",
    ]
    return _joined(" · ", *parts)


def _loading(live: Iterable[Mapping[str, str]]) -> str | None:
    """Return ``loading in 2 workers: reading weights, 3.1 of 15.0 GiB after 42 s``."""
    said = sorted(one_line(info["loading"], LOADING_CHARS) for info in live if info.get("loading"))
    if not said:
        return None
    return f"loading in {len(said)} worker{'' if len(said) == 1 else 's'}: {said[0]}"


def _held_back(live: Iterable[Mapping[str, str]]) -> str | None:
    """Return why a worker is held back; of several the first by its words."""
    said = (yields_line(yields_of(info.get("yields"))) for info in live)
    return min((line for line in said if line is not None), default=None)


def _figures(info: Mapping[str, str]) -> dict[str, float]:
    found = {name: _value(info.get(name)) for name in (*_SUMMED, *_AVERAGED)}
    return {
        name: value
        for name, value in found.items()
        if value is not None and (name not in _SHARES or value <= 1)
    }


def _value(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _together(name: str, values: list[float]) -> float:
    return math.fsum(values) / (len(values) if name in _AVERAGED else 1)


def _tokens(engines: Engines) -> str:
    if engines.tokens_per_s is not None:
        return f"{count(round(engines.tokens_per_s))} tokens/s"
    made = _joined(
        " + ",
        _number(engines.prompt_tokens_per_s, "prompt"),
        _number(engines.generation_tokens_per_s, "generated"),
    )
    return f"{made} tokens/s" if made else ""


def _number(value: float | None, of_what: str) -> str:
    return "" if value is None else f"{count(round(value))} {of_what}"


def _percent(of_what: str, share: float | None) -> str:
    return "" if share is None else f"{of_what} {share * 100:.0f} %"


def _joined(between: str, *parts: str) -> str:
    return between.join(part for part in parts if part)


def gpus_in_words(workers: Iterable[WorkerSeen], lane: str) -> str | None:
    """Return ``2 workers on machine-a (cards 0, 1)``; None where no worker says its GPUs.

    GPUs that share a model stand together, as in 0+1.
    """
    machines: dict[str, list[str]] = {}
    for seen in workers:
        cards = one_line(seen.info.get("cards", ""), CARD_CHARS)
        if cards and seen.seconds_ago < ALIVE_S and seen.info.get("lane") == lane:
            machine = one_line(seen.name.rpartition("-")[0] or seen.name, CARD_CHARS)
            machines.setdefault(machine, []).append(cards.replace(",", "+"))
    if not machines:
        return None
    told = [_on_machine(name, sorted(machines[name])) for name in sorted(machines)[:MACHINES_SHOWN]]
    more = len(machines) - len(told)
    return "; ".join(told) + (f"; and {more} more machines" if more else "")


def _on_machine(name: str, cards: list[str]) -> str:
    more = f" and {len(cards) - WORKERS_SHOWN} more" if len(cards) > WORKERS_SHOWN else ""
    workers = f"{len(cards)} worker{'' if len(cards) == 1 else 's'}"
    return f"{workers} on {name} (cards {', '.join(cards[:WORKERS_SHOWN])}{more})"
