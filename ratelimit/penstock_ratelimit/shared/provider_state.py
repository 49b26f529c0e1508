"""What one process knows of the provider: whether it is paused, held, or left alone because it
keeps failing."""

from __future__ import annotations

import logging
import shlex

from penstock_ratelimit.store.messages import Breaker, Health, Reserved

log = logging.getLogger("penstock.ratelimit")


class ProviderState:
    """Pauses of this process that Redis must learn, those that Redis knows, and the fleet's health.

    Times are the loop's."""

    def __init__(self, quota_id: str) -> None:
        self._quota_id = quota_id
        self.health = Health()
        self.is_known = False
        """Redis said at least once how things are."""
        self.paused_until = 0.0
        self.has_unsent_pause = False
        """This process got a pause that Redis does not know yet."""
        self._latest_pause = 0  # of those from Redis

    def clear(self, now: float) -> bool:
        """Nothing that is known keeps a request from starting."""
        return (
            now >= self.paused_until
            and not self.health.hold
            and self.health.breaker is Breaker.CLOSED
        )

    def pause(self, seconds: float, now: float) -> bool:
        """The provider said "not now". False when a pause that is as long is known already."""
        if seconds <= 0 or now + seconds <= self.paused_until:
            return False
        self.paused_until = now + seconds
        self.has_unsent_pause = True
        return True

    def unsent_pause(self, now: float) -> float:
        """Seconds of pause to send to Redis with the next call; 0 = none."""
        return max(0.0, self.paused_until - now) if self.has_unsent_pause else 0.0

    def pause_sent(self, pause_s: float, reply: Reserved, now: float) -> None:
        """Redis knows of ``pause_s``; a longer one may have come meanwhile."""
        if self.has_unsent_pause:
            self.has_unsent_pause = self.paused_until > now + pause_s
            self._latest_pause = max(self._latest_pause, reply.pause_id)

    def forgotten(self, now: float) -> None:
        """Redis lost its data or was down: send a pause that lasts again."""
        self.has_unsent_pause = self.paused_until > now

    def learn(self, reply: Reserved, now: float) -> float | None:
        """Take in a reply.

        Returns the loop time before which no request starts, if that has changed.

        A pause that Redis knows ends when Redis ends it, as ``lift`` does.
        """
        before, self.health, self.is_known = self.health, reply.health, True
        if self.health.hold and not before.hold:
            log.error(
                "quota %s: the account is held: %s. Nothing is lost; correct the account at the "
                "provider, then: penstock limits --lift %s",
                self._quota_id,
                self.health.hold,
                shlex.quote(self._quota_id),
            )
        if reply.pause_id > self._latest_pause and reply.pause_left_s > 0:
            self._latest_pause, self.paused_until = reply.pause_id, now + reply.pause_left_s
            return self.paused_until
        if not self.has_unsent_pause:
            self.paused_until = now + reply.pause_left_s
        if self.health.generation == before.generation:
            return None
        return self._turned(before, now)

    def _turned(self, before: Health, now: float) -> float | None:
        """The breaker opened, lets probes through, or closed."""
        if self.health.breaker is Breaker.OPEN:
            log.warning(
                "quota %s: the provider keeps failing; the fleet leaves it alone for %.1f s",
                self._quota_id,
                self.health.left_s,
            )
            return now + self.health.left_s
        if before.breaker is not Breaker.CLOSED and self.health.breaker is Breaker.CLOSED:
            log.info(
                "quota %s: the provider answers again; the fleet goes on, gently at first",
                self._quota_id,
            )
        return None
