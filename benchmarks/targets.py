"""What `python -m benchmarks --check` holds: ratios only, since milliseconds are a machine's.

The yardstick is a bare aiohttp loop of the same run: one call that is sent, answered, parsed and forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A ratio that a benchmark measures, the most or the least that it may be, and where that is argued."""

    benchmark: str  # its letter
    argued: str
    most: float | None = None
    least: float | None = None

    def met(self, ratio: float) -> bool:
        return (self.most is None or ratio <= self.most) and (self.least is None or ratio >= self.least)

    def __str__(self) -> str:
        return f"<= {self.most:g}x" if self.most is not None else f">= {self.least:g}x"


RESULTS = "benchmarks/RESULTS.md, 'What an item costs'"
TARGETS = {
    "whole path / bare aiohttp": Target("c", RESULTS, most=1.4),
    "worker / bare aiohttp": Target("c", RESULTS, most=1.0),
    "redis / bare aiohttp": Target("c", RESULTS, most=0.2),
    "no-op worker / bare aiohttp": Target("n", RESULTS, most=0.65),
    "two workers' items per CPU second / one's": Target("n", RESULTS, least=1.7),
    "CPU per item, largest job / jobs of 10,000": Target("g", "docs/growth.md", most=1.2),
}


def target(name: str) -> str:
    """In words, for a table; nothing where no target is set."""
    return str(TARGETS[name]) if name in TARGETS else ""


def met(name: str, ratio: float) -> bool | None:
    return TARGETS[name].met(ratio) if name in TARGETS else None
