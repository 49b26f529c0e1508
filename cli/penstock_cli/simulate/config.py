"""What the simulated provider is told to be, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path

from penstock_cli.errors import UsageProblem

WINDOWS = ("bucket", "minute")
CHARGES = ("reserve", "actual")
MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class SimulatorConfig:
    """Every field is also a flag of `penstock simulate`. Raises UsageProblem for a value that cannot be used.

    The rates from ``throttle_rate`` to ``hang_rate`` are probabilities of one call and exclude each other;
    ``poison_rate`` is the share of documents that can never succeed.
    """

    host: str = "127.0.0.1"
    port: int = 0  # 0 takes a free one
    # Limits, per minute; None is no limit.
    rpm: float | None = None
    tpm: float | None = None
    window: str = "bucket"  # "bucket": refills all the time; "minute": full again at each minute's start
    depth_s: float = 10.0  # what the bucket holds, in seconds of its rate
    charge: str = "reserve"  # "reserve": prompt estimate + max_tokens, no refund; "actual": what `usage` will say
    charge_failed: bool = True  # refused calls use up requests too, as OpenAI documents
    max_concurrency: int | None = None  # calls in flight above this get 429
    # Latency: lognormal around the median, plus a part per token of the answer.
    latency_ms: float = 50.0
    latency_sigma: float = 0.3
    latency_ms_per_token: float = 0.0
    # Faults of one call.
    throttle_rate: float = 0.0  # 429 with Retry-After, although the limits would allow the call
    error_rate: float = 0.0  # 500
    overload_rate: float = 0.0  # 503 server_is_overloaded
    drop_rate: float = 0.0  # the connection ends before the answer, or in the middle of it
    html_rate: float = 0.0  # 502 with an HTML page
    truncate_rate: float = 0.0  # 200 with half a JSON document
    error_body_rate: float = 0.0  # 200 whose body is {"error": …}
    hang_rate: float = 0.0  # no answer for hang_s
    retry_after_s: float = 1.0  # what an injected 429 and 503 ask for
    hang_s: float = 600.0
    # Faults of one document, and of the account.
    poison_rate: float = 0.0
    credit_calls: int | None = None  # after this many calls the account is out of money
    api_key: str | None = None  # any other key gets 401
    seed: int = 0
    call_log: Path | None = None  # one JSON line per call, written before the answer

    def __post_init__(self) -> None:
        for name in ("window", "charge"):
            _one_of(name, getattr(self, name), WINDOWS if name == "window" else CHARGES)
        for name in ("rpm", "tpm", "depth_s", "latency_ms", "latency_sigma", "latency_ms_per_token", "retry_after_s"):
            _figure(name, getattr(self, name), positive=name in ("rpm", "tpm", "depth_s"))
        _figure("hang_s", self.hang_s, positive=True)
        for name in ("max_concurrency", "credit_calls"):
            _at_least(name, getattr(self, name), 1 if name == "max_concurrency" else 0)
        if not 0 <= self.port <= MAX_PORT:
            raise _unusable("port", self.port, f"give 0 (any free port) to {MAX_PORT}")
        for name in self.rates():
            _share(name, getattr(self, name))
        _share("poison_rate", self.poison_rate)
        self._rates_fit()

    @classmethod
    def rates(cls) -> list[str]:
        """The fields that are the probability of a fault of one call, in the order in which they are drawn."""
        return [field.name for field in fields(cls) if field.name.endswith("_rate") and field.name != "poison_rate"]

    def _rates_fit(self) -> None:
        given = {name: getattr(self, name) for name in self.rates() if getattr(self, name)}
        if sum(given.values()) > 1 + 1e-9:
            listed = " + ".join(f"{_flag(name)} {rate:g}" for name, rate in given.items())
            raise UsageProblem(
                f"{listed} add up to {sum(given.values()):g}: one call has at most one fault; keep the sum within 1"
            )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _unusable(name: str, value: object, fix: str) -> UsageProblem:
    return UsageProblem(f"{_flag(name)}: {value!r} cannot be used; {fix}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise _unusable(name, value, "give " + " or ".join(allowed))


def _figure(name: str, value: float | None, *, positive: bool) -> None:
    if value is None:
        return
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        raise _unusable(name, value, "give a number above 0" if positive else "give 0 or more")


def _at_least(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise _unusable(name, value, f"give a whole number from {least}")


def _share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise _unusable(name, value, "give a share between 0 and 1, such as 0.05")
