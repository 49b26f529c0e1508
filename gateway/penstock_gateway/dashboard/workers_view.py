"""Workers lane by lane, and what bounds each lane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock_ledger import Depth, WorkerSeen
from penstock_ledger.texts import Command, Run, SetOption, Text
from penstock_producer.feed.queues import ALIVE_S
from penstock_producer.job.lanes import DEFAULT_LANE
from penstock_producer.reporting.advice import command_line, on_terminal
from penstock_producer.reporting.engines import engines_line, engines_of, gpus_in_words
from penstock_producer.reporting.text import count, duration, one_line

__all__ = ["LaneView", "WorkerRow", "lane_views"]

NAME_CHARS: Final = 200
ROWS_MAX: Final = 500  # workers of one lane on the page; the others are counted
_SHOWN_APART: Final = frozenset({"lane", "concurrency", "in_flight", "name", "knows_moves"})
_MORE_CHARS: Final = 200
_MORE_FIELDS: Final = 12


class WorkerRow(NamedTuple):
    name: str
    alive: bool
    state: str
    seen: str
    slots: str
    more: str


class LaneView(NamedTuple):
    lane: str
    alive: int
    queued: str
    held: str
    delayed: str
    bound: str
    cards: str
    command: str  # that starts a worker, where none lives
    workers: Sequence[WorkerRow]
    left_out: int


def lane_views(
    workers: Sequence[WorkerSeen], depths: Mapping[str, Depth], *, one_machine: bool = False
) -> list[LaneView]:
    """Return the lanes by name, those with a queue and no worker among them.

    ``one_machine``: `penstock serve` starts the workers.
    """
    names = sorted({seen.info.get("lane", "") for seen in workers} | set(depths))
    return [
        _lane(
            name,
            [seen for seen in workers if seen.info.get("lane", "") == name],
            depths.get(name),
            one_machine,
        )
        for name in names
    ]


def start_of(lane: str) -> str:
    """Return the command that starts a worker of a lane."""
    return command_line(Run(Command.WORKER, (SetOption("lane", one_line(lane, NAME_CHARS)),)))


def serve_again(lane: str) -> str:
    """Return what to do where one command starts all workers."""
    chosen = SetOption("lane", one_line(lane, NAME_CHARS))
    return on_terminal(Text("start ", Run(Command.SERVE), " again with ", chosen))


def _lane(
    name: str, workers: Sequence[WorkerSeen], depth: Depth | None, one_machine: bool
) -> LaneView:
    alive = [seen for seen in workers if seen.seconds_ago < ALIVE_S]
    engines = engines_of(workers, name)
    queued = held = delayed = "unknown"
    if depth is not None:
        queued, held, delayed = (
            count(depth.queued + depth.relayed),
            count(depth.unacked - depth.relayed),
            count(depth.delayed),
        )
    return LaneView(
        one_line(name, NAME_CHARS) or "without a lane",
        len(alive),
        queued,
        held,
        delayed,
        f"no worker lives: {serve_again(name or DEFAULT_LANE)}"
        if one_machine and not alive
        else _bound(alive, depth)
        if engines is None
        else engines_line(engines),
        gpus_in_words(workers, name) or "",
        "" if alive or one_machine else start_of(name or DEFAULT_LANE),
        [_row(seen) for seen in workers[:ROWS_MAX]],
        max(0, len(workers) - ROWS_MAX),
    )


def _bound(alive: Sequence[WorkerSeen], depth: Depth | None) -> str:
    """Return what bounds a lane whose workers host nothing: its slots against its queue."""
    slots = sum(_whole(seen.info.get("concurrency")) for seen in alive)
    busy = sum(_whole(seen.info.get("in_flight")) for seen in alive)
    if not alive:
        return "no worker lives"
    if slots and busy >= slots:
        return (
            f"all {count(slots)} slots are taken: where the provider's limits have room (see "
            "Quotas), more workers, or more slots each, would start more at once"
        )
    if depth is not None and not busy and not (depth.queued or depth.unacked or depth.delayed):
        return f"none of {count(slots)} slots is taken: there is nothing to do"
    if depth is not None and depth.queued == 0:
        return (
            f"{count(busy)} of {count(slots)} slots are taken, and nothing waits: its jobs bring "
            "too little"
        )
    return (
        f"{count(busy)} of {count(slots)} slots are taken while "
        f"{count(depth.queued if depth else 0)} wait"
    )


def _row(seen: WorkerSeen) -> WorkerRow:
    alive = seen.seconds_ago < ALIVE_S
    more = [
        f"{name} {value}"
        for name, value in sorted(seen.info.items())
        if name not in _SHOWN_APART and value
    ]
    return WorkerRow(
        one_line(seen.name, NAME_CHARS),
        alive,
        "alive" if alive else "silent",
        f"{duration(seen.seconds_ago)} ago",
        f"{_whole(seen.info.get('in_flight')):,} of {_whole(seen.info.get('concurrency')):,}",
        one_line(" · ".join(more[:_MORE_FIELDS]), _MORE_CHARS),
    )


def _whole(text: str | None) -> int:
    return (
        int(text)
        if text is not None and text.isascii() and text.isdigit() and len(text) < 10
        else 0
    )
