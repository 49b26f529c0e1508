"""Notifications of buckets: which files are new, without a listing of all.

They come from a queue of SQS, or of a server with its API, or through the HTTP door. boto3 is
imported when the first message is asked for: it is an extra (`penstock[s3]`).
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, unquote_plus, urlsplit

import orjson

from penstock_ledger import NoticedStore, Schedule
from penstock_producer.bucket.place import connected
from penstock_producer.errors import SourceError, SourceUnavailable
from penstock_producer.schedules.timetable import EVENTS, NEW_FILES, WEBHOOK
from penstock_producer.sources.listings.chosen import folder_and_pattern, matches
from penstock_producer.sources.listings.listing import is_data

__all__ = ["Message", "NoticeOutcome", "Place", "collect", "is_queue_url", "keep", "read_notice"]


TRIES: Final = 3  # of one request, boto3's own, with backoff
MESSAGES_AT_ONCE: Final = 10  # the most that SQS gives
LOOK_S: Final = 1  # that it waits for a message: at 0 it would ask some of its servers only
KEPT_S: Final = 60  # a message that was received and not removed comes again after this
_REGION: Final = re.compile(
    r"sqs[.-](?:fips\.)?([a-z]{2}(?:-[a-z]+)+-\d)\.|([a-z]{2}(?:-[a-z]+)+-\d)\.queue\."
)
_LASTING: Final = frozenset(
    {
        "AWS.SimpleQueueService.NonExistentQueue",
        "QueueDoesNotExist",
        "AccessDenied",
        "AccessDeniedException",
        "InvalidAddress",
        "InvalidClientTokenId",
        "SignatureDoesNotMatch",
    }
)


class Message(NamedTuple):
    body: str
    receipt: str


class EventQueue:
    """One queue.

    Raises SourceUnavailable where it does not answer, SourceError for what only an edit
    corrects."""

    def __init__(self, url: str) -> None:
        self._url = url
        parts = urlsplit(url)
        found = _REGION.search(parts.hostname or "")
        region = None if found is None else found[1] or found[2]
        try:
            self._client = connected(
                f"{parts.scheme}://{parts.netloc}", tries=TRIES, service="sqs", region=region
            )
        except ImportError as error:
            why = "reading a queue of SQS needs boto3 on this machine; `pip install penstock[s3]`"
            raise SourceUnavailable(why) from error
        except ValueError as error:  # botocore's: it cannot use the URL
            raise SourceError(
                "events_refused", f"the queue {url}: {error}; correct its URL"
            ) from error

    def receive(self) -> list[Message]:
        """Return some of the messages that wait; none when the queue is empty."""
        answer = self._tried(
            lambda: self._client.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=MESSAGES_AT_ONCE,
                WaitTimeSeconds=LOOK_S,
                VisibilityTimeout=KEPT_S,
            )
        )
        return [
            Message(str(one.get("Body", "")), str(one["ReceiptHandle"]))
            for one in answer.get("Messages", ())
        ]

    def remove(self, messages: Sequence[Message]) -> None:
        """Remove messages that are dealt with.

        One that the queue keeps comes again, which changes nothing.
        """
        if messages:
            entries = [
                {"Id": str(nth), "ReceiptHandle": one.receipt} for nth, one in enumerate(messages)
            ]
            self._tried(
                lambda: self._client.delete_message_batch(QueueUrl=self._url, Entries=entries)
            )

    def _tried(self, request: Callable[[], Any]) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return request()
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code"))
            said = f"the queue {self._url} answered {code}"
            if code in _LASTING:
                fix = "check its URL, and grant sqs:ReceiveMessage and sqs:DeleteMessage on it"
                raise SourceError("events_refused", f"{said}; {fix}") from error
            raise SourceUnavailable(f"{said} ({error})") from error
        except (BotoCoreError, OSError) as error:
            raise SourceUnavailable(
                f"the queue {self._url}: {error}; check its URL, and credentials"
            ) from error


def is_queue_url(text: str) -> bool:
    """Return whether this may be the URL of a queue.

    One with a password is refused, since schedules are shown.
    """
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    has_password = parts.username is not None or parts.password is not None
    return (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and len(parts.path) > 1
        and not has_password
    )


NOTICE_MAX_BYTES: Final = 1024 * 1024  # of one body: the most that SQS passes on
RECORDS_MAX: Final = 1_000  # of one body; S3 sends one
NAME_MAX_BYTES: Final = 1_024  # of an object's key, in S3


class NoticeOutcome(StrEnum):
    """The outcome of a record of a notification."""

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
    """The objects that a schedule watches: those below a prefix whose names match."""

    prefix: str  # s3://bucket/in/
    pattern: str  # of what follows it; empty for all

    @classmethod
    def of(cls, watched: str) -> Place | None:
        """Return a place; None for what is not in a bucket that sends such notifications."""
        parts = folder_and_pattern(watched)
        if parts is None or not watched.startswith("s3://"):
            return None
        return cls(f"{unquote(parts[0]).rstrip('/')}/", parts[1])

    def name(self, bucket: str, key: str) -> str | None:
        """Return an object's name below the prefix; None for one elsewhere."""
        whole = f"s3://{bucket}/{key}"
        name = whole.removeprefix(self.prefix)
        is_here = whole.startswith(self.prefix) and name and not name.endswith("/")
        return name if is_here and is_data(name) and matches(self.pattern, name) else None


class Notice(NamedTuple):
    """One record. ``name`` is empty unless the outcome is `noticed`."""

    outcome: NoticeOutcome
    name: str = ""


def read_notice(body: bytes | str, place: Place) -> list[Notice]:
    """Return what one body says, in its order. Raises nothing, whatever the body is."""
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


log = logging.getLogger(__name__)

# from a queue for one planned time: 2,000 messages; the rest waits there for the next one
RECEIVES_MAX: Final = 200
SHOWN_CHARS: Final = 200  # of a body that cannot be read, in the log


def keep(store: NoticedStore, schedule: Schedule, body: bytes | str) -> Mapping[NoticeOutcome, int]:
    """Keep what a body names for the schedule's next job; returns how many records came to what."""
    place = Place.of(str(schedule.source[NEW_FILES]))
    found = [Notice(NoticeOutcome.ELSEWHERE)] if place is None else read_notice(body, place)
    counts = Counter[NoticeOutcome](
        one.outcome for one in found if one.outcome is not NoticeOutcome.NOTICED
    )
    names = [one.name for one in found if one.outcome is NoticeOutcome.NOTICED]
    if names:
        noted = store.note(schedule.schedule_id, names)
        counts[NoticeOutcome.NOTICED] += len(noted.new)
        counts[NoticeOutcome.NO_ROOM] += len(noted.no_room)
        counts[NoticeOutcome.REPEATED] += len(names) - len(noted.new) - len(noted.no_room)
    return +counts


def collect(store: NoticedStore, schedule: Schedule) -> Mapping[NoticeOutcome, int]:
    """Empty the schedule's queue, where it has one.

    A message leaves it once what it names is kept, or can never be used.

    Raises SourceError and SourceUnavailable.
    """
    url = str(schedule.source[EVENTS])
    counts = Counter[NoticeOutcome]()
    if url == WEBHOOK:
        return counts
    queue = EventQueue(url)
    for _ in range(RECEIVES_MAX):
        if not store.has_room(schedule.schedule_id):
            break
        messages = queue.receive()
        if not messages:
            break
        done = []
        for message in messages:
            found = keep(store, schedule, message.body)
            counts.update(found)
            if NoticeOutcome.UNREADABLE in found:
                log.warning(
                    "schedule %s: a message of its queue is no notification of a bucket and is "
                    "removed: %.*r",
                    schedule.name,
                    SHOWN_CHARS,
                    message.body,
                )
            if NoticeOutcome.NO_ROOM not in found:
                done.append(message)
        queue.remove(done)
    return counts
