"""How long a retry waits."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from penstock_ratelimit import full_jitter

PUT_OFF_DOUBLINGS = 3  # a retry for which the fleet has no budget waits eight times as long


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to wait. Defaults are argued in docs/decisions.md ("Backoff")."""

    base_s: float = 1.0
    cap_s: float = 60.0
    max_retry_after_s: float = 900.0
    rng: random.Random = field(default_factory=random.Random)

    def wait_s(self, attempts: int, retry_after_s: float | None, *, put_off: bool = False) -> float:
        """What the provider asked for, plus full jitter so that a thousand items do not come back
        in one instant.

        No longer than ``cap_s`` of what was asked for: the quota keeps the rest of a pause, which a
        person can lift. ``put_off``: the fleet sends too many retries already, so this one waits
        longer.
        """
        late = attempts + PUT_OFF_DOUBLINGS if put_off else attempts
        jitter_s = full_jitter(late, base_s=self.base_s, cap_s=self.cap_s, rng=self.rng)
        return min(retry_after_s or 0.0, self.cap_s) + jitter_s
