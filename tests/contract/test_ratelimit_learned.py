"""What is learned about costs, shared through a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import redis
from servers import RedisServer

from penstock_ratelimit.estimates import (
    KEYS_PER_FLUSH,
    MAX_FIELDS,
    SHARED_MEMORY,
    TTL_S,
    Estimator,
    Learned,
    Sketch,
    field_name,
)
from penstock_ratelimit.testing import BlockingScripts

KEY = ("job-1", "model-a")
START_US = 10**15


class Process:
    """One process's estimator and its shared part."""

    def __init__(self, server: RedisServer, clock_us: Callable[[], int] = lambda: START_US) -> None:
        self.raw = server.client(decode_responses=True)
        self.redis = BlockingScripts(self.raw)
        self.estimator = Estimator()
        self.learned = Learned(self.redis, "q", self.estimator, clock_us=clock_us)

    def see(
        self, times: int, tokens: float, output: float | None = None, key: object = KEY
    ) -> None:
        for _ in range(times):
            self.estimator.observe(key, 4000, tokens, output)

    def flush(self) -> None:
        asyncio.run(self.learned.flush())

    def prompt(self, key: object = KEY) -> float:
        return self.estimator.estimate_prompt(key, 4000)

    def output(self, key: object = KEY) -> float:
        return self.estimator.expected_output(key, None)


def test_a_new_process_starts_from_what_others_learned(redis_server: RedisServer) -> None:
    """The first sight of a key is enough: after the next flush its estimates are those of the
    fleet."""
    old, new = Process(redis_server), Process(redis_server)
    old.see(10, 3000, 900)
    old.flush()
    assert new.prompt() == 1000
    new.flush()
    assert new.prompt() == pytest.approx(3000, rel=1e-4)
    assert new.output() == pytest.approx(900, rel=0.1)


def test_two_processes_do_not_overwrite_each_other(redis_server: RedisServer) -> None:
    """Counts are weighted: ten observations here and thirty there make the mean of forty."""
    one, other = Process(redis_server), Process(redis_server)
    one.see(5, 2000, 100)
    other.see(15, 4000, 1000)
    one.flush()
    other.flush()
    one.see(1, 2000, 100)
    one.flush()
    expected = (6 * 2000 + 15 * 4000) / 21
    assert one.prompt() == pytest.approx(expected, rel=0.01)
    assert one.output() == pytest.approx(1000, rel=0.1)
    assert other.prompt() == pytest.approx((5 * 2000 + 15 * 4000) / 20, rel=0.01)


def test_the_merge_in_redis_is_the_merge_in_python(redis_server: RedisServer) -> None:
    """Both fade alike, so that it does not matter who adds: 400 observations in lumps, against the
    same in one place."""
    process, expected = Process(redis_server), Sketch()
    for lump in range(20):
        process.see(20, 1000 + 100 * lump, 50 * (lump + 1))
        delta = process.estimator.take(1)
        expected.merge(delta[KEY], SHARED_MEMORY)
        process.estimator.put_back(delta)
        process.flush()
    reader = Process(redis_server)
    reader.prompt()
    reader.flush()
    assert reader.prompt() == pytest.approx(1000 * expected.ratio, rel=1e-3)
    assert reader.output() == pytest.approx(expected.quantile(0.75), rel=1e-6)


def test_a_flush_without_news_does_not_call_redis(redis_server: RedisServer) -> None:
    """What is shared is shared once; then there is nothing to say."""
    process = Process(redis_server)
    process.see(1, 2000)
    process.flush()
    process.flush()
    process.flush()
    assert process.redis.calls == 1


def test_a_redis_that_is_away_costs_only_the_sharing(redis_server: RedisServer) -> None:
    """Nothing is raised, the own estimates work on, and nothing observed meanwhile is lost."""
    process, other = Process(redis_server), Process(redis_server)
    process.redis.fault = redis.ConnectionError("gone")
    process.see(3, 2000)
    process.flush()
    process.redis.fault = TimeoutError()
    process.see(3, 4000)
    process.flush()
    assert process.prompt() == pytest.approx(3000)
    process.redis.fault = None
    process.flush()
    other.prompt()
    other.flush()
    assert other.prompt() == pytest.approx(3000, rel=1e-4)


def test_the_hash_expires_a_week_after_the_last_lesson(redis_server: RedisServer) -> None:
    """A finished job's ratios do not stay for ever; a job that goes on keeps them."""
    process = Process(redis_server)
    process.see(1, 2000)
    process.flush()
    assert process.raw.ttl(process.learned.key) == pytest.approx(TTL_S, abs=5)
    process.raw.expire(process.learned.key, 10)
    process.see(1, 2000)
    process.flush()
    assert process.raw.ttl(process.learned.key) == pytest.approx(TTL_S, abs=5)


def test_the_hash_is_bounded_and_gives_up_old_keys_first(redis_server: RedisServer) -> None:
    """However many jobs pass by: never more fields than allowed, and those of the last minutes
    stay."""
    time_us = START_US
    process = Process(redis_server, clock_us=lambda: time_us)
    jobs = MAX_FIELDS + 10 * KEYS_PER_FLUSH
    for job in range(jobs):
        process.see(1, 2000, key=f"job-{job}")
        if job % KEYS_PER_FLUSH == KEYS_PER_FLUSH - 1:
            time_us += 60_000_000
            process.flush()
    left = process.raw.hkeys(process.learned.key)
    assert len(left) == MAX_FIELDS
    assert {f"job-{job}" for job in range(jobs - 2 * KEYS_PER_FLUSH, jobs)} <= set(left)


def test_more_keys_than_fit_in_a_call_go_with_the_next(redis_server: RedisServer) -> None:
    """One flush is one bounded call."""
    process = Process(redis_server)
    for number in range(KEYS_PER_FLUSH + 3):
        process.see(1, 2000, key=number)
    process.flush()
    assert process.raw.hlen(process.learned.key) == KEYS_PER_FLUSH
    process.flush()
    assert process.raw.hlen(process.learned.key) == KEYS_PER_FLUSH + 3
    assert process.redis.calls == 2


@pytest.mark.parametrize(
    "junk",
    [
        "",
        "1",
        "{}",
        "[]",
        "[5,1]",
        "[5,1,1,3]",
        "[5,[],1]",
        "[5,1e999,1]",
        "[5,-1,1]",
        "[5,1,NaN]",
        "[",
        "💥",
        '{"a":1}',
    ],
)
def test_a_value_that_nobody_can_read_counts_as_unknown(
    redis_server: RedisServer, junk: str
) -> None:
    """Foreign bytes under our key neither break the script nor change the estimate; the next
    observation replaces them."""
    process = Process(redis_server)
    process.raw.hset(process.learned.key, field_name(KEY), junk)
    process.prompt()
    process.flush()
    assert process.prompt() == 1000
    process.see(1, 2000)
    process.flush()
    assert process.prompt() == pytest.approx(2000)


def test_long_keys_are_stored_by_their_hash() -> None:
    """A key may carry a file name or a whole prompt; a field does not."""
    assert field_name("job") == "job"
    assert field_name(("job", "model")) == "('job', 'model')"
    assert len(field_name("x" * 5000)) < 80
    assert field_name("x" * 5000) != field_name("x" * 5001)
