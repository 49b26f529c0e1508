"""`penstock results` in its forms, over a real ledger: whole, growing, from a cursor on, and into a
table."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner
from typer.testing import Result as Answer

from penstock_cli.main import command_line
from penstock_ledger.model import DeadLetter, ItemKey, Result
from penstock_producer.async_producer import AsyncProducer
from penstock_producer.producer import Producer
from penstock_producer.settings import ProducerSettings
from penstock_producer.tables import sheets

BODY = b'{"choices": [{"message": {"content": "=hi"}}]}'


class House:
    """A ledger with one open job, and the command line over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/ledger.db"
        self.producer = Producer(ProducerSettings(database_url=self.url))
        self.job = self.producer.open_job({"model": "m"}, job_key="night").job

    def settle(self, *docs: str, dead: str | None = None) -> None:
        key = ItemKey(self.job.job_id, 1, dead or "")
        letters = [DeadLetter(key, "bad_request", 1, 1, "no", 400, b"{}", None)] if dead else []
        keys = [ItemKey(self.job.job_id, 1, doc) for doc in docs]
        results = [Result(key, 200, BODY, None, "m", "stop", 1, 1, 0, 1, 1, 1) for key in keys]
        self.producer._outcomes.settle(results, letters)

    def results(self, *flags: str, status: int = 0) -> Answer:
        answer = CliRunner(env={"PENSTOCK_DATABASE_URL": self.url}).invoke(
            command_line(), ["results", "night", *flags]
        )
        assert answer.exit_code == status or (status and answer.exception), answer.output
        return answer


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.chdir(tmp_path)
    made = House(tmp_path)
    yield made
    made.producer.close()


def test_a_report_has_four_forms(house: House) -> None:
    """By its flag or as the file ends; all say the same, and the exit status stays that of a job
    that is not completed."""
    house.settle("a", "b", dead="x")
    run = CliRunner(env={"PENSTOCK_DATABASE_URL": house.url}).invoke
    said = run(command_line(), ["report", "night", "--json"])
    assert (json.loads(said.stdout)["cost_by_lane"][0]["succeeded"], said.exit_code) == (2, 1)
    for name, part in (
        ("r.html", "<svg"),
        ("r.md", "| failed | 1 |"),
        ("r.json", '"dead":1'),
        ("r.txt", "list them:"),
    ):
        assert (
            f"the report is in {name}"
            in run(command_line(), ["report", "night", "-o", name]).output
        )
        assert part in (house.folder / name).read_text()
    assert (
        "bad\\_request" in run(command_line(), ["report", "night", "--format", "markdown"]).stdout
    )
    assert "several forms" in str(
        run(command_line(), ["report", "night", "--json", "--format", "html"]).exception
    )


def ids(path: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in path.read_bytes().splitlines()]


def test_a_file_grows_with_the_job(house: House) -> None:
    """Each `--partial` appends what has come since, results only and in the order of commits, and
    never twice."""
    out = house.folder / "so-far.jsonl"
    house.settle("m", "n")
    assert "2 new results" in house.results("-o", "so-far.jsonl", "--partial").output
    house.settle("a", dead="x")
    assert "1 new results" in house.results("-o", "so-far.jsonl", "--partial").output
    assert "0 new results" in house.results("-o", "so-far.jsonl", "--partial").output
    assert ids(out) == ["m", "n", "a"]


def test_a_crash_while_a_file_grows_leaves_no_trace(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines beyond the last noted place are cut off and written again: none is missing, doubled or
    torn."""
    out = house.folder / "so-far.jsonl"
    house.settle("m")
    house.results("-o", "so-far.jsonl", "--partial")
    house.settle("a", "b", "c")
    keep: Callable[..., None] = sheets._keep
    monkeypatch.setattr(sheets, "PORTION_BYTES", 1)
    calls: list[int] = []

    def dies(*given: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        keep(*given)

    monkeypatch.setattr(sheets, "_keep", dies)
    house.results("-o", "so-far.jsonl", "--partial", status=1)
    with out.open("ab") as file:
        file.write(b'{"custom_id": "torn')
    monkeypatch.setattr(sheets, "_keep", keep)
    house.results("-o", "so-far.jsonl", "--partial")
    assert ids(out) == ["m", "a", "b", "c"]


def test_a_table_of_csv_grows_as_well(house: House) -> None:
    """One header, and a row for each outcome that has come since; a file that was begun as lines
    stays one."""
    out = house.folder / "so-far.csv"
    house.settle("m", dead="x")
    assert "2 new documents" in house.results("-o", "so-far.csv", "--partial").output
    house.settle("a")
    assert (
        "1 new documents"
        in house.results("-o", "so-far.csv", "--partial", "--escape-formulas").output
    )
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [(row["id"], row["status"], row["text"]) for row in rows] == [
        ("m", "succeeded", "=hi"),
        ("x", "failed", ""),
        ("a", "succeeded", "'=hi"),
    ]
    more = ("-o", "so-far.csv", "--partial", "--output-format", "jsonl")
    assert "begun as csv" in str(house.results(*more, status=2).exception)


def test_files_that_are_something_else_are_left_alone(house: House) -> None:
    """A file that was not begun so, one of another job and one that was cut are refused with what
    to do, unchanged."""
    out, note = house.folder / "so-far.jsonl", house.folder / "so-far.jsonl.cursor"
    house.settle("m")
    out.write_text("mine\n")
    assert "not begun with partial" in str(
        house.results("-o", "so-far.jsonl", "--partial", status=2).exception
    )
    assert out.read_text() == "mine\n"
    out.unlink()
    house.results("-o", "so-far.jsonl", "--partial")
    kept = note.read_bytes()
    note.write_bytes(kept.replace(house.job.job_id.encode(), b"job_other"))
    assert "job_other" in str(house.results("-o", "so-far.jsonl", "--partial", status=2).exception)
    note.write_bytes(kept)
    out.write_bytes(b"")
    assert "begin again" in str(
        house.results("-o", "so-far.jsonl", "--partial", status=2).exception
    )
    note.write_bytes(b"[]")
    assert "does not say" in str(
        house.results("-o", "so-far.jsonl", "--partial", status=2).exception
    )


def test_a_cursor_goes_on_in_a_new_file(house: House) -> None:
    """`--after start` writes what there is and prints the cursor of its end; with that the next
    file has only what is new."""
    house.settle("m", dead="x")
    said = house.results("-o", "1.csv", "--after", "start").output
    house.settle("a")
    cursor = said.split()[-1]
    house.results("-o", "2.csv", "--after", cursor)
    files = [
        list(csv.DictReader(io.StringIO((house.folder / name).read_text())))
        for name in ("1.csv", "2.csv")
    ]
    assert [sorted(row["id"] for row in rows) for rows in files] == [["m", "x"], ["a"]]
    assert json.loads(house.results("-o", "-", "--after", cursor).stdout)["custom_id"] == "a"


def test_the_name_of_a_file_decides_its_form(house: House) -> None:
    """`.parquet` and `.csv` are tables of results and dead letters, and a flag overrides the
    name."""
    parquet = pytest.importorskip("pyarrow.parquet")
    house.settle("m", dead="x")
    house.results("-o", "out.parquet")
    assert sorted(parquet.read_table(house.folder / "out.parquet")["id"].to_pylist()) == ["m", "x"]
    house.results("-o", "named.txt", "--output-format", "csv", "--escape-formulas")
    assert ",'=hi," in (house.folder / "named.txt").read_text()
    assert house.results("-o", "-", "--output-format", "csv").stdout.startswith("id,status,")
    assert sorted(path.name for path in house.folder.glob("*.part")) == []


def test_results_go_into_a_table(house: House) -> None:
    """`--into` fills a table that was not there, and the next call adds what is new."""
    house.settle("m", dead="x")
    flags = ("--into", f"sqlite:///{house.folder}/mine.db", "--table", "labels")
    assert "2 new rows in table labels" in house.results(*flags).output
    house.settle("a")
    assert "1 new rows" in house.results(*flags).output
    with sqlite3.connect(house.folder / "mine.db") as mine:
        assert mine.execute("SELECT id, status FROM labels ORDER BY id").fetchall() == [
            ("a", "succeeded"),
            ("m", "succeeded"),
            ("x", "failed"),
        ]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "-o FILE"),
        (("--into", "sqlite:///x.db"), "--table"),
        (("--into", "sqlite:///x.db", "--table", "t", "--partial"), "keeps its own place"),
        (("-o", "x.parquet", "--partial"), "--after start"),
        (("-o", "-", "--partial"), "--after start"),
        (("-o", "x.xls"), ".jsonl, .csv, .parquet, .xlsx"),
        (("-o", "x", "--output-format", "xml"), "jsonl, csv, parquet"),
        (("-o", "x.parquet", "--escape-formulas"), "is for CSV"),
        (("-o", "-", "--output-format", "parquet"), "name a file"),
        (("-o", "x.csv", "--after", "nonsense"), "not a cursor"),
    ],
)
def test_flags_that_contradict_are_refused(house: House, flags: tuple[str, ...], says: str) -> None:
    """Each with the flags that would do; nothing is written."""
    house.settle("m")
    assert says in str(house.results(*flags, status=2).exception)
    assert [
        path.name for path in house.folder.iterdir() if not path.name.startswith("ledger.db")
    ] == []


def test_arrow_tables_in_python(house: House) -> None:
    """The same rows as batches for pyarrow, pandas, polars and DuckDB, also while the job runs."""
    pytest.importorskip("pyarrow")
    polars = pytest.importorskip("polars")
    house.settle("m", dead="x")
    assert sorted(house.producer.record_batches("night").read_all()["id"].to_pylist()) == ["m", "x"]
    frame = polars.from_arrow(house.producer.record_batches("night"))
    duckdb = pytest.importorskip("duckdb")
    reader = house.producer.record_batches("night")
    assert duckdb.from_arrow(reader).aggregate("count(*), count(error_code)").fetchall() == [(2, 1)]
    assert frame.filter(polars.col("status") == "succeeded")["text"].to_list() == ["=hi"]
    pytest.importorskip("pandas")
    rows = house.producer.record_batches("night").read_pandas()
    assert rows[rows["status"] == "succeeded"][["id", "text"]].to_numpy().tolist() == [["m", "=hi"]]
    assert rows.set_index("id").loc["x", "status"] == "failed"


def test_outcomes_as_a_stream_in_python(house: House) -> None:
    """A reader keeps the cursor of what it has made use of, and goes on there in the next
    process."""
    house.settle("m")
    (first,) = house.producer.outcomes("night")
    house.settle("a", dead="x")
    rest = list(house.producer.outcomes("night", after=first.cursor))
    assert sorted(one.outcome.key.doc_id for one in rest) == ["a", "x"]
    assert [
        one.outcome.key.doc_id for one in house.producer.outcomes("night", dead_letters=False)
    ] == ["m", "a"]


async def test_outcomes_as_a_stream_in_an_event_loop(house: House) -> None:
    """The same from the producer that blocks no loop."""
    house.settle("m")
    house.settle("a", dead="x")
    async with AsyncProducer(database_url=house.url) as producer:
        everything = [one async for one in producer.outcomes("night")]
        rest = [
            one.outcome.key.doc_id
            async for one in producer.outcomes("night", after=everything[0].cursor)
        ]
    assert rest == [one.outcome.key.doc_id for one in everything[1:]]
    assert sorted(rest) == ["a", "x"]
