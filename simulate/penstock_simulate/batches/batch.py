"""One batch as every dialect has it: its input, its times and what came of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from penstock_simulate.answers.refusals import Refusal
from penstock_simulate.batches.intake import Index, Problem, Reader
from penstock_simulate.batches.results import Results, Wording
from penstock_simulate.batches.timeline import Timeline
from penstock_simulate.config import SimulatorConfig


class Refused(Exception):
    """Raised where the reason is found; written down where the call came in."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class Counts(NamedTuple):
    """``total`` is 0 while the input is being read."""

    total: int
    good: int
    bad: int = 0
    undone: int = 0  # at the end of one that was cancelled or expired


class Queue(NamedTuple):
    """The content of the batches that are not over, a new one among them."""

    model: str
    tokens: int  # of the prompts of this model's batches
    requests: int  # of all batches of the dialect


class Dialect(NamedTuple):
    """The ways in which the requests of one batch are read and answered."""

    name: str
    reader: Reader
    wording: Wording
    # why a batch with which the queue were so is refused
    no_room: Callable[[Queue, SimulatorConfig], Problem | None]
    # whether results come in any order; those in the input's order are never spoilt
    shuffled: bool = True


@dataclass(slots=True)
class Batch:
    """``tag`` is what the client said about it, for people: metadata, a display name."""

    id: str
    dialect: Dialect
    source: Path
    timeline: Timeline
    tag: Any = None
    model: str = ""
    requests: int = 0
    tokens: int = 0  # of the prompts
    problems: Sequence[Problem] = ()  # why it was refused
    index: Index | None = None  # while it runs: once it was read, until its results are written
    results: Results | None = None
    writing: asyncio.Task[None] | None = None  # of the results, from when they are first asked for
    reads: int = 0  # of results, but for those that were broken off
    deleted: bool = False
    looks: int = 0
    # what is not found for a while -> since when
    hidden_at: dict[str, float] = field(default_factory=dict)
    downloads: Counter[str] = field(default_factory=Counter)  # of its outputs, by their names

    def counts(self, now: float) -> Counts:
        """Count the requests, by the clock while it runs and exactly at its end."""
        if self.results is not None:
            return Counts(
                self.requests, self.results.succeeded, self.results.refused, self.results.undone
            )
        if self.index is None:
            return Counts(0, 0)
        done = self.timeline.done(self.requests, now)
        good = self.index.good(done)
        undone = self.requests - done if self.timeline.is_over(now) else 0
        return Counts(self.requests, good, done - good, undone)

    def shown(self, now: float) -> dict[str, Any]:
        """Describe the batch for `GET /batches` of the simulator itself."""
        counts = self.counts(now)
        return {
            "id": self.id,
            "dialect": self.dialect.name,
            "status": self.timeline.status(now),
            "over": self.timeline.is_over(now),
            "created_at": self.timeline.created_at,
            "tag": self.tag,
            "requests": self.requests,
            "answered": counts.good,
            "failed": counts.bad,
            "undone": counts.undone,
            "reads": self.reads,
            "deleted": self.deleted,
        }
