"""Limits from the provider's headers: they become the terms in force.

They also show the level of the provider's bucket.

A declared limit is a ceiling: headers lower it, and raise it again, but never above what was
declared. Dimensions that were not declared are added when the quota discovers. Limits per hour or
day are left to the provider's own 429: pacing a day's budget evenly would stop a job that may use
it in an hour.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import compress
from math import inf
from typing import Final, NamedTuple

from penstock_ratelimit.provider.headers import Reading, read_limits
from penstock_ratelimit.provider.profiles import PROFILES
from penstock_ratelimit.provider.refusals import OK, WINS
from penstock_ratelimit.provider.windows import WINDOWS_S, Windows
from penstock_ratelimit.quota import Quota
from penstock_ratelimit.rates import Terms, pause_seconds
from penstock_ratelimit.store.messages import RemainingHere, ReportBuffer
from penstock_ratelimit.strays import LIMITED_S, Patience, may_be_stray
from penstock_ratelimit.tickets import Feedback, Ticket

READ_EVERY_S: Final = 0.05
"""Headers of one answer in so long are enough: reading them costs as much as everything else of a
ticket."""
FORGET_S: Final = 30.0
"""A learned limit that no header stated to any process for so long is forgotten, where good answers
came without it or callers wait for it: the provider's headers were wrong, or it has other limits
now. What is not used meanwhile stays."""
PATIENCE: Final = 3.0
"""Times the limit's own seconds per request, where these are more: headers come no more often than
answers."""
ABSURD: Final = 50.0
"""Times slower than what was just seen to succeed: then its own pace is no reason to wait longer
than ``FORGET_S``."""
SILENT: Final = 3
"""Good answers in a row without the header: one may come from another server."""
PACE_S: Final = 5.0
"""Good answers are counted in windows of so long."""
PACE_MEMORY_S: Final = 300.0
"""The best such window of so long ago at most is what was "just" seen."""
LONGEST_WINDOW_S: Final = 120.0
"""Windows above this are an hour's or a day's budget; a minute's, measured with some noise, stays
below."""
SAME_LIMIT: Final = 0.02
"""Limits that differ by less are the same: headers round."""


class Discovery:
    """Reads the answers of one quota."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._style = PROFILES[quota.profile].header_style
        self._windows = Windows()
        self._read_at = float("-inf")
        self._silent: dict[str, int] = {}  # by learned dimension: good answers in a row without it
        self._window_at, self._answers = float("-inf"), 0
        self._best, self._best_at = 0.0, float("-inf")  # good answers per second
        self.stated: set[str] = set()
        """Dimensions whose limit a header stated since it was last reported to the fleet."""
        self.proposal: Terms | None = None
        """Terms that the provider's headers ask for, and that are not in force; the dispatcher
        installs them."""

    def read(
        self,
        headers: Mapping[str, str],
        ticket: Ticket,
        terms: Terms,
        *,
        now: float,
        always: bool = False,
        good: bool = False,
    ) -> dict[str, RemainingHere]:
        """Return the levels in the headers, by dimension.

        Sets ``proposal`` when the limits in them differ from ``terms``.

        ``good``: a request that succeeded, whose headers would state every limit.
        """
        if good:
            self._count(now)
        if now - self._read_at < READ_EVERY_S and not always:
            return {}
        self._read_at = now
        found = read_limits(headers, self._style, time.time(), self._windows)
        readings = [_with_window(reading, terms) for reading in found]
        paced = [
            reading
            for reading in readings
            if reading.window_s and reading.window_s <= LONGEST_WINDOW_S
        ]
        stated = {reading.dim for reading in paced if reading.limit is not None}
        self.stated |= stated
        for dim in learned(terms):
            if dim in stated:
                self._silent[dim] = 0
            elif good:
                self._silent[dim] = self._silent.get(dim, 0) + 1
        wanted = self._wanted(terms, paced)
        self.proposal = wanted if wanted != terms else None
        counters = dict(zip(terms.dims, ticket.grant.counters, strict=False))
        return {
            reading.dim: RemainingHere(reading.remaining, counters[reading.dim], ticket.since)
            for reading in paced
            if reading.remaining is not None and reading.dim in counters
        }

    def forget(
        self, terms: Terms, ages: Mapping[str, float], *, now: float, pace_s: float, waiting: bool
    ) -> None:
        """Propose terms without the learned limits that no header states any more.

        ``ages``: seconds since a header stated each; ``pace_s``: seconds per request that the terms
        allow the fleet; ``waiting``: callers wait for the limits, and for nothing else.
        """
        best = self._best if now - self._best_at <= PACE_MEMORY_S else 0.0
        patience_s = FORGET_S if pace_s * best > ABSURD else max(FORGET_S, PATIENCE * pace_s)
        declared = self._quota.terms()
        wanted = terms
        for dim, age_s in ages.items():
            if age_s > patience_s and (waiting or self._silent.get(dim, 0) >= SILENT):
                wanted = _without(wanted, dim, _DimensionTerms.of(declared, dim))
                self._silent.pop(dim, None)
        if wanted != terms:
            self.proposal = wanted

    def _count(self, now: float) -> None:
        """Count a good answer, and keep the best pace of late."""
        if now - self._window_at >= PACE_S:
            self._window_at, self._answers = now, 0
        self._answers += 1
        pace = self._answers / PACE_S
        if pace >= self._best or now - self._best_at > PACE_MEMORY_S:
            self._best, self._best_at = pace, now

    def _wanted(self, terms: Terms, paced: list[Reading]) -> Terms:
        for reading in paced:
            rate = reading.per_second
            if rate is None or reading.limit is None:
                continue
            row = _DimensionTerms.of(terms, reading.dim)
            if row is None and not self._quota.discover:
                continue
            ceiling = row.ceiling if row is not None else 0.0
            rate = min(rate, ceiling) if ceiling > 0 else rate
            if row is None or abs(rate - row.rate) > SAME_LIMIT * rate:
                cap = row.cap if row is not None and ceiling > 0 else reading.limit
                terms = _with_limit(
                    terms,
                    reading.dim,
                    _DimensionTerms(rate, rate * self._quota.burst_s, cap, ceiling),
                )
        return terms


class _DimensionTerms(NamedTuple):
    """One dimension of terms."""

    rate: float
    burst: float
    cap: float
    ceiling: float

    @classmethod
    def of(cls, terms: Terms, dim: str) -> _DimensionTerms | None:
        if dim not in terms.dims:
            return None
        i = terms.dims.index(dim)
        return cls(terms.rates[i], terms.bursts[i], terms.caps[i], terms.ceilings[i])


def declares_the_same(declared_terms: Terms, in_force: Terms) -> bool:
    """Return whether the terms in force follow from this process's declaration.

    What headers stated is left aside."""
    mine, theirs = (
        (one.margin, one.slope, one.reserve, _declared(one)) for one in (declared_terms, in_force)
    )
    return mine == theirs


def with_discovered(declared_terms: Terms, in_force: Terms) -> Terms:
    """Return this process's declaration, and the dimensions that only headers stated."""
    for dim in in_force.dims:
        row = _DimensionTerms.of(in_force, dim)
        if row is not None and row.ceiling <= 0 and dim not in declared_terms.dims:
            declared_terms = _with_limit(declared_terms, dim, row)
    return declared_terms


def _declared(terms: Terms) -> dict[str, float]:
    return {
        dim: ceiling for dim, ceiling in zip(terms.dims, terms.ceilings, strict=True) if ceiling > 0
    }


def learned(terms: Terms) -> list[str]:
    """Return the dimensions in force that headers stated.

    They were not declared, or they are below what was declared."""
    rows = zip(terms.dims, terms.rates, terms.ceilings, strict=True)
    return [dim for dim, rate, ceiling in rows if rate < ceiling or ceiling <= 0]


def _without(terms: Terms, dim: str, declared: _DimensionTerms | None) -> Terms:
    """Return the terms without a limit that headers stated: it is the declared one, or none."""
    if declared is not None:
        return _with_limit(terms, dim, declared)
    kept = [dim != known for known in terms.dims]
    return replace(
        terms,
        dims=tuple(compress(terms.dims, kept)),
        rates=tuple(compress(terms.rates, kept)),
        bursts=tuple(compress(terms.bursts, kept)),
        caps=tuple(compress(terms.caps, kept)),
        ceilings=tuple(compress(terms.ceilings, kept)),
    )


def _with_limit(terms: Terms, dim: str, row: _DimensionTerms) -> Terms:
    rows = {known: _DimensionTerms.of(terms, known) for known in terms.dims} | {dim: row}
    dims = tuple(sorted(rows))
    rates, bursts, caps, ceilings = zip(*(rows[known] or row for known in dims), strict=True)
    return replace(terms, dims=dims, rates=rates, bursts=bursts, caps=caps, ceilings=ceilings)


def _with_window(reading: Reading, terms: Terms) -> Reading:
    """Return the reading with a window, where it states none: that of the declared rate."""
    if reading.window_s is not None or reading.limit is None:
        return reading
    return replace(reading, window_s=_declared_window(reading, terms))


def _declared_window(reading: Reading, terms: Terms) -> float | None:
    """Return the window in which the stated limit would be the rate declared."""
    row = _DimensionTerms.of(terms, reading.dim)
    if row is None or row.ceiling <= 0 or reading.limit is None:
        return None
    window_s = reading.limit / row.ceiling
    return next((known for known in WINDOWS_S if abs(window_s - known) <= SAME_LIMIT * known), None)


class Answers:
    """Takes in how each request of one process went, and reports it."""

    def __init__(self, discovery: Discovery, reports: ReportBuffer) -> None:
        self._discovery, self._reports = discovery, reports
        self._patience = Patience()
        self._limited_until = -inf  # loop time: the last start that the limits put off

    def limited(self, until: float) -> None:
        """Note that the limits make callers wait, the last of them until ``until`` (loop time)."""
        self._limited_until = until

    def take_in(
        self,
        ticket: Ticket,
        feedback: Feedback,
        terms: Terms,
        *,
        now: float,
        in_flight: int,
        alone: bool,
    ) -> float:
        """Return the seconds for which no request may start because of this answer; 0 = none.

        ``alone``: Redis is away, and this process paces itself."""
        if feedback.signal in WINS:
            self._patience.answered_well(in_flight)
        pause_s = feedback.pause_s
        if feedback.headers is not None:
            levels = self._discovery.read(
                feedback.headers,
                ticket,
                terms,
                now=now,
                always=pause_s is not None,
                good=feedback.signal is OK,
            )
            for dim, seen in levels.items():
                self._reports.add_remaining(dim, seen, now=now)
        stray = pause_s is not None and self._is_stray(ticket, feedback, alone)
        self._reports.add_feedback(feedback, ticket.grant.generation, now=now, stray=stray)
        return 0.0 if stray or pause_s is None else pause_seconds(pause_s)

    def _is_stray(self, ticket: Ticket, feedback: Feedback, alone: bool) -> bool:
        """Return whether a refusal holds back its own item only.

        That is a lone one, while the limits keep nothing waiting."""
        limited = alone or ticket.since <= self._limited_until + LIMITED_S
        return may_be_stray(feedback) and not limited and self._patience.is_stray()
