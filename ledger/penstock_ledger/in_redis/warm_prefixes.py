"""Redis knows which beginnings of prompts a provider's cache has, so that one request primes each.

All of it may be lost at any time: then a beginning is primed once more, which costs what a request
does without a cache.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import redis

from penstock_ledger.keys import warm_prefix

__all__ = ["Primed", "WarmPrefixes"]

CLAIM_S: Final = 30.0
"""Others wait at most so long for an owner that died; a call that takes longer is not waited for
either."""
_WARM: Final = b"warm"


class Primed(Enum):
    """The state of a beginning."""

    WARM = "the cache has it"
    ELSEWHERE = "another owner primes it now"
    NOT = "the owner who asks primes it"


class WarmPrefixes:
    """``client`` answers in bytes; a claim lasts ``lease_s``. Raises redis.RedisError."""

    def __init__(self, client: redis.Redis, owner: str, *, lease_s: float = CLAIM_S) -> None:
        self._client, self._owner = client, owner.encode()
        self._claim_ms = round(min(CLAIM_S, lease_s) * 1000)

    def claim(self, job_id: str, name: str) -> Primed:
        """Return what is known of a beginning; where nothing is, the owner has claimed it."""
        key = warm_prefix(job_id, name)
        if self._client.set(key, self._owner, nx=True, px=self._claim_ms):
            return Primed.NOT
        found = self._client.get(key)
        if isinstance(found, bytes) and found.startswith(_WARM):
            return Primed.WARM
        return Primed.NOT if found in (None, self._owner) else Primed.ELSEWHERE

    def warm(self, job_id: str, name: str, lifetime_s: float, kept: str = "") -> None:
        """Note that the cache has a beginning, for so long; ``kept`` is what is known of it."""
        value = _WARM + kept.encode()
        self._client.set(warm_prefix(job_id, name), value, ex=max(1, round(lifetime_s)))

    def kept(self, job_id: str, name: str) -> str | None:
        """Return what is known of a beginning that is warm; None where it is not."""
        found = self._client.get(warm_prefix(job_id, name))
        if isinstance(found, bytes) and found.startswith(_WARM):
            return found[len(_WARM) :].decode()
        return None

    def forget(self, job_id: str, name: str, kept: str) -> None:
        """Forget a beginning, unless another cache has it by now."""
        if self.kept(job_id, name) == kept:
            self._client.delete(warm_prefix(job_id, name))

    def give_up(self, job_id: str, name: str) -> None:
        """End the owner's claim: another one may prime at once."""
        key = warm_prefix(job_id, name)
        # between the two calls only the claim's own end can come, and then one more request primes
        if self._client.get(key) == self._owner:
            self._client.delete(key)
