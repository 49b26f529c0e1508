"""A caller who waits gets a stored answer, or the reason why there is none.

Workers say on a channel which answers are stored; they are fetched with one look into SQL for all of
them. A message that is lost, as while Redis is away, costs SWEEP_S: all that is awaited is looked up
that often, with the states of its jobs. A call whose caller is gone is withdrawn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
from redis import RedisError

from penstock_gateway.backend import Backend
from penstock_gateway.direct.open_jobs import CallJob, refuse_stopped
from penstock_gateway.direct.streams import LiveAnswer
from penstock_gateway.news import rest
from penstock_gateway.refused import Refused
from penstock_ledger import (
    Cause,
    DoorCallStore,
    ItemKey,
    JobStore,
    OutcomeStore,
    PenstockError,
    RedisLedger,
    SettleBatch,
    SettledDead,
    buckets_for,
    in_words,
    keys,
)
from penstock_ledger.model import DeadLetter, JobState, Result
from penstock_ledger.redaction import redact
from penstock_producer.dialects.pieces import decode_piece
from penstock_producer.feed.routes import GENERATION

__all__ = [
    "CALLER_GONE",
    "TIMED_OUT",
    "Answers",
    "Outcome",
    "refused_for_dead_letter",
    "stop",
    "timed_out",
]

log = logging.getLogger("penstock.gateway")

SWEEP_S: Final = 0.5
LISTEN_S: Final = 5.0  # without a message, before the connection is looked after
AWAY_S: Final = 1.0  # between two tries to listen, or to look, while a store is away
STOPPED: Final = (JobState.CANCELLING, JobState.CANCELLED, JobState.FAILED)

Outcome = Result | DeadLetter


class Answers:
    """Fetches answers for those who wait; belongs to the event loop.

    ``run`` fetches until it is cancelled, and calls ``round_done`` after each look at all that is
    awaited."""

    def __init__(self, backend: Backend, store: DoorCallStore) -> None:
        self._backend = backend
        self._store = store
        self._jobs = JobStore(backend.database)
        self._awaited: dict[str, dict[str, asyncio.Future[Outcome]]] = {}  # by job and document
        self._states: dict[str, CallJob] = {}
        self._stored: dict[str, set[str]] = {}  # announced, and not fetched yet
        self._told = asyncio.Event()
        self._begun = asyncio.Event()  # something is awaited
        self._live: dict[tuple[str, str], LiveAnswer] = {}  # by job and document
        self.door = secrets.token_hex(8)  # its channel, for answers that are passed on

    @contextlib.contextmanager
    def awaited(
        self, job: CallJob, doc_ids: Iterable[str], live: LiveAnswer | None = None
    ) -> Iterator[dict[str, asyncio.Future[Outcome]]]:
        """Yield the future of each document, which fails (Refused) where the job stops.

        What is passed on of a single one meanwhile goes to ``live``. Forgotten with the end of
        the block."""
        loop = asyncio.get_running_loop()
        futures: dict[str, asyncio.Future[Outcome]] = {
            doc_id: loop.create_future() for doc_id in doc_ids
        }
        of_job = self._awaited.setdefault(job.job_id, {})
        of_job.update(futures)
        self._begun.set()
        self._states[job.job_id] = job
        if live is not None:
            self._live |= {(job.job_id, doc_id): live for doc_id in futures}
        try:
            yield futures
        finally:
            for doc_id, future in futures.items():
                of_job.pop(doc_id, None)
                self._live.pop((job.job_id, doc_id), None)
                if not future.cancel() and not future.cancelled():
                    future.exception()  # one of them is what the caller was answered
            if not of_job:
                self._awaited.pop(job.job_id, None)
                self._states.pop(job.job_id, None)

    def __len__(self) -> int:
        return sum(map(len, self._awaited.values()))

    async def run(self, round_done: Callable[[], None]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen(), name="listen for answers")
            group.create_task(self._fetch(), name="fetch answers")
            group.create_task(self._sweep(round_done), name="sweep answers")

    async def _listen(self) -> None:
        is_away = False
        while True:
            try:
                async with self._backend.redis.pubsub() as channel:
                    await channel.subscribe(keys.ANSWERED, keys.passed_to(self.door))
                    is_away = False
                    while True:
                        message = await channel.get_message(
                            ignore_subscribe_messages=True, timeout=LISTEN_S
                        )
                        if message is None:
                            continue
                        if message["channel"] == keys.ANSWERED.encode():
                            self._note(message["data"])
                        else:
                            self._note_piece(message["data"])
            except (RedisError, OSError) as error:
                if not is_away:
                    log.warning(
                        "answers are looked up every %g s: Redis does not tell of them: %s",
                        SWEEP_S,
                        in_words(error),
                    )
                is_away = True
                await asyncio.sleep(AWAY_S)

    def _note(self, told: bytes | str) -> None:
        """Note names of jobs and documents that were answered, of all doors.

        Anyone who reaches Redis may write here, and what is not awaited is none."""
        lines = told.decode("utf-8", "replace") if isinstance(told, bytes) else told
        for line in lines.split("\n"):
            job_id, _, doc_id = line.partition(" ")
            if doc_id in self._awaited.get(job_id, ()):
                self._stored.setdefault(job_id, set()).add(doc_id)
                self._told.set()

    def _note_piece(self, raw: bytes) -> None:
        """Note what a worker passes on. A caller sees what is written for its own document."""
        piece = decode_piece(raw)
        if piece is None:
            return
        live = self._live.get((piece.job_id, piece.doc_id))
        if live is not None:
            live.note(piece)

    async def _fetch(self) -> None:
        while True:
            await self._told.wait()
            self._told.clear()
            stored, self._stored = self._stored, {}
            try:
                await self._look(stored)
            except (PenstockError, Refused) as error:
                log.warning("answers could not be read: %s", error)
                await asyncio.sleep(AWAY_S)

    async def _look(self, stored: dict[str, set[str]]) -> None:
        for job_id, doc_ids in stored.items():
            found = await self._backend.run(self._store.outcomes, job_id, sorted(doc_ids))
            for doc_id, outcome in found.items():
                future = self._awaited.get(job_id, {}).get(doc_id)
                if future is not None and not future.done():
                    future.set_result(outcome)

    async def _sweep(self, round_done: Callable[[], None]) -> None:
        while True:
            if not self._awaited:
                self._begun.clear()
                await rest(self._begun)
            await asyncio.sleep(SWEEP_S)
            for job_id, awaited in self._awaited.items():
                self._stored.setdefault(job_id, set()).update(awaited)
                self._told.set()
            try:
                for job_id in list(self._awaited):
                    await self._look_at_job(job_id)
                round_done()
            except (PenstockError, Refused) as error:
                log.warning("jobs could not be looked at: %s", error)
                await asyncio.sleep(AWAY_S)

    async def _look_at_job(self, job_id: str) -> None:
        job = await self._backend.run(self._jobs.get, job_id)
        try:
            if job.state in STOPPED:
                raise Refused(
                    503,
                    "the job of this call was cancelled",
                    code="job_cancelled",
                    kind="server_error",
                )
            refuse_stopped(job)
        except Refused as refused:
            known = self._states.get(job_id)
            if known is not None:
                known.job, known.is_over = job, job.state in STOPPED
            for future in list(self._awaited.get(job_id, {}).values()):
                if not future.done():
                    future.set_exception(refused)


def outcomes_of(futures: Sequence[asyncio.Future[Outcome]]) -> list[Outcome | None]:
    """Return the outcomes in their order; None for those that are not there.

    Raises what one of them has failed by.
    """
    return [
        future.result() if future.done() and not future.cancelled() else None for future in futures
    ]


TIMED_OUT: Final = "timed_out"
CALLER_GONE: Final = "caller_gone"
_WORDS: Final[Mapping[str, str]] = {
    TIMED_OUT: "no worker had begun it when the time of its caller was over",
    CALLER_GONE: "its caller hung up, or got another answer, before a worker had begun it",
}


def stop(
    outcomes: OutcomeStore,
    store: DoorCallStore,
    hot: RedisLedger,
    job: CallJob,
    bodies: Mapping[str, bytes],
    reason: str,
) -> tuple[dict[str, Outcome], set[str]]:
    """End those documents that no worker has begun.

    Returns the outcomes that there are now, and which documents were begun.

    A worker that begins one in the same moment makes its call: the second of both outcomes is
    counted as such.
    """
    items = [ItemKey(job.job_id, GENERATION, doc_id) for doc_id in bodies]
    try:
        begun = {
            key.doc_id for key, is_begun in zip(items, hot.begun(items), strict=True) if is_begun
        }
    except RedisError:  # unknown: they are left to run
        return store.outcomes(job.job_id, list(bodies)), set(bodies)
    ended = [key for key in items if key.doc_id not in begun]
    _end(outcomes, hot, job, ended, bodies, reason)
    return store.outcomes(job.job_id, list(bodies)), begun


def _end(
    outcomes: OutcomeStore,
    hot: RedisLedger,
    job: CallJob,
    ended: Collection[ItemKey],
    bodies: Mapping[str, bytes],
    reason: str,
) -> None:
    if not ended:
        return
    now = time.time()
    letters = [
        DeadLetter(
            key=key,
            reason=reason,
            attempts=0,
            calls=0,
            last_error=_WORDS[reason],
            status_code=None,
            request=bodies[key.doc_id],
            response=None,
            created_at=now,
        )
        for key in ended
    ]
    lost = outcomes.settle([], letters)
    buckets = buckets_for(job.job)
    # SQL has it: a message of it that is claimed again is dropped
    with contextlib.suppress(RedisError):
        hot.settle(
            SettleBatch(
                dead=[SettledDead(key, buckets, reason) for key in ended if key not in lost]
            )
        )


WORDS_CHARS: Final = 500
RETRY_AFTER_S: Final = 5
MAY_BE_TRIED_AGAIN: Final = frozenset({408, 409, 425, 429})
# about the account of this server, not about the request
_OURS: Final = frozenset({401, 402, 403, 407})
_THROTTLED: Final = frozenset({"rate_limited", "daily_limit", "slow_down"})
_BY_REASON: Final[dict[str, tuple[int, str]]] = {
    TIMED_OUT: (504, "request_timeout"),
    CALLER_GONE: (504, "request_timeout"),
    "timeout": (504, "provider_timeout"),
    "content_filter": (400, "content_filter"),
    "worker_crashed": (500, "worker_crashed"),
    "cancelled": (503, "job_cancelled"),
}


def refused_for_dead_letter(letter: DeadLetter) -> Refused:
    """Return a dead letter as an error: the provider's own, or the reason in words."""
    status, code = _status_of(letter)
    said = _said_by_provider(letter) if status == letter.status_code else {}
    message = said.get("message") or f"{letter.reason}: {letter.last_error}"
    headers = {"retry-after": str(RETRY_AFTER_S)} if status in (429, 503) else {}
    if status == 504:
        headers["x-should-retry"] = "false"  # the clients of OpenAI would wait as long again, twice
    return Refused(
        status,
        redact(message[:WORDS_CHARS]),
        code=said.get("code") or code,
        param=said.get("param"),
        kind=said.get("type") or ("rate_limit_error" if status == 429 else "invalid_request_error"),
        headers=headers,
    )


def may_be_tried_again(outcomes: Iterable[Outcome]) -> bool:
    """Return whether all of them failed by something that may be over by now."""
    return all(
        isinstance(one, DeadLetter)
        and ((status := _status_of(one)[0]) >= 500 or status in MAY_BE_TRIED_AGAIN)
        for one in outcomes
    )


def timed_out(timeout_s: float, causes: Iterable[Cause], *, begun: bool) -> Refused:
    """Say that the caller's time is over, and what fails at the provider, as workers say."""
    failing = next(iter(causes), None)
    if failing is not None and failing.name in _THROTTLED:
        return Refused(
            429,
            f"the provider limits this server's requests ({failing.name}), and the call had no "
            f"answer in {timeout_s:g} s",
            code="rate_limit_exceeded",
            kind="rate_limit_error",
            headers={"retry-after": str(RETRY_AFTER_S)},
        )
    why = f"; lately calls fail: {failing.name}" if failing is not None else ""
    what = (
        "it had begun, and its answer is kept"
        if begun
        else "it had not begun, and was not paid for"
    )
    return Refused(
        504,
        f"the call had no answer in {timeout_s:g} s: {what}{why}",
        code="request_timeout",
        kind="server_error",
        headers={"x-should-retry": "false"},
    )


def _status_of(letter: DeadLetter) -> tuple[int, str]:
    if letter.reason in _BY_REASON:
        return _BY_REASON[letter.reason]
    status = letter.status_code
    if status is not None and 400 <= status < 500 and status not in _OURS:
        return status, letter.reason
    return 502, letter.reason


def _said_by_provider(letter: DeadLetter) -> dict[str, Any]:
    """Return the provider's error envelope, of OpenAI's shape, without what is no text."""
    try:
        said = orjson.loads(letter.response or b"")
    except orjson.JSONDecodeError:
        return {}
    error = said.get("error") if isinstance(said, dict) else None
    if not isinstance(error, dict):
        return {}
    return {
        name: error[name]
        for name in ("message", "type", "code", "param")
        if isinstance(error.get(name), str)
    }
