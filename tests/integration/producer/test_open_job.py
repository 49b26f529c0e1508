"""Open jobs as services use them: wrong documents, trickles, exits, event loops."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from penstock_ledger import Spool
from penstock_producer import (
    AsyncProducer,
    DatabaseUnavailable,
    InvalidDocument,
    JobCancelled,
    JobClosed,
    JobSpec,
    OpenJob,
    Producer,
    ProducerSettings,
    SpoolConflict,
)

SPEC = JobSpec(prompt="{text}", model="m")


@pytest.fixture
def no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_producer.open_job.FLUSH_AFTER_S", 3600.0)


def stored(producer: Producer, job: OpenJob) -> int:
    return Spool(producer._database).count(job.job_id)


def comes_true(what: Callable[[], bool]) -> bool:
    """Polled for a while: time passes in a thread of the producer's."""
    until = time.monotonic() + 20
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def test_one_wrong_document_stops_nothing(producer: Producer, no_timer: None) -> None:
    """A taken id is refused once, by name; the documents around it are stored, once, and the job
    goes on and closes (D2)."""
    job = producer.open_job(SPEC)
    job.enqueue("a", {"text": "1"})
    job.flush()
    for doc_id, text in (("b", "1"), ("a", "2"), ("c", "1")):
        job.enqueue(doc_id, {"text": text})
    with pytest.raises(SpoolConflict, match="'a'") as caught:
        job.flush()
    assert (caught.value.doc_ids, caught.value.stored, stored(producer, job)) == (("a",), 2, 3)
    assert job.flush() == 0
    job.enqueue("d", {"text": "1"})
    assert (job.flush(), job.close()) == (1, 4)


def test_a_wrong_document_in_a_full_buffer_is_told_by_the_next_flush(
    producer: Producer, no_timer: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`enqueue` raises for its own document only: a conflict that making room found waits for
    `flush` or `close` (D2)."""
    monkeypatch.setattr("penstock_producer.open_job.MAX_BUFFERED_DOCUMENTS", 2)
    job = producer.open_job(SPEC)
    for doc_id, text in (("a", "1"), ("a", "2"), ("b", "1"), ("c", "1")):
        job.enqueue(doc_id, {"text": text})
    with pytest.raises(SpoolConflict, match="'a'"):
        job.close()
    assert job.close() == 3


def test_a_trickle_is_flushed_by_time(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document that no other follows is durable soon after it was enqueued, without `flush`
    (D5)."""
    monkeypatch.setattr("penstock_producer.open_job.FLUSH_AFTER_S", 0.05)
    job = producer.open_job(SPEC)
    for number in range(2):
        job.enqueue(number, {"text": "t"})
        assert comes_true(lambda number=number: stored(producer, job) == number + 1)  # type: ignore[misc]
    assert comes_true(
        lambda: not any(job.job_id in thread.name for thread in threading.enumerate())
    )


def test_a_database_that_comes_back_gets_what_waited(
    producer: Producer, no_timer: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents stay in the buffer while the database is away, which stays bounded: one more is
    refused, not lost (D5)."""
    monkeypatch.setattr("penstock_producer.open_job.MAX_BUFFERED_DOCUMENTS", 2)
    job = producer.open_job(SPEC)
    append = Spool.append

    def away(*_: object) -> int:
        raise DatabaseUnavailable("db:5432/p", "refused")

    monkeypatch.setattr(Spool, "append", away)
    job.enqueue("a", {"text": "1"})
    job.enqueue("b", {"text": "1"})
    for _ in range(3):
        with pytest.raises(DatabaseUnavailable):
            job.enqueue("c", {"text": "1"})
    monkeypatch.setattr(Spool, "append", append)
    assert (job.flush(), job.close()) == (2, 2)


def test_what_was_enqueued_is_stored_when_the_interpreter_ends(
    producer: Producer, url: str
) -> None:
    """A script that forgets `flush` loses nothing (D5)."""
    code = (
        "from penstock_producer import JobSpec, Producer, ProducerSettings\n"
        f"producer = Producer(ProducerSettings(database_url={url!r}))\n"
        "job = producer.open_job(JobSpec(prompt='{text}', model='m'), job_key='night')\n"
        "job.enqueue('a', {'text': '1'})\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert producer.open_job(SPEC, job_key="night").close() == 1


def test_closing_the_producer_flushes_its_open_jobs(url: str, no_timer: None) -> None:
    """The end of `with Producer()` is not a place where documents get lost (D5)."""
    with Producer(ProducerSettings(database_url=url)) as producer:
        producer.open_job(SPEC, job_key="night").enqueue("a", {"text": "1"})
    with Producer(ProducerSettings(database_url=url)) as producer:
        assert producer.open_job(SPEC, job_key="night").close() == 1


def test_documents_that_an_ended_job_refuses_are_named(producer: Producer, no_timer: None) -> None:
    """The error says which documents were not accepted, and by its name whether the job was closed
    or cancelled (C7)."""
    closed, cancelled = producer.open_job(SPEC), producer.open_job(SPEC)
    closed.close()
    closed.enqueue("late", {"text": "1"})
    with pytest.raises(JobClosed, match="'late' not accepted") as too_late:
        closed.flush()
    assert too_late.value.doc_ids == ("late",)
    producer.cancel(cancelled.job_id)
    cancelled.enqueue("late", {"text": "1"})
    with pytest.raises(JobCancelled, match="'late'"):
        cancelled.flush()


async def test_the_async_form_never_blocks_the_loop(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While documents are written, however slowly, the loop goes on turning (D30)."""
    monkeypatch.setattr("penstock_producer.open_job.MAX_BUFFERED_DOCUMENTS", 2)
    loop_turned = threading.Event()
    append = Spool.append

    def slow(spool: Spool, *arguments: object) -> int:
        assert loop_turned.wait(20), "the loop stood still while SQL was written"
        return append(spool, *arguments)  # type: ignore[arg-type]  # what it was called with

    monkeypatch.setattr(Spool, "append", slow)
    async with AsyncProducer(ProducerSettings(database_url=url)) as producer:
        job = await producer.open_job(SPEC, job_key="live")

        async def push() -> None:
            for number in range(5):
                await job.enqueue(number, {"text": "t"})

        pushing = asyncio.create_task(push())
        await asyncio.sleep(0)
        loop_turned.set()
        await pushing
        with pytest.raises(InvalidDocument):
            await job.enqueue("x", {"words": "no column of the prompt"})
        assert await job.close() == 5
        assert (await producer.status("live")).job.total == 5
        assert [result async for result in producer.results("live")] == []
