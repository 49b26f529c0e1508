"""Which cards the workers of `penstock worker --gpus` use, machine by machine, from their heartbeats."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock_producer.feed.served import ALIVE_S
from penstock_producer.reporting.text import one_line

__all__ = ["cards_in_words"]

if TYPE_CHECKING:
    from penstock_ledger import WorkerSeen

MACHINES_SHOWN = 6
WORKERS_SHOWN = 16  # of one machine
CARD_CHARS = 60  # of what one worker says


def cards_in_words(workers: Iterable[WorkerSeen], lane: str) -> str | None:
    """``2 workers on machine-a (cards 0, 1)``; cards that share a model stand together, as in 0+1. None where none says it."""
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
