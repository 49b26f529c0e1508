"""A fleet without declared limits, against the meters of `penstock simulate`: few 429s, counted in
virtual time."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from limiter_fleet import Fleet, Play, cancelled, now

from penstock_ratelimit import Quota, SharedLimiter, Signal
from penstock_simulate.answers.headers import WRITERS
from penstock_simulate.choices import HeaderStyle
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.limits import KeyLimits, charge

Run = Callable[[Play], None]
WALL = 1_767_225_600.0  # 2026-01-01T00:00:00Z
SECONDS = 60.0
# of each of two processes: each takes 0.1 s, so 800 a second if nothing held them back
CALLS_AT_ONCE = 40
TOKENS = (100, 50)  # of each call: in and out


class Case(NamedTuple):
    """A provider, and the profile by which its host is known; `per_s` are the calls that its limits
    allow."""

    profile: str
    per_s: float
    provider: dict[str, Any]
    least_used: float = 0.8
    """Of what is allowed in the first minute."""


CASES = {
    "as penstock simulate starts": Case("generic", 100, {"rpm": 6000}),
    "a second's worth at once": Case("generic", 100, {"rpm": 6000, "depth_s": 1}),
    "quantized": Case("openai", 100, {"rpm": 6000, "depth_s": 5}),
    "openai": Case("openai", 100, {"rpm": 6000, "tpm": 10_000_000, "like": "openai"}),
    "openai's tokens": Case("openai", 50, {"rpm": 60_000, "tpm": 450_000, "like": "openai"}),
    "a counter of a minute": Case("generic", 100, {"rpm": 6000, "window": "minute"}),
    # three windows go by until it is sure
    "a counter of 10 s": Case("generic", 100, {"rpm": 6000, "window": "10s"}, 0.5),
    "anthropic": Case(
        "anthropic", 100, {"rpm": 6000, "itpm": 6_000_000, "otpm": 3_000_000, "like": "anthropic"}
    ),
    "anthropic, shallow": Case("anthropic", 100, {"rpm": 6000, "headers": "anthropic"}),
    "groq": Case("groq", 50, {"rpd": 14_400_000, "tpm": 450_000, "like": "groq"}),
    "together": Case("together", 100, {"rpm": 6000, "tpm": 10_000_000, "like": "together"}),
}
# Of each kind of window one; `make test-all` tries the rest.
ONE_OF_A_KIND = (
    "as penstock simulate starts",
    "openai's tokens",
    "a counter of a minute",
    "anthropic",
    "groq",
)


class Provider:
    """Counts, and answers as the simulator does; its clock is the test's."""

    def __init__(self, config: SimulatorConfig) -> None:
        self._limits = KeyLimits(config)
        self._write = WRITERS[HeaderStyle(config.metering.headers)]
        self.sent = self.refused = 0

    def ask(self) -> tuple[dict[str, str], float | None]:
        """The headers of the answer; and the wait where it is 429."""
        self.sent += 1
        over = self._limits.admit(charge(1, *TOKENS), now())
        self.refused += over is not None
        return self._write(
            self._limits.meters, now(), WALL + now()
        ), None if over is None else over.wait_s


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=() if name in ONE_OF_A_KIND else pytest.mark.whole)
        for name, case in CASES.items()
    ],
)
def test_limits_that_nobody_declared_are_learned_and_kept(
    play: Run, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a minute at most 2 % of what is sent is refused, and most of what is allowed is
    used."""
    provider = Provider(SimulatorConfig(**case.provider))

    async def body(fleet: Fleet) -> None:
        monkeypatch.setattr("penstock_ratelimit.shared.discovery.time.time", lambda: WALL + now())
        quota = Quota("q", profile=case.profile, discover=True, probe=True, concurrency=64)
        callers = [
            asyncio.create_task(work(limiter, provider))
            for limiter in (fleet.process(quota), fleet.process(quota))
            for _ in range(CALLS_AT_ONCE)
        ]
        await asyncio.sleep(SECONDS)
        for caller in callers:
            await cancelled(caller)

    play(body)
    good = provider.sent - provider.refused
    assert provider.refused <= 0.02 * provider.sent, (
        f"{provider.refused} of {provider.sent} were refused"
    )
    assert good >= case.least_used * case.per_s * SECONDS, (
        f"{good} of {case.per_s * SECONDS:g} that are allowed"
    )


async def work(limiter: SharedLimiter, provider: Provider) -> None:
    for _ in itertools.count():
        async with limiter.ticket(
            "q", {"requests": 1, "tokens": 150, "input_tokens": 100, "output_tokens": 50}
        ) as ticket:
            await asyncio.sleep(0.05)
            headers, wait_s = provider.ask()
            await asyncio.sleep(0.05)
            if wait_s is None:
                ticket.answered(headers)
            else:
                ticket.failed(Signal.THROTTLED, retry_after_s=math.ceil(wait_s), headers=headers)
