"""The answers that callers wait for, fetched with one look into SQL for all that are stored.

Workers say on a channel which are.

A message that is lost, as while Redis is away, costs SWEEP_S: all that is awaited is looked up that
often, with the states of its jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from redis import RedisError

from penstock_gateway.backend import Backend
from penstock_gateway.direct.open_jobs import CallJob, refuse_stopped
from penstock_gateway.direct.streams import LiveAnswer
from penstock_gateway.refused import Refused
from penstock_ledger import DoorCallStore, JobStore, PenstockError, in_words, keys
from penstock_ledger.model import DeadLetter, JobState, Result
from penstock_producer.dialects.pieces import decode_piece

__all__ = ["Answers", "Outcome"]

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
