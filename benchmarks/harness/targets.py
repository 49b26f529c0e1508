"""What each ratio should be one day, and what it must not become: `python -m benchmarks --check`
fails on the second only.

A *target* is where a ratio should get to; it is printed with every table. A ratio is *held* to a
limit a little beyond what was measured, so that a check that fails means that something has become
worse, and not that something is not good enough yet. When a ratio has improved for good, its limit
follows: ``measured`` times ``MARGIN``.

Ratios only, since milliseconds are a machine's. The yardstick is a bare aiohttp loop of the same
run: one call that is sent, answered, parsed and forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

# On a quiet machine medians of two rounds differ by up to a tenth from run to run, beside other
# work by a fifth; a change that costs a quarter of a ratio is therefore a regression and not
# chance. Smaller ones are weighed with `--beside`.
MARGIN: Final = 1.25


@dataclass(frozen=True)
class Limit:
    """The most or the least that a ratio may be; neither: anything."""

    most: float | None = None
    least: float | None = None

    def met(self, ratio: float) -> bool:
        return (self.most is None or ratio <= self.most) and (
            self.least is None or ratio >= self.least
        )

    def __str__(self) -> str:
        if self.most is not None:
            return f"<= {self.most:.3g}x"
        return f">= {self.least:.3g}x" if self.least is not None else ""


@dataclass(frozen=True)
class Target:
    """A ratio that a benchmark measures: where it should get to, what was measured last, and where
    that is argued."""

    benchmark: str  # its letter, or ``OF_ENGINES``
    argued: str
    wanted: Limit
    measured: float | None  # on a quiet machine; None: not yet, so that nothing is held
    held: Limit = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "held", self._limit())

    def _limit(self) -> Limit:
        if self.measured is None:
            return Limit()
        lower_is_better = self.wanted.most is not None
        return (
            Limit(most=self.measured * MARGIN)
            if lower_is_better
            else Limit(least=self.measured / MARGIN)
        )


@dataclass(frozen=True)
class Judged:
    """A ratio beside its target and beside the limit that it is held to, in words for a table."""

    target: str = ""
    met: bool | None = None
    held_to: str = ""
    held: bool | None = None


# the ratios that `make bench-vllm CHECK=1` holds, in the environment that has vLLM
OF_ENGINES: Final = "vllm"
QUIET = "benchmarks/RESULTS.md, 'What an item costs: the whole of it, quiet machine, 2026-11-22'"
GROWTH = "docs/growth.md"
INTERACTIVE = "benchmarks/RESULTS.md, 'Interactive traffic beside a job'"
FEED = "benchmarks/RESULTS.md, 'What the items of later releases cost'"
START: Final = "benchmarks/RESULTS.md, Starting and ending again"
ENGINES: Final = "benchmarks/RESULTS.md, The gpu lane beside `LLM.chat` at 300 items"
IDLE: Final = "benchmarks/RESULTS.md, Idle serve and an idle fleet"
# When and where each of these was measured, for docs/figures.md.
MEASURED: Final = {
    QUIET: "2026-11-22, 2 cores, alone",
    GROWTH: "2026-11-22, 2 cores, shared",
    INTERACTIVE: "2026-11-28, 2 cores, shared",
    FEED: "2026-11-21, 2 cores, nearly alone",
    ENGINES: "2026-11-29, 2 cores, shared",
    IDLE: "2026-11-29, 2 cores, shared",
    START: "2026-11-29, 2 cores, nearly alone",
}
TARGETS: Final = {
    "fed per CPU second / apply_async": Target("a", FEED, Limit(least=16), measured=21.7),
    "whole path / bare aiohttp": Target("c", QUIET, Limit(most=1.4), measured=1.61),
    "worker / bare aiohttp": Target("c", QUIET, Limit(most=1.0), measured=1.17),
    "redis / bare aiohttp": Target("c", QUIET, Limit(most=0.2), measured=0.24),
    "no-op worker / bare aiohttp": Target("n", QUIET, Limit(most=0.65), measured=0.94),
    "two workers' items per CPU second / one's": Target(
        "n", GROWTH, Limit(least=1.7), measured=1.87
    ),
    "CPU per item, largest job / jobs of 10,000": Target(
        "g", GROWTH, Limit(most=1.2), measured=1.0
    ),
    "CPU per item, many jobs of 100 / jobs of 10,000": Target(
        "g", GROWTH, Limit(most=1.2), measured=1.4
    ),
    "questions beside a job with a target / alone, p95": Target(
        "p", INTERACTIVE, Limit(most=2.5), measured=2.1
    ),
    "documents per second with a target / without": Target(
        "p", INTERACTIVE, Limit(least=0.9), measured=0.91
    ),
    "idle serve / stock Celery, uvicorn and Redis": Target(
        "i", IDLE, Limit(most=2.3), measured=2.02
    ),
    "CPU of penstock run / bare aiohttp": Target("t", START, Limit(most=3.0), measured=7.8),
    "CPU of penstock --help / typer": Target("t", START, Limit(most=1.6), measured=1.8),
    "CPU of penstock serve until it answers / uvicorn": Target(
        "t", START, Limit(most=6.0), measured=16.0
    ),
    "fleet / LLM.chat, 300 items, by the clock": Target(
        OF_ENGINES, ENGINES, Limit(least=0.97), measured=0.994
    ),
    "fleet / LLM.chat, 300 items, by CPU": Target(
        OF_ENGINES, ENGINES, Limit(least=0.95), measured=0.976
    ),
    "fleet / LLM.chat, 1,000 items, by the clock": Target(
        OF_ENGINES, ENGINES, Limit(least=0.97), measured=None
    ),
    "fleet / LLM.chat, 1,000 items, by CPU": Target(
        OF_ENGINES, ENGINES, Limit(least=0.95), measured=0.961
    ),
}


def judge(name: str, ratio: float) -> Judged:
    """Empty for a ratio without a target."""
    if name not in TARGETS:
        return Judged()
    target = TARGETS[name]
    held = target.held.met(ratio) if target.measured is not None else None
    return Judged(str(target.wanted), target.wanted.met(ratio), str(target.held), held)
