"""A worker passes its liveness probe if its hub runs, and it claims or has a reason not to.

A worker can be up, answer `celery inspect ping` and consume nothing, for ever: after a reconnect
that went half wrong, say. So the file `alive` is touched by the hub itself, and grows old when
nothing was claimed for ``STALLED_S`` seconds although there was room. Redis being down is a reason,
however long it lasts, unless another connection of this process reaches it. So are a drain, a
worker that is full, and queues that an operator cancelled.
A worker whose outcomes have waited too long for a store that answers fails the probe, too
(``Backlog``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from penstock_workers.celery_app.probe import ProbeFiles

log = logging.getLogger(__name__)

BEAT_S = 5.0  # well below the probe's MAX_AGE_S
# an idle worker asks 20 times per second; the lease keeper reaches Redis each quarter of its
# timeout
STALLED_S = 45.0


class BrokerContact(Protocol):
    """The time of Redis's last answer, as ``Leases`` notes it.

    None: never, or another transport is in use."""

    claim_heard_at: float | None
    kept_at: float | None


class EngineHealth(Protocol):
    """The part of ``EngineThread`` that reports its health; see ``deliveries.ItemEngine``."""

    def stuck(self) -> str | None: ...

    def trouble(self) -> str | None: ...


class Liveness:
    """Says on the hub thread whether this worker lives."""

    def __init__(
        self,
        probes: ProbeFiles,
        heard: BrokerContact,
        *,
        may_rest: Callable[[], bool],
        engine: EngineHealth,
        stalled_s: float | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._probes = probes
        self._heard = heard
        self._may_rest = may_rest
        self._engine = engine
        self._stalled_s = STALLED_S if stalled_s is None else stalled_s
        self._clock = clock
        # when the consumer connected last; None while it is not connected
        self._connected_at: float | None = None
        self._was_ready = self._draining = False
        self._is_well = True

    def connected(self) -> None:
        """Note that the consumer is connected, for the first time or again."""
        if not self._was_ready:
            self._was_ready = True
            self._probes.ready()
        self._connected_at = self._clock()

    def reconnecting(self) -> None:
        """Note that an attempt to reach the broker has failed, and another follows.

        Called each second, in place of ``beat``."""
        self._connected_at = None
        if self._engine.stuck() is None:
            self._probes.alive()

    def beat(self) -> None:
        """Touch the file `alive` where all is well; called at each turn of the hub."""
        trouble = self._trouble()
        if trouble is None:
            self._probes.alive()
        elif self._is_well:
            log.error(
                "%s; until that changes, penstock-probe reports this worker as not alive", trouble
            )
        self._is_well = trouble is None
        self._probes.note(trouble or self._engine.trouble())

    def drain(self) -> None:
        self._draining = True
        self._probes.unready()

    def _trouble(self) -> str | None:
        """Return why the probe must fail; None while the worker is alive."""
        if self._is_stalled():
            return (
                f"nothing was claimed for {self._stalled_s:.0f} s although there is room and Redis "
                "answers"
            )
        return None if self._draining else self._engine.stuck()

    def _is_stalled(self) -> bool:
        claimed, kept = self._heard.claim_heard_at, self._heard.kept_at
        if (
            self._draining
            or self._connected_at is None
            or claimed is None
            or kept is None
            or self._may_rest()
        ):
            return False
        now = self._clock()
        return now - max(claimed, self._connected_at) > self._stalled_s >= now - kept
