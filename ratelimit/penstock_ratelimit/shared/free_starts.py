"""A quota without limits: callers start without a call to Redis, as long as all is well with the
provider."""

from __future__ import annotations

from penstock_ratelimit.shared.quota_state import QuotaState
from penstock_ratelimit.shared.redis_outage import RedisOutage
from penstock_ratelimit.tickets import UNSHARED, Grant


class FreeStarts:
    """Decides who starts without asking; a report follows soon, so that this process learns of
    changes within a second."""

    def __init__(self, state: QuotaState, outage: RedisOutage) -> None:
        self._state, self._outage = state, outage
        self._grant = UNSHARED

    def grant_one(self) -> Grant | None:
        """For a caller that has just come; None when it has to wait in line."""
        if self._state.callers.has_line or not self._are_allowed():
            return None
        self._state.in_flight.granted()
        self._state.tally.granted += 1
        self._report_soon()
        return self._current_grant()

    def let_in(self) -> bool:
        """Those in line take the places that are open. True where others are still in line."""
        state = self._state
        while self._are_allowed() and (waiter := state.callers.next()):
            if state.issuing.price(waiter, state.terms):
                waiter.grant = self._current_grant()
                state.issuing.issue(waiter)
                self._report_soon()
        return state.callers.has_line

    def _are_allowed(self) -> bool:
        state = self._state
        return (
            state.in_flight.places() > 0  # first: it is what most often says no
            and not state.in_force.terms.dims
            and ((state.provider.is_known and state.in_force.version != "") or self._outage.lasts)
            and state.provider.clear(state.now())
        )

    def _current_grant(self) -> Grant:
        """The same for all tickets until the breaker changes its state."""
        generation = self._state.provider.health.generation
        if self._grant.generation != generation:
            self._grant = Grant(generation)
        return self._grant

    def _report_soon(self) -> None:
        state = self._state
        state.reports.started += 1
        if state.reports.due_at is None and state.reports.ask_again(
            now=state.now()
        ):  # what is due comes sooner
            state.wake.set()
