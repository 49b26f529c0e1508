"""One case of the pacing benchmark: the provider, the load, what goes wrong, and what the shared
quota must hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.pacing.provider import (
    INPUT_TOKENS,
    OPENING_S,
    OUTPUT_TOKENS,
    REQUESTS,
    TOKENS,
    Charge,
    Terms,
)
from benchmarks.pacing.sizes import LONG_TAIL, OUTPUT_SHARE, Sizes

TOKENS_PER_REQUEST = 1000.0
"""The token limit over the request limit: requests of 1,000 tokens use up both alike."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What is promised; None where a case promises nothing. Shares are of 1, times in seconds."""

    utilisation: float | None = 0.98
    refused: int | None = 0
    refused_share: float | None = None
    jain: float | None = None
    jain_jobs: float | None = None
    calls_per_item: float | None = None
    recovered_s: float | None = None
    errors: int | None = 0


class Trouble:
    """What happens in the middle of the measured time."""

    NONE = ""
    HALVED = "limit halved"
    FLUSHED = "FLUSHALL"
    RESTARTED = "Redis restarted without its data"
    KILLED = "a process killed"


@dataclass(frozen=True, slots=True)
class Case:
    """Everything here is pickled and read by every process of a run."""

    name: str
    what: str
    targets: Targets = field(default_factory=Targets)
    processes: int = 4
    slots: tuple[int, ...] = (20,)  # requests in flight, per process; a shorter list repeats
    per_second: float = 40.0
    mean_tokens: float = 800.0
    largest_s: float = 0.5  # the largest request, in seconds of the token rate
    sizes: str = LONG_TAIL
    latency_s: float = 0.2
    jitter_s: float = 0.04  # wire delay is U(0, jitter)
    depth_s: float = 1.0
    window_s: float = 0.0
    opening_s: float = OPENING_S  # of rate, in the bucket at first
    charge: Charge = Charge.ACTUAL
    fail_rate: float = 0.0
    job_parts: tuple[float, ...] = (0.5, 0.5)  # of each process's slots
    estimate_factor: float = 1.0  # estimates over the truth
    # estimates are corrected by what was observed, by limiters that have an estimator
    learns: bool = False
    skew_s: float = 0.0  # the first process's clock is off by so much
    head_start_s: float = 0.0  # the first process starts earlier
    foreign: float = 0.0  # traffic of others on the same key, as part of the rate
    oversized: bool = False  # every process also asks for something that can never fit
    told: bool = False  # the limiter reads the provider's headers
    trouble: str = Trouble.NONE
    least_s: float = 0.0  # shorter than this the case says nothing
    warm_up_s: float = 4.0
    burst_s: float = 0.5
    horizon_s: float = 1.0
    quick: bool = False

    @property
    def terms(self) -> Terms:
        rates = {REQUESTS: self.per_second}
        tokens = self.per_second * TOKENS_PER_REQUEST
        if self.charge is Charge.PRODUCED:
            rates |= {
                INPUT_TOKENS: tokens * (1 - OUTPUT_SHARE),
                OUTPUT_TOKENS: tokens * OUTPUT_SHARE,
            }
        else:
            rates[TOKENS] = tokens
        return Terms(rates, self.depth_s, self.window_s, self.opening_s)

    def size(self) -> Sizes:
        return Sizes(
            self.sizes, self.mean_tokens, self.largest_s * self.per_second * TOKENS_PER_REQUEST
        )

    def slots_of(self, process: int) -> int:
        return self.slots[process % len(self.slots)]
