"""Results in gs:// and az:// by obstore, beside its own store in memory, which knows conditions as
both services do."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import orjson
import pytest
from obstore.store import MemoryStore

from penstock_ledger import Database, JobStore, OutcomeStore, open_database
from penstock_ledger.model import ItemKey, Job, NewJob, Result
from penstock_producer import parts as growing_module
from penstock_producer.bucket import stores
from penstock_producer.bucket.place import ABSENT, NotThere
from penstock_producer.bucket.stores import StoreBucket, StoreWriter
from penstock_producer.errors import SinkError, SinkTaken
from penstock_producer.outputs import probe_sink
from penstock_producer.parts import RESULTS_MIN, GrowingOutput
from penstock_producer.tables.reading import Lines

pytestmark = pytest.mark.parametrize("scheme", ["gs", "az"])


class House:
    """A job in a ledger, and a bucket."""

    def __init__(self, scheme: str, folder: Path) -> None:
        self.store = MemoryStore()
        self.place = StoreBucket(scheme, "results", "runs/job_1", self.store)
        self.database: Database = open_database(f"sqlite:///{folder}/ledger.db")
        self.database.migrate()
        new = NewJob(
            "job_1",
            "night",
            {"endpoint": "/v1/chat/completions"},
            {"kind": "spool"},
            "digest",
            None,
        )
        self.job: Job = JobStore(self.database).create(new)[0]
        self.results = 0

    def settle(self, number: int) -> None:
        keys = [ItemKey("job_1", 1, f"d{self.results + one}") for one in range(number)]
        made = [Result(key, 200, b'{"a":1}', None, "m", "stop", 1, 1, 0, 1, 1, 1) for key in keys]
        OutcomeStore(self.database).settle(made, [])
        self.results += number

    def leader(self) -> GrowingOutput:
        return GrowingOutput(self.place, self.database, self.job, conditional=True)

    def objects(self) -> dict[str, bytes]:
        names = [str(meta["path"]) for page in obstore.list(self.store) for meta in page]
        return {
            name.removeprefix("runs/job_1/"): bytes(obstore.get(self.store, name).bytes())
            for name in names
        }


@pytest.fixture
def house(scheme: str, tmp_path: Path) -> Iterator[House]:
    made = House(scheme, tmp_path)
    yield made
    made.database.close()


def test_conditions_are_probed_and_hold(house: House) -> None:
    """An object that must not be there, or must be the one that was read, is not replaced; the
    probe leaves nothing."""
    assert house.place.takes_conditions()
    assert house.objects() == {}
    first = house.place.put("a", b"1", condition=ABSENT, metadata={"penstock-job": "job_1"})
    with pytest.raises(SinkTaken, match="written by another process"):
        house.place.put("a", b"2", condition=ABSENT)
    house.place.put("a", b"3", condition={"IfMatch": first})
    with pytest.raises(SinkTaken):
        house.place.put("a", b"4", condition={"IfMatch": first})
    found = house.place.read("a")
    assert found is not None
    assert found[0] == b"3"
    assert house.place.head("b") is None
    assert house.place.read("b") is None
    house.place.delete("b")


def test_a_large_object_appears_when_it_is_whole(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small ones are one request, larger ones go in parts, with what is noted of them; a discarded
    one was never there."""
    monkeypatch.setattr(stores, "PART_BYTES", 100_000)
    monkeypatch.setattr(stores, "SENT_BYTES", 7_000)
    lines = [os.urandom(1_000) for _ in range(350)]
    writer = StoreWriter(
        house.place, "output.jsonl", metadata={"penstock-job": "job_1"}, condition=ABSENT
    )
    for line in lines:
        writer.write(line)
    writer.finish()
    assert house.objects() == {}
    assert writer.publish() == house.place.uri("output.jsonl")
    assert house.objects() == {"output.jsonl": b"".join(lines)}
    there = house.place.head("output.jsonl")
    assert there is not None
    assert (there.etag, there.metadata) == (writer.etag, {"penstock-job": "job_1"})
    again = StoreWriter(house.place, "output.jsonl", condition=ABSENT)
    for line in lines:
        again.write(line)
    again.finish()
    with pytest.raises(SinkTaken):
        again.publish()
    dropped = StoreWriter(house.place, "dropped")
    for line in lines:
        dropped.write(line)
    dropped.discard()
    assert set(house.objects()) == {"output.jsonl"}
    copy = StoreWriter(house.place, "copy")
    with pytest.raises(NotThere):
        copy.append("output.jsonl", "another", len(b"".join(lines)))
    monkeypatch.setattr(stores, "PARTS_MAX", 2)
    with pytest.raises(SinkError, match="more than 2 parts"):
        copy.write(b"".join(lines))


def test_parts_become_one_object_while_two_lead(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts are there before the job ends; of two leaders one stops; the object has all results
    once, and making it again is no work."""
    monkeypatch.setattr(stores, "CHUNK_BYTES", 5_000)
    monkeypatch.setattr(growing_module, "PART_BYTES_MAX", 100_000)
    house.settle(RESULTS_MIN)
    first, second = house.leader(), house.leader()
    first.grow(house.results)
    second.grow(house.results)
    house.settle(RESULTS_MIN)
    first.grow(house.results)
    with pytest.raises(SinkTaken):
        second.grow(house.results)
    index = orjson.loads(house.objects()["parts.json"])
    assert [part["results"] for part in index["parts"]] == [RESULTS_MIN, RESULTS_MIN]
    assert sum(name.startswith("parts/") for name in house.objects()) == 2, "the loser's is gone"
    house.settle(30)
    wanted = b"".join(Lines(house.database, house.job))
    assert first.complete(house.results, keep=False) == house.place.uri("output.jsonl")
    assert house.objects() == {"output.jsonl": wanted}
    was = house.place.head("output.jsonl")
    second.complete(house.results, keep=False)
    assert house.place.head("output.jsonl") == was


def test_a_part_that_was_changed_is_not_used(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """The whole is then written from the ledger, and the log says why."""
    leader = house.leader()
    house.settle(RESULTS_MIN)
    leader.grow(house.results)
    part = orjson.loads(house.objects()["parts.json"])["parts"][0]["name"]
    house.place.put(part, b"changed")
    leader.complete(house.results, keep=False)
    assert house.objects() == {"output.jsonl": b"".join(Lines(house.database, house.job))}
    assert "written from the ledger" in caplog.text


def test_what_a_store_refuses_is_explained(
    house: House, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing bucket, missing rights and a missing answer each name the object and what to do."""
    from obstore import exceptions

    def fails(error: BaseException) -> Any:
        def put(*_: object, **__: object) -> Any:
            raise error

        return put

    for error, said in (
        (
            FileNotFoundError("The specified bucket does not exist"),
            "there is no bucket 'results'; create it",
        ),
        (
            exceptions.PermissionDeniedError("403"),
            "the credentials may not; grant the role Storage",
        ),
        (
            exceptions.GenericError("timed out\nmore"),
            "timed out; check the endpoint, the account and the credentials",
        ),
    ):
        monkeypatch.setattr(obstore, "put", fails(error))
        with pytest.raises(
            SinkError, match=f"cannot write {scheme}://results/runs/job_1/a: {said}"
        ):
            house.place.put("a", b"")
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SinkError, match="Account must be specified"):
        probe_sink("az://results/out")
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(SinkError, match=r"pip install penstock\[stores\]"):
        probe_sink(f"{scheme}://results/out")
