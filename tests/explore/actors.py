"""The processes of a world: workers, control loops and people, and the provider that they call.

A worker is the real engine with the real lease keeper and hand-over. What is played of it is the
hub that Celery has: it claims by the real script, and passes messages on.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
import redis
from redis.exceptions import NoScriptError

from explore.scheduler import PROCESS, Process, World
from explore.virtual import Bell, Threading
from penstock_ledger import (
    REDIS_TIMEOUT_S,
    Begin,
    BeginReply,
    Begun,
    Database,
    ItemKey,
    JobNotFound,
    JobNotReplayable,
    JobStore,
    Meta,
    NothingToReplay,
    RedisAddress,
    RedisLedger,
    open_database,
)
from penstock_ledger.errors import DatabaseUnavailable
from penstock_ledger.sql.sqlite_file import Commits
from penstock_producer import Producer
from penstock_producer.errors import JobRefused
from penstock_producer.feed.queues import queue_name
from penstock_producer.operations import JobOperations
from penstock_workers import settings as worker_settings
from penstock_workers.broker import leases as leases_module
from penstock_workers.broker.acks import Ack, Acks
from penstock_workers.broker.claim import BULK_MAX
from penstock_workers.broker.lease_scripts import ClaimScript, lane_keys
from penstock_workers.broker.leases import BROKER_ERRORS, BrokerAction, Leases
from penstock_workers.broker.messages import Message, payload_of
from penstock_workers.settings import WorkerSettings

LANE: Final = "api"
CLAIMS_EVERY_S: Final = 2.0  # while there is nothing in the queue
TOKENS_IN, TOKENS_OUT = 2, 5
# nearly all of the output: the product knows its limit, and guesses the tokens of a prompt
USD_PER_MTOK_IN, USD_PER_MTOK_OUT = 10.0, 200.0
COST: Final = round(TOKENS_IN * USD_PER_MTOK_IN + TOKENS_OUT * USD_PER_MTOK_OUT)
"""Of one answer at most, in millionths of a dollar."""
GUESS: Final = 2 * COST
"""Of one answer at most by the product's own estimate, which counts more tokens of a prompt."""


def _named() -> str:
    process = PROCESS.get()
    return "outside" if process is None else process.name


# before the modules that take the name when they are imported
worker_settings.process_name = _named

from penstock_workers.build import WorkerEngine  # noqa: E402
from penstock_workers.celery_app.events import EventSample  # noqa: E402
from penstock_workers.celery_app.handover import HandOver  # noqa: E402
from penstock_workers.celery_app.running_items import LateAcks  # noqa: E402
from penstock_workers.control import closing, resting  # noqa: E402
from penstock_workers.control import loop as control_loop  # noqa: E402
from penstock_workers.control.feeds import feed_windows  # noqa: E402
from penstock_workers.control.job import sinks as job_sinks  # noqa: E402
from penstock_workers.control.schedules import comparing  # noqa: E402
from penstock_workers.control.schedules import starts as schedule_starts  # noqa: E402
from penstock_workers.item.answer import Answer, NoAnswer, Tried  # noqa: E402
from penstock_workers.item.attempt import Attempt  # noqa: E402
from penstock_workers.item.deliveries import Delivery, ItemEngine  # noqa: E402
from penstock_workers.item.lane import Prepared, Request, Turn  # noqa: E402
from penstock_workers.item.run.quarantine import died_alone  # noqa: E402
from penstock_workers.lanes import registry  # noqa: E402
from penstock_workers.lanes.row import LaneRow, Unpaced  # noqa: E402
from penstock_workers.stores import open_stores  # noqa: E402

# a job of few documents is always near its end, and its window is never full
setattr(closing, "ENDING_INTERVAL_S", 3.0)  # noqa: B010  # for mypy it is a constant
setattr(feed_windows, "LOOK_EVERY_S", 1e9)  # noqa: B010
setattr(resting, "Bell", Bell)  # noqa: B010
setattr(Commits, "descriptor", lambda _: None)  # noqa: B010  # as in a server, commits are looked for
for module in (leases_module, control_loop, job_sinks, comparing, schedule_starts):
    setattr(module, "threading", Threading)  # noqa: B010  # for mypy it is not the module's to set


# -- the provider ----------------------------------------------------------------------------------


@dataclass
class Sent:
    """One request that the provider has seen."""

    document: str  # of its prompt
    by: Process
    at: float
    billed: bool = False
    heard: bool = False  # its answer came to a process that lived
    is_refused: bool = False  # which asks again
    is_over: bool = False  # no process waits for it
    cost: int = 0
    batch: str = ""  # its tag
    is_gone: bool = False  # its answer is never shown: it is booked as what it may have cost
    is_stray: bool = False  # of a batch that no process reads


class Answering(NamedTuple):
    """What the provider does, of a thousand requests."""

    fails: float = 0.0  # with a 500 that costs nothing
    throttles: float = 0.0
    hangs: float = 0.0  # and answers too late; it is billed
    refuses: float = 0.0  # for good
    slow: float = 0.0
    says_nothing: float = 0.0  # an answer without words, which is paid for and refused
    takes: float = 1.0  # times as long as answers do that are quick


HAPPENS: Final = ("", "500", "429", "hangs", "400", "slow", "says nothing")


@dataclass
class Provider:
    """Answers, bills, and writes down what it saw."""

    world: World
    answering: Answering = field(default_factory=Answering)
    sent: list[Sent] = field(default_factory=list)
    again: Counter[str] = field(default_factory=Counter)  # answers after which it is asked again
    poison: set[str] = field(default_factory=set)  # documents whose request ends the worker
    suspected: Callable[[Attempt], None] = lambda attempt: None
    asked: Callable[[Process, str], None] = lambda process, prompt: None

    async def ask(self, request: Request, process: Process, *, alone: bool = False) -> Tried:
        """Answer one request."""
        prompt = orjson.loads(request.body)["messages"][-1]["content"]
        sent = Sent(prompt, process, self.world.now, cost=cost_of(prompt))
        self.sent.append(sent)
        self.asked(process, prompt)
        try:
            return await self._answer(sent, request, alone=alone)
        finally:
            sent.is_over = True

    async def _answer(self, sent: Sent, request: Request, *, alone: bool) -> Tried:
        world, prompt, process = self.world, sent.document, sent.by
        name = f"answer {prompt} {sum(one.document == prompt for one in self.sent)}"
        odds = self.answering
        some = [*odds[: len(HAPPENS) - 1]]
        happens = 0
        if not world.is_peaceful:
            happens = world.choices.choose(name, [1000.0 - sum(some), *some])
        world.note(process.name, f"asks about {prompt}", HAPPENS[happens])
        took = world.choices.chance(name).uniform(0.2, 3.0 * odds.takes) + (
            45.0 if happens == 5 else 0.0
        )
        if prompt in self.poison:
            if alone:
                return died_alone(9)
            world.loop.call_later(0.1, world.kill, process, context=outside())
            await asyncio.sleep(3600)
        if happens == 3:
            sent.billed = True
            self.again[prompt] += 1
            await asyncio.sleep(request.timeout_s)
            return NoAnswer("timeout", "no complete answer", round(request.timeout_s * 1000))
        sent.billed = happens in (0, 5, 6)
        await asyncio.sleep(took)
        if happens in (1, 2):
            self.again[prompt] += 1
            status = 500 if happens == 1 else 429
            return Answer(status, {}, b'{"error":{"message":"not now"}}', round(took * 1000))
        if happens == 4:
            return Answer(400, {}, b'{"error":{"message":"no"}}', round(took * 1000))
        sent.heard, sent.is_refused = True, happens == 6
        self.again[prompt] += sent.is_refused
        return Answer(200, {}, answer_about(prompt, empty=happens == 6), round(took * 1000))


def answer_about(prompt: str, *, empty: bool = False) -> bytes:
    words = None if empty else f"about {prompt}"
    choice = {"message": {"role": "assistant", "content": words}, "finish_reason": "stop"}
    usage = {"prompt_tokens": TOKENS_IN, "completion_tokens": _tokens_about(prompt)}
    return orjson.dumps({"model": "m", "choices": [choice], "usage": usage})


def cost_of(prompt: str) -> int:
    """Return what an answer costs, in millionths of a dollar: some less than ``COST``."""
    return round(TOKENS_IN * USD_PER_MTOK_IN + _tokens_about(prompt) * USD_PER_MTOK_OUT)


def _tokens_about(prompt: str) -> int:
    return 1 if zlib.crc32(prompt.encode()) % 4 == 0 else TOKENS_OUT


def outside() -> Any:
    """Return a context that belongs to no process."""
    context = contextvars.copy_context()
    context.run(PROCESS.set, None)
    return context


class AskingLane:
    """A lane that asks the provider of a world."""

    def __init__(self, provider: Provider, process: Process) -> None:
        self._provider, self._process = provider, process

    async def start(self) -> None:
        """Open nothing."""

    async def prepare(self, request: Request) -> Prepared:
        return Prepared(request)

    async def infer(self, prepared: Prepared) -> Tried:
        return await self._provider.ask(prepared.request, self._process)

    def gauges(self) -> Mapping[str, float | str]:
        return {}

    def drain(self) -> None:
        """Go on as before."""

    async def close(self) -> None:
        """Close nothing."""


class Apart:
    """A quarantine in the worker itself: what ends its process ends only a call there."""

    def __init__(self, provider: Provider, process: Process) -> None:
        self._provider, self._process = provider, process

    @asynccontextmanager
    async def place(self, attempt: Attempt) -> AsyncIterator[None]:
        self._provider.suspected(attempt)
        yield

    async def infer(self, attempt: Attempt, prepared: Prepared, turn: Turn) -> Tried:
        return await self._provider.ask(prepared.request, self._process, alone=True)


# -- workers ---------------------------------------------------------------------------------------


class Asked:
    """What Celery's request is to the hand-over."""

    def __init__(self, message: Message, acks: Acks) -> None:
        self.message, self.id = message, message.headers["id"]
        self.kwargs = orjson.loads(message.body)[1]
        self.on_ack = Ack(acks, message)
        self.acknowledged = False

    def receive(self, sample: EventSample) -> None:
        """Send no event."""

    def revoked(self) -> bool:
        return False

    def on_accepted(self, pid: int, at: float) -> None:
        """Send no event."""

    def on_success(self, result: object) -> None:
        self.acknowledged = True
        self.on_ack()

    def reject(self, *, requeue: bool) -> None:
        self.message.channel.set_aside(self.message.delivery_tag)


class Worker(Process):
    """A worker process. It is the engine thread of its own hand-over."""

    def __init__(
        self, world: World, name: str, settings: WorkerSettings, provider: Provider
    ) -> None:
        super().__init__(world, name)
        self._settings, self._provider = settings, provider
        self.leases = Leases()
        self.loop = world.loop
        self.running: ItemEngine
        self.claimed: Callable[[str, Worker], None] = lambda tag, worker: None
        self.let_go: Callable[[Worker, Sequence[str]], None] = lambda worker, tags: None
        self.began: Callable[[Worker, ItemKey, bool], None] = lambda worker, key, is_sure: None
        self.acks = Acks(self.leases, lambda tags: None, self._soon)
        thread: Any = self
        self.handover = HandOver(thread, self.acks, LateAcks(), EventSample(0.0), self._wake_hub)

    def start(self) -> None:
        self.act("starts", self._start)

    def _start(self) -> None:
        self.loop.call_soon(self._start_engine)

    def _start_engine(self) -> None:
        self.loop.create_task(self._begin()).add_done_callback(self.world.loop.see)

    async def _begin(self) -> None:
        lane = AskingLane(self._provider, self)
        row: LaneRow[Any] = replace(
            registry.REGISTRY[LANE],
            admission=lambda settings, lane: Unpaced(),
            quarantine=lambda lane: Apart(self._provider, self),
        )
        rows: Any = registry.REGISTRY
        before, rows[LANE] = rows[LANE], row
        try:
            self.running = WorkerEngine(self._settings, lane)
            await self.running.start(self.handover)
        finally:
            rows[LANE] = before
        keys = lane_keys(LANE, visibility_timeout_s=self._settings.visibility_timeout_s)
        self.leases.serve(self)
        self.leases.open(self._connect, keys)
        self.act("hub", partial(self._claim, keys))

    def _connect(self) -> redis.Redis:
        return RedisAddress.parse(self._settings.redis_url).connect(socket_timeout=REDIS_TIMEOUT_S)

    def _claim(self, keys: Any) -> None:
        """Claim for as long as it lives, as the channel does."""
        script, queue = ClaimScript(), queue_name(LANE)
        client: Any = self._connect()
        most = self._settings.concurrency * self._settings.prefetch_multiplier
        while True:
            room = min(BULK_MAX, most - len(self.leases))
            if room > 0:
                try:
                    reply = client.execute_command(
                        *script.command(keys, [(queue, queue)], (), room)
                    )
                except NoScriptError:
                    script.forget()
                    continue
                except BROKER_ERRORS:
                    time.sleep(1.0)
                    continue
                claim = script.read(reply)
                self.leases.claimed(
                    [one.tag for one in claim.messages], claim.score, claim.dropped, claim.put_off
                )
                for one in claim.messages:
                    self.claimed(one.tag, self)
                    self._take(Message(payload_of(one.raw), channel=self))
                if claim.messages:
                    continue
            time.sleep(CLAIMS_EVERY_S)

    def _take(self, message: Message) -> None:
        if not self.handover.knows(message):
            self.handover.accept(Asked(message, self.acks))

    # -- what the hand-over asks of its engine thread, and messages of their channel ---------------

    def call(self, step: Callable[[], object]) -> None:
        self._soon(step)

    def abort(self, delivery: Delivery, why: str) -> None:
        self._soon(partial(self.running.abort, delivery, why))

    def set_aside(self, tag: str) -> None:
        self.leases.conclude([tag], BrokerAction.SET_ASIDE)

    # -- the owner of its leases -------------------------------------------------------------------

    def may_renew(self) -> bool:
        return True

    def lost(self, tags: Sequence[str]) -> None:
        self.let_go(self, tags)
        self._soon(partial(self.handover.withdrawals.lose, tags, self.leases))

    def late(self, action: BrokerAction, tags: Sequence[str]) -> None:
        self._soon(partial(self.handover.withdrawals.note_late, action, tags))

    def _wake_hub(self) -> None:
        self._soon(self.handover.deliver)

    def _soon(self, step: Callable[[], object]) -> None:
        self.loop.call_soon(step)


_begin: Final[Any] = RedisLedger.begin


def _seen_begin(ledger: RedisLedger, items: Sequence[Begin], *more: Any) -> list[Begun]:
    """Begin, and note what a worker may call from now on."""
    begun: list[Begun] = _begin(ledger, items, *more)
    process = PROCESS.get()
    if isinstance(process, Worker):
        for item, one in zip(items, begun, strict=True):
            if one.reply is BeginReply.GO:
                process.began(process, item.key, one.is_sure)
    return begun


setattr(RedisLedger, "begin", _seen_begin)  # noqa: B010  # for mypy it is not to be set


# -- control ---------------------------------------------------------------------------------------


class ControlProcess(Process):
    """A process with a control loop."""

    def __init__(self, world: World, name: str, settings: WorkerSettings) -> None:
        super().__init__(world, name)
        self._settings = settings

    def start(self) -> None:
        self.act("control", self._run)

    def _run(self) -> None:
        try:
            self._control()
        except DatabaseUnavailable:  # as it starts: its supervisor starts another one
            self.world.loop.call_soon(self.world.kill, self, context=outside())

    def _control(self) -> None:
        with open_stores(self._settings, "control") as stores:
            control = control_loop.Control(
                self._settings, stores.database, stores.hot, owner=self.name
            )
            # what is for people, for models and for RabbitMQ: half of all calls
            quiet: Any = control
            quiet._figures.fleet.refresh = lambda jobs, **_: None
            quiet._rounds._chores = ()
            if not self.world.has_plans:
                quiet._schedules.look = lambda: None
            never: Any = Threading.Event()
            control.run(never)


# -- people ----------------------------------------------------------------------------------------


REFUSALS: Final = (JobRefused, JobNotReplayable, NothingToReplay, JobNotFound)
"""What a person may hear who asks too late."""


class Desk(NamedTuple):
    """What a person works with."""

    database: Database
    producer: Producer
    jobs: JobStore
    operations: JobOperations


class Person(Process):
    """A person, who submits jobs and does things to them, and tries again where that fails."""

    def __init__(self, world: World, name: str, settings: WorkerSettings) -> None:
        super().__init__(world, name)
        self.settings = settings
        self.undone: dict[str, Callable[[Desk], object]] = {}
        self._made: Desk | None = None

    def does(self, what: str, work: Callable[[Desk], object]) -> None:
        """Do something until it has worked or is refused."""
        self.undone[what] = work

        def until_done() -> None:
            while True:
                try:
                    work(self._desk())
                except REFUSALS as refusal:
                    self.world.note(self.name, what, f"no: {type(refusal).__name__}")
                    break
                except (redis.RedisError, DatabaseUnavailable) as error:
                    self.world.note(self.name, what, f"again, after {type(error).__name__}")
                    time.sleep(2.0)
                else:
                    break
            self.undone.pop(what, None)

        self.act(what, until_done)

    def _desk(self) -> Desk:
        if self._made is None:
            database = open_database(self.settings.database_url)
            client = RedisAddress.parse(self.settings.redis_url).connect()
            hot = RedisLedger(client, Meta(database).epoch())
            self._made = Desk(
                database,
                Producer(self.settings, database=database),
                JobStore(database),
                JobOperations(database, self.settings, hot),
            )
        return self._made


def twin(doc_id: str) -> str:
    """Return the document of a job of equal requests that asks the same first."""
    return f"d{int(doc_id[1:]) // 2 * 2}"


def write_source(folder: Path, name: str, documents: int, *, twins: bool = False) -> Path:
    """Write a source whose documents have the name of their job; with ``twins`` two ask the same."""
    path = folder / f"{name}.jsonl"
    ids = [f"d{n}" for n in range(documents)]
    asked = [f"{name}-{twin(doc_id) if twins else doc_id}" for doc_id in ids]
    rows = ({"id": doc_id, "text": text} for doc_id, text in zip(ids, asked, strict=True))
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path
