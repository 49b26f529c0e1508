"""Tables that are the source's own rows plus an answer: columns, types, ids and order, over a real
ledger and files that pandas, polars, DuckDB and pyarrow read."""

from __future__ import annotations

import csv
import json
import sqlite3
import zipfile
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

from penstock_ledger.model import ItemKey, Job, Result
from penstock_producer.errors import SinkError, SourceError
from penstock_producer.job.spec import JobSpec
from penstock_producer.producer import Producer
from penstock_producer.rows import Document
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources import open_source
from penstock_producer.tables.columns import Table
from penstock_producer.tables.database import Filled, TableSink
from penstock_producer.tables.reading import Reading, end_of
from penstock_producer.tables.with_source import reading_of, source_beside, write_table

PROMPT = "Say: {text}"


class House:
    """A ledger, and jobs whose documents are answered in an order of the test's choice."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = ProducerSettings(database_url=f"sqlite:///{folder}/ledger.db")
        self.producer = Producer(self.settings)
        self._numbers = count()

    def done(self, source: Path | str, **options: Any) -> Job:
        """Submit a source and answer its documents, the last one first."""
        fields = {"model": "m", "prompt": PROMPT, "max_bad_rows": "100%"} | options
        job = self.producer.submit(str(source), fields, job_key=f"job-{next(self._numbers)}")
        opened = open_source(job.source, JobSpec.accepted(job.spec), self.settings)
        refused = self.producer._outcomes.refused_lines(job.job_id)
        documents = [one for one in opened.documents({}) if isinstance(one, Document)]
        for one in reversed(documents):
            if one.line not in refused:
                again = opened.fetch(one.position)
                assert (again.doc_id, again.body) == (one.doc_id, one.body)
                self.settle(job, one.doc_id)
        return job

    def settle(self, job: Job, doc_id: str) -> None:
        body = {"choices": [{"message": {"content": f"about {doc_id}"}}]}
        result = Result(
            ItemKey(job.job_id, 1, doc_id),
            200,
            json.dumps(body).encode(),
            None,
            "m",
            "stop",
            1,
            1,
            0,
            1,
            1,
            1,
        )
        self.producer._outcomes.settle([result], [])

    def fill(self, job: Job, *, ended: bool) -> Filled:
        """Write a job's rows into the table `answers` of `mine.db`, as a job that has ended or not."""
        database = self.producer._database
        source = source_beside(database, job, self.settings, keep="all", order="source")
        sink = TableSink(
            f"sqlite:///{self.folder}/mine.db", "answers", Table(job.spec), source=source
        )
        try:
            sink.prepare()
            reading = Reading(database, job, sink.place(job.job_id))
            return sink.fill(job.job_id, reading, end_of(database, job) if ended else None)
        finally:
            sink.close()

    def table(self, job: Job, form: str, **how: Any) -> Path:
        found = reading_of(self.producer._database, job, self.settings, form=form, **how)
        return Path(write_table(found, self.folder, f"out.{form}", form).place)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.producer.close()


CSV = '''ticket,text,zip,price,paid,note
7,late,01234,12.50,true,
3,broken,00017,3,false,"a, ""b"""
9,,99999,0.1,true,x
4,lost,10115,-2e3,TRUE,ü
'''


@pytest.fixture
def tickets(tmp_path: Path) -> Path:
    path = tmp_path / "tickets.csv"
    path.write_text(CSV)
    return path


def test_a_csv_comes_back_as_it_was_written_with_answers_behind_it(
    house: House, tickets: Path
) -> None:
    """Columns, order and texts are the source's; a refused row is there with its reason."""
    path = house.table(house.done(tickets, id_field="ticket"), "csv")
    with tickets.open(newline="") as before, path.open(newline="") as after:
        old, new = list(csv.DictReader(before)), list(csv.DictReader(after))
    names = list(old[0])
    assert list(new[0])[: len(names) + 3] == [*names, "status", "finish_reason", "answer"]
    assert [{name: row[name] for name in names} for row in new] == old
    assert [row["status"] for row in new] == ["succeeded", "succeeded", "failed", "succeeded"]
    assert [row["answer"] for row in new] == ["about 7", "about 3", "", "about 4"]
    assert [row["error_code"] for row in new] == ["", "", "missing_field", ""]


def test_readers_of_csv_find_the_types_that_they_find_in_the_source(
    house: House, tickets: Path
) -> None:
    """pandas, polars and DuckDB read the same frame, and join it to their own by the id."""
    out = house.table(house.done(tickets, id_field="ticket"), "csv")
    pandas: Any = pd.read_csv(tickets)
    got: Any = pd.read_csv(out)
    pd.testing.assert_frame_equal(got[list(pandas.columns)], pandas)
    assert len(pandas.merge(got[["ticket", "answer"]], on="ticket")) == 4
    polars, table = pl.read_csv(tickets), pl.read_csv(out)
    assert table.select(polars.columns).equals(polars)
    joined = duckdb.sql(
        f"SELECT a.* FROM '{tickets}' a JOIN '{out}' b USING (ticket) WHERE b.status = 'succeeded'"
    )
    assert joined is not None
    assert len(joined.fetchall()) == 3


def test_a_csv_becomes_parquet_with_the_types_that_its_texts_say(
    house: House, tickets: Path
) -> None:
    """Whole numbers, numbers and truth values have their types; a postal code with a zero stays
    text, and an empty cell is null."""
    table = parquet.read_table(house.table(house.done(tickets, id_field="ticket"), "parquet"))
    assert table.schema.types[:6] == [
        pa.int64(),
        pa.string(),
        pa.string(),
        pa.float64(),
        pa.bool_(),
        pa.string(),
    ]
    assert table.column("ticket").to_pylist() == [7, 3, 9, 4]
    assert table.column("zip").to_pylist() == ["01234", "00017", "99999", "10115"]
    assert table.column("price").to_pylist() == [12.5, 3.0, 0.1, -2000.0]
    assert table.column("note").to_pylist() == [None, 'a, "b"', "x", "ü"]
    frame = pd.read_csv(tickets, dtype={"zip": str})
    assert len(frame.merge(table.to_pandas(), on="ticket")) == 4


def arrow_table() -> pa.Table:
    """Return a table of types that only Arrow has."""
    day, moment = date(2026, 1, 2), datetime.fromisoformat("2026-01-02T03:04:05.678901")
    return pa.table(
        {
            "id": pa.array([3, 1, 2], pa.int32()),
            "text": pa.array(["a", None, "c"], pa.large_string()),
            "big": pa.array([2**64 - 1, 0, None], pa.uint64()),
            "half": pa.array([0.5, 0.25, None], pa.float32()),
            "price": pa.array([Decimal("1.50"), None, Decimal("-3.25")], pa.decimal128(9, 2)),
            "day": pa.array([day, None, day], pa.date32()),
            "moment": pa.array([moment, moment, None], pa.timestamp("us")),
            "nano": pa.array(
                [1_700_000_000_123_456_789, None, 1], pa.timestamp("ns", "Europe/Berlin")
            ),
            "shop": pa.array(["x", "y", "x"]).dictionary_encode(),
            "tags": pa.array([["a", "b"], [], None], pa.list_(pa.string())),
            "user": pa.array([{"n": 1}, None, {"n": 2}], pa.struct([("n", pa.int8())])),
            "raw": pa.array([b"\xff\x00", None, b""], pa.binary()),
        }
    )


def test_parquet_comes_back_with_the_types_of_arrow(house: House, tmp_path: Path) -> None:
    """Each column has its type and its values to the last nanosecond; DuckDB and polars join it."""
    source = tmp_path / "rows.parquet"
    parquet.write_table(arrow_table(), source, row_group_size=2)
    out = house.table(house.done(source), "parquet")
    table = parquet.read_table(out)
    before = parquet.read_table(source)
    assert table.select(before.column_names).cast(before.schema).equals(before)
    assert table.schema.types[: len(before.schema)] == before.schema.types
    assert table.column("status").to_pylist() == ["succeeded", "failed", "succeeded"]
    joined = pl.read_parquet(source).join(pl.read_parquet(out), on="id")
    assert joined.height == 3
    found = duckdb.sql(f"SELECT a.id, b.answer FROM '{source}' a JOIN '{out}' b USING (id)")
    assert found is not None
    assert sorted(found.fetchall()) == [(1, None), (2, "about 2"), (3, "about 3")]


def test_parquet_becomes_csv_with_every_value_in_words(house: House, tmp_path: Path) -> None:
    """What CSV has no type for is ISO 8601, JSON or base64."""
    source = tmp_path / "rows.parquet"
    parquet.write_table(arrow_table(), source)
    with house.table(house.done(source), "csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    assert (first["big"], first["price"], first["day"]) == (str(2**64 - 1), "1.50", "2026-01-02")
    assert first["moment"] == "2026-01-02T03:04:05.678901"
    assert first["nano"] == "2023-11-14T22:13:20.123456789+00:00"
    assert (first["tags"], first["user"], first["raw"]) == ('["a","b"]', '{"n":1}', "/wA=")


def test_json_lines_have_the_columns_of_all_lines(house: House, tmp_path: Path) -> None:
    """In the order in which they first come, each of one type, or text where values differ."""
    source = tmp_path / "rows.jsonl"
    lines = [
        {"id": "a", "text": "x", "n": 1, "mixed": 1},
        {"id": "b", "text": "y", "n": 2.5, "more": {"deep": [1]}, "mixed": "one"},
        {"id": "c", "text": "z", "ok": True},
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = parquet.read_table(house.table(house.done(source), "parquet"))
    assert table.column_names[:6] == ["id", "text", "n", "mixed", "more", "ok"]
    assert table.column("n").to_pylist() == [1.0, 2.5, None]
    assert table.column("mixed").to_pylist() == ["1", "one", None]
    assert table.column("more").to_pylist() == [None, '{"deep":[1]}', None]
    assert table.column("ok").to_pylist() == [None, None, True]


def test_columns_with_the_names_of_the_answers_keep_them(house: House, tmp_path: Path) -> None:
    """The source's columns keep their names, in any case; those of the answer step aside."""
    source = tmp_path / "odd.csv"
    source.write_text("id,text,Status,answer,answer_answer,ünï,,model\n1,a,s,w,v,u,e,m\n")
    schema = {"type": "object", "properties": {"ünï": {"type": "string"}}}
    job = house.done(source, response_schema=schema)
    names = parquet.read_table(house.table(job, "parquet")).column_names
    assert names[:8] == ["id", "text", "Status", "answer", "answer_answer", "ünï", "", "model"]
    assert {"answer_status", "answer_answer_answer", "answer_ünï", "answer_model"} < set(names)
    assert len({name.casefold() for name in names}) == len(names)


def test_some_columns_or_none_are_kept(house: House, tickets: Path) -> None:
    """The id's column is always among those that are named; `none` is the table of outcomes alone,
    in the source's order; one that is not there is refused by name."""
    job = house.done(tickets, id_field="ticket")
    some = parquet.read_table(house.table(job, "parquet", keep="price, note"))
    assert some.column_names[:5] == ["ticket", "price", "note", "status", "finish_reason"]
    none = parquet.read_table(house.table(job, "parquet", keep="none"))
    assert none.column_names[:4] == ["id", "status", "finish_reason", "text"]
    assert none.column("id").to_pylist() == ["7", "3", "9", "4"]
    done = parquet.read_table(house.table(job, "parquet", order="done"))
    assert done.column("id").to_pylist() == ["9", "4", "3", "7"]
    assert done.column_names == none.column_names
    with pytest.raises(SinkError, match=r"no column 'prise' to keep.*'price'"):
        house.table(job, "parquet", keep="prise")


def test_rows_without_ids_are_named_by_their_numbers(house: House, tmp_path: Path) -> None:
    """`@row` counts rows, not lines, through all files and from any place of the source on; the
    table has the number as `row`."""
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "a.csv").write_text('text\n"two\nlines"\nb\n')
    (folder / "b.csv").write_text("text,more\nc,1\n,2\ne,3\n")
    (folder / "c.jsonl").write_text('{"text": "f"}\n\n{"text": "g"}\n')
    parquet.write_table(pa.table({"text": ["h", "i"]}), folder / "d.parquet")
    job = house.done(f"{folder}/", id_field="@row")
    table = parquet.read_table(house.table(job, "parquet"))
    assert table.column_names[:4] == ["text", "more", "row", "status"]
    assert table.column("row").to_pylist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    answers = [f"about {row}" if row != 4 else None for row in range(1, 10)]
    assert table.column("answer").to_pylist() == answers
    opened = open_source(job.source, JobSpec.accepted(job.spec), house.settings)
    rows = list(opened.documents({}))
    for at, row in enumerate(rows):
        assert [one.doc_id for one in opened.documents(row.cursor)] == [
            one.doc_id for one in rows[at + 1 :]
        ]


def test_a_row_that_is_there_twice_has_two_rows(house: House, tmp_path: Path) -> None:
    """Each row of the source has its own outcome: a second one with the same id is refused."""
    source = tmp_path / "twice.csv"
    source.write_text("id,text,n\n1,a,1\n1,b,2\n,c,3\n2,d,4\n")
    table = parquet.read_table(house.table(house.done(source), "parquet")).to_pylist()
    assert [(row["id"], row["n"], row["status"], row["error_code"]) for row in table] == [
        (1, 1, "succeeded", None),
        (1, 2, "failed", "duplicate_custom_id"),
        (None, 3, "failed", "invalid_id"),
        (2, 4, "succeeded", None),
    ]


def test_a_source_that_has_changed_is_named_with_what_can_be_done(
    house: House, tickets: Path
) -> None:
    """The table is not made of other rows; the answers alone can be taken."""
    job = house.done(tickets, id_field="ticket")
    tickets.write_text(CSV.replace("late", "gone"))
    with pytest.raises(SinkError, match=r"cannot be read.*order=done"):
        house.table(job, "csv")
    assert parquet.read_table(house.table(job, "parquet", order="done")).num_rows == 4


def test_an_answered_table_of_a_database_has_the_columns_of_the_source(
    house: House, tickets: Path
) -> None:
    """Each has its type, the id its name and its index; a row that was refused is there with its
    reason, and the same call again writes nothing."""
    job = house.done(tickets, id_field="ticket")
    assert house.fill(job, ended=True) == Filled(4, 0)
    with sqlite3.connect(house.folder / "mine.db") as mine:
        mine.row_factory = sqlite3.Row
        rows = [dict(row) for row in mine.execute("SELECT * FROM answers")]
        key = mine.execute(
            "SELECT name, type FROM pragma_table_info('answers') WHERE pk"
        ).fetchone()
    assert tuple(key) == ("ticket", "INTEGER")
    assert [row["ticket"] for row in rows] == [3, 4, 7, 9]  # as SQLite orders integer keys
    by_id = {row["ticket"]: row for row in rows}
    assert (by_id[3]["zip"], by_id[3]["price"], by_id[3]["paid"]) == ("00017", 3.0, 0)
    assert (by_id[7]["note"], by_id[7]["answer"]) == (None, "about 7")
    assert (by_id[9]["status"], by_id[9]["error_code"]) == ("failed", "missing_field")
    assert house.fill(job, ended=True) == Filled(0, 0)


def test_a_table_that_grows_has_the_answers_first(house: House, tickets: Path) -> None:
    """While the job runs, rows have ids and answers; at its end one pass adds the source's columns,
    and what was written before stays."""
    job = house.done(tickets, id_field="ticket")
    house.fill(job, ended=False)
    select = "SELECT ticket, zip, answer FROM answers ORDER BY ticket"
    with sqlite3.connect(house.folder / "mine.db") as mine:
        assert mine.execute(select).fetchall()[0] == (3, None, "about 3")
    house.fill(job, ended=True)
    house.fill(job, ended=False)
    with sqlite3.connect(house.folder / "mine.db") as mine:
        assert mine.execute(select).fetchall()[0] == (3, "00017", "about 3")


def test_rows_without_an_id_of_their_own_are_not_in_a_table_whose_ids_are_numbers(
    house: House, tmp_path: Path
) -> None:
    """They are counted. Where ids are texts, they go by the number of their line."""
    numbers, texts = tmp_path / "numbers.csv", tmp_path / "texts.csv"
    numbers.write_text("id,text,n\n1,a,1\n1,b,2\n,c,3\n2,d,4\n")
    texts.write_text("id,text,n\na1,a,1\na1,b,2\n,c,3\na2,d,4\n")
    assert house.fill(house.done(numbers), ended=True) == Filled(2, 2)
    (house.folder / "mine.db").unlink()
    assert house.fill(house.done(texts), ended=True) == Filled(4, 0)
    with sqlite3.connect(house.folder / "mine.db") as mine:
        found = mine.execute("SELECT id, n, error_code FROM answers").fetchall()
    assert found == [
        ("a1", 1, None),
        ("line-3", 2, "duplicate_custom_id"),
        ("line-4", 3, "invalid_id"),
        ("a2", 4, None),
    ]


def test_a_table_of_ones_own_gets_the_answers_alone(house: House, tickets: Path) -> None:
    """Its columns are not the source's to change, whatever they are called."""
    with sqlite3.connect(house.folder / "mine.db") as mine:
        mine.execute("CREATE TABLE answers (id INTEGER PRIMARY KEY, text TEXT, zip TEXT)")
        mine.execute("INSERT INTO answers VALUES (7, 'old', 'mine')")
    house.fill(house.done(tickets, id_field="ticket"), ended=True)
    with sqlite3.connect(house.folder / "mine.db") as mine:
        rows = mine.execute("SELECT id, text, zip FROM answers WHERE id = 7").fetchall()
    assert rows == [(7, "about 7", "mine")]


def test_a_sheet_of_excel_comes_back_as_a_sheet(house: House, tmp_path: Path) -> None:
    """Numbers, days, times and texts are what they were, also those that begin as formulas do; a
    formula has its value; pandas joins both by the id."""
    source = tmp_path / "shop.xlsx"
    frame = pd.DataFrame(
        {
            "order": [11, 5, 8],
            "text": ["=1+1", "plain", "@x"],
            "price": [1.5, 2.25, None],
            "day": pd.to_datetime(["2026-01-02", "2026-03-04", None]),
            "at": pd.to_datetime(["2026-01-02 03:04:05", None, "2026-03-04 05:06:07"]),
            "paid": [True, False, True],
        }
    )
    with pd.ExcelWriter(source) as book:
        pd.DataFrame({"a": [1]}).to_excel(book, sheet_name="other", index=False)
        frame.to_excel(book, sheet_name="orders", index=False)
        for cell in book.sheets["orders"]["B"]:
            cell.data_type = "s"
    job = house.done(source, id_field="order", sheet="orders")
    out = house.table(job, "xlsx")
    got: Any = pd.read_excel(out)
    pd.testing.assert_frame_equal(got[list(frame.columns)], pd.read_excel(source, "orders"))
    assert list(got["answer"]) == ["about 11", "about 5", "about 8"]
    assert len(frame.merge(got[["order", "answer"]], on="order")) == 3
    table = parquet.read_table(house.table(job, "parquet"))
    assert table.schema.types[:6] == [
        pa.int64(),
        pa.string(),
        pa.float64(),
        pa.timestamp("us"),
        pa.timestamp("us"),
        pa.bool_(),
    ]


def test_workbooks_that_unpack_to_too_much_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the zip says, before anything is unpacked; damaged ones and missing sheets are
    named."""
    spec = JobSpec(model="m", prompt=PROMPT)
    bomb = tmp_path / "bomb.xlsx"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("xl/sharedStrings.xml", b"\0" * 300_000_000)
    assert bomb.stat().st_size < 1_000_000
    with pytest.raises(SourceError, match="unpacks to 300,000,000 bytes"):
        list(open_source(bomb, spec).documents({}))
    broken = tmp_path / "broken.xlsx"
    broken.write_bytes(b"PK\3\4 no zip")
    with pytest.raises(SourceError, match="cannot be read as a workbook"):
        list(open_source(broken, spec).documents({}))
    good = tmp_path / "good.xlsx"
    pd.DataFrame({"id": [1], "text": ["a"]}).to_excel(good, index=False)
    with pytest.raises(SourceError, match=r"no sheet 'x'.*'Sheet1'"):
        list(open_source(good, spec.model_copy(update={"sheet": "x"})).documents({}))
    old = tmp_path / "old.xls"
    old.write_bytes(b"\xd0\xcf\x11\xe0")
    with pytest.raises(SourceError, match="Excel of before 2007"):
        open_source(old, spec)


def test_what_a_sheet_cannot_hold_is_cut_or_refused(house: House, tmp_path: Path) -> None:
    """A long text ends in an ellipsis, a long number is text; too many columns are refused."""
    source = tmp_path / "long.jsonl"
    long = "x" * 40_000
    source.write_text(json.dumps({"id": "a", "text": long, "n": 2**60, "odd": "a\u0001b"}) + "\n")
    got: Any = pd.read_excel(house.table(house.done(source), "xlsx"))
    assert (len(got["text"][0]), got["text"][0][-1]) == (32_767, "…")
    assert got["n"][0] in (2**60, str(2**60))
    assert got["odd"][0] == "a\ufffdb"
    wide = tmp_path / "wide.csv"
    names = [f"c{at}" for at in range(16_400)]
    wide.write_text(",".join(["id", "text", *names]) + "\n" + ",".join(["1", "a", *names]) + "\n")
    job = house.done(wide)
    with pytest.raises(SinkError, match=r"16,384 columns.*keep_columns=a,b"):
        house.table(job, "xlsx")
    assert parquet.read_table(house.table(job, "parquet")).num_columns == 16_402 + 12
