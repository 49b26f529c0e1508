"""Why calls fail: written to Redis and to the log at a pace that no number of failures raises."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import pytest
from attempts import make_attempt

from penstock_ledger import Cause
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import Failure, Reply
from penstock_workers.item.run.runs import KINDS_MAX, LOG_EVERY_S, Causes


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def attempt(job: str = "job") -> Attempt:
    return make_attempt(job_id=job, provider="openai")


def test_failures_are_added_up_and_written_together() -> None:
    """Thousands of failures between two writes are one entry per job and class, with the latest
    words (A9)."""
    clock, written = Clock(), list[Cause]()
    causes = Causes(written.extend, clock)
    for n in range(1000):
        clock.now = 1000.0 + n
        causes.note(attempt(), Failure("connect_failed", f"refused {n}", None))
    causes.note(attempt("other"), Failure("server_error", "HTTP 500: oh", 500))
    asyncio.run(causes.flush())
    asyncio.run(causes.flush())
    assert written == [
        Cause("openai", "job", "connect_failed", "refused 999", 1000, 1000.0, 1999.0),
        Cause("openai", "other", "server_error", "HTTP 500: oh", 1, 1999.0, 1999.0),
    ]


def test_good_answers_are_not_told() -> None:
    """What works costs nothing here (A9)."""
    written = list[Cause]()
    causes = Causes(written.extend)
    causes.note(attempt(), Reply(b"{}", 200, None, None, "stop", 1, 1, "text", 5))
    asyncio.run(causes.flush())
    assert written == []


def test_what_redis_did_not_hear_is_told_again() -> None:
    """While Redis is away causes are kept, and their counts go on (A9)."""
    away, written = True, list[Cause]()

    def write(causes: Iterable[Cause]) -> None:
        if away:
            raise ConnectionError("gone")
        written.extend(causes)

    causes = Causes(write, Clock())
    for _ in range(2):
        causes.note(attempt(), Failure("timeout", "no answer", None))
        asyncio.run(causes.flush())
    away = False
    causes.note(attempt(), Failure("timeout", "no answer", None))
    asyncio.run(causes.flush())
    assert [cause.count for cause in written] == [3]


def test_the_log_says_the_cause_at_once_and_then_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first failure of a kind is a line with its words; the next line counts those in between
    (A9)."""
    caplog.set_level(logging.WARNING)
    clock = Clock()
    causes = Causes(clock=clock)
    for _ in range(500):
        causes.note(
            attempt(),
            Failure("connect_failed", "certificate verify failed\n\x1b[31mfake line", None),
        )
    clock.now += LOG_EVERY_S
    causes.note(attempt(), Failure("connect_failed", "certificate verify failed", None))
    first, second = [record.getMessage() for record in caplog.records]
    assert (
        "job job: a call to provider openai failed: connect_failed: certificate verify failed"
        in first
    )
    assert "\n" not in first
    assert "\x1b" not in first
    assert second.endswith("and 499 more since the last such line")


def test_the_log_names_an_engine_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    """Where no provider is asked, none is named (H7)."""
    causes = Causes(engine="a request to the engine of lane gpu")
    causes.note(attempt(), Failure("engine_died", "it hangs", None))
    assert "job job: a request to the engine of lane gpu failed: engine_died: it" in caplog.text


def test_memory_does_not_grow_with_jobs() -> None:
    """However many jobs fail, only so many kinds are remembered (A9)."""
    causes = Causes(lambda _: None)
    for n in range(3 * KINDS_MAX):
        causes.note(attempt(f"job{n}"), Failure("timeout", "no answer", None))
    assert len(causes._fresh) == len(causes._logged) == KINDS_MAX
