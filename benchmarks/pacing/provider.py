"""A strict provider in a Redis of its own, seen from both sides: the client that calls it, and the
reader of its accounts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import redis

TERMS, ACCOUNTS, BINS = "provider:terms", "provider:accounts", "provider:bins"
REQUESTS, TOKENS = "requests", "tokens"
INPUT_TOKENS, OUTPUT_TOKENS = "input_tokens", "output_tokens"
FOREIGN = "foreign"
"""Who calls with the same key and shares no quota with us."""
OPENING_S = 1.0
"""What the bucket holds at first, in seconds: a full deep one would let every limiter run above the
rate for the whole test."""
MINUTE_S = 60.0

SCRIPT = Path(__file__).with_name("provider.lua").read_text("utf-8")


class Charge(Enum):
    """When the provider charges the tokens of a request."""

    ACTUAL = "actual"  # at admission, what it will turn out to cost
    MAX_TOKENS = "max_tokens"  # at admission, prompt + max_tokens, and never a refund
    SETTLED = "settled"  # at admission prompt + max_tokens, corrected when the answer is done
    PRODUCED = "produced"  # the prompt at admission, output tokens as they are produced


@dataclass(frozen=True, slots=True)
class Call:
    """One request as the provider will come to know it, in tokens."""

    prompt: float
    output: float
    max_tokens: float

    def at_admission(self, charge: Charge) -> dict[str, float]:
        """What is checked and charged when it arrives."""
        if charge is Charge.PRODUCED:
            return {REQUESTS: 1.0, INPUT_TOKENS: self.prompt, OUTPUT_TOKENS: 0.0}
        output = self.output if charge is Charge.ACTUAL else self.max_tokens
        return {REQUESTS: 1.0, TOKENS: self.prompt + output}

    def afterwards(self, charge: Charge) -> dict[str, float]:
        """What is charged (or given back) once it was let in."""
        if charge is Charge.PRODUCED:
            return {OUTPUT_TOKENS: self.output}
        return {TOKENS: self.output - self.max_tokens} if charge is Charge.SETTLED else {}


@dataclass(frozen=True, slots=True)
class Terms:
    """What the provider enforces. ``rates`` are units per second."""

    rates: Mapping[str, float]
    depth_s: float = 1.0
    window_s: float = 0.0
    opening_s: float = OPENING_S
    charge_refused: bool = True

    def install(self, client: redis.Redis) -> None:
        """Begin with empty accounts."""
        client.flushall()
        fields: dict[Any, Any] = {f"rate:{dim}": rate for dim, rate in self.rates.items()}
        depth_s = self.window_s or self.depth_s
        fields |= {
            "window": self.window_s,
            "depth": depth_s,
            "opening": self.window_s or self.opening_s,
        }
        fields["charge_refused"] = int(self.charge_refused)
        client.hset(TERMS, mapping=fields)


def scale_rates(client: redis.Redis, rates: Mapping[str, float], part: float) -> None:
    """Change the limits in force while clients run."""
    client.hset(TERMS, mapping={f"rate:{dim}": rate * part for dim, rate in rates.items()})


@dataclass(frozen=True, slots=True)
class Answer:
    """``retry_after_s`` is until the same request would fit."""

    admitted: bool
    retry_after_s: float
    headers: Mapping[str, str]


class ProviderClient:
    """One process's side: each method is one call over the wire (without the jitter, which is the
    caller's)."""

    def __init__(self, client: Any, who: str) -> None:
        self._script, self._who = client.register_script(SCRIPT), who

    async def request(self, costs: Mapping[str, float], job: str) -> Answer:
        reply = await self._call(costs, job, judge=True)
        headers = dict(_headers(list(costs), [float(text) for text in reply[2:]]))
        return Answer(bool(reply[0]), reply[1] / 1e6, headers)

    async def charge(self, costs: Mapping[str, float]) -> None:
        """What follows after admission: output as it is produced, or the correction at the end."""
        await self._call(costs, "", judge=False)

    async def _call(self, costs: Mapping[str, float], job: str, *, judge: bool) -> list[Any]:
        args: list[object] = ["", self._who, job, int(judge), len(costs)]
        for dim, cost in costs.items():
            args += (dim, cost)
        reply: list[Any] = await self._script(keys=[TERMS, ACCOUNTS, BINS], args=args)
        return reply


def _headers(dims: list[str], figures: list[float]) -> list[tuple[str, str]]:
    """OpenAI's names; limit, remaining and reset are those of the window that is really enforced,
    as at Azure."""
    headers = []
    for n, dim in enumerate(dims):
        capacity, level, full_s = figures[3 * n : 3 * n + 3]
        name = dim.replace("_", "-")
        headers += [
            (f"x-ratelimit-limit-{name}", f"{capacity:.0f}"),
            (f"x-ratelimit-remaining-{name}", str(int(max(0.0, level)))),
            (f"x-ratelimit-reset-{name}", f"{max(0.0, full_s) * 1000:.0f}ms"),
        ]
    return headers


@dataclass(frozen=True, slots=True)
class Accounts:
    """What the provider has counted so far."""

    accepted: Mapping[str, float]  # by process
    refused: Mapping[str, float]  # by process
    jobs: Mapping[str, float]
    charged: Mapping[str, float]  # by dimension, foreign traffic included

    @classmethod
    def read(cls, client: redis.Redis) -> Accounts:
        rows = _figures(client, ACCOUNTS)

        def of(kind: str) -> dict[str, float]:
            return {
                name.removeprefix(kind + ":"): count
                for name, count in rows.items()
                if name.startswith(kind + ":")
            }

        return cls(of("accepted"), of("refused"), of("job"), of("charged"))

    def since(self, earlier: Accounts) -> Accounts:
        def less(now: Mapping[str, float], then: Mapping[str, float]) -> dict[str, float]:
            return {name: count - then.get(name, 0.0) for name, count in now.items()}

        return Accounts(
            less(self.accepted, earlier.accepted),
            less(self.refused, earlier.refused),
            less(self.jobs, earlier.jobs),
            less(self.charged, earlier.charged),
        )


def read_bins(client: redis.Redis, dim: str) -> dict[int, float]:
    """Units accepted at admission, by tenth of a second of the server's Unix time."""
    prefix, rows = dim + ":", _figures(client, BINS)
    return {
        int(name.removeprefix(prefix)): units
        for name, units in rows.items()
        if name.startswith(prefix)
    }


def _figures(client: redis.Redis, key: str) -> dict[str, float]:
    rows: dict[bytes, bytes] = client.hgetall(key)  # type: ignore[assignment]  # no decoding client here
    return {name.decode(): float(text) for name, text in rows.items()}
