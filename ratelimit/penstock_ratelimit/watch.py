"""Look at quotas from outside: what Redis holds of them, read without touching it.

For operators' tools and exporters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final, Protocol

from penstock_ratelimit.estimates import OUTPUT_QUANTILE, read_sketch
from penstock_ratelimit.rates import Terms
from penstock_ratelimit.shared.dispatcher import HEARTBEAT_TTL_S
from penstock_ratelimit.shared.interactive import Yielding
from penstock_ratelimit.store.messages import Breaker

MAX_QUOTAS: Final = 256
"""Quotas read at once: a fleet has a few; more than this is one quota per customer, to be asked for
by name."""
MAX_PROCESSES: Final = 1000
"""Processes whose figures are summed, per quota: a tenth of a megabyte. Those alive are all
counted."""
MAX_LEARNED: Final = 64
"""Learned keys returned per quota, about: enough to see whether estimates are good."""

YIELDS_S: Final = 15.0
"""A ceiling that was decided longer ago is of a fleet that rests."""

_US: Final = 1_000_000


class PipelineClient(Protocol):
    """The part of ``redis.Redis`` and ``redis.RedisCluster`` (the blocking ones) that is needed."""

    def srandmember(self, name: str, number: int) -> Any: ...

    def pipeline(self, transaction: Any = ...) -> Any: ...


@dataclass(frozen=True, slots=True)
class DimensionView:
    """One limit of a quota."""

    name: str
    limit: float
    """Units per second that the provider allows: declared, or stated in its headers."""
    allowed: float
    """Units per second that the fleet may start now: the limit with margin and slope."""
    burst: float
    """Units that may start at once after a quiet time, margin applied."""
    level: float
    """Units that may start at once, now or after a pause; negative = owed, by requests that have
    their start times."""
    charged: float
    """Units charged so far, after settlements and refunds."""
    others: float
    """Units per second that others took from the same key lately, as far as the provider's headers
    tell."""


@dataclass(frozen=True, slots=True)
class LearnedView:
    """The learned costs of requests of one kind."""

    key: str
    ratio: float
    """Tokens of prompt per estimated token (characters / 4)."""
    output_p75: float | None
    """Tokens that three of four answers do not exceed; None = no answer seen."""
    observations: float
    """Requests behind it, the older ones counting less."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of a quota between two looks."""

    seconds: float
    granted: float
    """Tickets per second."""
    units: Mapping[str, float]
    """Units per second, by dimension."""


@dataclass(frozen=True, slots=True)
class QuotaView:
    """One quota at one moment of the server's clock.

    Figures of processes are up to a heartbeat (2 s) old."""

    quota_id: str
    at: float
    """Unix time of the server."""
    dimensions: tuple[DimensionView, ...]
    processes: int
    waiting: int
    """Callers without a ticket, in all processes."""
    in_flight: int
    """Requests under way, in all processes."""
    concurrency: int | None
    """Requests that the processes that control it may have under way; None = none of them does."""
    concurrency_most: int | None
    """The most that they may ever have under way; None = unknown."""
    climbing: bool
    """A process that controls it still doubles what it has under way, as after a start."""
    granted: int
    """Tickets since Redis has known the quota: each is a call, sent again ones included."""
    throttled: int
    """429s so far."""
    ramps: int
    """Answers so far that said: growing too steeply."""
    failures: int
    """Failures of the server so far: 5xx, overload, timeouts, lost connections."""
    holds: int
    """Refusals so far that hold the account."""
    margin: float
    """Part of the limit in force, learned from 429s."""
    declared_margin: float
    share: float
    """Part of the rate in force while it comes back along a slope; 1 = all."""
    breaker: Breaker
    open_left_s: float
    """Seconds until an open breaker lets probes through."""
    probes_won: int
    """Good answers of a half-open breaker's three probes."""
    hold: str
    """Why the account is held; empty = it is not."""
    held_s: float
    """For how long."""
    pause_left_s: float
    """No request starts for so long, because the provider said so."""
    answered_ago_s: float | None
    """Since the last good answer; None = none is known."""
    retry_budget: float
    """Of 100; at half or less retries are put off."""
    learned: tuple[LearnedView, ...]
    """The busiest first."""
    reserve: float = 0.0
    """Part of every limit that is left to others who use the same key."""
    yields: Yielding | None = None
    """How it is held back for others at its server; None = it is not, or nothing was decided of
    late."""

    def since(self, previous: QuotaView) -> Traffic | None:
        """Return what went through since an earlier look.

        It is None when Redis forgot the quota in between, or no time passed."""
        seconds = self.at - previous.at
        before = {dimension.name: dimension.charged for dimension in previous.dimensions}
        if seconds <= 0 or self.granted < previous.granted:
            return None
        units = {
            one.name: (one.charged - before.get(one.name, 0.0)) / seconds for one in self.dimensions
        }
        return Traffic(seconds, (self.granted - previous.granted) / seconds, units)


def read_quotas(
    client: PipelineClient,
    prefix: str = "penstock:",
    quota_ids: Iterable[str] | None = None,
    clock_us: Callable[[], int] | None = None,
) -> list[QuotaView]:
    """Return the quotas with these ids, or all that were ever installed, by id.

    Those that Redis does not know are left out.

    One round trip for the ids and one pipeline for all the rest, each quota read by one script on
    keys of one slot. Raises whatever the client raises. ``clock_us`` replaces Redis's own clock in
    tests.
    """
    if quota_ids is None:
        quota_ids = [_text(member) for member in client.srandmember(f"{prefix}quotas", MAX_QUOTAS)]
    ids = sorted(set(quota_ids))
    args = (
        "" if clock_us is None else clock_us(),
        int(HEARTBEAT_TTL_S * _US),
        MAX_PROCESSES,
        MAX_LEARNED,
    )
    # of one quota all is one script; over several there is no moment
    with client.pipeline(transaction=False) as pipe:
        for quota_id in ids:
            key = f"{prefix}{{q:{quota_id}}}"
            pipe.execute_command(
                "EVAL", _script(), 4, key, f"{key}:w", f"{key}:s", f"{key}:l", *args
            )
        replies = pipe.execute()
    return [_view(quota_id, reply) for quota_id, reply in zip(ids, replies, strict=True) if reply]


def _view(quota_id: str, reply: Sequence[Any]) -> QuotaView:
    now_us, margin, share, processes, stored, levels, said, learned = reply
    fields, margin, share = _Fields(_pairs(stored), float(now_us)), float(margin), float(share)
    terms = Terms.from_json(quota_id, fields.text("config"))
    stats = [_stats(text) for text in said]
    controlled = [one["concurrency"] for one in stats if one.get("concurrency") is not None]
    return QuotaView(
        quota_id=quota_id,
        at=float(now_us) / _US,
        dimensions=_dimensions(terms, fields, _pairs(levels), margin * (1 - terms.reserve), share),
        processes=int(processes),
        waiting=sum(one.get("waiting", 0) for one in stats),
        in_flight=sum(one.get("in_flight", 0) for one in stats),
        concurrency=sum(controlled) if controlled else None,
        concurrency_most=sum(one.get("concurrency_most") or 0 for one in stats) or None,
        climbing=any(one.get("climbing") for one in stats),
        granted=int(fields.number("n")),
        throttled=int(fields.number("x:throttled")),
        ramps=int(fields.number("x:ramp")),
        failures=int(fields.number("x:failed")),
        holds=int(fields.number("x:held")),
        margin=margin,
        declared_margin=terms.margin,
        share=share,
        breaker=(breaker := Breaker(int(fields.number("bs")))),
        open_left_s=fields.left_s("bu") if breaker is Breaker.OPEN else 0.0,
        probes_won=int(fields.number("bw")) if breaker is Breaker.HALF_OPEN else 0,
        hold=fields.text("hold"),
        held_s=fields.ago_s("hat") or 0.0,
        pause_left_s=fields.left_s("nb"),
        answered_ago_s=fields.ago_s("ok"),
        retry_budget=fields.number("rb", 100.0),
        learned=_learned(_pairs(learned)),
        reserve=terms.reserve,
        yields=_yields(fields),
    )


def _yields(fields: _Fields) -> Yielding | None:
    ago_s = fields.ago_s("ia")
    if ago_s is None or ago_s > YIELDS_S:
        return None
    return Yielding.from_json(fields.text("iy"))


def _dimensions(
    terms: Terms, fields: _Fields, levels: Mapping[str, str], usable: float, share: float
) -> tuple[DimensionView, ...]:
    rows = zip(terms.dims, terms.rates, terms.bursts, strict=True)
    return tuple(
        DimensionView(
            name=dim,
            limit=rate,
            allowed=rate * usable * share,
            burst=burst * usable,
            # the burst is as small a part of itself as the rate
            level=min(float(levels[dim]), burst * usable * share),
            charged=fields.number(f"k:{dim}"),
            others=max(0.0, fields.number(f"f:{dim}")),
        )
        for dim, rate, burst in rows
    )


def _learned(stored: Mapping[str, str]) -> tuple[LearnedView, ...]:
    views = []
    for key, text in stored.items():
        try:
            sketch = read_sketch(text)
        except (ValueError, TypeError):  # unreadable; limiters treat it as unknown, too
            continue
        if sketch is not None:
            p75 = sketch.quantile(OUTPUT_QUANTILE) if sketch.bins else None
            views.append(LearnedView(key, sketch.ratio, p75, max(sketch.weight, sketch.outputs)))
    return tuple(sorted(views, key=lambda view: (-view.observations, view.key)))


def _stats(said: bytes | str) -> dict[str, Any]:
    """Return a process's own figures.

    It is empty where it has none, or where another release wrote them.
    """
    try:
        stats = json.loads(said) if said else {}
    except ValueError:
        return {}
    return stats if isinstance(stats, dict) else {}


class _Fields:
    """The quota hash, by field. Times in it are microseconds of the server's clock."""

    def __init__(self, stored: Mapping[str, str], now_us: float) -> None:
        self._stored, self._now_us = stored, now_us

    def text(self, name: str) -> str:
        return self._stored.get(name, "")

    def number(self, name: str, default: float = 0.0) -> float:
        value = self._stored.get(name)
        return default if value is None else float(value)

    def left_s(self, name: str) -> float:
        return max(0.0, (self.number(name) - self._now_us) / _US)

    def ago_s(self, name: str) -> float | None:
        return max(0.0, (self._now_us - self.number(name)) / _US) if name in self._stored else None


def _pairs(flat: Sequence[bytes | str]) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


@cache
def _script() -> str:
    folder = files("penstock_ratelimit.store") / "scripts"
    return "\n".join(
        (folder / f"{part}.lua").read_text("utf-8") for part in ("clock", "slope", "margin", "view")
    )
