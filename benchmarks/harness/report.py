"""What a benchmark hands back, and how it is shown: the figure, what it is compared with, its
target and its limit."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata

import psutil
import redis
from rich.console import Console
from rich.table import Table

from benchmarks.harness.targets import Judged


@dataclass(frozen=True)
class Row:
    """One line of a table.

    ``met`` and ``held`` are None for a figure that has no target, or no limit."""

    what: str
    measured: str
    beside: str = ""  # the comparison of the same run
    ratio: str = ""
    target: str = ""
    met: bool | None = None
    held_to: str = ""  # the limit that `--check` holds
    held: bool | None = None

    def judged(self, judged: Judged) -> Row:
        return replace(
            self, target=judged.target, met=judged.met, held_to=judged.held_to, held=judged.held
        )


@dataclass(frozen=True)
class Report:
    """One benchmark's table, with what a reader must know to believe it."""

    title: str
    rows: Sequence[Row]
    notes: Sequence[str] = field(default_factory=tuple)
    # what `--check` holds against targets.py, by name there
    ratios: Mapping[str, float] = field(default_factory=dict)


def machine(client: redis.Redis) -> str:
    """Cores, memory, versions and the load at this moment, in one line."""
    memory_gib = psutil.virtual_memory().total / 2**30
    libraries = ", ".join(
        f"{name} {metadata.version(name)}" for name in ("celery", "kombu", "aiohttp", "redis")
    )
    server = client.info("server")["redis_version"]
    return (
        f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, redis-server {server}, {libraries}; "
        f"load average {os.getloadavg()[0]:.1f} before the run"
    )


def show(report: Report) -> None:
    table = Table(title=report.title, title_justify="left")
    for heading in ("what", "measured", "beside it", "ratio", "target", "met", "held to", "holds"):
        table.add_column(heading, overflow="fold")
    for row in report.rows:
        table.add_row(
            row.what,
            row.measured,
            row.beside,
            row.ratio,
            row.target,
            _met(row.met),
            row.held_to,
            _holds(row.held),
        )
    console = Console(width=None if os.isatty(1) else 150)
    console.print(table)
    for note in report.notes:
        console.print(f"  {note}", highlight=False)


def median(figures: Sequence[float]) -> float:
    return statistics.median(figures)


def _met(met: bool | None) -> str:
    return {True: "met", False: "not met", None: ""}[met]


def _holds(held: bool | None) -> str:
    return {True: "yes", False: "NO: WORSE", None: ""}[held]
