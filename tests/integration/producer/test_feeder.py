"""The feeder between a real SQL database and a real Redis: everything once, whatever dies in
between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from envelopes import Envelope, decode_envelope
from servers import RedisServer, as_bytes

from penstock_ledger import (
    Database,
    FeedLost,
    JobStore,
    Meta,
    OutcomeStore,
    RedisForgot,
    RedisLedger,
    Spool,
    open_database,
)
from penstock_ledger.in_redis.redis_scripts import ItemScripts
from penstock_ledger.model import DeadLetter, Feed, FeedKind, ItemKey, Job, JobState, Result
from penstock_producer import JobSpec, Producer
from penstock_producer import rows as rows_module
from penstock_producer.errors import JobCancelled, SourceChanged, SourceUnavailable
from penstock_producer.feed.feeder import Feeder
from penstock_producer.feed.leased_feed import open_feeder, republish, write_off
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources.of_feed import open_feed_source

QUEUE = "penstock.api"
SPEC = JobSpec(prompt="{text}", model="m", max_bad_rows=10)
ORDERED = SPEC.model_copy(update={"prefix_order": True})
OWNER = "me"


@dataclass
class House:
    """A producer, its database and a Redis."""

    folder: Path
    producer: Producer
    database: Database
    redis: RedisLedger
    server: RedisServer

    @property
    def jobs(self) -> JobStore:
        return JobStore(self.database)

    @property
    def outcomes(self) -> OutcomeStore:
        return OutcomeStore(self.database)

    def write(self, lines: list[Any]) -> Path:
        path = self.folder / "in.jsonl"
        path.write_bytes(
            b"\n".join(
                line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines
            )
        )
        return path

    def submit(self, lines: list[Any], spec: JobSpec = SPEC) -> Job:
        return self.producer.submit(self.write(lines), spec)

    def feeder(self, job: Job, generation: int = 1, owner: str = OWNER) -> Feeder:
        feed = self.jobs.lease_feed(job.job_id, generation, owner, 30)
        assert feed is not None
        return open_feeder(self.database, self.redis, self.jobs.get(job.job_id), feed, owner=owner)

    def feed(self, job: Job, generation: int = 1) -> Feed:
        return next(feed for feed in self.jobs.feeds(job.job_id) if feed.generation == generation)

    def queued(self) -> list[Envelope]:
        """The queue's messages, oldest first."""
        raws = self.server.client().lrange(QUEUE, 0, -1)
        return [decode_envelope(as_bytes(raw)) for raw in reversed(raws)]

    def queued_docs(self) -> list[str]:
        return [envelope.message.key.doc_id for envelope in self.queued()]


@pytest.fixture(params=["sqlite", "postgresql"])
def house(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer
) -> Iterator[House]:
    url = (
        f"sqlite:///{tmp_path}/ledger.db"
        if request.param == "sqlite"
        else request.getfixturevalue("migrated_url")
    )
    settings = ProducerSettings(database_url=url, redis_url=redis_server.url)
    database = open_database(url)
    database.migrate()
    with Producer(settings) as producer:
        redis = RedisLedger(redis_server.client(), Meta(database).epoch())
        redis.install_epoch()
        yield House(tmp_path, producer, database, redis, redis_server)
        database.close()


def records(count: int, text: str = "t") -> list[Any]:
    return [{"id": f"d{number}", "text": text} for number in range(count)]


def dead(key: ItemKey, reason: str = "http_400", request: bytes = b"{}") -> DeadLetter:
    return DeadLetter(key, reason, 1, 1, "no", 400, request, None)


def result(key: ItemKey) -> Result:
    return Result(key, 200, b"{}", None, "m", "stop", 1, 1, 0, 1, 1, 1)


def test_a_job_is_fed_in_steps(house: House) -> None:
    """Steps publish in the source's order, move the durable cursor, and end exhausted."""
    job = house.submit(records(25))
    feeder = house.feeder(job)
    first, second, third = feeder.step(10), feeder.step(10), feeder.step(10)
    assert [(step.read, step.published, step.exhausted) for step in (first, second, third)] == [
        (10, 10, False),
        (10, 10, False),
        (5, 5, True),
    ]
    assert house.queued_docs() == [f"d{number}" for number in range(25)]
    assert house.feed(job).exhausted
    assert feeder.step(10).read == 0


def test_the_step_that_reads_the_last_row_knows_that_it_is_the_last(house: House) -> None:
    """A job whose documents fill its steps exactly needs no further step to find its end, and no
    row is lost on the way."""
    job = house.submit(records(20))
    feeder = house.feeder(job)
    steps = [feeder.step(10), feeder.step(10)]
    assert [(step.read, step.published, step.exhausted) for step in steps] == [
        (10, 10, False),
        (10, 10, True),
    ]
    assert house.queued_docs() == [f"d{number}" for number in range(20)]
    assert house.feed(job).exhausted


def test_messages_hold_the_request(house: House) -> None:
    """A queued message decodes to the request body of its document, and large bodies to a position
    that fetches it."""
    job = house.submit([*records(1), {"id": "big", "text": "x" * 20_000}])
    house.feeder(job).step(10)
    small, large = (envelope.message for envelope in house.queued())
    assert json.loads(small.body or b"")["messages"] == [{"role": "user", "content": "t"}]
    assert large.body is None
    source = open_feed_source(house.database, job.job_id, 1)
    fetched = source.fetch(large.ref or "")
    assert (fetched.doc_id, len(json.loads(fetched.body)["messages"][0]["content"])) == (
        "big",
        20_000,
    )


def test_refused_rows_are_never_queued(house: House) -> None:
    """Bad rows and repeated ids become dead letters at submit and are skipped when feeding."""
    job = house.submit(
        [{"id": "a", "text": "1"}, b"oops", {"id": "a", "text": "2"}, {"id": "b", "text": "3"}]
    )
    step = house.feeder(job).step(10)
    assert (step.read, step.published, step.refused) == (4, 2, 2)
    assert [
        json.loads(envelope.message.body or b"")["messages"][0]["content"]
        for envelope in house.queued()
    ] == [
        "1",
        "3",
    ]
    letters = {
        letter.key.doc_id: (letter.reason, letter.line)
        for letter in house.outcomes.dead_letters(job.job_id)
    }
    assert letters == {"line-2": ("invalid_json_line", 2), "line-3": ("duplicate_custom_id", 3)}
    assert job.total == 4


def test_what_only_the_survey_sees_stays_refused(house: House) -> None:
    """The feeder reads rows less strictly than the survey, and drops those that the survey refused
    by their lines."""
    repeated, nul = b'{"id": "r", "text": "1", "text": "2"}', b'{"id": "n", "text": "a\\u0000"}'
    job = house.submit([*records(1), repeated, nul])
    step = house.feeder(job).step(10)
    assert (step.read, step.published, step.refused) == (3, 1, 2)
    assert house.queued_docs() == ["d0"]


def test_a_crash_before_the_cursor_moves_queues_nothing_twice(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A feeder that dies between publishing and moving the cursor is continued without a duplicate
    or a gap."""
    job = house.submit(records(1200))
    feeder = house.feeder(job)

    def die(*_: Any, **__: Any) -> None:
        raise ConnectionError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(JobStore, "advance_feed", die)
        with pytest.raises(ConnectionError):
            feeder.step(700)
    step = feeder.step(2000)
    assert (step.read, step.published, step.skipped, step.exhausted) == (1200, 500, 700, True)
    assert sorted(house.queued_docs()) == sorted(f"d{number}" for number in range(1200))


def test_finished_documents_are_not_fed_again(house: House) -> None:
    """After a rewind, documents that are finished or still outstanding are dropped by the
    ledger."""
    job = house.submit(records(10))
    feeder = house.feeder(job)
    feeder.step(100)
    house.redis.rehydrate(job.job_id, 1, [("d3", False), ("d4", True)], 1)
    house.jobs.rewind_feeds(job.job_id)
    feed = house.jobs.lease_feed(job.job_id, 1, OWNER, 30)
    assert feed is not None
    feeder.lead(feed)
    step = feeder.step(100)
    assert (step.read, step.published, step.skipped, step.exhausted) == (10, 0, 10, True)


def test_a_deposed_feeder_cannot_move_the_cursor(house: House) -> None:
    """Once another owner leads the feed, the old one gets FeedLost and the cursor stays its
    successor's."""
    job = house.submit(records(10))
    old = house.feeder(job)
    house.jobs.release_feed(old.feed, OWNER)
    new = house.feeder(job, owner="other")
    assert new.step(4).published == 4
    with pytest.raises(FeedLost):
        old.step(10)
    assert house.feed(job).cursor["line"] == 5


def test_a_redis_that_forgot_gets_no_messages(house: House) -> None:
    """Without the sentinel nothing is published and the cursor stays."""
    job = house.submit(records(10))
    feeder = house.feeder(job)
    house.server.client().flushall()
    with pytest.raises(RedisForgot):
        feeder.step(10)
    assert house.feed(job).cursor == {}
    assert house.queued_docs() == []


def test_missing_documents_are_published_again(house: House) -> None:
    """A document that is in the window and nowhere else gets a new message, the same as the
    first."""
    job = house.submit([*records(3), {"id": "big", "text": "x" * 20_000}])
    feeder = house.feeder(job)
    feeder.step(10)
    before = {envelope.tag: envelope for envelope in house.queued()}
    house.server.client().delete(QUEUE)
    window = dict(house.redis.window(job.job_id, 1))
    assert republish(feeder, [(doc, window[doc]) for doc in ("d1", "big")]) == 2
    after = {envelope.tag: envelope for envelope in house.queued()}
    assert after == {tag: before[tag] for tag in (f"{job.job_id}:d1", f"{job.job_id}:big")}


def test_writing_off_ends_every_document(house: House) -> None:
    """What is left of a cancelled job becomes dead letters in bounded steps, without a message."""
    job = house.submit(records(10))
    feeder = house.feeder(job)
    feeder.step(4)
    house.outcomes.settle([result(ItemKey(job.job_id, 1, f"d{number}")) for number in range(4)], [])
    assert house.producer.cancel(job.job_id)
    assert write_off(feeder, 4).read == 4
    assert write_off(feeder, 4).exhausted
    counts = house.outcomes.counts(job.job_id)
    assert (counts.succeeded, counts.dead_by_reason) == (4, {"cancelled": 6})
    assert len(house.queued_docs()) == 4


def test_an_open_job_is_fed_until_it_is_closed(house: House) -> None:
    """Pushed documents are fed as they come; the feed ends only after the job is closed."""
    opened = house.producer.open_job(SPEC)
    feeder = house.feeder(opened.job)
    assert feeder.step(10).exhausted is False
    for number in range(3):
        opened.enqueue(f"a{number}", {"text": str(number)})
    assert house.queued_docs() == []
    assert opened.flush() == 3
    assert (feeder.step(2).published, feeder.step(2).published) == (2, 1)
    opened.enqueue("b", {"text": "x" * 20_000})
    assert opened.close() == 4
    last = feeder.step(10)
    assert (last.published, last.exhausted) == (1, True)
    assert house.queued_docs() == ["a0", "a1", "a2", "b"]
    ref = house.queued()[-1].message.ref
    assert open_feed_source(house.database, opened.job_id, 1).fetch(ref or "").doc_id == "b"
    assert house.jobs.get(opened.job_id).total == 4


def test_a_large_spool_is_fed_in_one_step(house: House) -> None:
    """A step goes on through more rows than the spool gives at a time."""
    opened = house.producer.open_job(SPEC)
    for number in range(1300):
        opened.enqueue(number, {"text": "t"})
    opened.close()
    step = house.feeder(opened.job).step(5000)
    assert (step.published, step.exhausted) == (1300, True)


def test_a_spool_whose_marks_are_lost_queues_nothing_twice(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A feeder that dies between publishing and marking pushed documents as fed is continued
    without a duplicate."""
    opened = house.producer.open_job(SPEC)
    for number in range(5):
        opened.enqueue(number, {"text": "t"})
    opened.close()

    def die(*_: Any) -> None:
        raise ConnectionError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(Spool, "mark_fed", die)
        with pytest.raises(ConnectionError):
            house.feeder(opened.job).step(10)
    step = house.feeder(opened.job).step(10)
    assert (step.read, step.published, step.skipped, step.exhausted) == (5, 0, 5, True)
    assert len(house.queued_docs()) == 5


def of_topics(count: int, topics: int = 7) -> list[Any]:
    """Records whose beginnings take turns, as in most files."""
    return [
        {"id": f"d{number}", "text": f"topic {number % topics}: question {number:05d}"}
        for number in range(count)
    ]


def by_topic(lines: list[Any]) -> list[str]:
    return [line["id"] for line in sorted(lines, key=lambda line: line["text"])]


def test_a_step_is_queued_in_prefix_order_when_the_job_wants_it(house: House) -> None:
    """All rows of a step are ordered together, over the groups in which they are published; refused
    rows stay refused."""
    lines = of_topics(1200)
    job = house.submit([*lines[:700], b"oops", *lines[700:], lines[3]], ORDERED)
    first = house.feeder(job).step(5000)
    assert (first.read, first.published, first.refused, first.exhausted) == (1202, 1200, 2, True)
    assert house.queued_docs() == by_topic(lines)
    assert house.outcomes.counts(job.job_id).dead == 2


def test_without_the_option_the_queue_has_the_order_of_the_file(house: House) -> None:
    """For API lanes and where it is switched off, nothing changes."""
    lines = of_topics(30)
    house.feeder(house.submit(lines)).step(100)
    assert house.queued_docs() == [line["id"] for line in lines]


def test_an_ordered_step_that_breaks_off_is_repeated_without_loss_or_duplicate(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some calls of a step are done when the server fails: the cursor has not moved, the next step
    brings the rest."""
    lines = of_topics(1700)
    job = house.submit(lines, ORDERED)
    feeder = house.feeder(job)
    publish, calls = ItemScripts.publish, []

    def third_fails(self: ItemScripts, *given: Any) -> Any:
        calls.append(given)
        if len(calls) == 3:
            raise ConnectionError("gone")
        return publish(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(ItemScripts, "publish", third_fails)
        with pytest.raises(ConnectionError):
            feeder.step(5000)
    assert (len(house.queued_docs()), house.feed(job).cursor) == (1000, {})
    step = house.feeder(job).step(5000)
    assert (step.read, step.published, step.skipped, step.exhausted) == (1700, 700, 1000, True)
    assert house.queued_docs() == by_topic(lines)


@pytest.mark.parametrize(("bound", "most"), [("ROWS_READ", 100), ("BYTES_READ", 4_000)])
def test_what_is_read_at_once_is_bounded_in_rows_and_bytes(
    house: House, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    """A step larger than that is ordered part by part, and its cursor moves behind them all."""
    monkeypatch.setattr(rows_module, bound, most)
    lines = of_topics(250)
    job = house.submit(lines, ORDERED)
    step = house.feeder(job).step(230)
    assert (step.read, step.published, step.exhausted) == (230, 230, False)
    queued = house.queued_docs()
    assert sorted(queued) == sorted(line["id"] for line in lines[:230])
    assert queued != by_topic(lines[:230])
    assert house.feed(job).cursor["line"] == 231


def test_an_ordered_open_job_is_fed_whole(house: House) -> None:
    """A spool gives its rows in groups; each is ordered, and all of them are marked as fed."""
    opened = house.producer.open_job(ORDERED)
    for line in of_topics(1300):
        opened.enqueue(line["id"], {"text": line["text"]})
    opened.close()
    step = house.feeder(opened.job).step(5000)
    assert (step.published, step.exhausted) == (1300, True)
    text = {line["id"]: line["text"] for line in of_topics(1300)}
    group = [text[doc] for doc in house.queued_docs()[:500]]
    assert group == sorted(group)


def test_a_cancelled_open_job_ends(house: House) -> None:
    """Writing off an open job closes it, so that nothing is pushed into a job that will never
    run."""
    opened = house.producer.open_job(SPEC)
    opened.enqueue("a", {"text": "t"})
    opened.flush()
    opened.enqueue("late", {"text": "t"})
    assert house.producer.cancel(opened.job_id)
    with pytest.raises(JobCancelled, match="1 documents were not accepted"):
        opened.flush()
    assert write_off(house.feeder(opened.job), 10).exhausted
    assert house.outcomes.counts(opened.job_id).dead_by_reason == {"cancelled": 1}
    assert house.jobs.get(opened.job_id).total == 1


def test_a_source_that_changed_feeds_nothing(house: House) -> None:
    """A file that was edited after submit stops its feed with the cursor where it was."""
    job = house.submit(records(5))
    house.write(records(5, text="u"))
    with pytest.raises(SourceChanged, match="restore it"):
        house.feeder(job).step(10)
    assert house.feed(job).cursor == {}
    assert house.queued_docs() == []


def settle_all_dead(house: House, job: Job, generation: int = 1) -> None:
    """Settle what is queued as dead letters, as a worker would."""
    messages = [envelope.message for envelope in house.queued()]
    letters = [
        dead(message.key, request=message.body or b"")
        for message in messages
        if message.key.generation == generation
    ]
    house.outcomes.settle([], letters)
    house.jobs.set_state(job.job_id, JobState.COMPLETED, expect=[JobState.RUNNING])
    house.server.client().delete(QUEUE)


def test_replays_send_the_changed_requests(house: House) -> None:
    """A replay is a generation of its own: other tags, the stored requests, the overrides
    applied."""
    job = house.submit(records(3))
    house.feeder(job).step(10)
    settle_all_dead(house, job)
    overrides = {"set": {"model": "big"}, "prompt": "Again: {prompt}"}
    assert house.producer.replay(job.job_id, reason="http_400", overrides=overrides) == 3
    assert house.feed(job, 2).kind is FeedKind.REPLAY
    feeder = house.feeder(job, generation=2)
    assert (feeder.step(2).published, feeder.step(2).exhausted) == (2, True)
    assert [envelope.tag for envelope in house.queued()] == [
        f"{job.job_id}:d{number}~g2" for number in range(3)
    ]
    body = json.loads(house.queued()[0].message.body or b"")
    assert (body["model"], body["messages"][0]["content"]) == ("big", "Again: t")
    position = dict(house.redis.window(job.job_id, 2))["d1"]
    fetched = open_feed_source(house.database, job.job_id, 2).fetch(position)
    assert (fetched.doc_id, json.loads(fetched.body)["model"]) == ("d1", "big")


def test_a_replay_that_cannot_be_applied_ends_as_a_dead_letter(house: House) -> None:
    """A request without text for the new prompt fails alone, so that the job still completes."""
    job = house.submit(records(2))
    keys = [ItemKey(job.job_id, 1, f"d{number}") for number in range(2)]
    house.outcomes.settle(
        [], [dead(keys[0], request=b'{"input":"t"}'), dead(keys[1], request=b'{"input":[1]}')]
    )
    house.jobs.set_state(job.job_id, JobState.COMPLETED, expect=[JobState.RUNNING])
    assert house.producer.replay(job.job_id, overrides={"prompt": "Again: {prompt}"}) == 2
    step = house.feeder(job, generation=2).step(10)
    assert (step.published, step.refused, step.exhausted) == (1, 1, True)
    assert house.outcomes.counts(job.job_id).dead_by_reason == {"prompt_not_found": 1}


def test_an_image_that_goes_after_the_submit_holds_the_feed(house: House) -> None:
    """Its document is not lost: the feed stops before it, and goes on once the image is back."""
    image = house.folder / "a.png"
    image.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20))
    spec = JobSpec(prompt="{id}", model="m", image_fields=["image"], max_bad_rows=1)
    lines = [
        {"id": "a", "image": "a.png"},
        {"id": "b", "image": "none.png"},
        {"id": "c", "image": "https://host/x.png"},
    ]
    job = house.submit(lines, spec)
    assert [letter.reason for letter in house.outcomes.dead_letters(job.job_id)] == [
        "media_unavailable"
    ]
    image.rename(house.folder / "kept.png")
    with pytest.raises(SourceUnavailable, match="line 1: media_unavailable"):
        house.feeder(job).step(10)
    assert house.queued() == []
    (house.folder / "kept.png").rename(image)
    step = house.feeder(job).step(10)
    assert (step.published, step.refused, step.exhausted) == (2, 1, True)
