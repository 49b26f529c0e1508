"""The life of an item in a worker, as a recipe: ``ItemRunner._steps`` is the page to read.

One asyncio task per claimed message, all on one loop. A step does one thing; what can go wrong in it comes out as an
``Outcome``; nothing here acknowledges, stores or waits for a retry. docs/one-message.md tells the whole way.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from penstock_ledger import JobNotFound
from penstock_producer.errors import BadMessage, BadReference, ProducerError, SpecError, UnknownMessageVersion
from penstock_producer.wire import decode_item
from penstock_ratelimit import NeverFits, QuotaHeld
from penstock_workers.celery_app.bridge import Bridge, Delivery
from penstock_workers.errors import (
    ChildBroken,
    EndpointRefused,
    HookMissing,
    HookStuck,
    PricesMissing,
    SchemaUnusable,
    UnknownProvider,
)
from penstock_workers.failpoints import Failpoints
from penstock_workers.hooks.job_code import JobCode
from penstock_workers.item.admission import Admission
from penstock_workers.item.bodies import Bodies
from penstock_workers.item.causes import Causes
from penstock_workers.item.decide import RetryPolicy, decide
from penstock_workers.item.flight import NOTHING_SPENT, Flight, JobView, Spent
from penstock_workers.item.jobbook import JobBook
from penstock_workers.item.judge import Failure, Reply, name_failure
from penstock_workers.item.ledger_reads import LedgerReads
from penstock_workers.item.outcome import Dead, Outcome, Parked, Released, Unreadable
from penstock_workers.item.quarantine import CRASHES_MAX, SUSPECT_AFTER_CRASHES, Quarantine
from penstock_workers.item.runs import Runs
from penstock_workers.item.settle import Settler
from penstock_workers.item.shelves import Settled
from penstock_workers.item.slots import Slots
from penstock_workers.item.starts import Starts
from penstock_workers.lanes.answer import Answer, NoAnswer, Tried
from penstock_workers.lanes.base import Lane
from penstock_workers.metrics import catalogue
from penstock_workers.metrics.samples import Sample

log = logging.getLogger(__name__)

T = TypeVar("T")


class TurnedAway(Exception):
    """A step found that the item is not to be tried: ``outcome`` says what becomes of it."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class Suspected(Exception):
    """The item has crashed too often to be tried among others."""


class ItemRunner:
    """Hosts hundreds of items in flight. Implements ``engine.ItemEngine``; all but ``stats`` runs on the item loop."""

    def __init__(
        self,
        *,
        lane: Lane,
        jobs: JobBook,
        bodies: Bodies,
        admission: Admission,
        quarantine: Quarantine,
        code: JobCode,
        starts: Starts,
        settler: Settler,
        policy: RetryPolicy,
        failpoints: Failpoints,
        concurrency: int,
        pause_after_run: int = 20,
        causes: Causes | None = None,
        traced: bool = False,
    ) -> None:
        self._lane = lane
        self._jobs = jobs
        self._bodies = bodies
        self._admission = admission
        self._starts = starts
        self._settler = settler
        self._policy = policy
        self._failpoints = failpoints
        self._slots = Slots(concurrency)
        self._quarantine = quarantine
        self._code = code
        self._runs = Runs(pause_after_run)
        self._causes = causes or Causes()
        self._traced = traced  # attempts keep the times of their marks
        self._tasks: dict[Delivery, asyncio.Task[None]] = {}
        self._bridge: Bridge | None = None
        self._draining = False
        self._admitting: set[asyncio.Task[Any]] = set()  # of items in a slot that wait for their turn
        self._apart: set[asyncio.Task[Any]] = set()  # of items that are read, and of suspects that wait for a place
        self._reads = LedgerReads()

    # -- the recipe ----------------------------------------------------------------------------------------------

    async def _steps(self, flight: Flight) -> Outcome:
        await self._open(flight)
        async with self._slots.place(flight.job.flow) as place:
            try:
                happened = await self._try(flight)
            except Suspected:
                place.leave()  # it waits to be tried apart: suspects must not keep the others from their turn
                happened = await self._try_apart(flight)
        paused = await self._runs.weigh(flight, happened)
        return paused or decide(flight, happened, self._policy, put_off=not self._admission.may_retry(flight))

    async def _try(self, flight: Flight) -> Failure | Reply:
        flight.mark("seated")
        await self._prepare(flight)
        flight.mark("prepared")
        await self._admit(flight)
        flight.mark("admitted")
        try:
            await self._begin(flight)
            flight.turn.start()
            flight.mark("called")
            tried = await self._infer(flight)
            flight.mark("answered")
            happened = self._judge(flight, tried)
            flight.turn.conclude(tried, happened)
        finally:
            flight.turn.release()  # gives back what was never started
            del flight.turn  # it knows the flight: both would wait for the collector, with the request's body
        return await self._accept(flight, happened)

    async def _open(self, flight: Flight) -> None:
        """Understand the message: which item, of which job, with which request body."""
        try:
            flight.message = decode_item(flight.delivery.kwargs, flight.delivery.headers)
        except (BadMessage, UnknownMessageVersion) as error:
            raise TurnedAway(Unreadable(str(error))) from error
        flight.mark("read")
        job_id = flight.key.job_id
        try:
            flight.job = self._jobs.known(job_id) or await self._job(job_id)
        except JobNotFound as error:
            raise TurnedAway(Unreadable(str(error))) from error
        except (UnknownProvider, EndpointRefused, PricesMissing, SpecError) as error:
            raise TurnedAway(Parked(str(error), pauses=True)) from error
        try:
            flight.body = flight.given = flight.message.body or await self._body(flight)
        except BadReference as error:  # the message is wrong: its job must not stop for it
            raise TurnedAway(Unreadable(str(error))) from error
        except ProducerError as error:
            raise TurnedAway(Parked(f"source_unavailable: {error}", pauses=True)) from error

    async def _job(self, job_id: str) -> JobView:
        return await self._read("a job", lambda: self._jobs.get(job_id))

    async def _body(self, flight: Flight) -> bytes:
        return await self._read("a document", lambda: self._bodies.fetch(flight))

    async def _read(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        """From the ledger or a source, for as long as the ledger may be away."""
        task = self._may_wait()
        self._apart.add(task)
        try:
            return await self._reads.read(what, ask)
        finally:
            self._apart.discard(task)

    async def _prepare(self, flight: Flight) -> None:
        """Whatever can be done before it is the item's turn: the job's own hook, templates, tokens."""
        spec = flight.job.spec
        flight.body = flight.given
        if spec.preprocess or spec.postprocess or spec.response_schema is not None:
            await self._code.ready(flight)
        if spec.preprocess is not None:
            await self._preprocess(flight)
        flight.prepared = await self._lane.prepare(flight.request())
        if flight.prepared.refused is not None:
            happened = self._judge(flight, flight.prepared.refused)
            raise TurnedAway(decide(flight, happened, self._policy))

    async def _preprocess(self, flight: Flight) -> None:
        """The job's hook, while the start is counted: even one that ends this process is found by that. Waiting is not."""
        await self._begin(flight)
        refused = await self._code.preprocess(flight)
        if refused is not None:
            raise TurnedAway(decide(flight, refused, self._policy))
        await self._starts.give_back(flight)

    async def _try_apart(self, flight: Flight) -> Failure | Reply:
        """Wait for a place among other suspects, and try it there."""
        async with AsyncExitStack() as stack:
            task = self._may_wait()
            self._apart.add(task)
            try:
                await stack.enter_async_context(self._quarantine.place(flight))
            finally:
                self._apart.discard(task)
            flight.confined = True
            return await self._try(flight)

    async def _admit(self, flight: Flight) -> None:
        task = self._may_wait()
        self._admitting.add(task)
        try:
            flight.turn = await self._admission.turn(flight)
        except NeverFits as error:
            failure = Failure("request_too_large", str(error), None)
            raise TurnedAway(decide(flight, failure, self._policy)) from error
        except QuotaHeld as error:
            raise TurnedAway(Parked(error.reason, pauses=True)) from error
        finally:
            self._admitting.discard(task)

    def _may_wait(self) -> asyncio.Task[Any]:
        """This item's task, which a drain cancels while it waits and nothing is counted."""
        if self._draining:
            raise TurnedAway(Released("this worker is draining"))
        task = asyncio.current_task()
        assert task is not None, "items run in tasks"
        return task

    async def _begin(self, flight: Flight) -> None:
        """Tell the ledger, outside this process and before anything can end it, that the item starts; hear if it must not."""
        turned_away = self._runs.turn_away(flight) or await self._starts.begin(flight)
        if turned_away is not None:
            raise TurnedAway(turned_away)
        if flight.crashes >= CRASHES_MAX:
            raise TurnedAway(decide(flight, _crashed_too_often(flight), self._policy))
        if flight.crashes >= SUSPECT_AFTER_CRASHES and not flight.confined:
            await self._starts.give_back(flight)
            raise Suspected
        if not flight.started:
            assert self._bridge is not None, "start() comes first"
            flight.started = True
            self._bridge.started(flight.delivery)

    async def _infer(self, flight: Flight) -> Tried:
        flight.sent_at = asyncio.get_running_loop().time()
        flight.calls = 1  # until we know better: a crash from here on may have been billed
        if flight.confined:
            return await self._infer_apart(flight)
        self._failpoints.hit("infer", flight.key.doc_id)
        return await self._lane.infer(flight.prepared)

    async def _infer_apart(self, flight: Flight) -> Tried:
        tried = await self._quarantine.infer(flight)
        if tried is not None:
            return tried
        detail = f"its process died {flight.crashes} times in the fleet, and again when it ran alone"
        return NoAnswer("worker_crashed", detail, 0)

    def _judge(self, flight: Flight, tried: Tried) -> Failure | Reply:
        """Name what happened."""
        if isinstance(tried, NoAnswer) and not tried.sent:
            flight.calls = 0
        flight.last_answer, flight.room = (tried.body, tried.room) if isinstance(tried, Answer) else (None, None)
        happened = flight.happened = name_failure(tried, time.time())
        flight.spent = _spent(flight, happened)
        self._causes.note(flight, happened)
        return happened

    async def _accept(self, flight: Flight, happened: Failure | Reply) -> Failure | Reply:
        """See whether a reply is what the job asked for: its schema, its own hook. Nobody waits for this in the engine."""
        spec = flight.job.spec
        if isinstance(happened, Reply) and (spec.postprocess or spec.response_schema is not None):
            return await self._code.accept(flight, happened)
        return happened

    # -- what the pool asks for ------------------------------------------------------------------------------------

    async def start(self, bridge: Bridge) -> None:
        self._bridge = bridge
        await self._lane.start()
        self._starts.start()
        self._settler.start(bridge)
        self._causes.start()

    def accept(self, delivery: Delivery) -> None:
        task = asyncio.create_task(self._fly(delivery))
        self._tasks[delivery] = task

    def abort(self, delivery: Delivery, why: str) -> None:
        """The lease is lost or the item revoked: stop paying for it. Its verdict is no longer ours to give."""
        task = self._tasks.get(delivery)
        if task is not None:
            log.info("item %s: stopped, %s; whoever holds it now goes on", delivery.task_id, why)
            task.cancel()

    async def drain(self, deadline_s: float) -> None:
        """Give back at once what has not started, finish what fits into ``deadline_s``, give back the rest."""
        self._draining = True
        self._slots.close()
        self._runs.close()
        for task in (*self._admitting, *self._apart):
            task.cancel()
        self._lane.drain()
        tasks = list(self._tasks.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=deadline_s)
            for task in late:
                task.cancel()
            if late:
                log.warning(
                    "drain: %d items did not end in %.0f s; they go back to the queue now", len(late), deadline_s
                )
                await asyncio.wait(late)
        await self._settler.flush()

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._settler.close()
        await self._starts.close()
        await self._code.close()
        await self._admission.close()
        await self._causes.close()
        await self._lane.close()

    def resize(self, concurrency: int) -> None:
        self._slots.resize(concurrency)

    def __len__(self) -> int:
        """Items that have no verdict yet."""
        return len(self._tasks)

    def stats(self) -> Mapping[str, int | float | str]:
        return {"held": len(self._tasks), "in-flight": self._slots.taken, "commits": self._settler.groups}

    def figures(self, lane: str) -> Iterator[Sample]:
        """Any thread."""
        yield catalogue.SLOTS(self._slots.size, lane)
        yield catalogue.SLOTS_TAKEN(self._slots.taken, lane)
        yield catalogue.ADMITTING(len(self._admitting), lane)

    def bound(self) -> str:
        """What limits a worker without an engine: its line of items, the quota that they wait for, or its slots."""
        if self._slots.taken < self._slots.size:
            return "queue"
        return "quota" if 2 * len(self._admitting) >= self._slots.size else "slots"

    # -- one item's task ---------------------------------------------------------------------------------------------

    async def _fly(self, delivery: Delivery) -> None:
        flight = Flight(delivery, marks={} if self._traced else None)
        flight.mark("claimed")
        outcome = await self._outcome(flight)
        flight.mark("decided")
        self._tasks.pop(delivery, None)
        self._settler.put(Settled(flight, outcome))

    async def _vouched(self, flight: Flight, outcome: Outcome) -> Outcome:
        """Before it has begun, an item may be a stranger's: one that no feed sent gets no dead letter and pauses no job."""
        if flight.begun or not hasattr(flight, "job") or not isinstance(outcome, Dead | Parked):
            return outcome
        if isinstance(outcome, Parked) and not outcome.pauses:
            return outcome
        return await self._starts.begin(flight) or outcome

    async def _outcome(self, flight: Flight) -> Outcome:
        """Whatever happens in the steps, an item comes out with one outcome."""
        try:
            return await self._steps(flight)
        except TurnedAway as turn:
            return await self._vouched(flight, turn.outcome)
        except (HookMissing, HookStuck, SchemaUnusable, ChildBroken) as error:
            return await self._vouched(flight, Parked(str(error), pauses=True))
        except asyncio.CancelledError:
            return Released("given up by this worker")
        except Exception as error:
            log.exception("item %s: a bug of ours; it is retried like a server error", flight.delivery.task_id)
            if not flight.opened:
                return Unreadable(f"{type(error).__name__}: {error}")
            failure = Failure("unexpected_error", f"{type(error).__name__}: {error}", None)
            return decide(flight, failure, self._policy)


def _spent(flight: Flight, happened: Failure | Reply) -> Spent:
    """What the answer cost. It is in the books whether the job accepts it or not."""
    tokens_in, tokens_out = happened.prompt_tokens, happened.completion_tokens
    if tokens_in is None and tokens_out is None:
        return NOTHING_SPENT
    return Spent(tokens_in or 0, tokens_out or 0, flight.job.provider.cost_microusd(tokens_in, tokens_out))


def _crashed_too_often(flight: Flight) -> Failure:
    detail = f"{flight.crashes} times its worker died while it was tried, the last times in a process apart from others"
    return Failure("worker_crashed", detail, None)
