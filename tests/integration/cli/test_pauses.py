"""`penstock status` and `resume` on a job that stands still, over a real Redis: why, until when,
and how it goes on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import RedisServer
from typer.testing import CliRunner

from penstock_cli.main import command_line
from penstock_ledger import Cause, CauseBook, JobStore, NewJob, RedisLedger, open_database
from penstock_ledger.model import JobState
from penstock_ledger.reasons import by_hand
from penstock_ratelimit import PerSecond, Quota
from penstock_ratelimit.store.messages import Reserve
from penstock_ratelimit.store.quota_hash import QuotaHash
from penstock_ratelimit.testing import BlockingScripts

QUOTA = Quota("default", {"requests": PerSecond(10)})


class Desk:
    """A person at a fleet's terminal. No worker runs."""

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self.redis = server.client()
        self._database = open_database(f"sqlite:///{folder}/ledger.db")
        self._database.migrate()
        self.jobs = JobStore(self._database)
        self.jobs.create(
            NewJob("job_1", "reviews", {"lane": "api", "provider": "default"}, {}, "digest", 10)
        )

    def type(self, *words: str) -> str:
        return " ".join(" ".join(self.lines(*words)).split())

    def lines(self, *words: str) -> list[str]:
        result = CliRunner().invoke(command_line(), words)
        assert result.exit_code == 0, result.output
        return result.output.splitlines()

    def pause_provider(self, seconds: float) -> None:
        """What a worker leaves in Redis when the provider asks it to wait."""

        async def report() -> None:
            quota_hash = QuotaHash(BlockingScripts(self.redis), "default")
            in_force = await quota_hash.install(QUOTA.terms())
            await quota_hash.reserve(
                Reserve(in_force.version, QUOTA.terms(), [], {}, 1.0, 0.0, pause_s=seconds)
            )

        asyncio.run(report())

    def close(self) -> None:
        self._database.close()


@pytest.fixture
def desk(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Desk]:
    monkeypatch.setenv("PENSTOCK_REDIS_URL", redis_server.url)
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", f"sqlite:///{tmp_path}/ledger.db")
    monkeypatch.setenv("COLUMNS", "200")
    made = Desk(redis_server, tmp_path)
    yield made
    made.close()


def test_a_job_that_everyone_has_left_is_called_interrupted(desk: Desk) -> None:
    """One that waits to begin runs; once its leader has gone and no worker lives it is
    interrupted, and `status` says how it goes on and where its results are."""
    assert "reviews running" in desk.type("status", "reviews")
    feed = desk.jobs.lease_feed("job_1", 1, "control@desk", 30)
    assert feed is not None
    assert "reviews running" in desk.type("status", "reviews"), "it is led"
    desk.jobs.release_feed(feed, "control@desk")
    said = desk.type("status", "reviews")
    assert "reviews interrupted" in said
    assert "the command that began it, given again, goes on where it stopped" in said
    assert "its results so far: penstock results reviews" in said
    assert "reviews interrupted" in desk.type("jobs")
    assert '"state":"running"' in desk.type("jobs", "--json")
    RedisLedger(desk.redis, "epoch").heartbeat("api@desk", {"lane": "api"})
    assert "reviews running" in desk.type("jobs"), "a worker lives"


def test_jobs_are_listed_by_status_and_by_a_part_of_their_name(desk: Desk) -> None:
    """Only those are shown and, where none is, that there are no such jobs."""
    desk.jobs.create(NewJob("job_2", "Tickets-1", {"lane": "api"}, {}, "digest", 10))
    desk.type("pause", "Tickets-1")
    assert [name in desk.type("jobs") for name in ("reviews", "Tickets-1")] == [True, True]
    paused = desk.type("jobs", "--status", "paused", "--status", "failed")
    assert "Tickets-1" in paused
    assert "reviews" not in paused
    assert "Tickets-1" not in desk.type("jobs", "--status", "running")
    found = [json.loads(line) for line in desk.lines("jobs", "--search", "TICK", "--json")]
    assert [one["job"] for one in found] == ["Tickets-1"]
    assert desk.type("jobs", "--search", "TICK", "--status", "running") == "no such jobs"


def test_status_says_that_nobody_works_and_why_calls_failed(desk: Desk) -> None:
    """A lane without a worker and the last failure are named, for people and for programs (A9,
    D16)."""
    CauseBook(desk.redis).note(
        [Cause("default", "job_1", "connect_failed", "refused", 7, time.time(), time.time())]
    )
    shown = desk.type("status", "reviews")
    assert "no worker serves lane api: start one with `penstock worker --lane api`" in shown
    assert "the last failure: connect_failed (7 times since" in shown
    told = json.loads(desk.type("status", "reviews", "--json"))
    assert told["reasons"] == [
        "no worker serves lane api: start one with `penstock worker --lane api`"
    ]
    assert told["last_failure"].startswith("connect_failed (7 times since")


def test_a_worker_of_the_lane_is_seen(desk: Desk) -> None:
    """With a heartbeat of the lane nothing is said (D16)."""
    now = time.time()
    desk.redis.zadd("penstock:workers", {"w": now})
    desk.redis.hset("penstock:worker:w", mapping={"lane": "api"})
    assert "no worker serves" not in desk.type("status", "reviews")


def test_status_says_when_a_pause_ends_and_resume_ends_it_now(desk: Desk) -> None:
    """A job paused for its provider shows its end; `resume` lets the job go on and its provider be
    asked (A2)."""
    desk.pause_provider(1000)
    desk.jobs.set_state(
        "job_1",
        JobState.PAUSED,
        why=by_hand("told to wait"),
        expect={JobState.RUNNING},
        resume_at=time.time() + 1000,
    )
    shown = desk.type("status", "reviews")
    assert "paused (told to wait)" in shown
    assert "it goes on by itself at" in shown
    assert "penstock resume reviews" in shown
    told = json.loads(desk.type("status", "reviews", "--json"))
    assert told["resume_at"] > time.time()
    assert (told["pause"]["code"], told["pause"]["by"]) == ("by_hand", "person")
    assert (told["pause"]["message"], told["pause"]["advice"]) == ("told to wait", [])
    resumed = desk.type("resume", "reviews")
    assert "the pause of provider default is over: requests start again within 2 s" in resumed
    assert "reviews is running" in resumed
    assert desk.redis.hget("penstock:{q:default}", "nb") is None
    assert desk.jobs.get("reviews").resume_at is None


def test_resume_ends_the_wait_of_a_job_that_is_not_paused(desk: Desk) -> None:
    """A Retry-After that a running job waits for shows its end in `status`, and ends by the same
    command (A2)."""
    desk.pause_provider(800)
    shown = desk.type("status", "reviews")
    assert "the provider said wait: nothing starts until" in shown
    assert "penstock limits --lift default" in shown
    assert "the pause of provider default is over" in desk.type("resume", "reviews")
    assert desk.redis.hget("penstock:{q:default}", "nb") is None


def test_a_person_may_make_a_pause_with_an_end_last(desk: Desk) -> None:
    """`penstock pause` on such a job keeps it paused until a person resumes it (A2)."""
    desk.jobs.set_state(
        "job_1", JobState.PAUSED, expect={JobState.RUNNING}, resume_at=time.time() + 1000
    )
    desk.type("pause", "reviews", "--reason", "not tonight")
    job = desk.jobs.get("reviews")
    assert (job.state, job.resume_at, job.reason) == (JobState.PAUSED, None, "not tonight")
