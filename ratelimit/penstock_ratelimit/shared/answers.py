"""Reads the provider's answers for pacing: limits and levels in headers, and which refusals pause
all."""

from __future__ import annotations

from math import inf

from penstock_ratelimit.provider.refusals import OK, WINS
from penstock_ratelimit.rates import pause_seconds
from penstock_ratelimit.shared.discovery import Discovery
from penstock_ratelimit.shared.reports import ReportBuffer
from penstock_ratelimit.strays import LIMITED_S, Patience, may_be_stray
from penstock_ratelimit.terms import Terms
from penstock_ratelimit.tickets import Feedback, Ticket


class Answers:
    """Takes in how each request of one process went, and reports it."""

    def __init__(self, discovery: Discovery, reports: ReportBuffer) -> None:
        self._discovery, self._reports = discovery, reports
        self._patience = Patience()
        self._limited_until = -inf  # loop time: the last start that the limits put off

    def limited(self, until: float) -> None:
        """The limits in force make callers wait, the last of them until ``until`` (loop time)."""
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
        """Seconds for which no request may start because of this answer; 0 = none.

        ``alone``: Redis is away, and this process paces itself.
        """
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
        """Whether a refusal holds back its own item only: a lone one, while the limits keep nothing
        waiting."""
        limited = alone or ticket.since <= self._limited_until + LIMITED_S
        return may_be_stray(feedback) and not limited and self._patience.is_stray()
