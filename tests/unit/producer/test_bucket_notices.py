"""Notifications of buckets: what each record is to a watched place, whatever the body is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock_producer.schedules.events import (
    NAME_MAX_BYTES,
    NOTICE_MAX_BYTES,
    RECORDS_MAX,
    Place,
    is_queue_url,
    read_notice,
)

HERE = Place("s3://corpora/in/", "*.jsonl")


def record(
    key: str = "in/a.jsonl", event: str = "ObjectCreated:Put", bucket: str = "corpora"
) -> dict[str, Any]:
    """As S3 sends it, with what is read of it."""
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventName": event,
        "s3": {
            "bucket": {"name": bucket},
            "object": {"key": key, "size": 7, "eTag": "x", "sequencer": "00"},
        },
    }


def s3(*records: Any) -> str:
    return json.dumps({"Records": list(records)})


def bridge(key: str = "in/a.jsonl", kind: str = "Object Created") -> str:
    detail = {"bucket": {"name": "corpora"}, "object": {"key": key}}
    return json.dumps({"version": "0", "detail-type": kind, "source": "aws.s3", "detail": detail})


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (s3(record()), "noticed"),
        (s3(record(event="s3:ObjectCreated:CompleteMultipartUpload")), "noticed"),
        (
            json.dumps(
                {
                    "EventName": "s3:ObjectCreated:Put",
                    "Key": "corpora/in/a.jsonl",
                    "Records": [record()],
                }
            ),
            "noticed",
        ),
        (json.dumps({"Type": "Notification", "Message": s3(record())}), "noticed"),
        (bridge(), "noticed"),
        (s3(record(event="ObjectRemoved:Delete")), "deleted"),
        (bridge(kind="Object Deleted"), "deleted"),
        (s3(record(event="ObjectTagging:Put")), "other"),
        (s3(record(event="ObjectRestore:Post")), "other"),
        (
            json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "corpora"}),
            "test",
        ),
        (s3(record("out/a.jsonl")), "elsewhere"),
        (s3(record(bucket="others")), "elsewhere"),
        (s3(record("in/a.csv")), "elsewhere"),
        (s3(record("in/sub/a.jsonl")), "elsewhere"),
        (s3(record("in/_temporary.jsonl")), "elsewhere"),
        (s3(record("in/")), "elsewhere"),
    ],
)
def test_each_kind_of_record_has_a_name(body: str, outcome: str) -> None:
    """Of S3 and MinIO, inside SNS or not, and of EventBridge."""
    assert [one.outcome for one in read_notice(body, HERE)] == [outcome]
    assert [one.outcome for one in read_notice(body.encode(), HERE)] == [outcome]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "hello",
        "null",
        "[]",
        "7",
        "{}",
        '{"Records": []}',
        '{"Records": {}}',
        '{"Records": "x"}',
        "[" * 100_000,
        s3(None),
        s3([]),
        s3({}),
        s3({"eventName": "ObjectCreated:Put"}),
        s3(record() | {"eventName": 7}),
        s3(record() | {"s3": None}),
        s3(record(key="")),
        s3(record("in/\x00.jsonl")),
        s3(record("in/%00.jsonl")),
        s3(record("in/%ff%fe.jsonl")),
        s3(record("in/" + "a" * NAME_MAX_BYTES)),
        json.dumps({"Type": "Notification", "Message": "hello"}),
        json.dumps({"Type": "Notification", "Message": 7}),
        json.dumps(
            {
                "Type": "Notification",
                "Message": json.dumps({"Type": "Notification", "Message": s3(record())}),
            }
        ),
    ],
)
def test_hostile_bodies_are_unreadable(body: str) -> None:
    """Whatever comes, nothing is raised and no object is named."""
    assert [tuple(one) for one in read_notice(body, HERE)] == [("unreadable", "")]


def test_bodies_and_records_have_a_bound() -> None:
    """A body that is too long is not parsed, and one with too many records names nothing."""
    assert read_notice(" " * NOTICE_MAX_BYTES + s3(record()), HERE)[0].outcome == "unreadable"
    assert [one.outcome for one in read_notice(s3(*[record()] * (RECORDS_MAX + 1)), HERE)] == [
        "unreadable"
    ]
    assert len(read_notice(s3(*[record()] * RECORDS_MAX), HERE)) == RECORDS_MAX


def test_names_are_decoded_as_their_sender_writes_them() -> None:
    """S3 writes a space as a plus and the rest in percent; EventBridge writes keys as they are."""
    assert read_notice(s3(record("in/a+b%2Bc%C3%A9.jsonl")), HERE)[0].name == "a b+cé.jsonl"
    assert read_notice(bridge("in/a+b%2Bc.jsonl"), HERE)[0].name == "a+b%2Bc.jsonl"


def test_one_bad_record_spoils_no_other() -> None:
    """Each record has its own outcome, in their order."""
    found = read_notice(s3(record(), {}, record("in/b.jsonl")), HERE)
    assert [tuple(one) for one in found] == [
        ("noticed", "a.jsonl"),
        ("unreadable", ""),
        ("noticed", "b.jsonl"),
    ]


@pytest.mark.parametrize(
    ("watched", "place"),
    [
        ("s3://corpora/in/", Place("s3://corpora/in/", "")),
        ("s3://corpora/in/*.jsonl", Place("s3://corpora/in/", "*.jsonl")),
        ("s3://corpora/", Place("s3://corpora/", "")),
        ("s3://corpora/in%20here/", Place("s3://corpora/in here/", "")),
        ("gs://corpora/in/", None),
        ("/data/in/", None),
        ("s3://corpora/in.jsonl", None),
    ],
)
def test_places_that_notify(watched: str, place: Place | None) -> None:
    """Prefixes and patterns of s3://, and nothing else."""
    assert Place.of(watched) == place


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("https://sqs.eu-central-1.amazonaws.com/123456789012/incoming", True),
        ("http://127.0.0.1:9324/000000000000/q", True),
        ("https://user:pass@sqs.eu-central-1.amazonaws.com/1/q", False),
        ("https://sqs.eu-central-1.amazonaws.com", False),
        ("file:///etc/passwd", False),
        ("arn:aws:sqs:eu-central-1:1:q", False),
        ("http://[", False),
    ],
)
def test_urls_of_queues(text: str, is_one: bool) -> None:
    """With a host and a name, and without a password, which a list of schedules would show."""
    assert is_queue_url(text) is is_one
