"""A job is not accepted where its results could not be written: found out at the submit, within a
limit of seconds."""

from __future__ import annotations

import logging
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock_producer import Producer, ProducerSettings
from penstock_producer.accepting import results_probe
from penstock_producer.accepting.remote_limits import DoorSettings, RemoteLimits
from penstock_producer.accepting.results_probe import ResultsProbe
from penstock_producer.errors import SinkError, SinkUnfit, SourceError
from penstock_producer.job.spec import JobSpec

SPEC = {"prompt": "Summarise: {text}", "model": "m"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text('{"id": 1, "text": "a"}\n')
    return path


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The places that were tried, all of them in vain."""
    places: list[str] = []

    def probe(place: str, **_: Any) -> None:
        places.append(place)
        raise SinkError(f"cannot write {place}: there is no bucket 'b'; create it")

    monkeypatch.setattr(results_probe, "probe_sink", probe)
    return places


def producer(folder: Path, **settings: Any) -> Producer:
    return Producer(ProducerSettings(database_url=f"sqlite:///{folder}/ledger.db", **settings))


def test_every_way_to_a_new_job_tries_the_place(
    tmp_path: Path, source: Path, tried: list[str]
) -> None:
    """A submit, an open job and a schedule are refused by the setting's name, the error and the
    fix, and leave no job."""
    with producer(tmp_path, results_url="s3://b/out") as house:
        for ask in (
            lambda: house.submit(source, SPEC, job_key="one"),
            lambda: house.open_job(SPEC, job_key="two"),
            lambda: house.schedules.add("three", "0 1 * * *", source, SPEC),
        ):
            with pytest.raises(
                SinkError,
                match=r"the setting results_url, tried before .* no bucket 'b'; create it",
            ):
                ask()
        assert tried == ["s3://b/out"] * 3
        assert (house._jobs.list(), house.schedules.list()) == ([], [])
    with producer(tmp_path, results_url="s3://b/out", results_probe_s=0) as house:
        house.submit(source, SPEC, job_key="one")
        house.open_job(SPEC, job_key="two")
    with producer(tmp_path, results_url="s3://b/out") as house:
        house.submit(source, SPEC, job_key="one")
        house.open_job(SPEC, job_key="two")  # jobs that are there are not asked again
    assert len(tried) == 3


def test_a_good_place_is_tried_once_a_minute(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many jobs in a row cost one look at the bucket."""
    places: list[str] = []
    monkeypatch.setattr(results_probe, "probe_sink", lambda place, **_: places.append(place))
    with producer(tmp_path, results_url="s3://b/out") as house:
        for number in range(3):
            house.submit(source, SPEC, job_key=f"job-{number}")
        assert len(places) == 1
        house._probe._good_until -= results_probe.GOOD_S
        house.submit(source, SPEC, job_key="later")
    assert len(places) == 2


def test_a_table_that_lacks_columns_is_refused(tmp_path: Path, source: Path) -> None:
    """The submitter sees the column and what to change; one that is missing is left to the workers
    to make."""
    with sqlite3.connect(tmp_path / "shop.db") as shop:
        shop.execute("CREATE TABLE narrow (id TEXT, status INTEGER)")
    into = {**SPEC, "into": f"sqlite:///{tmp_path}/shop.db"}
    with producer(tmp_path) as house:
        with pytest.raises(
            SinkUnfit,
            match="the table narrow of the job's option into, tried before the job is accepted",
        ):
            house.submit(source, {**into, "into_table": "narrow"})
        assert house._jobs.list() == []
        house.submit(source, {**into, "into_table": "labels"})
    with sqlite3.connect(tmp_path / "shop.db") as shop:
        assert shop.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall() == [
            ("narrow",)
        ]


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """SQLite's file is left to the workers, and a folder that is missing is named before the job is
    accepted."""
    probe = ResultsProbe(ProducerSettings(), one_machine=True, remote=False)

    def into(folder: Path) -> JobSpec:
        return JobSpec.from_json(
            {**SPEC, "into": f"sqlite:///{folder}/new.db", "into_table": "labels"}
        )

    probe.check(into(tmp_path))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(
        SinkError,
        match=r"a database cannot be made in .*/missing: No such file .*; create the folder",
    ):
        probe.check(into(tmp_path / "missing"))


def test_what_is_another_machines_is_not_tried(
    tmp_path: Path, source: Path, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder and a file of SQLite beside a ledger elsewhere, a path that each process reads
    otherwise, a variable not set."""
    monkeypatch.chdir(tmp_path)
    elsewhere = ResultsProbe(
        ProducerSettings(results_url="/no/such"), one_machine=False, remote=False
    )
    elsewhere.check(
        JobSpec.from_json({**SPEC, "into": f"sqlite:///{tmp_path}/x.db", "into_table": "t"})
    )
    here = ResultsProbe(ProducerSettings(), one_machine=True, remote=False)
    for into in ("sqlite:///relative.db", "env:NOT_SET_HERE"):
        here.check(JobSpec.from_json({**SPEC, "into": into, "into_table": "t"}))
    assert tried == []
    assert not list(tmp_path.glob("*.db"))


def test_a_store_that_hangs_does_not_hang_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting says for how many seconds; the threads that still wait are bounded."""
    let_go = threading.Event()
    monkeypatch.setattr(results_probe, "probe_sink", lambda *_, **__: let_go.wait())
    settings = ProducerSettings(results_url="s3://b/out", results_probe_s=0.01)
    probe = ResultsProbe(settings, one_machine=True, remote=False)
    spec = JobSpec.from_json(SPEC)
    try:
        for _ in range(results_probe.AT_ONCE):
            with pytest.raises(SinkError, match=r"no answer within 0.01 s: .* results_probe_s"):
                probe.check(spec)
        with pytest.raises(SinkError, match="4 earlier tries of such places still hang"):
            probe.check(spec)
    finally:
        let_go.set()


def test_strangers_are_not_told_where_results_go(
    tmp_path: Path, source: Path, tried: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A remote door refuses without the place and the error; its operator's log has them."""
    settings = ProducerSettings(
        database_url=f"sqlite:///{tmp_path}/ledger.db",
        results_url="s3://b/out",
        source_roots=(str(tmp_path),),
    )
    with (
        Producer(settings, remote_limits=RemoteLimits(DoorSettings())) as door,
        caplog.at_level(logging.WARNING),
    ):
        with pytest.raises(SinkError, match="try again later") as refused:
            door.submit(str(source), SPEC)
        with pytest.raises(SourceError):
            door.submit("/etc/passwd", SPEC)
    assert "s3://b" not in str(refused.value)
    assert "there is no bucket 'b'" in caplog.text
