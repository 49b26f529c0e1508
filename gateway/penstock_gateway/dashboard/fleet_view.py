"""The fleet: workers lane by lane, what stops requests to providers, and what was spent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock_gateway.render import Part, parts
from penstock_ledger import Cause, Depth, MadeWith, QuotaSeen, Saving, Spending, WorkerSeen, counted
from penstock_ledger.texts import Command, Run, SetOption, Text
from penstock_producer.feed.queues import ALIVE_S
from penstock_producer.job.lanes import DEFAULT_LANE
from penstock_producer.reporting.advice import command_line, on_terminal
from penstock_producer.reporting.engines import engines_line, engines_of, gpus_in_words
from penstock_producer.reporting.money import money_of, per_million, saved_in_all, together
from penstock_producer.reporting.reasons import cause_line, latest_cause, yields_line
from penstock_producer.reporting.text import count, duration, one_line, usd
from penstock_producer.reporting.words import saved_words

__all__ = ["PERIODS", "lane_views", "price_rows", "quota_rows", "spend_rows", "stops", "total_of"]

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


HOLD_CHARS: Final = 300
_FIXES: Final[Mapping[str, str]] = {
    "out_of_money": "Add credit or raise the spend limit at the provider, then:",
    "unauthorized": "Check the API key, then:",
}


_STATES: Final[Mapping[str, tuple[str, str]]] = {  # words, and the badge's colour
    "held": ("held", "bad"),
    "failing": ("provider fails", "bad"),
    "waiting": ("told to wait", "warn"),
    "open": ("open", "completed"),
}


class QuotaRow(NamedTuple):
    name: str
    state: str
    kind: str  # of the badge
    limits: Sequence[str]
    counted: Sequence[tuple[str, str]]  # number, what it counts
    stops: Sequence[tuple[str, str, str]]
    cause: str


def stops(seen: QuotaSeen, in_state: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield what stops the quota, what to do about it, and the command for that."""
    lift = f"{command_line(Run(Command.LIFT, (seen.quota_id,)))}{in_state}"
    if seen.hold:
        fix = _FIXES.get(seen.hold, "Correct the account, then:")
        yield f"held for {duration(seen.held_s)}: {one_line(seen.hold, HOLD_CHARS)}", fix, lift
    if seen.open_left_s > 0:
        yield (
            f"it fails: nothing starts for {duration(seen.open_left_s)}, then a few trial requests "
            "decide",
            "",
            "",
        )
    if seen.probing:
        yield "a few trial requests decide whether it is back", "", ""
    if seen.pause_left_s > 0:
        yield (
            f"it said wait: nothing starts for {duration(seen.pause_left_s)}",
            "End the pause early:",
            lift,
        )
    if (held_back := yields_line(seen.yields)) is not None:
        yield held_back, "", ""


def quota_rows(
    quotas: Sequence[QuotaSeen],
    causes: Mapping[str, Sequence[Cause]],
    now: float,
    in_state: str = "",
) -> list[QuotaRow]:
    """Return a row for each quota.

    ``in_state`` is what commands that are shown need to find the ledger.
    """
    return [_quota_row(seen, causes.get(seen.quota_id, ()), now, in_state) for seen in quotas]


def _quota_row(seen: QuotaSeen, causes: Sequence[Cause], now: float, in_state: str) -> QuotaRow:
    state, kind = _STATES[seen.state]
    cause = latest_cause(causes, now)
    return QuotaRow(
        one_line(seen.quota_id, HOLD_CHARS),
        state,
        kind,
        [_limit(name, per_second) for name, per_second in seen.limits.items()],
        [
            (count(number), what)
            for number, what in counted(seen.granted, seen.throttled, seen.failures)
        ],
        list(stops(seen, in_state)),
        "" if cause is None else cause_line(cause, now),
    )


def _limit(name: str, per_second: float) -> str:
    """Return a limit as people speak of it: per minute, or per day where it is a day's."""
    if name.endswith("_per_day"):
        return f"{per_second * 86_400:,.0f} {name.removesuffix('_per_day')} a day"
    return f"{per_second * 60:,.0f} {name.removesuffix('_per_minute')} a minute"


PERIODS: Final[Mapping[str, tuple[str, float]]] = {
    "day": ("last 24 hours", 86_400.0),
    "week": ("last 7 days", 7 * 86_400.0),
    "month": ("last 30 days", 30 * 86_400.0),
    "all": ("all time", 0.0),
}

TENANTS_MAX: Final = 500  # tenants on the page; the dearest


class SpendRow(NamedTuple):
    name: str
    jobs: str
    documents: str
    calls: str
    tokens: str
    cost: str
    saved: str  # by service tiers and prompt caches; empty where nothing was
    bar: Sequence[Part]


class PriceRow(NamedTuple):
    provider: str
    model: str
    price: str
    batches: str


def spend_rows(
    spent: Sequence[Spending],
    without: str,
    savings: Mapping[str | None, Sequence[Saving]] = MappingProxyType({}),
) -> list[SpendRow]:
    """Return a row for each name, the dearest first; ``without`` stands for no name."""
    most = max((one.cost_microusd for one in spent), default=0)
    ordered = sorted(spent, key=lambda one: (-one.cost_microusd, one.name or ""))
    return [
        SpendRow(
            one_line(one.name or "") or without,
            count(one.jobs),
            count(one.succeeded + one.dead),
            count(one.calls),
            f"{count(one.prompt_tokens)} in, {count(one.completion_tokens)} out",
            money_of(one).words,
            saved_words(saved_in_all(savings[one.name])) if one.name in savings else "",
            parts([("accent", one.cost_microusd)], most),
        )
        for one in ordered[:TENANTS_MAX]
    ]


def total_of(spent: Sequence[Spending]) -> tuple[str, str, str]:
    """Return the cost, documents and jobs of all together."""
    return (
        together(money_of(one) for one in spent).words,
        count(sum(one.succeeded + one.dead for one in spent)),
        count(sum(one.jobs for one in spent)),
    )


def price_rows(made: Iterable[MadeWith]) -> list[PriceRow]:
    """Return the prices that answers were paid with, each once."""
    return list(dict.fromkeys(_price(one) for one in made))


def _price(one: MadeWith) -> PriceRow:
    who = one_line(one.engine or f"provider {one.provider}")
    if one.engine:
        price = (
            f"{usd(one.usd_per_hour)} an hour"
            if one.usd_per_hour
            else "unknown: cost.usd_per_gpu_hour is not set"
        )
    elif one.usd_per_mtok_in or one.usd_per_mtok_out:
        price = per_million(one.usd_per_mtok_in or 0.0, one.usd_per_mtok_out or 0.0)
    else:
        price = "unknown: set it in [providers.NAME.prices]"
    discount = f"{one.batch_discount:.0%} less" if one.batch_discount else ""
    return PriceRow(who, one_line(one.model or ""), price, discount)
