"""Schedules whose files are named by notifications of a bucket: moto's S3 and SQS over HTTP, which
notify as S3 does."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest
from night import DAY, ONE, Night
from servers import S3Server
from typer.testing import CliRunner

from penstock_cli.main import command_line
from penstock_ledger import FiringOutcome, NoticedStore, Schedule, ScheduleNotFound, open_database
from penstock_ledger.schedules import noticed as noticed_store
from penstock_producer import ProducerSettings, ScheduleError
from penstock_producer.pins import FILES
from penstock_producer.schedules import events as notices
from penstock_producer.schedules.events import NoticeOutcome
from penstock_workers.control.schedules import of_new_files

BUCKET = "notified"


class Notified(Night):
    """A schedule each minute over a prefix, and a bucket that may send notifications to a queue."""

    def __init__(self, server: S3Server, folder: Path) -> None:
        database = open_database(f"sqlite:///{folder}/ledger.db", pool_size=8)
        database.migrate()
        super().__init__(database, folder, ProducerSettings(s3_endpoint_url=server.url))
        self.s3 = server.client()
        self.sqs: Any = boto3.client("sqs", endpoint_url=server.url)
        self.prefix = f"in{time.monotonic_ns()}"
        self.queue = ""
        self.minutes = 0

    def make_queue(self) -> str:
        self.queue = str(self.sqs.create_queue(QueueName=self.prefix)["QueueUrl"])
        arn = self.sqs.get_queue_attributes(QueueUrl=self.queue, AttributeNames=["QueueArn"])[
            "Attributes"
        ]["QueueArn"]
        wanted = {"QueueArn": arn, "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]}
        self.s3.put_bucket_notification_configuration(
            Bucket=BUCKET, NotificationConfiguration={"QueueConfigurations": [wanted]}
        )
        return self.queue

    def watch(self, events: str) -> Schedule:
        source = f"s3://{BUCKET}/{self.prefix}/"
        return self.add(
            cron="* * * * *", source=source, new_files=True, overlap=True, events=events
        )

    def put(self, name: str, text: str = "words", *, below: str | None = None) -> None:
        row = json.dumps({"id": f"{name} {text}", "text": text})
        self.s3.put_object(Bucket=BUCKET, Key=f"{below or self.prefix}/{name}", Body=row.encode())

    def delete(self, name: str) -> None:
        self.s3.delete_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}")

    def body(self, *names: str) -> str:
        one = [
            {
                "eventName": "ObjectCreated:Put",
                "s3": {"bucket": {"name": BUCKET}, "object": {"key": f"{self.prefix}/{name}"}},
            }
            for name in names
        ]
        return json.dumps({"Records": one})

    def minute(self) -> None:
        """The next planned time."""
        self.now = ONE + 60 * self.minutes + 1
        self.minutes += 1
        self.control("a").turn(looks=1)

    def jobs_files(self) -> list[list[str]]:
        ids = [firing.job_id for firing in reversed(self.firings()) if firing.job_id is not None]
        return [
            [Path(one["uri"]).name for one in self.jobs.get(job_id).source[FILES]] for job_id in ids
        ]

    def waiting(self) -> int:
        answer = self.sqs.get_queue_attributes(
            QueueUrl=self.queue,
            AttributeNames=["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"],
        )
        return sum(int(number) for number in answer["Attributes"].values())


@pytest.fixture
def notified(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Notified]:
    for name, value in (
        ("ACCESS_KEY_ID", "test"),
        ("SECRET_ACCESS_KEY", "test"),
        ("DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    s3_server.client().create_bucket(Bucket=BUCKET)
    monkeypatch.setattr(notices, "LOOK_S", 0)
    made = Notified(s3_server, tmp_path)
    made.now = ONE - 30
    yield made
    made.s3.put_bucket_notification_configuration(Bucket=BUCKET, NotificationConfiguration={})
    made.db.close()


def test_an_object_that_comes_starts_a_job_without_a_listing(
    notified: Notified, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was there at first is listed once; then the queue names what comes, and it is empty
    afterwards."""
    notified.put("old.jsonl")
    notified.watch(notified.make_queue())
    notified.minute()
    monkeypatch.setattr(
        "penstock_producer.sources.listings.new_files._listed",
        lambda _chosen: pytest.fail("it was listed"),
    )
    notified.put("a 1.jsonl")
    notified.put("b.jsonl")
    notified.minute()
    notified.minute()
    assert notified.jobs_files() == [["old.jsonl"], ["a%201.jsonl", "b.jsonl"]]
    assert notified.outcomes()[-1] is FiringOutcome.NOTHING_NEW
    assert notified.waiting() == 0


def test_each_kind_of_message_has_its_outcome_and_leaves_the_queue(notified: Notified) -> None:
    """Repeated, of another prefix, deleted, S3's test and nonsense: none is read twice or kept for
    ever, and the list says so."""
    notified.watch(notified.make_queue())
    notified.minute()
    notified.put("x.jsonl", below="elsewhere")
    notified.put("gone.jsonl")
    notified.delete("gone.jsonl")
    for text in ("hello", notified.body("gone.jsonl")):
        notified.sqs.send_message(QueueUrl=notified.queue, MessageBody=text)
    notified.minute()
    assert notified.jobs_files() == []
    said = str(notified.firings()[0].reason)
    for words in (
        "1 elsewhere",
        "1 deleted",
        "1 unreadable",
        "1 repeated",
        "1 noticed",
        "no new file",
    ):
        assert words in said
    assert notified.waiting() == 0
    assert notified.noticed.waiting(notified.store.get("nightly").schedule_id, 10) == []


def test_an_event_that_comes_again_after_its_job_is_no_new_file(notified: Notified) -> None:
    """SQS may give a message twice, days apart; one that names another content of the object is a
    new file."""
    notified.watch("webhook")
    notified.minute()
    notified.put("a.jsonl")
    for _ in range(2):
        assert notified.schedules.notify("nightly", notified.body("a.jsonl")) == {
            NoticeOutcome.NOTICED: 1
        }
        notified.minute()
    notified.put("a.jsonl", "other words")
    notified.schedules.notify("nightly", notified.body("a.jsonl", "a.jsonl"))
    notified.minute()
    assert notified.jobs_files() == [["a.jsonl"], ["a.jsonl"]]


def test_what_no_notification_named_is_found_on_the_next_day(notified: Notified) -> None:
    """Notifications may be lost: the first time of each day lists the place."""
    notified.watch("webhook")
    notified.minute()
    notified.put("unnamed.jsonl")
    notified.minute()
    assert notified.jobs_files() == []
    notified.now = ONE + DAY
    notified.control("a").turn()
    assert notified.jobs_files() == [["unnamed.jsonl"]]


def test_a_first_listing_goes_on_until_all_files_have_a_job(
    notified: Notified, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job has so many files; the next time lists again, and not only the next day."""
    monkeypatch.setattr("penstock_producer.sources.listings.new_files.MAX_FILES", 2)
    monkeypatch.setattr(of_new_files, "FILES_MAX", 2)
    for number in range(5):
        notified.put(f"{number}.jsonl")
    notified.watch("webhook")
    for _ in range(4):
        notified.minute()
    assert notified.jobs_files() == [["0.jsonl", "1.jsonl"], ["2.jsonl", "3.jsonl"], ["4.jsonl"]]


def test_a_start_that_fails_loses_no_name(notified: Notified) -> None:
    """An object without rows fails its time and is named; once it is gone the others are read."""
    notified.watch("webhook")
    notified.minute()
    notified.put("a.jsonl")
    bad = b"not JSON\n" * 3
    notified.s3.put_object(Bucket=BUCKET, Key=f"{notified.prefix}/bad.jsonl", Body=bad)
    notified.schedules.notify("nightly", notified.body("a.jsonl", "bad.jsonl"))
    notified.minute()
    assert notified.outcomes()[-1] is FiringOutcome.FAILED
    assert "bad.jsonl" in str(notified.firings()[0].reason)
    notified.delete("bad.jsonl")
    notified.minute()
    assert notified.jobs_files() == [["a.jsonl"]]


def test_names_that_wait_have_a_bound(notified: Notified, monkeypatch: pytest.MonkeyPatch) -> None:
    """A webhook is to send again later, and a queue keeps its messages; what waits already is never
    refused."""
    monkeypatch.setattr(noticed_store, "NOTICED_MAX", 2)
    notified.watch("webhook")
    for names, said in (
        (("a", "b", "c"), {"noticed": 2, "no_room": 1}),
        (("a", "c"), {"repeated": 1, "no_room": 1}),
    ):
        assert dict(notified.schedules.notify("nightly", notified.body(*names))) == said


def test_a_queue_that_is_gone_is_named(notified: Notified) -> None:
    """The time has failed, and says which queue and what to grant."""
    url = notified.make_queue()
    notified.watch(url)
    notified.sqs.delete_queue(QueueUrl=url)
    notified.minute()
    assert notified.outcomes() == [FiringOutcome.FAILED]
    assert notified.prefix in str(notified.firings()[0].reason)
    assert "sqs:ReceiveMessage" in str(notified.firings()[0].reason)


def test_what_could_never_notify_is_refused_when_it_is_added(notified: Notified) -> None:
    """Places that send none, what is no queue, a queue that another schedule empties, and events
    without new files."""
    url = notified.make_queue()
    notified.watch(url)
    with pytest.raises(ScheduleError, match="empties the queue"):
        notified.add("other", source="s3://bucket/in/", new_files=True, events=url)
    for source, events, says in (
        ("gs://bucket/in/", "webhook", "s3:// only"),
        ("s3://bucket/in/", "hello", "is not where notifications come from"),
        ("s3://bucket/in/", "https://a:b@host/queue", "without a password"),
    ):
        with pytest.raises(ScheduleError, match=says):
            notified.add("other", source=source, new_files=True, events=events)
    with pytest.raises(ScheduleError, match="give new_files"):
        notified.add("other", events="webhook")
    notified.add("other")
    with pytest.raises(ScheduleError, match="events=webhook"):
        notified.schedules.notify("other", notified.body("a"))
    with pytest.raises(ScheduleNotFound):
        notified.schedules.notify("absent", notified.body("a"))


def test_a_notification_is_taken_on_the_command_line(
    notified: Notified, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a webhook's own script would: the counts, and a status that says whether to send it
    again."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", f"sqlite:///{tmp_path}/ledger.db")
    notified.watch("webhook")
    for body, said, status in (
        (notified.body("a.jsonl"), "1 noticed", 0),
        (notified.body("a.jsonl"), "1 repeated", 0),
        ("hello", "1 unreadable", 2),
    ):
        answer = CliRunner().invoke(command_line(), ["schedule", "notify", "nightly"], input=body)
        assert (answer.output.strip(), answer.exit_code) == (said, status)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_names_wait_until_they_are_forgotten(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """The longest wait comes first; one that is named again after it was read stays, and other
    schedules have their own."""
    url = (
        f"sqlite:///{tmp_path}/ledger.db"
        if kind == "sqlite"
        else request.getfixturevalue("migrated_url")
    )
    with closing(open_database(url)) as database:
        database.migrate()
        store = NoticedStore(database)
        names = [f"{number}.jsonl" for number in range(250)]
        assert store.note("s1", [*names, names[0]]).new == names
        store.note("s2", names[:1])
        read = store.waiting("s1", 200)
        time.sleep(0.005)  # the clock of SQLite counts milliseconds
        noted = store.note("s1", [read[0].name, "new"])
        assert (noted.new, noted.repeated) == (["new"], [read[0].name])
        store.forget("s1", read)
        left = [one.name for one in store.waiting("s1", 1_000)]
        assert (len(left), left[-2:]) == (52, sorted([read[0].name, "new"]))
        assert len(store.waiting("s2", 10)) == 1
