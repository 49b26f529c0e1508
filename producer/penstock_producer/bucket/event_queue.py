"""A queue of SQS, or of a server with its API, that a bucket sends its notifications to.

boto3 is imported when the first message is asked for: it is an extra (`pip install penstock[s3]`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from penstock_producer.bucket.connect import connected
from penstock_producer.errors import SourceError, SourceUnavailable

__all__ = ["EventQueue", "Message", "is_queue_url"]

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
        """Some of those that wait; none when the queue is empty."""
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
        """They are dealt with. One that the queue keeps comes again, which changes nothing."""
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
    """Whether this may be the URL of a queue; one with a password is refused, since schedules are
    shown."""
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
