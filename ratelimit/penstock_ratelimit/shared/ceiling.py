"""One process's part in holding a fleet back for others at a server that they share.

One process of all looks at the server and decides (``interactive``); each follows its part of the
ceiling. While Redis is away each keeps the part that it has."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Final

from penstock_ratelimit.limiter import ServerGauges
from penstock_ratelimit.quota import InteractiveTarget
from penstock_ratelimit.shared.interactive import (
    LEAST,
    InteractiveControl,
    Ours,
    Yielding,
    shares,
)
from penstock_ratelimit.shared.quota_state import QuotaState
from penstock_ratelimit.shared.redis_outage import AWAY

log = logging.getLogger("penstock.ratelimit")

TURN_S: Final = 1.0
"""Between two calls: others wait for no longer until the fleet has noticed."""
LASTS_S: Final = 5.0
"""Without a sign for so long, another process looks at the server."""
IDLE_S: Final = 5.0
"""Without a call in flight or in line for so long, a process stops asking, and looks no more."""

NOTABLE: Final = ("over", "least", "long", "unread")
"""Decisions that the log tells; the others come and go."""


class Ceiling:
    """Owned by one dispatcher, on its loop."""

    def __init__(
        self,
        target: InteractiveTarget,
        state: QuotaState,
        process: str,
        moved: Callable[[], None],
    ) -> None:
        self._state, self._process, self._moved = state, process, moved
        self._control = InteractiveControl(target, state.now)
        self._gauges: ServerGauges | None = None
        self._why = ""
        self._wake = asyncio.Event()
        self._busy_at = state.now()
        state.in_flight.ceiling = 0  # until the part of this process is known
        self.looks = False
        """This process is the one to look at the server."""

    def gauge(self, gauges: ServerGauges) -> None:
        """Take the server's own figures; the next turn, which comes at once, decides."""
        self._gauges, self._why = gauges, ""
        self._wake.set()

    def unread(self, why: str) -> None:
        self._gauges, self._why = None, why
        self._wake.set()

    def called(self) -> None:
        """Note that a caller has come to stand in line: one that rests begins again."""
        if not self._is_busy():
            self._wake.set()
        self._busy_at = self._state.now()

    async def follow(self) -> None:
        while True:
            try:
                await self._turn()
            except AWAY as error:
                log.debug("quota %s: keeping its ceiling (%s)", self._state.quota.id, error)
                self._take(max(LEAST, self._state.in_flight.ceiling))
            except Exception:  # else its callers would wait for ever
                log.exception("quota %s: its ceiling stays", self._state.quota.id)
                self._take(max(LEAST, self._state.in_flight.ceiling))
            if self._state.in_flight.count or self._state.callers.has_line:
                self._busy_at = self._state.now()
            rests = not self._is_busy()
            if rests:
                self.looks, self._state.in_flight.ceiling = False, 0
            self._wake.clear()
            try:
                async with asyncio.timeout(None if rests else TURN_S):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _is_busy(self) -> bool:
        return self._state.now() - self._busy_at <= IDLE_S

    async def _turn(self) -> None:
        state = self._state
        turn = await state.hash.look(self._process, LASTS_S)
        if turn.looks and not self.looks:
            self._control.adopt(Yielding.from_json(turn.decided) or Yielding())
        self.looks = turn.looks
        if turn.looks:
            wanted = {name: _wanted(said) for name, said in turn.said.items()}
            wanted[self._process] = (state.in_flight.count, state.callers.waiting)
            in_flight = sum(one for one, _ in wanted.values())
            decided = self._decide(Ours(in_flight, turn.granted - in_flight))
            turn = await state.hash.look(
                self._process, LASTS_S, decided.to_json(), shares(decided.ceiling, wanted)
            )
        if turn.part is not None:
            self._take(turn.part)

    def _take(self, part: int) -> None:
        if part != self._state.in_flight.ceiling:
            self._state.in_flight.ceiling = part
            self._moved()

    def _decide(self, ours: Ours) -> Yielding:
        gauges, self._gauges = self._gauges, None
        before = self._control.state
        if gauges is not None:
            self._control.look(gauges, ours)
        elif self._why:
            self._control.unread(self._why)
        now = self._control.state
        if now.code != before.code and now.code in NOTABLE:
            log.info(
                "quota %s: held back for others at its server (%s %s): %.2g s to the first token "
                "of %.2g s wanted, %d requests at most",
                self._state.quota.id,
                now.code,
                now.why,
                now.ttft_s or 0.0,
                now.target_s,
                now.ceiling,
            )
        return now


def _wanted(said: str) -> tuple[int, int]:
    """Return the calls that a process says it has in flight, and waiting; odd words count as 0."""
    try:
        stats = json.loads(said)
        return max(0, int(stats["in_flight"])), max(0, int(stats["waiting"]))
    except (ValueError, TypeError, LookupError, OverflowError):
        return 0, 0
