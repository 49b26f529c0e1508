"""Long proofs of `/v1/batches`: 50,000 lines, and a door that is killed in every state that it
shows."""

from __future__ import annotations

import contextlib
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from batch_door import BatchDoor, batch_door, chat, door_of_fleet, read, settings_for
from fleet import Fleet, until

from penstock_ledger import DoorBatchStore, open_database

pytestmark = pytest.mark.long


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path / "fleet") as fleet:
        fleet.provider.start("--latency-ms", "20", "--latency-sigma", "0")
        fleet.control()
        fleet.ready(fleet.worker(128))
        yield fleet


def test_fifty_thousand_lines(fleet: Fleet) -> None:
    """As many as OpenAI takes: each answered once, with counts that only grow."""
    with batch_door(fleet) as doors, doors.client() as client:
        began = time.monotonic()
        batch = doors.create(client, (chat(n) for n in range(50_000)))
        doors.wait(client, batch.id, {"in_progress"}, 120)
        print(f"validated after {time.monotonic() - began:.1f} s")
        ended = doors.wait(client, batch.id, timeout_s=900)
        print(f"ended after {time.monotonic() - began:.1f} s: {ended.to_dict()}")
        assert ended.status == "completed"
        done = [
            one.request_counts.completed
            for one in doors.seen[batch.id]
            if one.request_counts is not None
        ]
        assert done == sorted(done)
        assert {one["custom_id"] for one in read(client, ended.output_file_id)} == {
            f"doc-{n}" for n in range(50_000)
        }


@pytest.mark.parametrize("state", ["validating", "in_progress", "finalizing", "cancelling"])
def test_a_door_that_is_killed_goes_on(fleet: Fleet, state: str) -> None:
    """Killed with SIGKILL as soon as a batch shows a state; another door brings it to its end: each
    line once."""
    settings, lines = settings_for(fleet), 3_000
    database = open_database(fleet.database_url)
    store = DoorBatchStore(database)
    process = door_of_fleet(fleet, settings)
    doors = BatchDoor(fleet, f"http://127.0.0.1:{settings.gateway.port}", settings)
    until(lambda: answers(doors.url), 30, "the door answers")
    with doors.client() as client, fleet.explained():
        batch = doors.create(client, (chat(n) for n in range(lines)))
        if state == "cancelling":
            doors.wait(client, batch.id, {"in_progress"})
            client.batches.cancel(batch.id)
        until(lambda: state == store.get(batch.id).state, 120, f"the batch is {state}")  # type: ignore[union-attr]  # it is there
        process.kill()
        door_of_fleet(fleet, settings)
        until(lambda: answers(doors.url), 30, "the next door answers")
        ended = doors.wait(client, batch.id, timeout_s=120)
        assert ended.status == ("cancelled" if state == "cancelling" else "completed")
        found = read(client, ended.output_file_id) + read(client, ended.error_file_id)
        assert len(found) == lines
        assert {one["custom_id"] for one in found} == {f"doc-{n}" for n in range(lines)}
        listed = [file.id for file in client.files.list(purpose="batch_output")]
        assert set(listed) == {ended.output_file_id, ended.error_file_id} - {None}
        calls = fleet.provider.calls()
        assert calls.total() == len(calls), "a line was asked twice"
    database.close()


def answers(url: str) -> bool:
    with contextlib.suppress(urllib.error.URLError, OSError):
        urllib.request.urlopen(f"{url}/livez")
        return True
    return False
