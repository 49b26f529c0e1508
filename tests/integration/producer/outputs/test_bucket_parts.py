"""Results in a bucket while their job runs: part objects, their index, and the object that is made
of them, over real HTTP."""

from __future__ import annotations

import contextlib
import random
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest
from botocore.exceptions import ConnectionClosedError
from servers import S3Server

from penstock_ledger import Database, JobStore, OutcomeStore, open_database
from penstock_ledger.model import ItemKey, Job, NewJob, Result
from penstock_producer import parts as growing_module
from penstock_producer.bucket import s3 as writer_module
from penstock_producer.bucket.s3 import COPIED_BYTES_MIN, Bucket
from penstock_producer.errors import SinkError, SinkTaken
from penstock_producer.parts import RESULTS_MIN, SHARE, GrowingOutput, Index, Part
from penstock_producer.tables.reading import Lines

PREFIX = "runs/job_1"
WRITES = frozenset(
    {
        "put_object",
        "create_multipart_upload",
        "upload_part",
        "upload_part_copy",
        "complete_multipart_upload",
        "abort_multipart_upload",
        "delete_object",
    }
)


class Killed(BaseException):
    """kill -9: nothing of the process runs after it."""


class Client:
    """A client of S3 that counts its requests, and whose process may die behind one that changes
    something."""

    def __init__(
        self,
        client: Any,
        *,
        dies_at: int = 0,
        loses_at: int = 0,
        is_told: bool = False,
        without: frozenset[str] = frozenset(),
    ) -> None:
        """``loses_at``: the change whose answer is lost. boto3 asks again by itself then, unless
        the answers to all its tries are lost, which its caller ``is_told``."""
        self._client = client
        self._dies_at, self._without = dies_at, without
        self._loses_at, self._is_told = loses_at, is_told
        self.asked: Counter[str] = Counter()
        self.dead = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        def ask(**given: Any) -> Any:
            if self.dead:
                raise Killed
            self.asked[name] += 1
            writes = sum(number for asked, number in self.asked.items() if asked in WRITES)
            answer = method(
                **{field: value for field, value in given.items() if field not in self._without}
            )
            self.dead = name in WRITES and writes == self._dies_at
            if self.dead:
                raise Killed
            if name in WRITES and writes == self._loses_at:
                if self._is_told:
                    raise ConnectionClosedError(endpoint_url="s3")
                return method(**given)
            return answer

        return ask


class House:
    """A job in a ledger, and a bucket."""

    def __init__(self, server: S3Server, folder: Path) -> None:
        self.client = server.client()
        self.name = f"parts-{uuid4().hex[:12]}"
        self.client.create_bucket(Bucket=self.name)
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
        self._random = random.Random(7)

    def settle(self, number: int, size: int = 20) -> None:
        bodies = [b64encode(self._random.randbytes(size)).decode() for _ in range(number)]
        made = [
            Result(
                ItemKey("job_1", 1, f"d{self.results + n}"),
                200,
                orjson.dumps({"a": text}),
                None,
                "m",
                "stop",
                1,
                1,
                0,
                1,
                1,
                1,
            )
            for n, text in enumerate(bodies)
        ]
        OutcomeStore(self.database).settle(made, [])
        self.results += number

    def leader(self, client: Any = None, *, conditional: bool = True) -> GrowingOutput:
        bucket = Bucket(client or self.client, self.name, PREFIX)
        return GrowingOutput(bucket, self.database, self.job, conditional=conditional)

    def bucket(self, client: Any = None) -> Bucket:
        return Bucket(client or self.client, self.name, PREFIX)

    def lines(self) -> bytes:
        return b"".join(Lines(self.database, self.job))

    def objects(self) -> dict[str, bytes]:
        listed = self.client.list_objects_v2(Bucket=self.name).get("Contents", [])
        keys = [entry["Key"] for entry in listed]
        read = {
            key: self.client.get_object(Bucket=self.name, Key=key)["Body"].read() for key in keys
        }
        return {key.removeprefix(f"{PREFIX}/"): body for key, body in read.items()}

    def unfinished(self) -> list[Any]:
        uploads: list[Any] = self.client.list_multipart_uploads(Bucket=self.name).get("Uploads", [])
        return uploads


@pytest.fixture
def house(s3_server: S3Server, tmp_path: Path) -> Iterator[House]:
    made = House(s3_server, tmp_path)
    yield made
    made.database.close()


def test_results_are_in_the_bucket_before_the_job_ends(house: House) -> None:
    """Parts in the order of commits, none smaller than the least; the index says which count, and
    no PUT is for less than 200."""
    client = Client(house.client)
    leader = house.leader(client)
    for _ in range(12):
        house.settle(150)
        leader.grow(house.results)
    objects = house.objects()
    index = orjson.loads(objects["parts.json"])
    assert [part["results"] for part in index["parts"]] == [450] * 4
    assert b"".join(objects[part["name"]] for part in index["parts"]) == house.lines()
    assert index["results"] == 1_800
    assert client.asked["put_object"] <= 1_800 / 200


def test_the_number_of_parts_is_bounded() -> None:
    """Each part is a share of all before it, so that their number grows with the logarithm of the
    job's size."""
    index = Index("job_1")
    while index.results < 100_000_000:
        more = max(RESULTS_MIN, index.results // SHARE)
        assert not index.is_due(index.results + more - 1)
        assert index.is_due(index.results + more)
        index = Index("job_1", (*index.parts, Part("parts/x", more, 1_000, "e")))
    assert len(index.parts) < 600


def test_one_object_is_made_of_the_parts(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large parts are copied by the store, small ones and the rest go through this process; the
    parts then go."""
    client = Client(house.client)
    leader = house.leader(client)
    for size in (20, 12_000, 20, 12_000, 12_000):  # some kilobytes, or 7 MB
        house.settle(RESULTS_MIN, size)
        leader.grow(house.results)
    house.settle(30)
    parts = [part["bytes"] for part in orjson.loads(house.objects()["parts.json"])["parts"]]
    assert [size > COPIED_BYTES_MIN for size in parts] == [False, True, False, True, True]
    before = client.asked.copy()
    assert leader.complete(house.results, keep=False) == f"s3://{house.name}/{PREFIX}/output.jsonl"
    assert client.asked["upload_part_copy"] == 2, (
        "of the first large one the rest would be too small for a part"
    )
    assert client.asked["upload_part"] - before["upload_part"] <= 4
    assert house.objects() == {"output.jsonl": house.lines()}
    assert house.unfinished() == []


def test_parts_may_stay(house: House) -> None:
    """With `keep` the parts and their index are there beside the whole, and a part that does not
    count goes."""
    leader = house.leader()
    house.settle(500)
    leader.grow(house.results)
    house.client.put_object(Bucket=house.name, Key=f"{PREFIX}/parts/000002-left.jsonl", Body=b"{}")
    leader.complete(house.results, keep=True)
    objects = house.objects()
    assert set(objects) == {
        "output.jsonl",
        "parts.json",
        orjson.loads(objects["parts.json"])["parts"][0]["name"],
    }


@pytest.fixture
def small_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """A store that takes parts of some kilobytes, and a writer that sends such."""
    monkeypatch.setenv("S3_UPLOAD_PART_MIN_SIZE", "20000")
    monkeypatch.setattr(writer_module, "COPIED_BYTES_MIN", 20_000)
    monkeypatch.setattr(writer_module, "PART_BYTES", 100_000)
    monkeypatch.setattr(growing_module, "PART_BYTES_MAX", 150_000)
    server = S3Server.start()
    made = House(server, tmp_path)
    yield made
    made.database.close()
    server.stop()


def test_a_process_may_die_between_any_two_steps(small_parts: House) -> None:
    """Whatever change is its last: the next process ends with the same bytes, without a part and
    without an open upload."""
    house = small_parts
    house.settle(4 * RESULTS_MIN)

    def work(client: Any) -> None:
        leader = house.leader(client)
        leader.grow(house.results - 50)
        leader.complete(house.results, keep=False)

    whole = Client(house.client)
    work(whole)
    steps = sum(number for name, number in whole.asked.items() if name in WRITES)
    wanted = house.lines()
    assert house.objects() == {"output.jsonl": wanted}
    assert whole.asked["upload_part_copy"] == 2
    assert whole.asked["upload_part"] >= 3
    for dies_at in range(1, steps + 1):
        house.client.delete_object(Bucket=house.name, Key=f"{PREFIX}/output.jsonl")
        with pytest.raises(Killed):
            work(Client(house.client, dies_at=dies_at))
        work(house.client)
        assert house.objects() == {"output.jsonl": wanted}, dies_at
        assert house.unfinished() == [], dies_at


@pytest.mark.parametrize(
    "is_told",
    [
        pytest.param(False, id="boto3 asks again"),
        pytest.param(True, id="it gives up", marks=pytest.mark.whole),
    ],
)
def test_a_change_that_is_not_answered_is_made_once(
    small_parts: House, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever change it is, each index names parts that are there, and the control loop, which
    comes again after a failure, ends with the same bytes, once."""
    house = small_parts
    house.settle(4 * RESULTS_MIN)
    wanted = house.lines()

    def work(client: Any) -> None:
        leader, is_done = house.leader(client), False
        for step in (
            lambda: leader.grow(house.results - 50),
            lambda: leader.complete(house.results, keep=True),
        ):
            for _ in range(2):
                with contextlib.suppress(SinkError):
                    step()
                    is_done = True
                    break
            else:
                is_done = False
            check_index(house)
        assert is_done, "it has come to an end at its second try"

    whole = Client(house.client)
    work(whole)
    steps = sum(number for name, number in whole.asked.items() if name in WRITES)
    assert whole.asked.keys() >= {"put_object", "complete_multipart_upload", "upload_part_copy"}
    number = len(house.objects()) - 2
    assert number > 1
    for loses_at in range(1, steps + 1):
        for name in house.objects():
            house.client.delete_object(Bucket=house.name, Key=f"{PREFIX}/{name}")
        work(Client(house.client, loses_at=loses_at, is_told=is_told))
        objects = house.objects()
        assert objects.pop("output.jsonl") == wanted, loses_at
        parts = [part["name"] for part in orjson.loads(objects.pop("parts.json"))["parts"]]
        assert sorted(objects) == sorted(parts), loses_at
        # none where the whole could not be made of them at the first try
        assert len(parts) in (number, 0), loses_at
        # who comes next ends what was begun twice
        house.leader().complete(house.results, keep=True)
        assert house.unfinished() == [], loses_at


def check_index(house: House) -> None:
    """Every part that the index names is there, as it was written."""
    objects = house.objects()
    for part in orjson.loads(objects.get("parts.json", b'{"parts": []}'))["parts"]:
        assert len(objects.get(part["name"], b"")) == part["bytes"], "the index names a part"


def test_of_two_leaders_one_stops(house: House) -> None:
    """The one that was overtaken writes neither a part that counts nor another whole, and then goes
    on from the other's."""
    house.settle(RESULTS_MIN)
    first, second = house.leader(), house.leader()
    first.grow(RESULTS_MIN)
    second.grow(RESULTS_MIN)
    house.settle(RESULTS_MIN)
    first.grow(house.results)
    house.settle(100)
    with pytest.raises(SinkTaken):
        second.grow(house.results)
    assert len(orjson.loads(house.objects()["parts.json"])["parts"]) == 2
    assert sum(name.startswith("parts/") for name in house.objects()) == 2, "the loser's is gone"
    head = house.bucket().head

    class Late(Bucket):
        def head(self, name: str) -> Any:
            return None  # it looked before the other one had written

    late = GrowingOutput(
        Late(house.client, house.name, PREFIX), house.database, house.job, conditional=True
    )
    first.complete(house.results, keep=True)
    was = head("output.jsonl")
    with pytest.raises(SinkTaken):
        late.complete(house.results, keep=True)
    second.complete(house.results, keep=True)
    assert head("output.jsonl") == was
    assert house.objects()["output.jsonl"] == house.lines()


def test_conditions_are_probed(house: House) -> None:
    """A store that refuses is another kind than one that does not know the header, and the probe
    leaves nothing."""
    deaf = Client(house.client, without=frozenset({"IfNoneMatch", "IfMatch"}))
    assert house.bucket().takes_conditions()
    assert not house.bucket(deaf).takes_conditions()
    assert house.objects() == {}


def test_a_store_without_conditions_has_whole_results_all_the_same(house: House) -> None:
    """Two leaders replace each other's index; each index is whole by itself, and so is what is made
    of it."""
    house.settle(RESULTS_MIN)
    first, second = house.leader(conditional=False), house.leader(conditional=False)
    first.grow(RESULTS_MIN)
    second.grow(RESULTS_MIN)
    for leader in (first, second, first):
        house.settle(RESULTS_MIN)
        leader.grow(house.results)
    first.complete(house.results, keep=False)
    second.complete(house.results, keep=False)
    assert house.objects() == {"output.jsonl": house.lines()}


def test_parts_that_were_lost_are_not_needed(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a part was deleted or changed, the whole is written from the ledger, and the log says
    why."""
    leader = house.leader()
    house.settle(RESULTS_MIN, 12_000)
    leader.grow(house.results)
    name = orjson.loads(house.objects()["parts.json"])["parts"][0]["name"]
    house.client.put_object(Bucket=house.name, Key=f"{PREFIX}/{name}", Body=b"changed")
    leader.complete(house.results, keep=False)
    assert house.objects() == {"output.jsonl": house.lines()}
    assert "written from the ledger" in caplog.text


def test_a_small_job_is_one_object(house: House) -> None:
    """Fewer results than a part has are written at the end, by one PUT."""
    client = Client(house.client)
    leader = house.leader(client)
    house.settle(RESULTS_MIN - 1)
    leader.grow(house.results)
    leader.complete(house.results, keep=False)
    assert client.asked["put_object"] == 1
    assert house.objects() == {"output.jsonl": house.lines()}


def test_a_replay_is_added_at_its_end(house: House) -> None:
    """A job that was complete gets no parts again: what a replay adds is in the object once it has
    ended, too."""
    leader = house.leader()
    house.settle(RESULTS_MIN)
    leader.complete(house.results, keep=False)
    again = house.leader()
    house.settle(RESULTS_MIN)
    again.grow(house.results)
    assert set(house.objects()) == {"output.jsonl"}
    again.complete(house.results, keep=False)
    assert house.objects() == {"output.jsonl": house.lines()}


def test_an_index_of_something_else_is_not_followed(house: House) -> None:
    """What lies in its place and is none is named, with what to do."""
    house.client.put_object(Bucket=house.name, Key=f"{PREFIX}/parts.json", Body=b"[]")
    with pytest.raises(SinkError, match=r"parts\.json is no index of parts .*remove it"):
        house.leader().grow(RESULTS_MIN)
