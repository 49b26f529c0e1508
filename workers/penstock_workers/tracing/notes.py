"""What a traced item notes on its way, and the runner that has it noted. Spans are made of it once the item is settled."""

from __future__ import annotations

from dataclasses import dataclass
from time import time_ns
from typing import Any, Protocol

from penstock_producer.tracing import SpanContext
from penstock_workers.item.flight import Flight
from penstock_workers.item.judge import Failure, Reply
from penstock_workers.item.outcome import Outcome
from penstock_workers.item.runner import ItemRunner
from penstock_workers.lanes.answer import Tried


@dataclass(slots=True)
class Notes:
    """Times in nanoseconds since 1970, each written by one step; 0 for a step that the item never came to."""

    root: SpanContext  # that of its being sent
    has_root: bool  # the message says that its being sent is a span
    claimed: int
    seated: int = 0  # it has a slot
    asked: int = 0  # for its turn: everything is prepared
    admitted: int = 0
    called: int = 0
    answered: int = 0
    judged: int = 0  # it has its outcome, which now is made durable
    happened: Failure | Reply | None = None


class Begins(Protocol):
    """Whoever decides which items are traced."""

    def begin(self, flight: Flight, claimed_ns: int) -> Notes | None: ...


class NotingRunner(ItemRunner):
    """The same recipe, in which steps of traced items leave their times. A worker that traces nothing does not use it."""

    def __init__(self, traces: Begins, **parts: Any) -> None:
        super().__init__(**parts)
        self._traces = traces

    async def _open(self, flight: Flight) -> None:
        claimed_ns = time_ns()
        try:
            await super()._open(flight)
        finally:
            flight.notes = self._traces.begin(flight, claimed_ns)

    async def _prepare(self, flight: Flight) -> None:
        if flight.notes is not None:
            flight.notes.seated = time_ns()
        await super()._prepare(flight)

    async def _admit(self, flight: Flight) -> None:
        if flight.notes is not None:
            flight.notes.asked = time_ns()
        await super()._admit(flight)
        if flight.notes is not None:
            flight.notes.admitted = time_ns()

    async def _infer(self, flight: Flight) -> Tried:
        if flight.notes is not None:
            flight.notes.called = time_ns()
        tried = await super()._infer(flight)
        if flight.notes is not None:
            flight.notes.answered = time_ns()
        return tried

    def _judge(self, flight: Flight, tried: Tried) -> Failure | Reply:
        happened = super()._judge(flight, tried)
        if flight.notes is not None:
            flight.notes.happened = happened
        return happened

    async def _outcome(self, flight: Flight) -> Outcome:
        outcome = await super()._outcome(flight)
        if flight.notes is not None:
            flight.notes.judged = time_ns()
        return outcome
