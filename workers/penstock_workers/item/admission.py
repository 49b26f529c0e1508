"""Admit: whose turn it is.

Each lane brings its own: a provider's requests wait for the shared quota, an engine's for a place.

Waiting here costs no attempt. While it waits an item holds a slot but the ledger has not counted
its start, so a crash is never blamed on items that were only waiting.
"""

from __future__ import annotations

from typing import Protocol

from penstock_workers.item.answer import Tried
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import Failure, Reply
from penstock_workers.item.lane import Prepared


class Turn(Protocol):
    """The right of one item to start.

    Ended by ``conclude`` or ``release``; what comes after the first does nothing."""

    def start(self) -> None:
        """The request goes out now: what it costs is spent."""

    def conclude(self, tried: Tried, happened: Failure | Reply) -> None:
        """How it went."""

    def release(self) -> None:
        """Give back what was never started; safe in a ``finally``."""


class Admission(Protocol):
    """How the runner asks for what there is too little of."""

    def at_once(self, attempt: Attempt) -> Turn | None:
        """The turn of an attempt that need not wait, as nearly always where nothing is limited;
        None: ask ``turn``."""
        ...

    async def turn(self, attempt: Attempt, prepared: Prepared) -> Turn:
        """Wait for the turn of this attempt.

        Raises NeverFits when the request is larger than is ever allowed, QuotaHeld while the
        account is held.
        """
        ...

    def is_down(self, provider: str) -> bool:
        """Nothing is sent to this provider now, because its breaker is open."""
        ...

    def may_retry(self, attempt: Attempt) -> bool:
        """False while the fleet sends too many retries: this one is put off."""
        ...

    async def close(self) -> None: ...
