"""The stand-in for a bucket, by the client that Penstock asks buckets with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock_cli.chaos.bucket import CREDENTIALS, Bucket, Failing
from penstock_producer.bucket.place import ABSENT, Place
from penstock_producer.bucket.stores import writer_of
from penstock_producer.errors import SinkError, SinkTaken
from penstock_producer.storage import bucket_at

PART_BYTES = 9_000_000  # more than a writer holds, so that it is sent as a part


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("penstock_producer.bucket.s3.TRIES", 1)  # the client's own take seconds
    with Bucket() as bucket:
        yield bucket


@pytest.fixture
def place(bucket: Bucket) -> Place:
    return bucket_at(f"{bucket.results}/job", s3_endpoint_url=bucket.url)


def test_it_keeps_objects_as_a_bucket_does(place: Place) -> None:
    """Whole objects and parts, ranges and metadata, names of any letters, and unfinished uploads
    that can be ended."""
    assert place.put("é ü+.txt", b"one") == place.head("é ü+.txt").etag  # type: ignore[union-attr]
    writer = writer_of(place, "large", metadata={"job": "j"})
    for letter in (b"a", b"b"):
        writer.write(letter * PART_BYTES)
    writer.finish()
    writer.publish()
    head = place.head("large")
    assert head is not None
    assert (head.etag, head.metadata) == (writer.etag, {"job": "j"})
    middle = b"".join(place.chunks("large", head.etag, PART_BYTES - 2, PART_BYTES + 2))
    assert middle == b"aabb"
    assert sorted(place.names("")) == ["large", "é ü+.txt"]
    begun = writer_of(place, "begun")
    begun.write(b"c" * PART_BYTES)
    assert (place.abort_uploads("begun"), place.abort_uploads("begun")) == (1, 0)
    place.delete("large")
    assert place.read("large") is None


def test_conditions_hold(place: Place) -> None:
    """What is to be new replaces nothing, and what is to replace an object replaces that one."""
    assert place.takes_conditions()
    etag = place.put("index", b"1", condition=ABSENT)
    with pytest.raises(SinkTaken):
        place.put("index", b"2", condition=ABSENT)
    place.put("index", b"2", condition={"IfMatch": etag})
    with pytest.raises(SinkTaken):
        place.put("index", b"3", condition={"IfMatch": etag})


def test_it_fails_as_it_is_bidden(bucket: Bucket, place: Place) -> None:
    """Refused requests do nothing; others are done, and the caller hears of a failure."""
    with bucket.made(Failing.BUSY), pytest.raises(SinkError, match="SlowDown"):
        place.put("one", b"1")
    assert place.read("one") is None
    with bucket.made(Failing.DONE), pytest.raises(SinkError, match="InternalError"):
        place.put("one", b"1")
    assert (place.read("one") or (b"",))[0] == b"1"
    assert bucket.failed == 2
