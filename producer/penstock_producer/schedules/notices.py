"""Notifications of a bucket, in the forms in which stores send them, and what each record of one is
to a watched place.

Understood are the events of S3 (as MinIO, Ceph and others send them too: `{"Records": [...]}`),
inside an SNS message or not, those of EventBridge (`"detail-type": "Object Created"`), and S3's
test event. Nothing in a notification is believed but the name of an object: whether it is there,
its size and its ETag are asked of the store when a job takes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, unquote_plus

import orjson

from penstock_producer.sources.listings.chosen import folder_and_pattern, matches
from penstock_producer.sources.listings.listing import is_data

__all__ = ["NoticeOutcome", "Place", "read_notice"]

NOTICE_MAX_BYTES: Final = 1024 * 1024  # of one body: the most that SQS passes on
RECORDS_MAX: Final = 1_000  # of one body; S3 sends one
NAME_MAX_BYTES: Final = 1_024  # of an object's key, in S3


class NoticeOutcome(StrEnum):
    """What came of a record of a notification."""

    NOTICED = "noticed"  # a new object of this place: the next job takes it
    REPEATED = "repeated"  # it was named before, and waits for the next job already
    # in another bucket, below another prefix, or its name does not match the pattern
    ELSEWHERE = "elsewhere"
    DELETED = "deleted"  # an object was removed: there is nothing to read
    OTHER = "other"  # tags, rights, a restore: no object came
    TEST = "test"  # S3's, when notifications are switched on
    UNREADABLE = "unreadable"  # not a notification, or one with a name that no object has
    NO_ROOM = "no_room"  # as many objects wait as may: send it again later


class Place(NamedTuple):
    """What a schedule watches: objects below a prefix whose names match."""

    prefix: str  # s3://bucket/in/
    pattern: str  # of what follows it; empty for all

    @classmethod
    def of(cls, watched: str) -> Place | None:
        """None for what is not in a bucket that sends such notifications."""
        parts = folder_and_pattern(watched)
        if parts is None or not watched.startswith("s3://"):
            return None
        return cls(f"{unquote(parts[0]).rstrip('/')}/", parts[1])

    def name(self, bucket: str, key: str) -> str | None:
        """An object's name below the prefix; None for one elsewhere."""
        whole = f"s3://{bucket}/{key}"
        name = whole.removeprefix(self.prefix)
        is_here = whole.startswith(self.prefix) and name and not name.endswith("/")
        return name if is_here and is_data(name) and matches(self.pattern, name) else None


class Notice(NamedTuple):
    """One record. ``name`` is empty unless the outcome is `noticed`."""

    outcome: NoticeOutcome
    name: str = ""


def read_notice(body: bytes | str, place: Place) -> list[Notice]:
    """What one body says, in its order. Raises nothing, whatever the body is."""
    given = _loads(body)
    if (
        isinstance(given, Mapping)
        and given.get("Type") == "Notification"
        and isinstance(given.get("Message"), str)
    ):
        given = _loads(given["Message"])  # SNS put it into a message of its own
    return list(_read(given, place))


def _loads(body: bytes | str) -> Any:
    if len(body) > NOTICE_MAX_BYTES:
        return None
    try:
        return orjson.loads(body)
    except ValueError:
        return None


def _read(given: Any, place: Place) -> Iterator[Notice]:
    match given:
        case {"Event": "s3:TestEvent"}:
            yield Notice(NoticeOutcome.TEST)
        case {"Records": list() as records} if 0 < len(records) <= RECORDS_MAX:
            for record in records:
                yield _of_s3(record, place)
        case {
            "detail-type": str() as kind,
            "detail": {"bucket": {"name": str() as bucket}, "object": {"key": str() as key}},
        }:
            yield _named(f"Object{kind.removeprefix('Object ')}:", bucket, key, place)
        case _:
            yield Notice(NoticeOutcome.UNREADABLE)


def _of_s3(record: Any, place: Place) -> Notice:
    match record:
        case {
            "eventName": str() as event,
            "s3": {"bucket": {"name": str() as bucket}, "object": {"key": str() as key}},
        }:
            try:
                return _named(
                    event.removeprefix("s3:"), bucket, unquote_plus(key, errors="strict"), place
                )
            except UnicodeDecodeError:
                pass
    return Notice(NoticeOutcome.UNREADABLE)


def _named(event: str, bucket: str, key: str, place: Place) -> Notice:
    if not 0 < len(key.encode()) <= NAME_MAX_BYTES or "\0" in key:
        return Notice(NoticeOutcome.UNREADABLE)
    if event.startswith(("ObjectRemoved:", "ObjectDeleted:")):
        return Notice(NoticeOutcome.DELETED)
    if not event.startswith("ObjectCreated:"):
        return Notice(NoticeOutcome.OTHER)
    name = place.name(bucket, key)
    return Notice(NoticeOutcome.ELSEWHERE) if name is None else Notice(NoticeOutcome.NOTICED, name)
