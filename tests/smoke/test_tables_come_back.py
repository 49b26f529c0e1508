"""Tables that go in by `penstock run` and come back with an answer, joined to their source again by
the tools that people have: a subprocess, a simulated provider, real files and a real database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pytest
from machine import Machine, Simulator, simulator


@pytest.fixture(scope="module")
def provider() -> Iterator[Simulator]:
    with simulator() as found:
        yield found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def frame(rows: int = 40) -> pd.DataFrame:
    """Return tickets as an analyst has them: ids in no order, a number, a day, an empty cell."""
    numbers = [(number * 7) % 41 + 100 for number in range(rows)]
    return pd.DataFrame(
        {
            "ticket": numbers,
            "text": [f"ticket {number}, =SUM(A1)" for number in numbers],
            "status": ["open", "closed"] * (rows // 2),
            "amount": [number / 4 for number in numbers],
            "note": [None, 'ünï, "code"\n'] * (rows // 2),
        }
    )


def run(machine: Machine, provider: Simulator, source: str, *more: str) -> tuple[int, str]:
    job = ("--base-url", provider.url, "--model", "sim", "--prompt", "Summarise: {text}")
    return machine.penstock("run", source, "--out", "out", *job, "--no-progress", *more)


def test_pandas_gets_its_frame_back_with_answers(machine: Machine, provider: Simulator) -> None:
    """CSV in and out: the same columns, types and order, one merge by the id, and the answer's
    status beside the frame's own. One bad row of forty is a dead letter and stops nothing."""
    before = frame()
    before.loc[5, "text"] = None
    before.to_csv(machine.folder / "tickets.csv", index=False)
    status, told = run(
        machine, provider, "tickets.csv", "--id-field", "ticket", "--output-format", "csv"
    )
    assert status == 3, told + machine.logs()
    assert "1 of them unusable and dead letters already (missing_field 1)" in told
    before = pd.read_csv(machine.folder / "tickets.csv")
    after: Any = pd.read_csv(machine.folder / "out" / "output.csv")
    pd.testing.assert_frame_equal(after[list(before.columns)], before)
    merged: Any = before.merge(after[["ticket", "answer", "answer_status"]], on="ticket")
    assert merged["answer"].notna().sum() == 39
    assert after["answer_status"][5] == "failed"
    status, told = machine.penstock(
        "results",
        "tickets",
        "--state",
        "out/.penstock",
        "-o",
        "some.csv",
        "--keep-columns",
        "amount",
    )
    assert status == 0, told
    some = pd.read_csv(machine.folder / "some.csv")
    assert list(some.columns[:4]) == ["ticket", "amount", "status", "finish_reason"]


def test_polars_and_duckdb_join_parquet(machine: Machine, provider: Simulator) -> None:
    """Parquet in and out: the schema of the source is the beginning of the answer's."""
    source, out = machine.folder / "tickets.parquet", machine.folder / "out" / "output.parquet"
    before = pl.from_pandas(frame()).with_columns(
        pl.date(2026, 1, 2).alias("day"), pl.lit([1, 2]).alias("tags")
    )
    before.write_parquet(source)
    status, told = run(
        machine, provider, "tickets.parquet", "--id-field", "ticket", "--output-format", "parquet"
    )
    assert status == 0, told + machine.logs()
    after = pl.read_parquet(out)
    assert after.select(before.columns).equals(before)
    assert list(after.schema.items())[: len(before.columns)] == list(before.schema.items())
    assert before.join(after.select("ticket", "answer"), on="ticket")["answer"].null_count() == 0
    joined = duckdb.sql(
        f"SELECT count(*), count(b.answer) FROM '{source}' a JOIN '{out}' b USING (ticket, day)"
    )
    assert joined is not None
    assert joined.fetchall() == [(40, 40)]


def test_excel_and_a_database_come_back(machine: Machine, provider: Simulator) -> None:
    """A workbook becomes one with answers; a table of SQLite becomes another table, by its key."""
    before = frame()
    before.to_excel(machine.folder / "tickets.xlsx", index=False)
    more = ("--id-field", "ticket", "--output-format", "xlsx")
    into = ("--into", f"sqlite:///{machine.folder}/mine.db", "--into-table", "answers")
    status, told = run(machine, provider, "tickets.xlsx", *more, *into)
    assert status == 0, told + machine.logs()
    after: Any = pd.read_excel(machine.folder / "out" / "output.xlsx")
    pd.testing.assert_frame_equal(after[list(before.columns)], before, check_dtype=False)
    with sqlite3.connect(machine.folder / "mine.db") as mine:
        table = pd.read_sql("SELECT * FROM answers", mine)
    assert len(before.merge(table[["ticket", "answer"]], on="ticket")) == 40
    assert table["ticket"].dtype == "int64"


def test_rows_without_ids_need_one_word(machine: Machine, provider: Simulator) -> None:
    """The refusal says `--id-field @row`, which runs, and the same command again pays nothing."""
    frame().drop(columns="ticket").to_csv(machine.folder / "tickets.csv", index=False)
    status, told = run(machine, provider, "tickets.csv")
    assert status == 2
    assert "--id-field @row" in " ".join(told.split())
    assert not (machine.folder / "out").exists()
    more = ("--id-field", "@row", "--output-format", "csv")
    assert run(machine, provider, "tickets.csv", *more)[0] == 0
    paid = provider.stats()["requests"]
    assert run(machine, provider, "tickets.csv", *more)[0] == 0
    assert provider.stats()["requests"] == paid
    after: Any = pd.read_csv(machine.folder / "out" / "output.csv")
    assert list(after["row"]) == list(range(1, 41))


def test_a_refused_run_leaves_nothing_behind(machine: Machine, provider: Simulator) -> None:
    """No folder, no file and no table, whatever it was refused for; what was there before stays."""
    (machine.folder / "bad.csv").write_text("id,text\n,a\n,b\n,c\n")
    (machine.folder / "good.csv").write_text("id,text\n1,a\n")
    into = ("--into", f"sqlite:///{machine.folder}/mine.db", "--into-table", "answers")
    there = set(machine.folder.iterdir())
    for source, more, says in (
        ("bad.csv", (), "unusable"),
        ("none.csv", (), "no such file"),
        ("good.csv", ("--keep-columns", "prise", "--output-format", "csv"), "'prise'"),
    ):
        status, told = run(machine, provider, source, *into, *more)
        assert (status, says in told) == (2, True), told
        assert set(machine.folder.iterdir()) == there
    (machine.folder / "out").mkdir()
    assert run(machine, provider, "bad.csv", *into)[0] == 2
    assert list((machine.folder / "out").iterdir()) == []


def test_a_folder_of_texts_may_have_a_picture_in_it(machine: Machine, provider: Simulator) -> None:
    """It is not read, and the command says so by its name; the table has the names of the texts."""
    folder = machine.folder / "letters"
    folder.mkdir()
    for name in ("a.txt", "b.txt", "c.txt"):
        (folder / name).write_text(f"letter {name}")
    (folder / "logo.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (folder / "LICENCE").write_text("all rights")
    status, told = run(machine, provider, "letters/", "--output-format", "csv")
    assert status == 0, told
    assert "2 files are not read" in told
    assert "LICENCE, logo.png" in told
    after: Any = pd.read_csv(machine.folder / "out" / "output.csv")
    assert list(after["id"]) == ["a.txt", "b.txt", "c.txt"]
