"""A ledger that the dashboard's tests and pictures look at: jobs in each state, hostile texts,
workers and a held quota."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import redis
from playwright.sync_api import Browser, sync_playwright
from servers import MissingServer
from sqlalchemy import text

from penstock_ledger import (
    Cause,
    CauseBook,
    Database,
    DeadLetter,
    DoorBatchState,
    DoorBatchStore,
    ItemKey,
    Job,
    JobState,
    JobStore,
    LaneMoves,
    MadeWith,
    Meta,
    NewDoorBatch,
    NewJob,
    OutcomeStore,
    Provenance,
    RedisLedger,
    Result,
)
from penstock_ledger.reasons import by_hand
from penstock_producer import Producer, ProducerSettings

HOSTILE = (
    "<script>document.title='owned'</script></textarea></pre>\"><img src=x "
    "onerror=\"document.title='owned'\"> \x1b[31mred\x1b[0m \x00 \u202egnp.exe\u202c "
    "javascript:alert(1) {{ 7 * 7 }} {% raw %}"
)
SPEC: dict[str, Any] = {
    "model": "gpt-5-mini",
    "provider": "openai",
    "endpoint": "/v1/chat/completions",
    "prompt": "Summarise: {text}",
}
SOURCE = {"kind": "file", "uri": "/srv/exports/in.jsonl", "size": 1, "sha256": "0" * 64}
ERRORS = (
    ("timeout", None, "no answer within 60 s from 10.2.0.{n}:443"),
    ("bad_request", 400, "Invalid value for 'max_tokens': {n} is above the limit of 4096"),
    ("content_filter", 400, "The response was filtered (request req_{n}a8f3c9d2e)"),
)


class Seeded(NamedTuple):
    """Ids of jobs."""

    running: str
    done: str
    paused: str
    hostile: str
    other_tenant: str
    left: str  # its control process has gone, and no worker serves its lane
    calls: str  # of one hour
    refused: str  # a batch
    nightly: str  # a schedule


def seed(
    database: Database, folder: Path, client: redis.Redis | None = None, *, small: bool = True
) -> Seeded:
    """``folder`` gets the file that one of the jobs reads.

    ``small`` is for tests, the other for pictures."""
    rng = random.Random(7)
    done = _from_file(database, folder)
    running = _job(
        database,
        "tickets-2026-11",
        total=1_240 if small else 4_000,
        age_s=1_260,
        budget_usd=12.0,
        lane="auto",
        tenant="acme",
    )
    _answer(
        database, running, rng, 900 if small else 2_900, dead=24 if small else 84, seconds=1_230
    )
    moves = LaneMoves(database)
    now = time.time()
    moves.move(
        running.job_id,
        None,
        "api",
        "chosen",
        "nothing else serves gpt-5-mini now",
        {},
        now=now - 1_259,
    )
    moves.move(
        running.job_id,
        "api",
        "batch",
        "cheaper",
        "a batch is half the price and ends 3 h before the deadline",
        {},
        now=now - 700,
    )
    moves.move(
        running.job_id,
        "batch",
        "api",
        "deadline",
        "the batches of the provider take 5 h longer than they did",
        {},
        now=now - 90,
    )
    paused = _job(database, "contracts-nightly", total=900, age_s=5_400, tenant="legal")
    _answer(database, paused, rng, 310, dead=4, seconds=1_000)
    JobStore(database).set_state(
        paused.job_id,
        JobState.PAUSED,
        why=by_hand("provider openai: out of credit (insufficient_quota)"),
        expect=[JobState.RUNNING],
    )
    hostile = _job(
        database, HOSTILE.replace("\x00", "") if small else "imports-of-today", total=12, age_s=300
    )
    _hostile(database, hostile)
    other = _job(database, "catalogue-2026", total=60_000, age_s=86_400 * 3, tenant="shop")
    _answer(database, other, rng, 400, dead=0, seconds=4_000)
    _ended(database, other.job_id, JobState.CANCELLED, 4_000)
    for number in range(8 if small else 40):
        run = _job(
            database,
            f"eval-run-{number:03d}",
            total=20,
            age_s=90_000 + 3_600 * number,
            tenant="research",
        )
        _answer(database, run, rng, 20 - number % 3, dead=number % 3, seconds=40)
        _ended(database, run.job_id, JobState.FAILED if number == 5 else JobState.COMPLETED, 41)
    left = _job(database, "reviews-of-autumn", total=500, age_s=7_200, lane="embed", tenant="acme")
    _answer(database, left, rng, 120, dead=0, seconds=300)
    feed = JobStore(database).lease_feed(left.job_id, 1, "control@desk", 30)
    assert feed is not None
    JobStore(database).release_feed(feed, "control@desk")
    calls = _job(
        database, "direct/-/chat.completions/openai/api/2026-11-27T09", total=None, age_s=600
    )
    _answer(database, calls, rng, 41, dead=0, seconds=500)
    if client is not None:
        _fleet(database, client, running)
    producer = Producer(ProducerSettings(database_url="sqlite://"), database=database)
    nightly = producer.schedules.add(
        "nightly", "0 2 * * *", str(folder / "mails.jsonl"), {**SPEC, "tenant": "acme"}
    )
    return Seeded(
        running.job_id,
        done,
        paused.job_id,
        hostile.job_id,
        other.job_id,
        left.job_id,
        calls.job_id,
        _refused_batch(database),
        nightly.schedule_id,
    )


def _refused_batch(database: Database) -> str:
    store = DoorBatchStore(database)
    new = NewDoorBatch(
        "batch_1f0c2a9be7d14c33", "openai", "acme", "/v1/chat/completions", "file-1", 86_400.0
    )
    store.add(new)
    leased = store.lease(new.batch_id, "door", 30)
    assert leased is not None
    said = "Invalid value for 'model': the batch has requests of <b>two</b> models"
    errors = [
        {"code": "mismatched_model", "line": line, "message": said, "param": "model"}
        for line in (7, 9)
    ]
    store.move(leased, DoorBatchState.FAILED, errors=errors)
    return new.batch_id


def _from_file(database: Database, folder: Path) -> str:
    """A job whose source can be read, with its answers."""
    rows = [
        {"id": f"mail-{n:03d}", "text": f"Dear team, order {n} came damaged. Please send another."}
        for n in range(30)
    ]
    path = folder / "mails.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = ProducerSettings(database_url="sqlite://")
    producer = Producer(settings, database=database)
    job = producer.submit(
        str(path), {"prompt": "Summarise: {text}", "model": "gpt-5-mini"}, job_key="mails-of-monday"
    )
    rng = random.Random(3)
    _answer(database, job, rng, 29, dead=1, seconds=50, names=[str(row["id"]) for row in rows])
    _ended(database, job.job_id, JobState.COMPLETED, 52)
    return job.job_id


def _job(database: Database, key: str, *, total: int | None, age_s: float, **spec: Any) -> Job:
    jobs = JobStore(database)
    lane = spec.pop("lane", "api")
    whole = SPEC | {"lane": lane} | spec
    new = NewJob(
        f"job{len(jobs.list(limit=1000)):04d}x",
        key,
        whole,
        SOURCE,
        "0" * 64,
        total,
        lane="api" if lane == "auto" else lane,
    )
    job, _ = jobs.create(new)
    change = text("UPDATE jobs SET created_at = :at WHERE job_id = :job")
    database.write(
        lambda connection: connection.execute(
            change, {"at": time.time() - age_s, "job": job.job_id}
        )
    )
    return jobs.get(job.job_id)


def _answer(
    database: Database,
    job: Job,
    rng: random.Random,
    done: int,
    *,
    dead: int,
    seconds: float,
    names: list[str] | None = None,
) -> None:
    made = MadeWith(1, "api", "openai", "0.9.0", "", 0.25, 2.0, model="gpt-5-mini")
    Provenance(database).note([(job.job_id, made)])
    ids = names or [f"doc-{n:06d}" for n in range(done + dead)]
    results = [_result(ItemKey(job.job_id, 1, ids[n]), rng) for n in range(done)]
    letters = [_letter(ItemKey(job.job_id, 1, ids[done + n]), n) for n in range(dead)]
    OutcomeStore(database, "api").settle(results, letters)
    wave = (
        "(0.5 + 0.5 * abs(((rowid * 7919) % 1000) / 1000.0 - 0.15)) * ((rowid * 104729) % 997) / "
        "997.0"
    )
    spread = text(
        f"UPDATE outcomes SET created_at = :since + :seconds * {wave} WHERE job_id = :job"
    )
    values = {"since": job.created_at, "seconds": seconds, "job": job.job_id}
    database.write(lambda connection: connection.execute(spread, values))


def _ended(database: Database, job_id: str, state: JobState, seconds: float) -> None:
    change = text(
        "UPDATE jobs SET state = :state, finished_at = created_at + :seconds WHERE job_id = :job"
    )
    database.write(
        lambda connection: connection.execute(
            change, {"state": str(state), "seconds": seconds, "job": job_id}
        )
    )


def _result(key: ItemKey, rng: random.Random) -> Result:
    words = "The customer reports damage and asks for a replacement."
    body = json.dumps({"choices": [{"message": {"role": "assistant", "content": words}}]}).encode()
    tries = 2 if rng.random() < 0.06 else 1
    prompt, answer = rng.randint(200, 900), rng.randint(40, 200)
    cost = round(prompt * 0.25 + answer * 2.0)
    took = round(400 + rng.expovariate(1 / 900))
    return Result(
        key,
        200,
        body,
        None,
        "gpt-5-mini-2026-08-07",
        "stop",
        prompt,
        answer,
        cost,
        took,
        tries,
        tries,
    )


def _letter(key: ItemKey, number: int) -> DeadLetter:
    reason, status, said = ERRORS[(number // 3) % len(ERRORS) if number else 1]
    request = {
        "model": "gpt-5-mini",
        "messages": [{"role": "user", "content": "Summarise: an order"}],
        "max_tokens": 9000,
    }
    return DeadLetter(
        key,
        reason,
        3,
        3,
        said.replace("{n}", str(4100 + number)),
        status,
        json.dumps(request).encode(),
        None,
    )


def _hostile(database: Database, job: Job) -> None:
    words = {"choices": [{"message": {"content": HOSTILE}}]}
    request = {"model": "gpt-5-mini", "messages": [{"role": "user", "content": HOSTILE}]}
    plain = Result(
        ItemKey(job.job_id, 1, "doc-hostile"),
        200,
        json.dumps(words).encode(),
        None,
        HOSTILE[:60],
        "stop",
        9,
        9,
        5,
        400,
        1,
        1,
    )
    letters = [
        DeadLetter(
            ItemKey(job.job_id, 1, name),
            "bad_request",
            1,
            1,
            HOSTILE.replace("\x00", ""),
            400,
            json.dumps(request).encode(),
            HOSTILE.encode(),
        )
        for name in ("doc-letter", "<b>doc</b> & \u202ecod")
    ]
    OutcomeStore(database, "api").settle([plain], letters)


def _fleet(database: Database, client: redis.Redis, job: Job) -> None:
    ledger = RedisLedger(client, Meta(database).epoch())
    ledger.install_epoch()
    for number in range(3):
        ledger.heartbeat(
            f"api@node-{number + 1}",
            {"lane": "api", "concurrency": "256", "in_flight": str((256, 240, 198)[number])},
        )
    ledger.heartbeat(
        "gpu@node-7",
        {
            "lane": "gpu",
            "concurrency": "512",
            "in_flight": "250",
            "running": "250",
            "waiting": "31",
            "kv_usage": "0.91",
            "prompt_tokens_per_s": "21000",
            "generation_tokens_per_s": "6200",
            "bound": "memory",
            "cards": "0,1",
        },
    )
    now = time.time()
    CauseBook(client).note(
        [
            Cause(
                "openai",
                job.job_id,
                "rate_limited",
                "429: Rate limit reached for gpt-5-mini",
                41,
                now - 70,
                now - 4,
            )
        ]
    )
    config = {
        "dims": {"requests_per_minute": [80.0, 80.0, 1.0, 80.0]},
        "margin": 1.0,
        "slope": [1.0, 1.0, None],
    }
    client.sadd("penstock:quotas", "openai", "anthropic")
    client.hset(
        "penstock:{q:openai}",
        mapping={"config": json.dumps(config), "n": "18230", "x:throttled": "41", "bs": "0"},
    )
    client.hset(
        "penstock:{q:anthropic}",
        mapping={
            "config": json.dumps(config),
            "n": "912",
            "x:failed": "3",
            "hold": "out_of_money",
            "hat": str(int((now - 900) * 1e6)),
        },
    )


ARGUMENTS = ("--no-sandbox", "--headless=new", "--disable-gpu", "--disable-dev-shm-usage")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Raises MissingServer where there is none."""
    path = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if path is None:
        raise MissingServer("there is no Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()
