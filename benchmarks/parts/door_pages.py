"""(w) Pages of the dashboard over a ledger of JOBS jobs; one has a million outcomes, one in fifty
of them a dead letter.

Each page takes turns with a server that answers as many bytes and does nothing else
(harness/floor.py).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from urllib.parse import urlsplit

from sqlalchemy import insert

from benchmarks.harness.callers import Calls, get, medians, weighed
from benchmarks.harness.documents import doc_id
from benchmarks.harness.door import door
from benchmarks.harness.ground import floor, folder, redis_server
from benchmarks.harness.report import Report, Row
from penstock_ledger import Database, JobStore, OutcomeStore, open_database
from penstock_ledger.model import DeadLetter, ItemKey, NewJob, Result
from penstock_ledger.sql.tables import jobs, tallies

JOBS, ITEMS, ROUNDS = 10_000, 1_000_000, 7
QUICK_JOBS, QUICK_ITEMS, QUICK_ROUNDS = 2_000, 40_000, 2
# looks at a page in one round: the kernel counts CPU in hundredths of a second
EACH, BARE_EACH = (10, 100)
SETTLED = 5_000  # outcomes of a transaction
DEAD_EACH = 50
LARGE = "job_large"
STATES = ("completed", "running", "paused", "cancelled")
BODY = (
    b'{"id":"chatcmpl-0","choices":[{"index":0,"message":{"content":"%b"},"finish_reason":"stop"}]}'
    % (b"x" * 200)
)
REQUEST = b'{"model":"sim-small","messages":[{"role":"user","content":"%b"}]}' % (b"y" * 200)
PAGES = {
    "jobs": "/ui/jobs",
    "jobs, searched": "/ui/jobs?search=night-77",
    "jobs, of one state": "/ui/jobs?state=paused",
    "one job": f"/ui/jobs/{LARGE}",
    "its dead letters": f"/ui/jobs/{LARGE}/letters",
    "a sample of its answers": f"/ui/jobs/{LARGE}/answers",
    "spending": "/ui/spending",
}


def run(quick: bool) -> Report:
    number, items, rounds = (
        (QUICK_JOBS, QUICK_ITEMS, QUICK_ROUNDS) if quick else (JOBS, ITEMS, ROUNDS)
    )
    found: dict[str, tuple[list[Calls], list[Calls]]] = defaultdict(lambda: ([], []))
    with folder() as place, redis_server(place) as server, floor() as plain:
        database_url = f"sqlite:///{place / 'ledger.db'}"
        filled_s = _fill(database_url, number, items)
        floor_port = urlsplit(plain.url).port or 0
        with door(place, database_url, server.url) as (port, pid):
            for _ in range(rounds):
                for name, path in PAGES.items():
                    one = weighed(port, 1, EACH, get(path), (pid,))
                    found[name][0].append(one)
                    found[name][1].append(
                        weighed(floor_port, 1, BARE_EACH, get(f"/{one.size}"), (plain.pid,))
                    )
    return Report(
        f"(w) pages of the dashboard, {number:,} jobs, one of {items:,} documents, {rounds} "
        f"round(s) of {EACH}",
        [row for name, (ours, bare) in found.items() for row in _rows(name, ours, bare)],
        [f"the ledger was filled in {filled_s:.0f} s; a bare answer of as many bytes is beside"],
    )


def _fill(url: str, number: int, items: int) -> float:
    began = time.perf_counter()
    database = open_database(url)
    try:
        database.migrate()
        _add_jobs(database, number)
        JobStore(database).create(
            NewJob(LARGE, "large", {"endpoint": "/v1/chat/completions"}, {}, "", items)
        )
        outcomes = OutcomeStore(database)
        for first in range(0, items, SETTLED):
            places = range(first, min(first + SETTLED, items))
            outcomes.settle(
                [_result(place) for place in places if place % DEAD_EACH],
                [_letter(place) for place in places if not place % DEAD_EACH],
            )
    finally:
        database.close()
    return time.perf_counter() - began


def _add_jobs(database: Database, number: int) -> None:
    """Jobs of ten documents with their figures, without the documents themselves."""
    rows = [
        {
            "job_id": f"job_{place:06d}",
            "job_key": f"night-{place}",
            "spec": '{"endpoint":"/v1/chat/completions"}',
            "source": "{}",
            "digest": "",
            "state": STATES[place % len(STATES)],
            "generation": 1,
            "total": 10,
            "created_at": time.time() - number + place,
            "tenant": None,
        }
        for place in range(number)
    ]
    counted = [
        {
            "job_id": row["job_id"],
            "kind": "result",
            "reason": "",
            "shard": 0,
            "number": 8,
            "after_retry": 1,
            "calls": 9,
            "prompt_tokens": 960,
            "completion_tokens": 96,
            "cost_microusd": 40,
        }
        for row in rows
    ]
    database.write(lambda connection: connection.execute(insert(jobs), rows))
    database.write(lambda connection: connection.execute(insert(tallies), counted))


def _result(place: int) -> Result:
    key = ItemKey(LARGE, 1, doc_id(place))
    return Result(key, 200, BODY, "req_0", "sim-small", "stop", 120, 12, 5, 100 + place % 400, 1, 1)


def _letter(place: int) -> DeadLetter:
    said = f"Invalid value for 'max_tokens': {place} is above the limit of 4096"
    return DeadLetter(ItemKey(LARGE, 1, doc_id(place)), "http_400", 1, 1, said, 400, REQUEST, None)


def _rows(name: str, ours: list[Calls], bare: list[Calls]) -> Iterator[Row]:
    one, beside = medians(ours), medians(bare)
    yield Row(
        f"{name}, {one.size / 1024:.0f} KiB: CPU",
        f"{one.cpu_ms:.1f} ms",
        f"{beside.cpu_ms:.1f} ms bare",
        f"{one.cpu_ms / beside.cpu_ms:.0f}x" if beside.cpu_ms else "",
    )
    yield Row(
        f"{name}: p50, slowest",
        f"{one.p50_ms:.1f}, {one.p99_ms:.1f} ms",
        f"{beside.p50_ms:.1f} ms bare",
        f"{one.p50_ms / beside.p50_ms:.0f}x",
    )
