"""Schedules over a folder that files come to: each file is in one job, on SQLite and on a real
PostgreSQL."""

from __future__ import annotations

import gzip
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from night import DAY, ONE, Night, join_starts, ledger_of
from servers import S3Server
from sqlalchemy import func, select

from penstock_ledger import FilesTaken, FiringOutcome, JobState, Schedule, open_database, purge_job
from penstock_ledger.schedules import store as schedule_store
from penstock_ledger.sql.tables import taken_files
from penstock_producer import JobSpec, ProducerSettings, ScheduleError, SourceChanged
from penstock_producer.pins import FILES
from penstock_producer.rows import Document
from penstock_producer.sources import open_source
from penstock_producer.sources.listings import new_files
from penstock_workers.control.schedules import of_new_files
from penstock_workers.control.schedules.schedule_steps import HOLD_S
from penstock_workers.control.schedules.starts import Started

NO_ROWS = "not JSON\n" * 3


class Watched(Night):
    """A night whose schedule watches a folder."""

    @property
    def folder(self) -> Path:
        return self.source.parent / "incoming"

    def put(self, name: str, text: str = "words", *, seconds_ago: float = 3600) -> None:
        row = json.dumps({"id": f"{name} {text}", "text": text})
        self.put_text(name, row + "\n", seconds_ago=seconds_ago)

    def put_text(self, name: str, content: str, *, seconds_ago: float = 3600) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        changed = time.time() - seconds_ago
        os.utime(path, (changed, changed))

    def watch(self) -> Schedule:
        return self.add(source=f"{self.folder}/", new_files=True, overlap=True)

    def nth_night(self, nth: int, owner: str = "a") -> None:
        self.now = ONE + nth * DAY + 1
        self.control(owner).turn()

    def jobs_files(self) -> list[list[str]]:
        """The files of each job, in the order of the jobs."""
        ids = [firing.job_id for firing in reversed(self.firings()) if firing.job_id is not None]
        return [
            [Path(one["uri"]).name for one in self.jobs.get(job_id).source[FILES]] for job_id in ids
        ]


@pytest.fixture(params=["sqlite", "postgresql"])
def watched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    with ledger_of(request, tmp_path) as database:
        yield Watched(database, tmp_path)


def test_each_file_is_in_one_job(watched: Watched) -> None:
    """Several files of one night are one job; the next night has those that came since, and those
    that changed."""
    watched.put("b.jsonl")
    watched.put("a.jsonl")
    watched.watch()
    watched.nth_night(0)
    watched.put("c.jsonl")
    watched.put("a.jsonl", "other words")
    watched.nth_night(1)
    assert watched.jobs_files() == [["a.jsonl", "b.jsonl"], ["a.jsonl", "c.jsonl"]]
    job = watched.jobs.get("nightly@2026-03-11T01:00Z")
    assert (job.state, job.total) == (JobState.RUNNING, 2)


def test_packed_files_and_tables_are_taken_once(watched: Watched) -> None:
    """What is unpacked or has columns is known again by the file as it lies there."""
    watched.put("a.jsonl")
    packed, table = watched.folder / "b.jsonl.gz", watched.folder / "c.csv"
    packed.write_bytes(gzip.compress(b'{"id": "packed", "text": "words"}\n'))
    table.write_text("id,text\n7,words\n")
    for path in (packed, table):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    watched.watch()
    for nth in range(2):
        watched.nth_night(nth)
    assert watched.jobs_files() == [["a.jsonl", "b.jsonl.gz", "c.csv"]]


def test_a_folder_of_texts_is_watched(watched: Watched) -> None:
    """Each new file is a document of the next job, whatever its name; a changed one is new again,
    and is read as it was when its job began or not at all."""
    spec = {"prompt": "{name}: {text}", "model": "m", "format": "text", "max_bad_rows": 1}
    source = f"{watched.folder}/"
    for name in ("b.txt", "a ü.note", "c.txt"):
        watched.put(name)
    (watched.folder / "c.txt").write_bytes(b"\xff\xfe")
    os.utime(watched.folder / "c.txt", (1_000_000_000, 1_000_000_000))
    watched.schedules.add("nightly", "0 1 * * *", source, spec, new_files=True, overlap=True)
    watched.nth_night(0)
    watched.nth_night(1)
    watched.put("b.txt", "other words")
    watched.nth_night(2)
    assert watched.jobs_files() == [["a ü.note", "b.txt", "c.txt"], ["b.txt"]]
    assert watched.outcomes() == [
        FiringOutcome.STARTED,
        FiringOutcome.NOTHING_NEW,
        FiringOutcome.STARTED,
    ]
    first, second = (watched.jobs.get(f"nightly@2026-03-1{nth}T01:00Z") for nth in (0, 2))
    assert first.total == 3
    read = open_source(second.source, JobSpec.from_json(spec))
    (document,) = read.documents({})
    assert isinstance(document, Document)
    assert document.doc_id == "b.txt"
    assert b"other words" in document.body
    assert list(read.documents(document.cursor)) == []
    assert read.fetch(document.position).body == document.body
    with pytest.raises(SourceChanged):
        list(open_source(first.source, JobSpec.from_json(spec)).documents({}))


def test_a_prefix_of_a_bucket_is_watched(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects that come, and those that are written again; a name that a URI quotes is known
    again."""
    for name, value in (
        ("ACCESS_KEY_ID", "test"),
        ("SECRET_ACCESS_KEY", "test"),
        ("DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    client = s3_server.client()
    client.create_bucket(Bucket="watched")
    database = open_database(f"sqlite:///{tmp_path}/ledger.db", pool_size=8)
    database.migrate()
    night = Watched(database, tmp_path, ProducerSettings(s3_endpoint_url=s3_server.url))
    night.add(source="s3://watched/in/*.jsonl", new_files=True, overlap=True)
    for nth, (name, text) in enumerate(
        [("a 1.jsonl", "x"), ("b.jsonl", "x"), ("", ""), ("a 1.jsonl", "changed")]
    ):
        if name:
            row = json.dumps({"id": f"{nth}", "text": text})
            client.put_object(Bucket="watched", Key=f"in/{name}", Body=row.encode())
        night.nth_night(nth)
    assert night.jobs_files() == [["a%201.jsonl"], ["b.jsonl"], ["a%201.jsonl"]]
    texts = {"prompt": "{text}", "model": "m", "format": "text"}
    night.schedules.add(
        "texts", "0 1 * * *", "s3://watched/in/", texts, new_files=True, overlap=True
    )
    night.nth_night(4)
    night.nth_night(5)
    assert [firing.outcome for firing in night.firings("texts")] == [
        FiringOutcome.NOTHING_NEW,
        FiringOutcome.STARTED,
    ]
    job = night.jobs.get(str(night.firings("texts")[1].job_id))
    read = open_source(
        job.source, JobSpec.from_json(texts), ProducerSettings(s3_endpoint_url=s3_server.url)
    )
    assert [row.doc_id for row in read.documents({})] == ["a 1.jsonl", "b.jsonl"]
    database.close()


def test_a_night_without_new_files_starts_nothing_and_says_so(watched: Watched) -> None:
    """Nothing has failed, and however many such nights there are, the list has one line for them,
    beside the jobs."""
    watched.put("a.jsonl")
    watched.watch()
    for nth in range(4):
        watched.nth_night(nth)
    assert watched.outcomes() == [FiringOutcome.STARTED, FiringOutcome.NOTHING_NEW]
    assert watched.firings()[0].planned_at == ONE + 3 * DAY
    assert watched.firings()[0].reason == "no new file"
    assert watched.store.get("nightly").next_at == ONE + 4 * DAY
    assert len(watched.jobs.list()) == 1


def test_each_decided_time_is_counted_once(watched: Watched) -> None:
    """By what came of it, and by the process that decided it; the other one counts nothing."""
    watched.put("a.jsonl")
    watched.watch()
    first, other = watched.control("a"), watched.control("b")
    for nth in range(2):
        watched.now = ONE + nth * DAY + 1
        first.turn()
        other.turn()
    watched.put_text("bad.jsonl", NO_ROWS)
    watched.now = ONE + 2 * DAY + 1
    first.turn()
    assert first.firings == dict.fromkeys(
        (FiringOutcome.STARTED, FiringOutcome.NOTHING_NEW, FiringOutcome.FAILED), 1
    )
    assert not other.firings


def test_an_empty_folder_is_no_failure(watched: Watched) -> None:
    """A folder to which nothing has come yet has nothing new."""
    watched.folder.mkdir()
    watched.watch()
    watched.nth_night(0)
    assert watched.outcomes() == [FiringOutcome.NOTHING_NEW]


def test_a_file_that_may_still_be_written_waits(watched: Watched) -> None:
    """One that was changed a moment ago is left for the next time, whatever its name, and the list
    says so."""
    watched.put("a.jsonl", seconds_ago=1)
    watched.put("b.part", seconds_ago=1)
    watched.watch()
    watched.nth_night(0)
    assert watched.outcomes() == [FiringOutcome.NOTHING_NEW]
    assert "2 were changed seconds ago" in str(watched.firings()[0].reason)
    (watched.folder / "b.part").unlink()
    watched.put("a.jsonl")
    watched.nth_night(1)
    assert watched.jobs_files() == [["a.jsonl"]]


def test_a_time_far_ahead_does_not_keep_a_file_out(watched: Watched) -> None:
    """A file whose time is next year was not written a moment ago."""
    watched.put("a.jsonl", seconds_ago=-365 * DAY)
    watched.watch()
    watched.nth_night(0)
    assert watched.jobs_files() == [["a.jsonl"]]


def test_more_files_than_a_job_may_have_come_in_turns(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first by name, then the rest; also where they are looked up in small parts."""
    monkeypatch.setattr(new_files, "MAX_FILES", 3)
    monkeypatch.setattr(new_files, "_ASKED_AT_ONCE", 2)
    for number in range(5):
        watched.put(f"{number}.jsonl")
    watched.watch()
    for nth in range(3):
        watched.nth_night(nth)
    assert watched.jobs_files() == [["0.jsonl", "1.jsonl", "2.jsonl"], ["3.jsonl", "4.jsonl"]]


def test_a_process_that_dies_after_its_submit_neither_loses_nor_repeats_a_file(
    watched: Watched,
) -> None:
    """Killed before the start was written down: that job counts, and what came meanwhile is the
    next night's."""
    watched.put("a.jsonl")
    watched.watch()
    watched.now = ONE + 1
    dying = watched.control("a", watched.start)
    dying.look()
    join_starts()
    watched.put("b.jsonl")
    watched.now += HOLD_S + 1
    watched.control("b").turn()
    watched.nth_night(1)
    assert watched.jobs_files() == [["a.jsonl"], ["b.jsonl"]]


def test_a_job_that_was_not_written_down_keeps_its_files(watched: Watched) -> None:
    """Even if no process came back before the time was missed: its files are in that job, and in no
    other."""
    watched.put("a.jsonl")
    schedule = watched.watch()
    watched.now = ONE + 1
    watched.start(schedule)
    watched.put("b.jsonl")
    watched.nth_night(3)
    assert watched.jobs_files() == [["b.jsonl"]]
    assert len(watched.jobs.list()) == 2


def test_a_submit_that_comes_too_late_takes_nothing_twice(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes look at the folder before either submits, each for another time: one has the
    file, the other no job."""
    watched.put("a.jsonl")
    first = watched.watch()
    second = watched.store.get("nightly")
    object.__setattr__(second, "next_at", ONE + DAY)
    both_looked = threading.Barrier(2)
    taken = watched.store.taken

    def looked(schedule: Schedule, files: list[bytes]) -> set[bytes]:
        found = taken(schedule, files)
        both_looked.wait(30)
        return found

    monkeypatch.setattr(watched.store, "taken", looked)
    ended: list[Started | FilesTaken] = []

    def start(schedule: Schedule) -> None:
        try:
            ended.append(watched.start(schedule))
        except FilesTaken as error:
            ended.append(error)

    threads = [threading.Thread(target=start, args=(one,)) for one in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(type(one).__name__ for one in ended) == ["FilesTaken", "Started"]
    assert len(watched.jobs.list()) == 1


def test_a_file_that_has_no_rows_fails_its_time_and_takes_nothing(watched: Watched) -> None:
    """The reason names it and the way out; once it is gone the others are read."""
    watched.put("a.jsonl")
    watched.put_text("bad.jsonl", NO_ROWS)
    watched.watch()
    watched.nth_night(0)
    assert watched.outcomes() == [FiringOutcome.FAILED]
    assert "bad.jsonl" in str(watched.firings()[0].reason)
    (watched.folder / "bad.jsonl").unlink()
    watched.nth_night(1)
    assert watched.jobs_files() == [["a.jsonl"]]


def test_what_was_taken_outlives_the_job_and_not_the_schedule(watched: Watched) -> None:
    """Purging a job makes its files no news; removing the schedule forgets them, and another one
    begins with all."""
    watched.put("a.jsonl")
    watched.watch()
    watched.nth_night(0)
    purge_job(watched.db, watched.jobs.list()[0].job_id)
    watched.nth_night(1)
    assert watched.outcomes() == [FiringOutcome.STARTED, FiringOutcome.NOTHING_NEW]
    watched.schedules.remove("nightly")
    count = select(func.count()).select_from(taken_files)
    assert watched.db.read(lambda connection: connection.execute(count).scalar()) == 0
    watched.watch()
    watched.nth_night(2)
    assert watched.jobs_files() == [["a.jsonl"]]


def test_only_places_that_files_come_to_are_watched(watched: Watched) -> None:
    """One file and a database are refused when the schedule is added; a pattern and a prefix are
    not."""
    for source in (watched.source, "sqlite:///rows.db"):
        with pytest.raises(ScheduleError, match="is no folder that new files can come to"):
            watched.add(source=source, new_files=True)
    for name, source in (("prefix", "s3://bucket/in/"), ("pattern", "gs://bucket/in/*.jsonl")):
        assert watched.add(name, source=source, new_files=True).source == {"new_files": source}


def limit_what_is_remembered(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    for module in (of_new_files, schedule_store):
        monkeypatch.setattr(module, "TAKEN_MAX", most)


def test_at_the_limit_files_that_are_gone_are_forgotten_and_no_other(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies there is never taken twice; where all of it still does the time fails, names the
    limit and takes nothing."""
    limit_what_is_remembered(monkeypatch, 2)
    for name in ("a.jsonl", "b.jsonl"):
        watched.put(name)
    watched.watch()
    watched.nth_night(0)
    (watched.folder / "a.jsonl").unlink()
    watched.put("c.jsonl")
    watched.nth_night(1)
    assert watched.jobs_files() == [["a.jsonl", "b.jsonl"], ["c.jsonl"]]
    watched.put("d.jsonl")
    watched.nth_night(2)
    assert watched.outcomes()[-1] is FiringOutcome.FAILED
    assert "the most that are remembered" in str(watched.firings()[0].reason)
    (watched.folder / "c.jsonl").unlink()
    watched.nth_night(3)
    assert watched.jobs_files()[2:] == [["d.jsonl"]]


def test_a_folder_that_is_away_makes_nothing_forgotten(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty place may be a mount that is away: when it is back its files are still known."""
    limit_what_is_remembered(monkeypatch, 1)
    watched.put("a.jsonl")
    watched.watch()
    watched.nth_night(0)
    away = watched.folder.rename(watched.folder.with_name("away"))
    watched.folder.mkdir()
    watched.nth_night(1)
    assert "it is the place that is meant" in str(watched.firings()[0].reason)
    watched.folder.rmdir()
    away.rename(watched.folder)
    limit_what_is_remembered(monkeypatch, 2)
    watched.nth_night(2)
    assert watched.outcomes() == [
        FiringOutcome.STARTED,
        FiringOutcome.FAILED,
        FiringOutcome.NOTHING_NEW,
    ]
