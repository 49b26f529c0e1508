"""One call, from its checked body to its outcome: admitted, stored, queued and awaited.

It is stopped where its time is over.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

import orjson
from redis import RedisError

from penstock_gateway.backend import Backend
from penstock_gateway.callers.caller import Caller
from penstock_gateway.direct.errors import (
    CALLER_GONE,
    TIMED_OUT,
    Answers,
    Outcome,
    may_be_tried_again,
    outcomes_of,
    stop,
    timed_out,
)
from penstock_gateway.direct.fields import unsupported
from penstock_gateway.direct.fleet import Fleet
from penstock_gateway.direct.open_jobs import CallJob, OpenJobs, Waiting, close_old, too_many
from penstock_gateway.direct.streams import LiveAnswer
from penstock_gateway.middleware import new_id
from penstock_gateway.refused import Refused
from penstock_ledger import (
    REDIS_CONNECT_TIMEOUT_S,
    REDIS_TIMEOUT_S,
    CallClaim,
    Cause,
    DoorCallStore,
    JobClosed,
    JobStore,
    Meta,
    OutcomeStore,
    PushedCall,
    RedisAddress,
    RedisForgot,
    RedisLedger,
    in_words,
)
from penstock_ledger.model import Result
from penstock_producer.dialects.translation import BadMessages, request_for
from penstock_producer.feed.routes import Spooled

__all__ = ["Asked", "CallAnswer", "Calls", "CloseOldCalls", "FetchAnswers", "Pushing"]

log = logging.getLogger("penstock.gateway")

GROUP_MAX: Final = 100  # calls in one transaction; those that come meanwhile make the next


class _Waiting(NamedTuple):
    call: PushedCall
    stream: str | None
    stored: asyncio.Future[bool]


class Pushing:
    """Pushes calls in groups: what comes while one is written makes the next."""

    def __init__(self, backend: Backend, store: DoorCallStore) -> None:
        self._backend = backend
        self._store = store
        self._waiting: dict[str, list[_Waiting]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_told = False  # one line for an outage of Redis

    async def push(self, job: CallJob, call: PushedCall, stream: str | None) -> bool:
        """Store a call; return whether it is durable, and queued.

        ``stream`` is the door to pass its answer on to as it comes, where its caller wants that.
        False where its Idempotency-Key is taken by now. Raises errors of the ledger.
        """
        stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        group = self._waiting.get(job.job_id)
        if group is not None:
            group.append(_Waiting(call, stream, stored))
        else:
            self._waiting[job.job_id] = [_Waiting(call, stream, stored)]
            task = asyncio.create_task(self._write_all(job), name=f"push {job.job_id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await stored

    async def _write_all(self, job: CallJob) -> None:
        while waiting := self._waiting[job.job_id]:
            group, self._waiting[job.job_id] = waiting[:GROUP_MAX], waiting[GROUP_MAX:]
            try:
                stored = await self._backend.run(self._write, job, group)
            except Exception as error:
                for one in group:
                    if not one.stored.done():
                        one.stored.set_exception(error)
                continue
            for one, is_stored in zip(group, stored, strict=True):
                if not one.stored.done():
                    one.stored.set_result(is_stored)
        del self._waiting[job.job_id]

    def _write(self, job: CallJob, group: Sequence[_Waiting]) -> list[bool]:
        rows = self._store.push(job.job_id, [one.call for one in group])
        documents = [
            Spooled(doc_id, body, numbers[doc_id], one.stream)
            for one, numbers in zip(group, rows, strict=True)
            for doc_id, body in one.call.documents
            if doc_id in numbers
        ]
        try:
            job.beside.publish(documents)
            self._is_told = False
        except (RedisError, RedisForgot) as error:  # they are in the spool: the feeder queues them
            if not self._is_told:
                log.warning(
                    "calls wait for the feeder of their job: Redis did not take them: %s",
                    in_words(error),
                )
            self._is_told = True
        return [bool(numbers) for numbers in rows]


Gone = Callable[[], Coroutine[Any, Any, None]]

TRIES: Final = 3  # to find a job that is open: the hour may end between looking and writing
IN_USE_RETRY_S: Final = 1


@dataclass(frozen=True, slots=True)
class Asked:
    """A caller's wish: one request, or several that are answered together."""

    caller: Caller
    endpoint: str
    bodies: Sequence[dict[str, Any]]
    size: int  # of the request that they came in, in bytes
    timeout_s: float
    key: str | None = None  # Idempotency-Key
    live: LiveAnswer | None = None  # its caller reads the answer as it comes

    @property
    def model(self) -> str:
        return str(self.bodies[0]["model"])

    def sent_to(self, endpoint: str) -> Asked:
        """Return it in the words of the endpoint that answers it. Raises Refused (400)."""
        try:
            bodies = [request_for(endpoint, body, self.endpoint) for body in self.bodies]
        except BadMessages as error:
            told = f"{error.message} The provider behind this server has another API; {error.fix}"
            raise unsupported(error.place, told) from None
        return replace(self, endpoint=endpoint, bodies=bodies)

    def digest(self) -> str:
        """Return a digest of all that the key stands for."""
        return hashlib.sha256(
            orjson.dumps([self.endpoint, list(self.bodies)], option=orjson.OPT_SORT_KEYS)
        ).hexdigest()


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """The outcome of each request of a call, or None where there is none yet."""

    job_id: str
    name: str
    outcomes: Sequence[Outcome | None]
    begun: frozenset[int] = frozenset()  # requests without an outcome that a worker has begun
    replayed: bool = False
    late: Refused | None = None  # why outcomes are missing
    took_s: float = field(default=0.0)

    @property
    def how(self) -> str:
        """Name how it ended, as the metric of calls has it.

        Several prompts in one call have failed where one of them has."""
        if self.replayed:
            return "replayed"
        if self.late is not None:
            return "late"
        return "answered" if all(isinstance(one, Result) for one in self.outcomes) else "failed"


class Calls:
    """The calls of one server; belongs to the event loop."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._limits = backend.settings.gateway.direct
        self._hot_ledger: RedisLedger | None = None
        self._client = RedisAddress.parse(backend.settings.redis_url).connect(
            socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=REDIS_CONNECT_TIMEOUT_S
        )
        self.store = DoorCallStore(backend.database)
        self._outcomes = OutcomeStore(backend.database)
        self.jobs = JobStore(backend.database)
        self.waiting = Waiting(self._limits)
        self.answers = Answers(backend, self.store)
        self.fleet = Fleet(backend, self._hot)
        self._open = OpenJobs(backend)
        self._pushing = Pushing(backend, self.store)

    async def answered(self, asked: Asked, gone: Gone) -> CallAnswer:
        """Ask, and wait for the answer; ``gone`` waits until the caller hangs up.

        Raises Refused, and errors of the ledger.
        """
        metrics = self._backend.metrics.calls
        with metrics.waiting.track_inprogress(), metrics.seconds.time():
            try:
                told = await self._answered(asked, gone)
            except Exception:
                metrics.ended.labels("refused").inc()
                raise
        metrics.ended.labels(told.how).inc()
        return told

    async def _answered(self, asked: Asked, gone: Gone) -> CallAnswer:
        claim = None
        if asked.key is not None:
            earlier = await self._earlier(asked, asked.key)
            if isinstance(earlier, CallAnswer):
                return earlier
            claim = earlier
        with self.waiting.room_for(asked.caller.tenant, len(asked.bodies)):
            began = time.monotonic()
            lane, endpoint = await self.fleet.way_for(asked.model, asked.endpoint)
            sent = await self._backend.run_sized(asked.size, asked.sent_to, endpoint)
            told = await self._asked_of(sent, claim, lane, gone)
            took_s = time.monotonic() - began
            self.waiting.note(took_s)
            return told

    def close(self) -> None:
        self._client.close()

    async def _earlier(self, asked: Asked, key: str) -> CallAnswer | CallClaim:
        """Return what the key stands for already, or the claim to it. Raises Refused (409, 422)."""
        tenant = asked.caller.tenant
        digest = await self._backend.run_sized(asked.size, asked.digest)
        claim = CallClaim(tenant, key, digest, self._limits.keep_answers_s)
        found = await self._backend.run(self.store.find, tenant, key)
        if found is None:
            return claim
        if found.request_digest != digest:
            raise Refused(
                422,
                "this Idempotency-Key was used for another request; choose a new one for each "
                "request",
                code="idempotency_key_reused",
                param="Idempotency-Key",
            )
        doc_ids = _doc_ids(found.name, len(asked.bodies))
        known = await self._backend.run(self.store.outcomes, found.job_id, doc_ids)
        if len(known) < len(doc_ids):
            raise _in_use()
        if may_be_tried_again(known.values()):
            return CallClaim(
                tenant, key, digest, self._limits.keep_answers_s, instead_of=found.name
            )
        return CallAnswer(
            found.job_id, found.name, [known[doc_id] for doc_id in doc_ids], replayed=True
        )

    async def _asked_of(
        self, asked: Asked, claim: CallClaim | None, lane: str, gone: Gone
    ) -> CallAnswer:
        name = new_id("req")
        hot = await self._backend.run(self._hot) if self._hot_ledger is None else self._hot_ledger
        for left in reversed(range(TRIES)):
            job = await self._open.job_for(asked.caller.tenant, asked.endpoint, lane, hot)
            if job.outstanding + len(asked.bodies) > self._limits.queued:
                raise too_many(
                    f"{job.outstanding} calls of yours are queued", self.waiting.retry_after_s
                )
            documents = await self._backend.run_sized(
                asked.size, _documents, job, name, asked.bodies
            )
            try:
                return await self._waited_for(asked, job, PushedCall(documents, name, claim), gone)
            except JobClosed:
                job.is_over = True
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _waited_for(
        self, asked: Asked, job: CallJob, call: PushedCall, gone: Gone
    ) -> CallAnswer:
        bodies = dict(call.documents)
        began = time.monotonic()
        stream = self.answers.door if asked.live is not None else None
        with self.answers.awaited(job, bodies, asked.live) as futures:
            if not await self._pushing.push(job, call, stream):
                raise _in_use()
            pending = _all_of(list(futures.values()))
            watch = asyncio.ensure_future(gone())
            either: set[asyncio.Future[Any]] = {pending, watch}
            try:
                await self._either(either, asked, began)
            finally:
                is_gone = watch.done()
                watch.cancel()
                pending.cancel()
            try:
                outcomes = outcomes_of(list(futures.values()))
            except Refused:
                await self._backend.run(self._stop, job, bodies, CALLER_GONE)
                raise
        took_s = time.monotonic() - began
        missing = {
            doc_id: bodies[doc_id]
            for doc_id, one in zip(bodies, outcomes, strict=True)
            if one is None
        }
        if not missing:
            return CallAnswer(job.job_id, call.name, outcomes, took_s=took_s)
        reason = CALLER_GONE if is_gone else TIMED_OUT
        found, begun, causes = await self._backend.run(self._stop, job, missing, reason)
        late = timed_out(asked.timeout_s, causes, begun=bool(begun))
        outcomes = [
            one or _in_time(found.get(doc_id)) for doc_id, one in zip(bodies, outcomes, strict=True)
        ]
        numbers = frozenset(at for at, doc_id in enumerate(bodies) if doc_id in begun)
        return CallAnswer(job.job_id, call.name, outcomes, numbers, late=late, took_s=took_s)

    async def _either(self, either: set[asyncio.Future[Any]], asked: Asked, began: float) -> None:
        """Wait for one of both as long as the caller does.

        A stream has that time from each token to the next, up to the longest that there is."""
        ends_at = began + asked.timeout_s
        while (left_s := ends_at - time.monotonic()) > 0:
            done, _ = await asyncio.wait(
                either, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            if done or asked.live is None:
                return
            latest = asked.live.noted_at + asked.timeout_s
            ends_at = max(ends_at, min(latest, began + self._limits.max_timeout_s))

    def _stop(
        self, job: CallJob, missing: dict[str, bytes], reason: str
    ) -> tuple[dict[str, Outcome], set[str], list[Cause]]:
        hot = self._hot()
        found, begun = stop(self._outcomes, self.store, hot, job, missing, reason)
        try:
            since = time.time() - self._limits.timeout_s
            causes = [
                one for one in hot.failing.of(job.spec.provider, job.job_id) if one.last >= since
            ]
        except RedisError:
            causes = []
        return found, begun, causes

    def _hot(self) -> RedisLedger:
        """Return the Redis ledger. Call it in a thread: the first time it reads the epoch."""
        if self._hot_ledger is None:
            self._hot_ledger = RedisLedger(self._client, Meta(self._backend.database).epoch())
        return self._hot_ledger


def _all_of(futures: Sequence[asyncio.Future[Any]]) -> asyncio.Future[Any]:
    """Return what is done when all are, or when the first has failed."""
    if len(futures) == 1:
        return futures[0]
    every = asyncio.gather(*futures)
    # asyncio logs what ends later, and is asked for by no one
    every.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return every


def _doc_ids(name: str, number: int) -> list[str]:
    return [name] if number == 1 else [f"{name}-{at}" for at in range(number)]


def _documents(
    job: CallJob, name: str, bodies: Sequence[dict[str, Any]]
) -> list[tuple[str, bytes]]:
    named = zip(_doc_ids(name, len(bodies)), bodies, strict=True)
    return [job.checker.check(doc_id, body) for doc_id, body in named]


def _in_time(outcome: Outcome | None) -> Outcome | None:
    """Return an outcome that came in time, if only at the last moment.

    What was written because none came is no outcome.
    """
    return None if getattr(outcome, "reason", None) in (TIMED_OUT, CALLER_GONE) else outcome


def _in_use() -> Refused:
    return Refused(
        409,
        "a request with this Idempotency-Key is under way; its answer is there for this key when "
        "it has ended",
        code="idempotency_key_in_use",
        param="Idempotency-Key",
        headers={"retry-after": str(IN_USE_RETRY_S)},
    )


CLOSE_EVERY_S: Final = 60.0
GRACE_S: Final = 60.0  # after the end of an hour: the clocks of doors differ


class FetchAnswers:
    async def run(self, backend: Backend) -> None:
        calls = backend.part(Calls)
        try:
            await calls.answers.run(partial(backend.round_done, self))
        finally:
            calls.close()


class CloseOldCalls:
    async def run(self, backend: Backend) -> None:
        calls = backend.part(Calls)
        while True:
            await backend.run(close_old, calls.store, calls.jobs, GRACE_S)
            await backend.run(calls.store.forget_expired)
            backend.round_done(self)
            await asyncio.sleep(CLOSE_EVERY_S)
