"""What the benchmark needs of a limiter, Penstock's or another's."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Protocol

from benchmarks.pacing.provider import Answer


@dataclass(frozen=True, slots=True)
class Setting:
    """What every limiter is given beforehand.

    Rates are units per second for all processes together."""

    quota_port: int
    rates: Mapping[str, float]
    processes: int
    burst_s: float
    horizon_s: float
    told: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """One request for permission.

    ``certain`` is what is known for sure; the rest of ``costs`` is an estimate."""

    costs: Mapping[str, float]
    job: str
    earlier: int = 0  # attempts of the same item that came to nothing
    certain: Mapping[str, float] | None = None


class Grant(Protocol):
    """Permission to send one request now."""

    async def answered(self, answer: Answer, actual: Mapping[str, float]) -> None:
        """A good answer came, which cost ``actual``."""
        ...

    async def failed(self, answer: Answer) -> None:
        """The provider took it, charged for it, and broke (500)."""
        ...

    async def refused(self, answer: Answer) -> None:
        """429: come back when the provider said, then ask for permission again."""
        ...


class Adapter(Protocol):
    """A limiter of one process, on its event loop."""

    async def acquire(self, ask: Ask) -> Grant:
        """Wait for permission. May raise whatever the limiter raises; it is counted."""
        ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Limiter:
    """A row of the tables: which package it needs, and where its adapter is made."""

    name: str
    module: str
    factory: str
    package: str | None = None
    shares: bool = True  # one quota for all processes, in Redis
    python: tuple[int, int] = (3, 11)  # the oldest that its package takes

    def missing(self) -> str | None:
        """Why it cannot run here; None when it can."""
        if self.package is None:
            return None
        if sys.version_info < self.python:
            return (
                f"{self.package} needs Python {self.python[0]}.{self.python[1]}; this is "
                f"{sys.version.split()[0]}"
            )
        try:
            metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return f"{self.package} is not installed (pip install -c constraints.txt --group bench)"
        return None

    @property
    def version(self) -> str:
        return (
            metadata.version(self.package)
            if self.package is not None and self.missing() is None
            else ""
        )

    def open(self, setting: Setting) -> Adapter:
        make: Callable[[Setting], Adapter] = getattr(
            importlib.import_module(self.module), self.factory
        )
        return make(setting)


_PEERS = "benchmarks.pacing.peers"
OURS, NONE = "penstock", "none"
LIMITERS = {
    limiter.name: limiter
    for limiter in (
        Limiter(OURS, "benchmarks.pacing.ours", "Penstock"),
        Limiter("throttled-py", _PEERS, "ThrottledPy", "throttled-py"),
        Limiter("pyrate-limiter", _PEERS, "PyrateLimiter", "pyrate-limiter"),
        Limiter("limits", _PEERS, "Limits", "limits"),
        Limiter("token-throttle", _PEERS, "TokenThrottle", "token-throttle", python=(3, 12)),
        Limiter("aiolimiter", _PEERS, "AioLimiterSplit", "aiolimiter", shares=False),
        Limiter(NONE, _PEERS, "Nothing", shares=False),
    )
}
