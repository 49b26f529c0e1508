"""The ledger among several processes, one of which may die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock_ledger import Database, ItemKey, JobStore, NewJob, OutcomeStore, Result, open_database

SETTLE = """
import sys
from penstock_ledger import ItemKey, OutcomeStore, Result, open_database
url, writer, batches = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = OutcomeStore(open_database(url))
def result(n):
    return Result(ItemKey("job-a", 1, f"doc-{n}"), 200, b"{}", None, writer, None, 1, 1, 1, 1, 1, 1)
won = 0
for batch in range(batches):
    mine = [result(batch * 50 + n) for n in range(100)]  # half of each batch overlaps the next one
    won += len(mine) - len(store.settle(mine, []))
    print(batch, won, flush=True)
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    found: str = request.getfixturevalue("migrated_url")
    return found


@pytest.fixture
def db(url: str) -> Iterator[Database]:
    database = open_database(url)
    database.migrate()
    JobStore(database).create(NewJob("job-a", "job-a", {}, {}, "d", None))
    yield database
    database.close()


def writer(url: str, name: str, batches: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", SETTLE, url, name, str(batches)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_processes_that_settle_the_same_items_share_them(url: str, db: Database) -> None:
    """The wins of all processes add up to the items: none is won twice, none is lost, and no
    process fails."""
    writers = [writer(url, f"w{n}", 20) for n in range(3)]
    wins = 0
    for process in writers:
        out, err = process.communicate()
        assert process.returncode == 0, err.decode()
        wins += int(out.split()[-1])
    counts = OutcomeStore(db).counts("job-a")
    assert counts.succeeded == wins == 19 * 50 + 100
    assert counts == OutcomeStore(db).recount("job-a")


def test_what_a_killed_process_reported_is_there(url: str, db: Database) -> None:
    """After kill -9 in the middle of its commits, each batch that settle returned for is stored,
    whole."""
    process = writer(url, "w", 100_000)
    assert process.stdout is not None
    assert process.stderr is not None
    for _ in range(10):
        process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    rest = process.stdout.read().split(b"\n")
    process.communicate()
    reported = max([9, *(int(line.split()[0]) for line in rest if line.count(b" ") == 1)])
    store = OutcomeStore(db)
    expected = {ItemKey("job-a", 1, f"doc-{n}") for n in range(reported * 50 + 100)}
    assert store.terminal(expected) == expected
    counts = store.counts("job-a")
    assert counts == store.recount("job-a")
    assert counts.succeeded % 50 == 0
    late = Result(ItemKey("job-a", 1, "after"), 200, b"", None, None, None, 0, 0, 0, 0, 1, 1)
    assert store.settle([late], []) == set()
